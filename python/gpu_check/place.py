"""The installation that is checked: the package, its native module and the programs."""

import os
import sysconfig
import zipfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("evenstep-predictor", "evenstep-agent", "evenstep-trainer")


@dataclass(frozen=True)
class Place:
    """Folders with the package and with programs, in the order of preference."""

    packages: tuple[Path, ...]
    programs: tuple[Path, ...]

    def environ(self, home: Path) -> dict[str, str]:
        """Returns the environment of a check whose programs keep their files in `home`."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("EVENSTEP_", "PYTHON"))}
        paths = (*self.packages, ROOT / "python")
        programs = os.pathsep.join([*map(str, self.programs), os.environ.get("PATH", os.defpath)])
        # Unbuffered, because the last lines of a process that is killed say most.
        fixed = {"EVENSTEP_HOME": str(home), "PATH": programs, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
        return {**kept, "PYTHONPATH": os.pathsep.join(map(str, paths)), **fixed}


def of_wheel(wheel: Path, folder: Path) -> Place:
    """Unpacks a wheel, which needs neither pip nor a network.

    Raises:
        ValueError: it is no wheel with the programs.
    """
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    scripts = next((path for path in folder.glob("*.data/scripts") if path.is_dir()), None)
    if scripts is None:
        raise ValueError(f"{wheel}: is no wheel with programs: build one with scripts/wheel")
    for program in scripts.iterdir():
        program.chmod(0o755)
    return Place((folder,), (scripts, *_built()))


def of_repository() -> Place:
    """Returns this repository's package if its native module was built, else the installed one; and the programs."""
    sources = ROOT / "python" / "src"
    is_built = (sources / "evenstep" / "_native.abi3.so").exists()
    return Place((sources,) if is_built else (), (*_built(), Path(sysconfig.get_path("scripts"))))


def _built() -> tuple[Path, ...]:
    """Returns the folders with programs that cargo has built, newest kinds first."""
    # As in tests, these name the programs. In the package, EVENSTEP_AGENT is an address.
    named = [Path(os.environ.get(name, "")) for name in ("EVENSTEP_PREDICTOR", "EVENSTEP_AGENT")]
    given = [path.parent for path in named if path.is_file()]
    targets = [Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / kind for kind in ("release", "debug")]
    return tuple(dict.fromkeys(path for path in (*given, *targets) if path.is_dir()))
