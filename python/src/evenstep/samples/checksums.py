"""Checksums of tensors, to compare them between ranks and with files."""

import ctypes
import zlib

import torch


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    """Returns the bytes of a dense tensor, also of types that NumPy lacks."""
    tensor = tensor.detach().cpu().contiguous()
    return ctypes.string_at(tensor.data_ptr(), tensor.nbytes) if tensor.numel() else b""


def checksum(values: torch.Tensor) -> int:
    """Returns the CRC-32 of the bytes of a dense tensor."""
    return zlib.crc32(tensor_bytes(values))
