"""The machine of the checks: its GPUs as CUDA and as NVIDIA's driver list them, and the versions."""

import csv
import io
import json
import platform
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from typing import Any

#: Time limit of nvidia-smi, in seconds. It takes several when the driver has to be loaded.
_SMI_S = 60


@dataclass(frozen=True)
class Machine:
    """Facts about this machine."""

    python: str = ""
    torch: str = ""
    #: Version of CUDA that PyTorch was built for, and of NCCL.
    cuda: str = ""
    nccl: str = ""
    driver: str = ""
    glibc: str = ""
    #: Name and UUID by CUDA's order; the UUID in the form of nvidia-smi.
    gpus: list[dict[str, Any]] = field(default_factory=list)
    #: UUIDs by the order of nvidia-smi.
    listed: list[str] = field(default_factory=list)
    #: Why PyTorch cannot use a GPU; empty if it can.
    problem: str = ""

    @property
    def ranks(self) -> int:
        """The number of ranks: one for each GPU, and at least two, which then share a GPU."""
        return min(max(len(self.gpus), 2), 8)


def smi(*columns: str) -> list[dict[str, str]]:
    """Returns columns of nvidia-smi, a row for each GPU; none if there is no nvidia-smi."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    command = [program, f"--query-gpu={','.join(columns)}", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SMI_S, check=False)
    rows = list(csv.reader(io.StringIO(done.stdout), skipinitialspace=True)) if done.returncode == 0 else []
    return [dict(zip(columns, row, strict=True)) for row in rows if len(row) == len(columns)]


def inspect() -> Machine:
    """Returns the facts about this machine. Importing PyTorch may fail or hang, so call it in its own process."""
    known: dict[str, Any] = {"python": platform.python_version(), "glibc": "".join(platform.libc_ver())}
    listed = smi("uuid", "driver_version")
    known["listed"] = [row["uuid"] for row in listed]
    if listed:
        known["driver"] = listed[0]["driver_version"]
    try:
        import torch
    except ImportError as error:
        return Machine(**known, problem=f"PyTorch cannot be imported: {error}")
    # A plain text: another process that reads a version of PyTorch imports PyTorch.
    known |= {"torch": str(torch.__version__), "cuda": torch.version.cuda or ""}
    if not torch.cuda.is_available():
        why = "PyTorch finds no GPU" if torch.version.cuda else "PyTorch was built without CUDA"
        return Machine(**known, problem=f"{why}; nvidia-smi lists {len(listed)}" if listed else "no GPU")
    if torch.version.hip:
        return Machine(**known, problem="AMD GPUs are not supported")
    if torch.distributed.is_nccl_available():
        known["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    gpus = []
    for index in range(torch.cuda.device_count()):
        of = torch.cuda.get_device_properties(index)
        gpus.append({"name": of.name, "uuid": f"GPU-{of.uuid}", "memory_bytes": of.total_memory})
    return Machine(**known, gpus=gpus)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asdict(inspect())))
