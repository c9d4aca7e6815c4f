"""The task of a check, and the start of its ranks."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_check.machine import Machine

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
        sharing = "" if self.backend == "nccl" else " that share a GPU"
        return f"{self.ranks} ranks{sharing}, {'NCCL' if self.backend == 'nccl' else 'Gloo'}"

    def run_ranks(self, check: str, *, restarts: int = 0, arguments: Sequence[str] = ()) -> list[Any]:
        """Runs the function `rank` of a check's module on each rank with torchrun; returns the results by rank.

        Raises:
            RankError: a rank failed.
        """
        launch = ["torch.distributed.run", "--standalone", f"--nproc-per-node={self.ranks}", "--local-ranks-filter=0,1"]
        launch += [f"--max-restarts={restarts}", "--redirects=3", f"--log-dir={self.folder / 'torchrun'}"]
        command = [sys.executable, "-m", *launch, "-m", "gpu_check.rank", check, *arguments]
        done = subprocess.run(
            command, cwd=self.folder, env=self.rank_environ(), text=True, capture_output=True, check=False
        )
        results = [self.folder / f"rank-{rank}.json" for rank in range(self.ranks)]
        if done.returncode or not all(path.exists() for path in results):
            raise RankError(self._errors() or last_lines(done.stderr) or f"torchrun ended with {done.returncode}")
        return [json.loads(path.read_text()) for path in results]

    def rank_environ(self) -> dict[str, str]:
        """Returns the environment of ranks."""
        return {
            **os.environ,
            "GPU_CHECK_DEVICE": self.device,
            "GPU_CHECK_BACKEND": self.backend,
            "GPU_CHECK_FOLDER": str(self.folder),
        }

    def _errors(self) -> str:
        """Returns the last lines of the ranks' errors."""
        logs = sorted((self.folder / "torchrun").glob("**/stderr.log"), key=lambda path: path.stat().st_mtime)
        return next((said for path in logs if "Error" in (said := last_lines(path.read_text(errors="replace")))), "")


class RankError(Exception):
    """A rank failed; the text has its last lines."""


def last_lines(text: str) -> str:
    """Returns the end of an output in one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " | ".join(lines[-_LINES:])
