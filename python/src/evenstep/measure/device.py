"""The device of this process, as far as it is known before the model is used."""

import torch
import torch.distributed as dist


def current_device() -> torch.device:
    """Returns the GPU of this process if it uses CUDA; else the CPU."""
    uses_cuda = torch.cuda.is_available() and (torch.cuda.is_initialized() or backend("cuda") == "nccl")
    return torch.device("cuda", torch.cuda.current_device()) if uses_cuda else torch.device("cpu")


def backend(device_type: str, group: dist.ProcessGroup | None = None) -> str | None:
    """Returns the backend of a group, by default of all ranks, for tensors on such devices; None without one.

    ``get_backend`` may name several, as in ``cpu:gloo,cuda:nccl``, or none if ``init_process_group`` got none.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return None
    pairs = (pair.partition(":") for pair in dist.get_backend_config(group).lower().split(","))
    return {device: backend for device, _, backend in pairs}.get(device_type)
