"""Checks for frameworks that run the training loop."""

import torch.distributed as dist

from evenstep.errors import SettingError
from evenstep.loader import Loader


def check_ranks(name: str, ranks: int, remedy: str) -> None:
    """Checks that the framework and the process group have the same number of ranks.

    If they differ, each process would train alone on its part of the data.

    Raises:
        SettingError: the numbers differ.
    """
    there = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    if ranks != there:
        raise SettingError(f"{name} has {ranks} ranks, but the process group has {there}: {remedy}")


def check_accumulate(name: str, batches: int, loader: Loader) -> None:
    """Checks that the framework and the loader have the same number of accumulation steps.

    Raises:
        SettingError: they differ.
    """
    if batches != loader.accumulate:
        raise SettingError(
            f"{name}={batches} differs from the loader's accumulate={loader.accumulate}: use the same value for both"
        )
