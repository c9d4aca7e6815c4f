"""How hedged steps begin: what they wish for, and where ranks claim."""

import secrets
from dataclasses import replace

import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]  # torch's stubs leave it out.

from evenstep.errors import SettingError
from evenstep.hedge.chunks import SharedTail
from evenstep.hedge.claims import Claims
from evenstep.hedge.line import Line, connect
from evenstep.hedge.trainee import Trainee
from evenstep.opening import Wishes


def hedged(wishes: Wishes, tail: float | None, min_chunk: int | None) -> Wishes:
    """The wishes of a run whose ranks claim.

    Args:
        wishes: what else it is to be.
        tail: without a predictor, which part of each iteration is a tail; None: nothing.
        min_chunk: no chunk is smaller; None: the quantum.

    Raises:
        SettingError: a value breaks its rule.
    """
    if is_planned(wishes):
        if tail is not None:
            raise SettingError(f"tail={tail}: the predictor decides it; leave it out, or give a plan in init(plan=..)")
        job = dict(wishes.job) if min_chunk is None else {**wishes.job, "min_chunk": min_chunk}
        return replace(wishes, claims=True, job=job)
    if tail is None:
        if min_chunk is not None:
            raise SettingError(
                f"min_chunk={min_chunk}: there is no tail; say how much of an iteration is one (tail=0.3)"
            )
        return replace(wishes, claims=True)
    shared = SharedTail(tail, wishes.quantum if min_chunk is None else min_chunk)
    shared.check(wishes.quantum)
    return replace(wishes, claims=True, tail=shared)


def is_planned(wishes: Wishes) -> bool:
    """Whether a predictor makes the plans."""
    return wishes.fixed is None and wishes.settings.server is not None


def claims_of(trainee: Trainee, wishes: Wishes) -> Claims:
    """One rank's claims, on counters that nobody added to yet; all ranks call it alike.

    A store may outlive a run: torchrun's does when it begins the processes again. So counters have a name that rank 0
    draws.

    Raises:
        SettingError: the group has no store that can be claimed on.
    """
    group, job = trainee.group, wishes.settings.job or "run"
    if group is None or not (is_planned(wishes) or wishes.tail):
        return Claims(Line(HashStore()), job)
    store = connect()
    name = torch.tensor([secrets.randbits(62)], device=trainee.parameters()[0].device)
    dist.broadcast(name, src=dist.get_global_rank(group, 0), group=group)
    return Claims(Line(store), f"evenstep/claims/{job}/{int(name):x}")
