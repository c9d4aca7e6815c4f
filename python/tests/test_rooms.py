"""The rooms of the package: no folder is crowded, no imports form a circle, and a room imports only those below it.

Imports for type checkers and imports inside functions count too.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[1] / "src"
MODULES_MAX = 12
"""Modules in one folder; folders in it count separately."""
FLOORS = (
    "errors",
    "_native",
    "samples",
    "settings",
    "measure.drivers",
    "measure",
    "exchange",
    "run",
    "gradients",
    "start.local",
    "start",
    "elastic",
    "hedge",
    "job",
    "profiling",
    "burst_parallel",
    "doctor",
    "verify.recording",
    "verify",
    "run_command",
    "run_command.site",
    "",
)
"""From low to high: every folder, and modules of the open folder that rooms import. The rest of it is at the top."""
FILES = {
    ".".join(path.relative_to(SOURCES).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(SOURCES.rglob("*.py*"))
    if path.suffix in (".py", ".pyi")
}


def imports(path: Path) -> Iterator[str]:
    """Yields the modules of the package that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: an import must name the whole path"
            named = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in FILES else node.module or "" for name in named)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


IMPORTS = {name: {other for other in imports(path) if other in FILES} for name, path in FILES.items()}


def room(name: str) -> str:
    """Returns the folder of a module, or its own name if that is a floor."""
    inner = name.removeprefix("evenstep").removeprefix(".")
    if inner in FLOORS:
        return inner
    return inner if FILES[name].name == "__init__.py" else inner.rpartition(".")[0]


def test_the_package_is_read() -> None:
    assert {"evenstep.errors", "evenstep.run.step"} <= IMPORTS["evenstep"]
    assert not [name for name in FLOORS if not any(room(module) == name for module in FILES)]


def test_a_folder_has_few_modules() -> None:
    counts = Counter(str(path.parent.relative_to(SOURCES)) for path in FILES.values())
    assert not {folder: count for folder, count in counts.items() if count > MODULES_MAX}


def test_imports_form_no_circle() -> None:
    try:
        TopologicalSorter(IMPORTS).prepare()
    except CycleError as error:
        pytest.fail(" is imported by ".join(error.args[1]))


def test_a_room_imports_only_rooms_below_it() -> None:
    unknown = {room(name) for name in FILES} - {*FLOORS}
    assert not unknown, f"{unknown}: name these folders in FLOORS"
    floor = {name: FLOORS.index(room(name)) for name in FILES}
    upward = [f"{name} imports {other}" for name in FILES for other in IMPORTS[name] if floor[other] > floor[name]]
    assert not upward, "\n".join(upward)
