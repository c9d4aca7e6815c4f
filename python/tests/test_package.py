"""The installed wheel: its contents, type hints and licence, and its few requirements."""

import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from email import message_from_string
from email.message import Message
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1]
REPOSITORY = PACKAGE.parent
SOURCES = PACKAGE / "src"
SOURCE_PATH = {"PYTHONPATH": str(SOURCES)}
# Time limit for an installation and an import of torch on a busy machine, in seconds.
COMMAND_S = 300
# Packages that users may have installed with torch, and that evenstep must not require.
OPTIONAL = ("accelerate", "httpx", "lightning", "numpy", "pytorch_lightning", "requests", "transformers")


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


def version_of(file: Path, table: str) -> str:
    """Returns the version in a table of a TOML file; Python 3.10 has no TOML parser."""
    body = file.read_text().split(f"[{table}]\n", 1)[1].split("\n[", 1)[0]
    found = re.search(r'^version = "(.+)"$', body, re.MULTILINE)
    assert found, f"{file}: no version in [{table}]"
    return found[1]


@pytest.fixture(scope="module")
def backend() -> str:
    """Returns the name of the build backend, if it is installed."""
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("hatchling is not installed here: scripts/python installs it")
    return "hatchling"


@pytest.fixture(scope="module")
def wheel(backend: str, tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Builds the wheel with the backend that pip would use."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", backend, "build", "--target", "wheel", "--directory", folder)
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def metadata(wheel: zipfile.ZipFile) -> Message:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return message_from_string(wheel.read(name).decode())


def test_package_and_workspace_have_one_version(wheel: zipfile.ZipFile) -> None:
    version = version_of(PACKAGE / "pyproject.toml", "project")
    assert version == version_of(REPOSITORY / "Cargo.toml", "workspace.package")
    assert metadata(wheel)["Version"] == version


def test_wheel_holds_every_source_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    information = f"evenstep-{metadata(wheel)['Version']}.dist-info/"
    packed = {name for name in wheel.namelist() if not name.startswith(information)}
    sources = {path for path in SOURCES.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert packed == {path.relative_to(SOURCES).as_posix() for path in sources}
    assert "evenstep/py.typed" in packed


def test_wheel_carries_the_licence_of_the_repository(wheel: zipfile.ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith("/licenses/LICENSE"))
    assert wheel.read(name) == (REPOSITORY / "LICENSE").read_bytes()
    assert metadata(wheel)["License-Expression"] == "Apache-2.0"


def test_wheel_requires_only_torch(wheel: zipfile.ZipFile) -> None:
    required = metadata(wheel).get_all("Requires-Dist", [])
    assert [one for one in required if "extra ==" not in one] == ["torch>=2.8"]


@pytest.mark.usefixtures("backend")
def test_pip_installs_the_folder_into_a_fresh_environment(tmp_path: Path) -> None:
    venv.create(tmp_path, with_pip=True, symlinks=True)
    python = tmp_path / "bin" / "python"
    (site,) = (tmp_path / "lib").glob("python3*/site-packages")
    # Makes torch and the backend available, which would take minutes to install. Editable installations are not
    # included: evenstep itself has to come from the wheel.
    (site / "lent.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    options = ("--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check")
    run(python, "-m", "pip", "install", *options, PACKAGE)
    imported = run(python, "-c", "import evenstep; print(evenstep.__file__)")
    assert Path(imported.splitlines()[-1]) == site / "evenstep" / "__init__.py"
    assert "usage: evenstep" in run(tmp_path / "bin" / "evenstep", "--help")


def test_import_needs_nothing_but_torch() -> None:
    # None in sys.modules makes an import of the module fail.
    block = f"import sys; sys.modules.update(dict.fromkeys({OPTIONAL!r}))"
    printed = run(sys.executable, "-c", f"{block}; import evenstep; print(evenstep.__doc__)", **SOURCE_PATH)
    assert "training on unequal GPUs and CPUs" in printed


def test_import_leaves_integrations_to_those_who_use_them() -> None:
    code = "import sys, evenstep; print('modules:', *sys.modules)"
    modules = run(sys.executable, "-c", code, **SOURCE_PATH).split("modules: ")[1].split()
    assert "evenstep" in modules
    # torch imports numpy itself, if it is installed.
    assert not ({*OPTIONAL} - {"numpy"}) & {*modules}
