"""Checks of the ranks: torchrun's environment, and whether all ranks have the same settings."""

import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from evenstep.doctor.check import Check
from evenstep.settings.launcher import node

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""Variables that torchrun sets for each process."""

GROUP_TIMEOUT_S = 60
"""Maximum time that ranks wait for each other."""

RANK_CLOCKS_MAX_S = 1.0
"""Maximum clock difference in seconds; above it, times in the ranks' logs do not match."""

TORCHRUN = "torchrun --nproc-per-node 3 -m evenstep doctor"


@dataclass(frozen=True, slots=True)
class Place:
    """The position of this process among the ranks.

    Attributes:
        rank: Its rank, from 0.
        world_size: Number of ranks.
        local_rank: Its rank on its node, from 0.
    """

    rank: int
    world_size: int
    local_rank: int


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts that one rank sends to the others.

    Attributes:
        place: Its position among the ranks.
        host: Name of its machine.
        worker: Its stable id.
        versions: Installed versions.
        settings: Settings that all must share, by name.
        unix_s: Its clock right after all ranks had joined the group, in Unix seconds.
        checks: Results of its own checks.
    """

    place: Place
    host: str
    worker: str
    versions: Mapping[str, str]
    settings: Mapping[str, str]
    unix_s: float
    checks: tuple[Check, ...]


def read_place(environ: Mapping[str, str]) -> tuple[Place | None, Check]:
    """Reads torchrun's environment. Returns the position, None if it is inconsistent, and the result of the check."""
    missing = [name for name in VARIABLES if not environ.get(name)]
    if len(missing) == len(VARIABLES):
        return None, Check("torchrun", "ok", f"not under torchrun, so ranks are not compared; try: {TORCHRUN}")
    if missing:
        return None, _wrong(f"{', '.join(missing)} not set, although other variables of torchrun are")
    numbers = {}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT"):
        value = environ.get(name, "")
        if not value and name == "LOCAL_WORLD_SIZE":
            continue
        if not (value.isascii() and value.isdigit()):
            return None, _wrong(f"{name}={value}: must be a whole number, 0 or more")
        numbers[name] = int(value)
    place = Place(numbers["RANK"], numbers["WORLD_SIZE"], numbers["LOCAL_RANK"])
    local_size = numbers.get("LOCAL_WORLD_SIZE", place.world_size)
    for wrong, rule in (
        (place.rank >= place.world_size, f"RANK={place.rank}: must be below WORLD_SIZE={place.world_size}"),
        (
            place.local_rank > place.rank,
            f"LOCAL_RANK={place.local_rank}: must be at most RANK={place.rank}",
        ),
        (place.local_rank >= local_size, f"LOCAL_RANK={place.local_rank}: must be below {local_size}"),
        (local_size > place.world_size, f"LOCAL_WORLD_SIZE={local_size}: must be at most WORLD_SIZE"),
        (not 0 < numbers["MASTER_PORT"] < 1 << 16, f"MASTER_PORT={numbers['MASTER_PORT']}: must be 1 to 65535"),
    ):
        if wrong:
            return None, _wrong(rule)
    where = f"{environ['MASTER_ADDR']}:{environ['MASTER_PORT']}"
    return place, Check("torchrun", "ok", f"rank {place.rank} of {place.world_size}, rendezvous at {where}")


def gather_facts(
    place: Place,
    environ: Mapping[str, str],
    versions: Mapping[str, str],
    settings: Mapping[str, str],
    own: Sequence[Check],
) -> list[Facts]:
    """Creates a Gloo group and returns the facts of all ranks, in rank order.

    Raises:
        RuntimeError: The ranks could not connect, or a connection broke.
    """
    import torch.distributed as dist  # noqa: PLC0415  # The other checks do not need torch.

    host = socket.gethostname()
    worker = environ.get("EVENSTEP_WORKER") or f"{node(environ, host)}/{place.local_rank}"
    dist.init_process_group("gloo", timeout=timedelta(seconds=GROUP_TIMEOUT_S))
    try:
        dist.barrier()
        facts = Facts(place, host, worker, versions, settings, time.time(), tuple(own))
        gathered: list[Facts | None] = [None] * place.world_size
        dist.all_gather_object(gathered, facts)
    finally:
        dist.destroy_process_group()
    return [facts for facts in gathered if facts is not None]


def compare(ranks: Sequence[Facts]) -> list[Check]:
    """Compares the facts of all ranks. Findings of rank 0's own checks are not repeated."""
    hosts = sorted({facts.host for facts in ranks})
    clocks = [facts.unix_s for facts in ranks]
    apart_s = max(clocks) - min(clocks)
    clocks_found = f"at most {apart_s:.2f} s apart"
    advice = f"run NTP on all nodes: more than {RANK_CLOCKS_MAX_S:g} s"
    return [
        Check("ranks", "ok", f"{len(ranks)} connected over Gloo on {', '.join(hosts)}"),
        _same("ranks' versions", [dict(facts.versions) for facts in ranks], "install the same version on all nodes"),
        _same("ranks' settings", [dict(facts.settings) for facts in ranks], "set the same value for all ranks"),
        _check_workers(ranks),
        Check("ranks' clocks", "ok", clocks_found)
        if apart_s <= RANK_CLOCKS_MAX_S
        else Check("ranks' clocks", "warning", clocks_found, advice),
        *(
            Check(
                f"rank {facts.place.rank} ({facts.host}): {check.name}",
                check.status,
                check.found,
                check.advice,
            )
            for facts in ranks[1:]
            for check in facts.checks
            if check.status != "ok"
        ),
    ]


def _check_workers(ranks: Sequence[Facts]) -> Check:
    """Checks that no two ranks have the same worker id, by which the predictor identifies workers."""
    ranks_of: dict[str, list[int]] = {}
    for facts in ranks:
        ranks_of.setdefault(facts.worker, []).append(facts.place.rank)
    shared = [
        (f"ranks {numbers} have the same worker id {worker}")
        for worker, numbers in ranks_of.items()
        if len(numbers) > 1
    ]
    if shared:
        return Check(
            "ranks' workers",
            "failed",
            "; ".join(shared),
            "use a different hostname for each node, or set EVENSTEP_WORKER",
        )
    return Check("ranks' workers", "ok", ", ".join(ranks_of))


def _same(name: str, told: Sequence[Mapping[str, str]], advice: str) -> Check:
    differing = []
    for key in sorted({key for one in told for key in one}):
        values = [one.get(key, "none") for one in told]
        if len(set(values)) > 1:
            ranks_of = {value: [rank for rank, other in enumerate(values) if other == value] for value in values}
            differing.append(f"{key} is " + ", ".join(f"{value} on {ranks_of[value]}" for value in ranks_of))
    if differing:
        return Check(name, "failed", "; ".join(differing), advice)
    return Check(name, "ok", ", ".join(f"{key} {value}" for key, value in told[0].items()) or "none set")


def _wrong(found: str) -> Check:
    return Check("torchrun", "failed", found, f"start with torchrun: {TORCHRUN}")
