"""Build backend of the package: hatchling, with a hook by which cargo builds the native module and the programs.

One run of cargo builds both, so they share dependencies; maturin builds one crate per wheel. zig links against glibc
2.28 and cross-compiles.

An editable installation gets only the native module, as a link to cargo's debug build.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any, NoReturn

# If hatchling recognises pip by this variable, it builds the wheel to give pip the metadata, which takes minutes here.
# Nothing else in this process reads the variable.
os.environ.pop("PIP_BUILD_TRACKER", None)
from hatchling.build import *  # noqa: F403
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = Path(__file__).resolve().parent
WORKSPACE = PACKAGE.parent
PROGRAMS = ("evenstep-predictor", "evenstep-agent")
# Crate of the native module, what cargo calls its library, and what Python imports.
CRATE = "evenstep-python"
LIBRARY = "lib_native.so"
MODULE = "evenstep/_native.abi3.so"
# The package is built from these files, without cargo: names of a folder with them, and of the platform that they run
# on. An editable installation may come before the files.
BINARIES_VARIABLE = "EVENSTEP_WHEEL_BINARIES"
PLATFORM_VARIABLE = "EVENSTEP_WHEEL_PLATFORM"


class RustBuildHook(BuildHookInterface):  # type: ignore[type-arg]  # Its parameter is private to hatchling.
    """Adds the native module and the programs to the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Builds what `version` of the wheel needs: "standard" or "editable"."""
        if self.target_name != "wheel":
            fail("there is no source archive; build a wheel from a clone: pip wheel --no-deps ./python")
        folder = os.environ.get(BINARIES_VARIABLE)
        if version == "editable":
            link(Path(folder).resolve() / LIBRARY if folder else cargo_build("dev", CRATE)[LIBRARY])
            return
        built = given(Path(folder)) if folder else cargo_build("local", CRATE, *PROGRAMS)
        platform = os.environ.get(PLATFORM_VARIABLE) or re.sub(r"[-.]", "_", sysconfig.get_platform())
        build_data["pure_python"] = False
        build_data["tag"] = f"cp310-abi3-{platform}"
        build_data["force_include"][str(built[LIBRARY])] = MODULE
        build_data["shared_scripts"].update({str(built[name]): name for name in PROGRAMS})


def fail(message: str) -> NoReturn:
    """Ends the build with one line and without a traceback."""
    raise SystemExit(f"evenstep: {message}")


def given(folder: Path) -> dict[str, Path]:
    """Returns the binaries in `folder`, by name."""
    files = {name: folder.resolve() / name for name in (LIBRARY, *PROGRAMS)}
    missing = [name for name, file in files.items() if not file.is_file()]
    if missing:
        fail(f"{BINARIES_VARIABLE}={folder} has no {', '.join(missing)}")
    return files


def link(library: Path) -> None:
    """Makes the module in the sources a link to `library`, so that later builds by cargo take effect at once."""
    module = PACKAGE / "src" / MODULE
    new = module.with_suffix(".new")
    new.unlink(missing_ok=True)
    new.symlink_to(library)
    new.replace(module)


def cargo_build(profile: str, *crates: str) -> dict[str, Path]:
    """Builds `crates` in one call, so that they share dependencies; returns the binaries by name."""
    check_cargo()
    print(f"evenstep: cargo builds {', '.join(crates)} (profile {profile})", file=sys.stderr, flush=True)
    options = [f"--package={crate}" for crate in crates]
    if profile != "dev":
        print("evenstep: the first build takes several minutes", file=sys.stderr, flush=True)
        options.append("--locked")
    command = ["cargo", "build", f"--profile={profile}", "--message-format=json-render-diagnostics", *options]
    done = subprocess.run(command, cwd=WORKSPACE, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        fail(f"cargo failed with status {done.returncode}; its messages are above")
    artifacts = [message for message in map(json.loads, done.stdout.splitlines()) if "filenames" in message]
    return {Path(file).name: Path(file) for artifact in artifacts for file in artifact["filenames"]}


def check_cargo() -> None:
    """Fails if the workspace or cargo is missing, or if cargo is older than the workspace requires."""
    manifest = WORKSPACE / "Cargo.toml"
    if not manifest.is_file():
        fail(f"{manifest} does not exist; evenstep builds only inside a clone of its repository")
    required = re.search(r'^rust-version = "([\d.]+)"$', manifest.read_text(), re.MULTILINE)
    hint = "install Rust from https://rustup.rs, or install a wheel"
    try:
        asked = subprocess.run(["cargo", "--version"], cwd=WORKSPACE, capture_output=True, text=True, check=False)
    except OSError as error:
        fail(f"cannot run cargo ({error.strerror}), which builds the Rust parts; {hint}")
    found = re.match(r"cargo ([\d.]+)", asked.stdout)
    if asked.returncode or not found or not required:
        fail(f"cargo --version failed: {' '.join(asked.stderr.split())}; {hint}")
    if number(found[1]) < number(required[1]):
        fail(f"cargo {found[1]} is older than {required[1]}, which the Rust parts require; {hint}")


def number(version: str) -> tuple[int, ...]:
    """Returns a version as numbers, which compare."""
    return tuple(int(part) for part in version.split("."))
