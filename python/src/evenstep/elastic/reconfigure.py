"""All private names of PyTorch by which a process group loses and gets ranks; no other module uses them."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]  # missing in torch's type stubs.

_NAMES = ("_reconfigure", "_get_reconfigure_handle", "_supports_reconfigure")

#: Ranks before the first generation, unique in the run, and ids of groups of one rank: above all generations.
_RANKS_MAX = 1 << 20
_OWN_IDS = 1 << 40

#: Time limit of new connections, in seconds: all members have published their addresses before.
_CONNECT = timedelta(seconds=10)


def supported() -> str | None:
    """Returns why this PyTorch cannot change a process group; None if it can."""
    if not dist.is_available():
        return f"PyTorch {torch.__version__} has no torch.distributed"
    missing = [name for name in _NAMES if not hasattr(dist, name)]
    if missing:
        return f"PyTorch {torch.__version__} cannot change a running process group: it has no {', '.join(missing)}"
    return None


def open_group(store: Store, number: int, limit_s: float) -> None:
    """Makes the default group, which has no members yet.

    Args:
        store: the store of the job.
        number: of this process, unique in the run.
        limit_s: time limit of collectives, in seconds.
    """
    options: dict[str, Any] = {"enable_reconfigure": True}
    dist.init_process_group(
        "gloo",
        store=PrefixStore("group", store),
        rank=number,
        world_size=_RANKS_MAX,
        timeout=timedelta(seconds=limit_s),
        **options,
    )


def drop(generation: int, number: int) -> None:
    """Closes all connections of this rank, so that ranks which wait for it fail too."""
    _change(_OWN_IDS + generation * _RANKS_MAX + number, [_handle()]).wait()


def form(store: Store, generation: int, number: int, members: Sequence[int], check: Callable[[], None]) -> None:
    """Makes the default group one of these members, in this order. ``check`` raises an error to end the waits."""
    key = f"handle/{generation}"
    store.set(f"{key}/{number}", _handle())
    wanted = [f"{key}/{member}" for member in members]
    while not store.check(wanted):
        check()
    _change(generation, [store.get(name).decode() for name in wanted]).wait()


def _handle() -> Any:
    return dist._get_reconfigure_handle()  # type: ignore[attr-defined,unused-ignore]  # noqa: SLF001


def _change(uuid: int, handles: list[str]) -> Any:
    return dist._reconfigure(uuid=uuid, handles=handles, timeout=_CONNECT)  # type: ignore[attr-defined]  # noqa: SLF001
