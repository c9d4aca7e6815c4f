"""The installed wheel: its contents, programs, type hints and licence, and its few requirements."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from email import message_from_string
from email.message import Message
from pathlib import Path

import pytest

from evenstep import _native

PACKAGE = Path(__file__).parents[1]
REPOSITORY = PACKAGE.parent
SOURCES = PACKAGE / "src"
PROGRAMS = ("evenstep-predictor", "evenstep-agent")
MODULE = "evenstep/_native.abi3.so"
SOURCE_PATH = {"PYTHONPATH": str(SOURCES)}
# Time limit for an installation and an import of torch on a busy machine, in seconds.
COMMAND_S = 300
# Packages that users may have installed with torch, and that evenstep must not require.
OPTIONAL = ("accelerate", "httpx", "lightning", "pytorch_lightning", "requests", "transformers")


def run(*command: str | Path, **environment: str) -> str:
    """Runs a command without this process's own Python paths; returns what it prints."""
    own = ("PYTHON", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    done = subprocess.run(
        command,
        check=False,
        text=True,
        cwd=PACKAGE,
        env=kept | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=COMMAND_S,
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout}"
    return done.stdout


def workspace_version() -> str:
    """Returns the version of the Rust workspace; Python 3.10 has no TOML parser."""
    body = (REPOSITORY / "Cargo.toml").read_text().split("[workspace.package]\n", 1)[1]
    found = re.search(r'^version = "(.+)"$', body, re.MULTILINE)
    assert found, "no version in [workspace.package]"
    return found[1]


@pytest.fixture(scope="module")
def backend() -> str:
    """Returns the name of the build backend, if it is installed."""
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("hatchling is not installed here: scripts/python installs it")
    return "hatchling"


@pytest.fixture(scope="module")
def binaries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Returns variables for a build without cargo: the native module, and programs that print their names.

    Building the real programs takes minutes; test_wheel.py tests the wheel with them.
    """
    folder = tmp_path_factory.mktemp("binaries")
    for name in PROGRAMS:
        (folder / name).write_text(f'#!/bin/sh\necho {name} "$@"\n')
        (folder / name).chmod(0o755)
    shutil.copy(SOURCES / MODULE, folder / "lib_native.so")
    return {"EVENSTEP_WHEEL_BINARIES": str(folder), "EVENSTEP_WHEEL_PLATFORM": "linux_x86_64"}


@pytest.fixture(scope="module")
def wheel(backend: str, binaries: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Builds the wheel with the backend that pip would use."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", backend, "build", "--target", "wheel", "--directory", folder, **binaries)
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def metadata(wheel: zipfile.ZipFile) -> Message:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return message_from_string(wheel.read(name).decode())


def test_package_and_workspace_have_one_version(wheel: zipfile.ZipFile) -> None:
    assert metadata(wheel)["Version"] == workspace_version() == _native.version()


def test_wheel_holds_every_source_the_module_and_the_programs(wheel: zipfile.ZipFile) -> None:
    name = f"evenstep-{metadata(wheel)['Version']}"
    packed = {file for file in wheel.namelist() if not file.startswith(f"{name}.dist-info/")}
    sources = {path for path in SOURCES.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    programs = {f"{name}.data/scripts/{program}" for program in PROGRAMS}
    assert packed == {path.relative_to(SOURCES).as_posix() for path in sources} | programs
    assert {"evenstep/py.typed", MODULE} <= packed


def test_wheel_is_for_every_python_and_one_platform(wheel: zipfile.ZipFile) -> None:
    assert wheel.filename is not None
    assert wheel.filename.endswith("-cp310-abi3-linux_x86_64.whl")
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/WHEEL"))
    assert b"Root-Is-Purelib: false\n" in wheel.read(name)


def test_wheel_carries_the_licence_of_the_repository(wheel: zipfile.ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith("/licenses/LICENSE"))
    assert wheel.read(name) == (REPOSITORY / "LICENSE").read_bytes()
    assert metadata(wheel)["License-Expression"] == "Apache-2.0"


def test_wheel_requires_torch_and_what_torch_lacks(wheel: zipfile.ZipFile) -> None:
    """Torch exchanges objects between ranks with NumPy, which it does not install."""
    required = metadata(wheel).get_all("Requires-Dist", [])
    assert sorted(one for one in required if "extra ==" not in one) == ["numpy", "torch>=2.8"]


#: Options of pip for an installation without a network, with the backend of the environment.
OFFLINE = ("--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh virtual environment with torch and the backend, which would take minutes to install."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True, symlinks=True)
    (site,) = (folder / "lib").glob("python3*/site-packages")
    # Editable installations are not included: evenstep itself has to come from the wheel.
    (site / "lent.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return folder


@pytest.mark.usefixtures("backend")
def test_pip_learns_the_requirements_without_a_build(environment: Path, tmp_path: Path) -> None:
    """Otherwise, pip shows for minutes that it prepares metadata."""
    # There is no cargo in this path.
    command = (environment / "bin" / "python", "-m", "pip", "install", "--dry-run", *OFFLINE, PACKAGE)
    assert f"Would install evenstep-{workspace_version()}" in run(*command, PATH=str(tmp_path))


@pytest.mark.usefixtures("backend")
def test_pip_installs_the_folder_into_a_fresh_environment(environment: Path, binaries: dict[str, str]) -> None:
    python = environment / "bin" / "python"
    run(python, "-m", "pip", "install", *OFFLINE, PACKAGE, **binaries)
    imported = run(python, "-c", "import evenstep._native; print(evenstep.__file__, evenstep._native.__file__)")
    (site,) = (environment / "lib").glob("python3*/site-packages")
    package = site / "evenstep"
    assert imported.splitlines()[-1] == f"{package / '__init__.py'} {site / MODULE}"
    assert "usage: evenstep" in run(environment / "bin" / "evenstep", "--help")
    for name in PROGRAMS:
        assert run(environment / "bin" / name, "--version") == f"{name} --version\n"


@pytest.mark.parametrize(
    ("cargo", "message"),
    [
        (None, "cannot run cargo [(]No such file or directory[)], which builds the Rust parts"),
        ("echo cargo 1.70.0", r"cargo 1.70.0 is older than [\d.]+, which the Rust parts require"),
        ("echo no network >&2; exit 1", "cargo --version failed: no network"),
    ],
)
def test_a_build_without_a_usable_cargo_fails_with_one_line(
    backend: str, tmp_path: Path, cargo: str | None, message: str
) -> None:
    if cargo is not None:
        (tmp_path / "cargo").write_text(f"#!/bin/sh\n{cargo}\n")
        (tmp_path / "cargo").chmod(0o755)
    output = build(backend, "wheel", tmp_path, PATH=str(tmp_path))
    assert re.fullmatch(rf"evenstep: {message}; install Rust from .*\n", output)


def test_there_is_no_source_archive(backend: str, tmp_path: Path) -> None:
    # It would have to contain the whole workspace.
    assert build(backend, "sdist", tmp_path).startswith(
        "evenstep: there is no source archive; build a wheel from a clone"
    )


def build(backend: str, target: str, folder: Path, **environment: str) -> str:
    """Runs a build that fails; returns what it writes to standard error."""
    command = (sys.executable, "-m", backend, "build", "--target", target, "--directory", folder)
    done = subprocess.run(
        command,
        check=False,
        text=True,
        cwd=PACKAGE,
        env=os.environ | environment,
        capture_output=True,
        timeout=COMMAND_S,
    )
    assert done.returncode != 0
    return done.stderr


def test_import_needs_nothing_but_torch() -> None:
    # None in sys.modules makes an import of the module fail.
    block = f"import sys; sys.modules.update(dict.fromkeys({OPTIONAL!r}))"
    printed = run(sys.executable, "-c", f"{block}; import evenstep; print(evenstep.__doc__)", **SOURCE_PATH)
    assert "training on unequal GPUs and CPUs" in printed


def test_import_leaves_integrations_to_those_who_use_them() -> None:
    code = "import sys, evenstep; print('modules:', *sys.modules)"
    modules = run(sys.executable, "-c", code, **SOURCE_PATH).split("modules: ")[1].split()
    assert "evenstep" in modules
    assert not {*OPTIONAL} & {*modules}
