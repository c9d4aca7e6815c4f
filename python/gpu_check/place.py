"""The installation that is checked: the package, its native module and the programs."""

import os
import sys
import sysconfig
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def use(wheel: Path | None, folder: Path) -> None:
    """Lets this process and its children use a wheel, else this repository's builds, else what is installed.

    Args:
        wheel: the wheel.
        folder: where it is unpacked, which needs neither pip nor a network.

    Raises:
        ValueError: it is no wheel with the programs.
    """
    programs, packages = [*_built(), sysconfig.get_path("scripts")], []
    if wheel:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
        scripts = list(folder.glob("*.data/scripts/*"))
        if not scripts:
            raise ValueError("is no wheel with programs: build one with scripts/wheel")
        for program in scripts:
            program.chmod(0o755)
        packages, programs = [str(folder)], [str(scripts[0].parent), *programs]
    elif (ROOT / "python" / "src" / "evenstep" / "_native.abi3.so").exists():
        packages = [str(ROOT / "python" / "src")]
    sys.path[:0] = packages
    for name in [name for name in os.environ if name.startswith(("EVENSTEP_", "PYTHON"))]:
        del os.environ[name]
    os.environ["PATH"] = os.pathsep.join([*programs, os.environ.get("PATH", os.defpath)])
    os.environ["PYTHONPATH"] = os.pathsep.join([*packages, str(ROOT / "python")])
    # Unbuffered, because the last lines of a process that is killed say most.
    os.environ |= {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}


def _built() -> list[str]:
    """Returns the folders with programs that cargo has built, newest kinds first."""
    # As in tests, these name the programs. In the package, EVENSTEP_AGENT is an address.
    named = [Path(os.environ.get(name, "")) for name in ("EVENSTEP_PREDICTOR", "EVENSTEP_AGENT")]
    given = [path.parent for path in named if path.is_file()]
    targets = [Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / kind for kind in ("release", "debug")]
    return [str(path) for path in (*given, *targets) if path.is_dir()]
