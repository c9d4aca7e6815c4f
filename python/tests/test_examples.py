"""The unchanged examples run, and the smallest one is as small as documented."""

import difflib
import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from programs import PATIENCE_S, ROOT, clean_environment, fetch_json
from ranks import run_script

EXAMPLES = ROOT / "python" / "examples"

#: Iterations of the examples' one epoch: 16,384 samples by 256.
ITERATIONS = 64

#: Time limit for torchrun and its processes, each of which loads torch, in seconds.
TORCHRUN_S = 3 * PATIENCE_S


def scripted(example: str, *arguments: str, output: Path, **environ: str) -> str:
    """Returns the output of an example with two ranks."""
    # Frameworks know torchrun by its id.
    common = {"CUDA_VISIBLE_DEVICES": "", "EVENSTEP_HOME": os.devnull, "TORCHELASTIC_RUN_ID": "none"}
    return run_script(EXAMPLES / example, *arguments, output=output, environ={**common, **environ})


def run(command: Sequence[str], folder: Path, **environ: str) -> str:
    """Returns the output of a command that succeeds."""
    path = os.pathsep.join([str(ROOT / "python" / "src"), os.environ.get("PYTHONPATH", "")])
    output = folder / "output"
    with output.open("w") as file:
        process = subprocess.Popen(
            command,
            stdout=file,
            stderr=subprocess.STDOUT,
            # The examples need no further settings, and GPUs of the machine must not interfere.
            env={
                **clean_environment(),
                "PYTHONPATH": path,
                "OMP_NUM_THREADS": "1",
                "CUDA_VISIBLE_DEVICES": "",
                "EVENSTEP_HOME": os.devnull,
                **environ,
            },
            start_new_session=True,
        )
        try:
            process.wait(TORCHRUN_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(PATIENCE_S)
    assert process.returncode == 0, output.read_text()
    return output.read_text()


def changes(example: str) -> list[str]:
    """Returns the lines that an example removes from a DDP script and adds."""
    before = (EXAMPLES / f"{example}_before.py").read_text().splitlines()
    after = (EXAMPLES / f"{example}.py").read_text().splitlines()
    lines = list(difflib.unified_diff(before, after, n=0, lineterm=""))[2:]
    return [line for line in lines if not line.startswith("@@")]


@pytest.mark.parametrize(("example", "added", "removed"), [("plain", 4, 2), ("transformer", 6, 4)])
def test_the_examples_change_as_many_lines_as_documented(example: str, added: int, removed: int) -> None:
    signs = [line[0] for line in changes(example)]
    assert (signs.count("+"), signs.count("-")) == (added, removed)


@pytest.mark.parametrize(
    ("page", "block", "example"),
    [
        ("docs/reference/python.md", 0, "plain"),
        ("python/README.md", 0, "plain"),
        ("docs/get-started.md", 0, "plain"),
        ("docs/reference/python.md", 1, "transformer"),
    ],
)
def test_the_documentation_shows_these_changes(page: str, block: int, example: str) -> None:
    text = (ROOT / page).read_text()
    shown = text.split("```diff\n")[block + 1].split("```")[0]
    assert [line for line in shown.splitlines() if line[:1] in ("+", "-")] == changes(example)


def test_the_documentation_shows_the_validation_of_the_example() -> None:
    [function] = re.findall(r"(?ms)^def validate.*?\n(?=\n\n\w)", (EXAMPLES / "transformer.py").read_text())
    assert f"```python\n{function}```" in (ROOT / "docs" / "how-to" / "validation.md").read_text()


def test_plain_before(tmp_path: Path) -> None:
    assert "the last loss" in scripted("plain_before.py", output=tmp_path / "output")


def test_plain(predictor: str, job_id: str, tmp_path: Path) -> None:
    """test_documents.py runs the same script of a page under torchrun."""
    environ = {"EVENSTEP_SERVER": predictor, "EVENSTEP_JOB": job_id}
    assert "the last loss" in scripted("plain.py", output=tmp_path / "output", **environ)
    assert fetch_json(f"{predictor}/v1/jobs/{job_id}")["next_iteration"] >= ITERATIONS


@pytest.mark.parametrize("example", ["transformer_before.py", "transformer.py"])
def test_a_usual_script_learns_and_continues_from_its_checkpoint(example: str, predictor: str, tmp_path: Path) -> None:
    def losses(attempt: str) -> dict[int, float]:
        """Returns the validation losses by epoch."""
        # Each start of torchrun has another id.
        environ = {"EVENSTEP_SERVER": predictor, "TORCHELASTIC_RUN_ID": attempt}
        said = scripted(example, str(tmp_path), output=tmp_path / attempt, **environ)
        return {int(epoch): float(loss) for epoch, loss in re.findall(r"epoch (\d+): validation loss ([\d.]+)", said)}

    first = losses("first")
    assert list(first) == [0, 1, 2]
    assert first[2] < 0.5 * first[0]
    (tmp_path / "epoch-2.pt").unlink()
    again = losses("second")
    assert list(again) == [2]
    # Sums of other parts of a batch round differently in bf16, and dropout differs.
    assert again[2] == pytest.approx(first[2], rel=0.2)


@pytest.mark.parametrize(
    ("package", "said", "iterations"),
    [
        ("lightning", f"{ITERATIONS} steps", ITERATIONS),
        ("accelerate", "the last loss", ITERATIONS),
        # 512 samples by 16.
        ("transformers", "train_loss", 32),
    ],
)
def test_with_a_framework(  # noqa: PLR0917  # Fixtures and parameters.
    package: str, said: str, iterations: int, predictor: str, job_id: str, tmp_path: Path
) -> None:
    for needed in (package, "accelerate") if package == "transformers" else (package,):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed")
    environ = {"EVENSTEP_SERVER": predictor, "EVENSTEP_JOB": job_id}
    assert said in scripted(f"with_{package}.py", output=tmp_path / "output", **environ)
    assert fetch_json(f"{predictor}/v1/jobs/{job_id}")["next_iteration"] >= iterations


def test_the_demo(predictor: str, job_id: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "evenstep", "demo", "--pace", "1", "2.4", "--steps", "12", "--global-batch", "64"]
    said = run(command, tmp_path, EVENSTEP_SERVER=predictor, EVENSTEP_JOB=job_id)
    for part in ("even shares [32, 32]", "a plan by hand", "the predictor's plans"):
        assert part in said
    assert said.count("evenstep: page: http") == 2, "at the start and at the end"
    # People repeat it with the same environment.
    assert job_id not in {job["job_id"] for job in fetch_json(f"{predictor}/v1/jobs")["jobs"]}
