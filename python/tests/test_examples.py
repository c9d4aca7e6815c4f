"""The unchanged examples run with torchrun, and the smallest one is as small as documented."""

import difflib
import importlib.util
import os
import signal
import subprocess
import sys

import pytest

from programs import PATIENCE_S, ROOT, clean_environment, fetch_json

EXAMPLES = ROOT / "python" / "examples"

#: Iterations of the examples' one epoch: 16,384 samples by 256.
ITERATIONS = 64

#: Time limit for torchrun and its processes, each of which loads torch, in seconds.
TORCHRUN_S = 3 * PATIENCE_S


def torchrun(example: str, *arguments: str, **environ: str) -> str:
    """Returns the output of an example with two processes."""
    path = os.pathsep.join([str(ROOT / "python" / "src"), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
            *(str(EXAMPLES / example), *arguments),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # The examples need no further settings, and GPUs of the machine must not interfere.
        env={**clean_environment(), "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **environ},
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=TORCHRUN_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(PATIENCE_S)
    assert process.returncode == 0, said
    return said


def needs(*modules: str) -> None:
    for module in modules:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")


def changes() -> list[str]:
    """Returns the lines that the smallest example removes and adds."""
    before = (EXAMPLES / "plain_before.py").read_text().splitlines()
    after = (EXAMPLES / "plain.py").read_text().splitlines()
    lines = list(difflib.unified_diff(before, after, n=0, lineterm=""))[2:]
    return [line for line in lines if not line.startswith("@@")]


def test_the_smallest_example_changes_at_most_four_lines() -> None:
    assert sum(line.startswith("+") for line in changes()) <= 4
    assert sum(line.startswith("-") for line in changes()) <= 4


@pytest.mark.parametrize("page", ["docs/python.md", "python/README.md"])
def test_the_documentation_shows_these_changes(page: str) -> None:
    text = (ROOT / page).read_text()
    block = text.split("```diff\n")[1].split("```")[0]
    assert [line for line in block.splitlines() if line[:1] in ("+", "-")] == changes()


def test_plain_before() -> None:
    assert "the last loss" in torchrun("plain_before.py")


def test_plain(predictor: str, job_id: str) -> None:
    assert "the last loss" in torchrun("plain.py", EVENSTEP_SERVER=predictor, EVENSTEP_JOB=job_id)
    assert fetch_json(f"{predictor}/v1/jobs/{job_id}")["next_iteration"] >= ITERATIONS


def test_with_lightning(predictor: str, job_id: str) -> None:
    needs("lightning")
    said = torchrun("with_lightning.py", EVENSTEP_SERVER=predictor, EVENSTEP_JOB=job_id)
    assert f"{ITERATIONS} steps" in said
    assert fetch_json(f"{predictor}/v1/jobs/{job_id}")["next_iteration"] >= ITERATIONS


def test_with_accelerate(predictor: str, job_id: str) -> None:
    needs("accelerate")
    assert "the last loss" in torchrun("with_accelerate.py", EVENSTEP_SERVER=predictor, EVENSTEP_JOB=job_id)
    assert fetch_json(f"{predictor}/v1/jobs/{job_id}")["next_iteration"] >= ITERATIONS


def test_with_transformers(predictor: str, job_id: str) -> None:
    needs("transformers", "accelerate")
    said = torchrun("with_transformers.py", EVENSTEP_SERVER=predictor, EVENSTEP_JOB=job_id)
    assert "train_loss" in said
    # 512 samples by 16.
    assert fetch_json(f"{predictor}/v1/jobs/{job_id}")["next_iteration"] >= 32


def test_two_gpus(predictor: str, job_id: str) -> None:
    arguments = ("--pace", "1", "2.4", "--steps", "12", "--global-batch", "64")
    said = torchrun("two_gpus.py", *arguments, EVENSTEP_SERVER=predictor, EVENSTEP_JOB=job_id)
    for part in ("even shares [32, 32]", "a plan by hand", "the predictor's plans"):
        assert part in said
