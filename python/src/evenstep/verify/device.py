"""The device of the verified processes: CPUs, or one GPU for each rank."""

import multiprocessing
import os

import torch

from evenstep.errors import SettingError

_CONTEXT = multiprocessing.get_context("fork")

#: A workspace with which cuBLAS repeats its results exactly.
_CUBLAS_WORKSPACE = ":4096:8"


def check_device(device: str, ranks: int) -> str:
    """Returns why the ranks cannot use a device, or an empty string.

    Raises:
        SettingError: the device is unknown.
    """
    if device not in ("cpu", "cuda"):
        raise SettingError(f'device={device!r}: must be "cpu" or "cuda"')
    if device == "cpu":
        return ""
    if not (torch.version.cuda or torch.version.hip):
        return f"PyTorch {torch.__version__} was built without CUDA: install a build with CUDA, or use --device cpu"
    if torch.cuda.is_initialized():
        return "this process has used a GPU, so processes forked from it cannot: call verify in a new process"
    count = _gpus()
    if not count:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "not set")
        return f"PyTorch finds no GPU (CUDA_VISIBLE_DEVICES: {visible}): check nvidia-smi, or use --device cpu"
    if count < ranks:
        fewer = f"--ranks {count}" if count > 1 else "--device cpu"
        return f"{ranks} ranks need one GPU each, but there are {count}: use {fewer}"
    return ""


def environ(device: str) -> dict[str, str]:
    """Returns the environment variables of a process for its device."""
    if device == "cpu":
        return {"CUDA_VISIBLE_DEVICES": ""}
    return {"CUBLAS_WORKSPACE_CONFIG": os.environ.get("CUBLAS_WORKSPACE_CONFIG", _CUBLAS_WORKSPACE)}


def make_repeatable(device: str) -> None:
    """Makes this process compute with full precision and, if possible, with the same result each time."""
    # TF32 is less precise than the comparison requires.
    torch.backends.cudnn.allow_tf32 = False
    if device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = False
        # Measured choices of kernels differ between processes.
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.deterministic = True
        torch.use_deterministic_algorithms(True, warn_only=True)


def _gpus() -> int:
    """Returns the number of GPUs, counted in a separate process: a process that uses GPUs must not be forked."""
    ours, theirs = _CONTEXT.Pipe()
    counter = _CONTEXT.Process(target=lambda: theirs.send(torch.cuda.device_count()))
    counter.start()
    theirs.close()
    try:
        count: int = ours.recv()
    except EOFError:
        count = 0
    counter.join()
    return count
