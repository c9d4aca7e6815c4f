"""The commands and the code of the guides run as they are printed, or name the reason why not.

A block of a tutorial, a how-to page or the reference of the Python package is one of these:

- ``text``: output, or a form to fill in. It does not run.
- a block after ``<!-- file: NAME -->``: the content of a file in the reader's folder.
- a block after ``<!-- test: PATH -->`` or ``<!-- test: PATH::NAME -->``, with or without a remark: that test runs it,
  or the same calls.
- a block after ``<!-- not run: REASON -->``.
- any other ``sh`` block: it runs here, with the other blocks of its page in one shell, in an empty folder. Each page
  has a separate network, so its ports are free.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from programs import PATIENCE_S, ROOT, clean_environment

#: Longest run of a page, in seconds; several times its duration on a busy machine.
PAGE_S = 900

PAGES = [
    ROOT / "README.md",
    ROOT / "docs" / "get-started.md",
    *sorted((ROOT / "docs" / "tutorials").glob("*.md")),
    *sorted((ROOT / "docs" / "how-to").glob("*.md")),
    ROOT / "docs" / "reference" / "python.md",
]

BLOCK = re.compile(
    r"(?ms)(?:^ *<!-- (?P<mark>[^\n]*?) -->\n)?^(?P<indent> *)```(?P<kind>\w*)\n(?P<text>.*?)^(?P=indent)```$"
)


@dataclass(frozen=True)
class Block:
    """A block of code of a page."""

    line: int
    kind: str
    mark: str
    text: str

    @property
    def runs(self) -> bool:
        return self.kind == "sh" and not self.mark


def blocks_of(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for match in BLOCK.finditer(text):
        lines = match["text"].splitlines()
        content = "".join(line.removeprefix(match["indent"]) + "\n" for line in lines)
        yield Block(text.count("\n", 0, match.start()) + 1, match["kind"], match["mark"] or "", content)


def is_marked(block: Block) -> bool:
    """Returns whether the mark of a block is valid: it names a file, a test that exists, or a reason."""
    kind, _, value = block.mark.partition(": ")
    if kind == "test":
        path, _, name = re.split(r"[ ,;]", value)[0].partition("::")
        return (ROOT / path).is_file() and name in (ROOT / path).read_text()
    return kind in ("file", "not run") and bool(value)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_block_runs_or_has_a_valid_mark(page: Path) -> None:
    wrong = [
        f"{page.relative_to(ROOT)}:{block.line}: ```{block.kind}, mark {block.mark!r}"
        for block in blocks_of(page)
        if block.kind != "text" and not block.runs and not is_marked(block)
    ]
    assert not wrong, "\n".join(wrong)


def script_of(page: Path) -> str:
    """Returns the blocks of a page as one script."""
    lines = ["set -euo pipefail", "trap 'evenstep server stop > /dev/null 2>&1 || true' EXIT", "ip link set lo up"]
    for block in blocks_of(page):
        if block.mark.startswith("file: "):
            name = block.mark.removeprefix("file: ")
            lines.append(f"cat > {name} <<'END_OF_BLOCK'\n{block.text}END_OF_BLOCK")
        elif block.runs:
            lines.append(f"echo '== {page.name}:{block.line}'\n{block.text}")
    return "\n".join(lines)


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if any(block.runs for block in blocks_of(page))],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_the_blocks_of_a_page_run(page: Path, tmp_path: Path, predictor_binary: Path, agent_binary: Path) -> None:
    isolated = own_network()
    folder, home = tmp_path / "folder", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    folders = [str(path.parent) for path in (Path(sys.executable), predictor_binary, agent_binary)]
    environment = {
        **clean_environment(),
        "PATH": os.pathsep.join([*folders, os.environ["PATH"]]),
        "PYTHONPATH": str(ROOT / "python" / "src"),
        "HOME": str(home),
        "EVENSTEP_HOME": str(home),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    output = tmp_path / "output"
    with output.open("w") as file:
        process = subprocess.Popen(
            [*isolated, "bash", "-c", script_of(page)],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(PAGE_S)
        finally:
            # Programs that a page has left in the background; there may be none.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(PATIENCE_S)
    assert status == 0, output.read_text()[-4000:]


def own_network() -> list[str]:
    """Returns the command that runs another one in a separate network."""
    needed = [name for name in ("bash", "curl", "ip", "unshare") if shutil.which(name) is None]
    if needed:
        pytest.skip(f"the blocks of the guides need {', '.join(needed)}")
    command = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--net", "--map-root-user"]
    if subprocess.run([*command, "ip", "link", "set", "lo", "up"], check=False, capture_output=True).returncode:
        pytest.skip("the blocks of the guides need a network namespace, which this system does not allow")
    return command


def test_the_harness_finds_a_block_that_does_not_run() -> None:
    [shell, python] = [Block(1, "sh", "", "false\n"), Block(1, "python", "", "job = ...\n")]
    assert shell.runs
    assert not python.runs
    assert not is_marked(python)
    assert not is_marked(Block(1, "sh", "test: python/tests/test_nothing.py", ""))
    assert not is_marked(Block(1, "sh", "not run: ", ""))
    assert is_marked(Block(1, "python", "test: python/tests/test_streams.py::documented", ""))
