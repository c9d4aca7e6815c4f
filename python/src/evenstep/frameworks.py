"""What must hold wherever a framework runs the loop."""

import torch.distributed as dist

from evenstep.errors import SettingError
from evenstep.loader import Loader


def check_ranks(name: str, ranks: int, remedy: str) -> None:
    """Refuses a framework that sees other ranks than there are: each would train alone, on its part of the data.

    Raises:
        SettingError: it does.
    """
    there = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    if ranks != there:
        raise SettingError(f"{name} sees {ranks} ranks, and the process group has {there}: {remedy}")


def check_accumulate(name: str, batches: int, loader: Loader) -> None:
    """Refuses a framework that steps after another number of batches than the plan shares out.

    Raises:
        SettingError: it does.
    """
    if batches != loader.accumulate:
        raise SettingError(f"{name}={batches}, and the loader's accumulate={loader.accumulate}: must be the same")
