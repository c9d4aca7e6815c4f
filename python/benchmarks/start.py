"""Starts the programs of a benchmark: a predictor of this repository, and ranks like torchrun."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[2]


def binary() -> Path:
    """Returns the path of the predictor: ``EVENSTEP_PREDICTOR``, else the newest build."""
    said = os.environ.get("EVENSTEP_PREDICTOR")
    places = [Path(said)] if said else [ROOT / "target" / kind / "evenstep-predictor" for kind in ("release", "debug")]
    for place in places:
        if place.is_file():
            return place
    sys.exit(f"no predictor at {', '.join(map(str, places))}: cargo build --release, or set EVENSTEP_PREDICTOR")


@contextmanager
def predictor() -> Iterator[str]:
    """Starts a predictor on a free port with a temporary store and yields its URL."""
    with TemporaryDirectory() as folder:
        command = [
            str(binary()),
            "serve",
            "--listen=127.0.0.1:0",
            "--log=warn",
            f"--store=sqlite://{folder}/evenstep.db",
        ]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            yield next(line.split("listening on ")[1].strip() for line in process.stdout if "listening on" in line)
        finally:
            process.terminate()
            process.wait()


def torchrun(ranks: int, command: Sequence[str], environ: Mapping[str, str], *, captures: bool = False) -> str:
    """Runs ranks until they end; they print to the terminal. Returns what they print instead if it is captured."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *command]
    without_ddp_sync = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "python" / "src")}
    output = subprocess.PIPE if captures else None
    ended = subprocess.run(
        launch, env={**os.environ, **without_ddp_sync, **environ}, check=True, stdout=output, text=True
    )
    return ended.stdout or ""
