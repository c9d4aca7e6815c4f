"""The start of hedged steps: their options, and the store for claims."""

import secrets
from dataclasses import replace

import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]  # missing in torch's type stubs.

from evenstep.errors import SettingError
from evenstep.hedge.claims import Claims
from evenstep.hedge.line import ClaimThread, connect
from evenstep.hedge.trainee import TrainedModel
from evenstep.settings.chunks import SharedTail
from evenstep.settings.options import RunOptions
from evenstep.settings.settings import OFF
from evenstep.start.group import awaiting


def hedged(job_options: RunOptions, tail: float | None, min_chunk: int | None) -> RunOptions:
    """Returns the options of a run with hedged steps.

    Args:
        job_options: the other options of the run.
        tail: without a predictor, the fraction of each iteration that becomes the shared tail; None for no tail.
        min_chunk: minimum number of samples in a chunk; None for the quantum.

    Raises:
        SettingError: an option breaks its rule.
    """
    if tail is not None and job_options.settings.server is None:
        # A given tail needs no predictor, so none is started.
        job_options = replace(job_options, settings=replace(job_options.settings, server=OFF))
    if is_planned(job_options):
        if tail is not None:
            raise SettingError(
                f"tail={tail}: the predictor sets the tail; remove the argument, or pass a plan in init(plan=..)"
            )
        job = dict(job_options.job) if min_chunk is None else {**job_options.job, "min_chunk": min_chunk}
        return replace(job_options, claims=True, job=job)
    if tail is None:
        if min_chunk is not None:
            raise SettingError(f"min_chunk={min_chunk}: there is no tail; set its fraction of an iteration (tail=0.3)")
        return replace(job_options, claims=True)
    shared = SharedTail(tail, job_options.quantum if min_chunk is None else min_chunk)
    shared.check(job_options.quantum)
    return replace(job_options, claims=True, tail=shared)


def is_planned(job_options: RunOptions) -> bool:
    """Returns whether a predictor makes the plans."""
    return job_options.fixed is None and job_options.settings.server != OFF


def claims_of(trainee: TrainedModel, job_options: RunOptions) -> Claims:
    """Creates one rank's claims on new counters; all ranks must call it together.

    A store may outlive a run: torchrun's store survives a restart of the processes. So rank 0 draws a random name for
    the counters.

    Raises:
        SettingError: the group has no store that supports claims.
    """
    group, job = trainee.group, job_options.settings.job or "run"
    if group is None or not (is_planned(job_options) or job_options.tail):
        return Claims(ClaimThread(HashStore()), job)
    store = connect()
    name = torch.tensor([secrets.randbits(62)], device=trainee.parameters()[0].device)
    with awaiting("ended or hung before its first hedged step"):
        dist.broadcast(name, src=dist.get_global_rank(group, 0), group=group)
    return Claims(ClaimThread(store), f"evenstep/claims/{job}/{int(name):x}")
