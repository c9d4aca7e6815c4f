"""Checks for frameworks that run the training loop."""

import torch.distributed as dist

from evenstep.errors import SettingError
from evenstep.run.loader import Loader


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
        SettingError: they differ, or the loader's number changes.
    """
    if loader.has_varying_passes:
        raise SettingError(
            f"{name}={batches} with max_tokens or micro_batch: the loader's number of micro-batches changes from "
            "iteration to iteration; remove them, or use your own loop with loader.is_last"
        )
    if batches != loader.accumulate:
        raise SettingError(
            f"{name}={batches} differs from the loader's accumulate={loader.accumulate}: use the same value for both"
        )
