"""The name of a GPU that CUDA and NVML share: both number GPUs, but in different orders."""

from typing import Any

import torch

#: Digits of a UUID that is not known.
_UNKNOWN = set("0-")


def gpu_name(device: torch.device) -> str | None:
    """Returns the UUID of a GPU, without the prefix of NVML (``GPU-``, or ``MIG-`` for a part of a GPU).

    If PyTorch does not know it, the result is the PCI address, such as ``00000000:3B:00.0``. It is None if that is
    unknown, too.
    """
    properties = torch.cuda.get_device_properties(device)
    uuid = str(getattr(properties, "uuid", "")).lower().removeprefix("gpu-")
    if set(uuid) - _UNKNOWN:
        return uuid
    address: list[Any] = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    if any(part is None for part in address):
        return None
    domain, bus, place = map(int, address)
    return f"{domain:08X}:{bus:02X}:{place:02X}.0"
