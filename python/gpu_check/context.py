"""The place of a check, and the start of its ranks."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpu_check.machine import Machine

#: Variable with the folder of a check. All its processes have it.
FOLDER = "GPU_CHECK_FOLDER"

#: Lines of a failed process that the table shows.
_LINES = 3


@dataclass(frozen=True)
class Context:
    """The place of one check."""

    machine: Machine
    #: "cuda" or "cpu".
    device: str
    #: A folder for this check's files.
    folder: Path
    #: Keeps a named value for `gpu-check.json`.
    record: Callable[[str, Any], None]

    @property
    def on_gpu(self) -> bool:
        """Whether the check runs on GPUs. On CPUs it only shows that the check itself works."""
        return self.device == "cuda"

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self.machine.ranks if self.on_gpu else 2

    @property
    def backend(self) -> str:
        """The backend of the process group: NCCL allows no two ranks on one GPU."""
        return "nccl" if self.on_gpu and len(self.machine.gpus) > 1 else "gloo"

    @property
    def where(self) -> str:
        """The ranks in words."""
        if not self.on_gpu:
            return f"{self.ranks} ranks on CPUs, Gloo"
        return f"{self.ranks} ranks, NCCL" if self.backend == "nccl" else f"{self.ranks} ranks that share a GPU, Gloo"

    def tell(self, said: str, **numbers: Any) -> None:
        """Gives the table a line, and `gpu-check.json` the measured values."""
        for name, value in {"said": said, **numbers}.items():
            self.record(name, value)

    def run_ranks(self, check: str, *, restarts: int = 0) -> list[Any]:
        """Runs the function of this name in `ranks` on each rank with torchrun; returns the results by rank."""
        launch = ["torch.distributed.run", "--standalone", f"--nproc-per-node={self.ranks}", "--local-ranks-filter=0,1"]
        launch += [f"--max-restarts={restarts}", "--redirects=3", f"--log-dir={self.folder / 'torchrun'}"]
        command = [sys.executable, "-m", *launch, "-m", "gpu_check.ranks", check]
        done = self.run(command, env={**os.environ, **self.rank_environ()})
        if done.returncode:
            pytest.fail(self._errors() or last_lines(done.stderr) or f"torchrun: {done.returncode}", pytrace=False)
        return self.results()

    def run(self, command: list[str], env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Runs a command in the folder until its end."""
        return subprocess.run(command, cwd=self.folder, env=env, text=True, capture_output=True, check=False)

    def rank_environ(self) -> dict[str, str]:
        """Returns the variables of ranks."""
        return {"GPU_CHECK_DEVICE": self.device, "GPU_CHECK_BACKEND": self.backend, FOLDER: str(self.folder)}

    def results(self) -> list[Any]:
        """Returns the results of the ranks."""
        return [json.loads((self.folder / f"rank-{rank}.json").read_text()) for rank in range(self.ranks)]

    def _errors(self) -> str:
        """Returns the last lines of the ranks' errors."""
        logs = sorted((self.folder / "torchrun").glob("**/stderr.log"), key=lambda path: path.stat().st_mtime)
        return next((said for path in logs if "Error" in (said := last_lines(path.read_text(errors="replace")))), "")


def last_lines(text: str) -> str:
    """Returns the end of an output in one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " | ".join(lines[-_LINES:])
