"""Comparison of the values that must be the same on all ranks, and the descriptions of workers."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch.distributed as dist

from evenstep.errors import DivergedError
from evenstep.settings.settings import Settings
from evenstep.settings.workers import Workers
from evenstep.start.group import awaiting

log = logging.getLogger("evenstep")

#: Maximum length of the name of a worker.
_NAME_MAX = 128

#: The facts of a worker that joins the job, next to its name.
_JOINED = ("device", "max_local_batch", "memory_bytes", "claims")


@dataclass(frozen=True, slots=True)
class Gathered:
    """Facts that ranks exchange at the start."""

    #: The settings of this rank, with the name of its worker.
    settings: Settings
    #: The workers of the ranks, and the description of each worker.
    of: Workers
    workers: Sequence[Mapping[str, Any]]
    #: The kind of device of each rank.
    devices: Sequence[str]
    #: The highest number of restarts.
    restarts: int
    #: The jobs of earlier processes of this launch.
    earlier_jobs: Sequence[str]
    #: A random name, the same on all ranks.
    name: str


def gather_facts(group: dist.ProcessGroup, own: dict[str, Any]) -> Gathered:
    """Returns the facts of all ranks.

    Raises:
        DivergedError: ranks differ in a value that must be the same, or two have the same worker name.
        EvenstepError: another rank ended or hangs.
    """
    with awaiting("ended or hung while ranks compared their settings"):
        all_facts = gathered(group, own)
    check_alike([facts["alike"] for facts in all_facts])
    settings = numbered([facts["settings"] for facts in all_facts])
    names = [each.worker for each in settings]
    for rank, name in enumerate(names):
        if name in names[:rank]:
            raise DivergedError(
                f"ranks {names.index(name)} and {rank} have the same worker name {name!r}: set a different "
                "EVENSTEP_WORKER for each"
            )
    if dist.get_rank(group) == 0:
        warn_of_shared_gpus([facts["gpu"] for facts in all_facts])
    of = Workers.of_meshes([facts["mesh"] for facts in all_facts])
    workers = [
        _described(group_name([names[rank] for rank in ranks]), [all_facts[rank] for rank in ranks])
        for ranks in of.members
    ]
    own_rank = dist.get_rank(group)
    own_settings = replace(settings[own_rank], worker=workers[of.of_ranks[own_rank]]["worker"])
    # A node that came later knows of no earlier jobs.
    earlier_jobs = max((list(facts["earlier_jobs"]) for facts in all_facts), key=len)
    restarts = max(each.restarts for each in settings)
    devices = [facts["kind"] for facts in all_facts]
    return Gathered(own_settings, of, workers, devices, restarts, earlier_jobs, all_facts[0]["name"])


def group_name(names: Sequence[str]) -> str:
    """Returns the name of a worker whose ranks have these names: of all of them, if an id may be that long."""
    slots: dict[str, list[str]] = {}
    for name in names:
        node, slash, slot = name.rpartition("/")
        slots.setdefault(node + slash, []).append(slot)
    whole = ":".join(node + _range(of_node) for node, of_node in slots.items())
    return next(name for name in (whole, f"{names[0]}:{len(names)}-ranks", names[0]) if len(name) <= _NAME_MAX)


def _range(slots: Sequence[str]) -> str:
    first, number = slots[0], len(slots)
    is_range = number > 1 and first.isdecimal() and slots == [str(int(first) + at) for at in range(number)]
    return f"{slots[0]}-{slots[-1]}" if is_range else ":".join(slots)


def _described(worker: str, members: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the description of a worker. Each limit is the smallest one of its ranks."""
    facts = {name: members[0][name] for name in _JOINED}
    for name in ("max_local_batch", "memory_bytes"):
        facts[name] = min((each[name] for each in members if each[name] is not None), default=None)
    if len(members) > 1:
        devices = dict.fromkeys(each["device"] for each in members)
        facts["device"] = f"{' and '.join(devices)}, {len(members)} ranks"
    return {"worker": worker, **facts}


def numbered(everyone: Sequence[Settings]) -> list[Settings]:
    """Returns the settings of all ranks, with different ranks on each node.

    ``torch.multiprocessing.spawn`` and ``mpirun`` set none of the known variables.
    """
    places = Counter((own.node, own.local_rank) for own in everyone)
    crowded = {node for (node, _), count in places.items() if count > 1 and node is not None}
    ranks: Counter[str] = Counter()

    def number(own: Settings) -> Settings:
        if own.node is None or own.node not in crowded:
            return own
        local_rank = ranks[own.node]
        ranks[own.node] += 1
        is_default = own.worker == f"{own.node}/{own.local_rank}"
        return replace(own, local_rank=local_rank, worker=f"{own.node}/{local_rank}" if is_default else own.worker)

    return [number(own) for own in everyone]


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
