"""The start of hedged steps: their options, and the store for claims."""

import secrets
from dataclasses import replace

import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]  # missing in torch's type stubs.

from evenstep.errors import SettingError
from evenstep.hedge.chunks import SharedTail
from evenstep.hedge.claims import Claims
from evenstep.hedge.line import Line, connect
from evenstep.hedge.trainee import Trainee
from evenstep.opening import Wishes


def hedged(wishes: Wishes, tail: float | None, min_chunk: int | None) -> Wishes:
    """Returns the options of a run with hedged steps.

    Args:
        wishes: the other options of the run.
        tail: without a predictor, the fraction of each iteration that becomes the shared tail; None for no tail.
        min_chunk: minimum number of samples in a chunk; None for the quantum.

    Raises:
        SettingError: an option breaks its rule.
    """
    if is_planned(wishes):
        if tail is not None:
            raise SettingError(
                f"tail={tail}: the predictor sets the tail; remove the argument, or pass a plan in init(plan=..)"
            )
        job = dict(wishes.job) if min_chunk is None else {**wishes.job, "min_chunk": min_chunk}
        return replace(wishes, claims=True, job=job)
    if tail is None:
        if min_chunk is not None:
            raise SettingError(f"min_chunk={min_chunk}: there is no tail; set its fraction of an iteration (tail=0.3)")
        return replace(wishes, claims=True)
    shared = SharedTail(tail, wishes.quantum if min_chunk is None else min_chunk)
    shared.check(wishes.quantum)
    return replace(wishes, claims=True, tail=shared)


def is_planned(wishes: Wishes) -> bool:
    """Returns whether a predictor makes the plans."""
    return wishes.fixed is None and wishes.settings.server is not None


def claims_of(trainee: Trainee, wishes: Wishes) -> Claims:
    """Creates one rank's claims on new counters; all ranks must call it together.

    A store may outlive a run: torchrun's store survives a restart of the processes. So rank 0 draws a random name for
    the counters.

    Raises:
        SettingError: the group has no store that supports claims.
    """
    group, job = trainee.group, wishes.settings.job or "run"
    if group is None or not (is_planned(wishes) or wishes.tail):
        return Claims(Line(HashStore()), job)
    store = connect()
    name = torch.tensor([secrets.randbits(62)], device=trainee.parameters()[0].device)
    dist.broadcast(name, src=dist.get_global_rank(group, 0), group=group)
    return Claims(Line(store), f"evenstep/claims/{job}/{int(name):x}")
