"""Checksums of tensors, to compare them between ranks and with files."""

import ctypes
import zlib

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

from evenstep.errors import DivergedError


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    """Returns the bytes of a dense tensor, also of types that NumPy lacks."""
    tensor = tensor.detach().cpu().contiguous()
    return ctypes.string_at(tensor.data_ptr(), tensor.nbytes) if tensor.numel() else b""


def checksum(values: torch.Tensor) -> int:
    """Returns the CRC-32 of the bytes of a dense tensor."""
    return zlib.crc32(tensor_bytes(values))


def check_order(indices: torch.Tensor, epoch: int, run: str) -> None:
    """Compares the order of an epoch between ranks.

    No rank waits for another one: the first one stores its checksum, and the others read it.

    Raises:
        DivergedError: another rank has another order.
    """
    store, own = _get_default_store(), str(checksum(indices))
    first = store.compare_set(f"evenstep/order/{run}/{epoch}", "", own).decode()
    if first != own:
        raise DivergedError(
            f"order({epoch}): rank {dist.get_rank()} has other indices (checksum {own}) than another rank "
            f"({first}): must depend only on the epoch, because each rank calls it"
        )


def check_begin(iteration: int, epoch: int, run: str) -> None:
    """Compares the first iteration of an epoch between ranks. No rank waits for another one.

    Raises:
        DivergedError: another rank has another number.
    """
    first = _get_default_store().compare_set(f"evenstep/begin/{run}/{epoch}", "", str(iteration)).decode()
    if first != str(iteration):
        raise DivergedError(
            f"epoch {epoch} begins with iteration {iteration} on rank {dist.get_rank()}, and with {first} on another "
            "rank: the loop has left the epoch before early, and ranks had read different numbers of its batches; read "
            "equally many"
        )
