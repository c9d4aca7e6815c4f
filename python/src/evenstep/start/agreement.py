"""Comparison of the values that must be the same on all ranks, and the descriptions of workers."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist

from evenstep.errors import DivergedError
from evenstep.start.group import awaiting

log = logging.getLogger("evenstep")

#: The facts of a worker that joins the job.
_JOINED = ("worker", "device", "max_local_batch", "memory_bytes", "claims")


def gather_facts(group: dist.ProcessGroup, own: dict[str, Any]) -> tuple[list[Mapping[str, Any]], int, list[str]]:
    """Returns the workers of all ranks, the highest restart count, and the jobs of earlier processes of this launch.

    Raises:
        DivergedError: ranks differ in a value that must be the same, or two have the same worker name.
        EvenstepError: another rank ended or hangs.
    """
    with awaiting("ended or hung while ranks compared their settings"):
        all_facts = gathered(group, own)
    check_alike([facts["alike"] for facts in all_facts])
    names = [facts["worker"] for facts in all_facts]
    for rank, name in enumerate(names):
        if name in names[:rank]:
            raise DivergedError(
                f"ranks {names.index(name)} and {rank} have the same worker name {name!r}: set a different "
                "EVENSTEP_WORKER for each"
            )
    if dist.get_rank(group) == 0:
        warn_of_shared_gpus([facts["gpu"] for facts in all_facts])
    workers: list[Mapping[str, Any]] = [{name: facts[name] for name in _JOINED} for facts in all_facts]
    # A node that came later knows of no earlier jobs.
    earlier_jobs = max((list(facts["earlier_jobs"]) for facts in all_facts), key=len)
    return workers, max(int(facts["restarts"]) for facts in all_facts), earlier_jobs


def warn_of_shared_gpus(gpus: Sequence[str | None]) -> None:
    """Warns if several ranks use one GPU, which is CUDA's default."""
    for gpu in dict.fromkeys(gpus):
        ranks = [rank for rank, other in enumerate(gpus) if other == gpu]
        if gpu is not None and len(ranks) > 1:
            log.warning(
                "ranks %s all use the GPU %s: call torch.cuda.set_device(LOCAL_RANK) before job.loader, or evenstep "
                "describes the wrong GPU to the predictor; if they share it on purpose, ignore this warning",
                ", ".join(map(str, ranks)),
                gpu,
            )


def gathered(group: dist.ProcessGroup, own: Any) -> list[Any]:
    """Returns the objects of all ranks."""
    everyone: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, own, group=group)
    return everyone


def check_alike(everyone: Sequence[Mapping[str, Any]]) -> None:
    """Checks that all ranks have the same values.

    Raises:
        DivergedError: they differ.
    """
    for name, value in everyone[0].items():
        for rank, other in enumerate(everyone):
            if other[name] != value:
                raise DivergedError(
                    f"{name}: rank 0 has {value} but rank {rank} has {other[name]}; must be the same on all ranks"
                )
