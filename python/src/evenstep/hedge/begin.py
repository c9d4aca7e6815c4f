"""How hedged steps begin: what they wish for, and where ranks claim."""

import secrets
from dataclasses import replace

import torch
import torch.distributed as dist

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
    is_planned = wishes.fixed is None and wishes.settings.server is not None
    if is_planned:
        if tail is not None:
            raise SettingError(f"tail={tail}: the predictor decides it; leave it out, or give a plan in init(plan=..)")
        job = dict(wishes.job) if min_chunk is None else {**wishes.job, "min_chunk": min_chunk}
        return replace(wishes, claims=True, job=job)
    if tail is None:
        if min_chunk is not None:
            raise SettingError(f"min_chunk={min_chunk}: there is no tail; say how much of an iteration is one (tail=0.3)")
        return replace(wishes, claims=True)
    shared = SharedTail(tail, wishes.quantum if min_chunk is None else min_chunk)
    shared.check(wishes.quantum)
    return replace(wishes, claims=True, tail=shared)


def claims_of(trainee: Trainee, job: str) -> Claims:
    """One rank's claims, on counters that nobody added to yet; all ranks call it alike.

    A store may outlive a run: torchrun's does when it begins the processes again. So counters have a name that rank 0
    draws.

    Raises:
        SettingError: the group has no store that can be claimed on.
    """
    group = trainee.group
    if group is None:
        return Claims(Line(dist.HashStore()), job)
    store = connect()
    name = torch.tensor([secrets.randbits(62)], device=trainee.parameters()[0].device)
    dist.broadcast(name, src=dist.get_global_rank(group, 0), group=group)
    return Claims(Line(store), f"evenstep/claims/{job}/{int(name):x}")
