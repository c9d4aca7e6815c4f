"""Rules of shares: as even as the caps of the ranks allow, no ranks without samples, no batches of a single one."""

from collections.abc import Sequence
from itertools import accumulate

from evenstep._native import Plan, Share, apportion
from evenstep.errors import SettingError


def even(size: int, caps: Sequence[int | None], quantum: int) -> Plan:
    """Returns the most even plan in whole quanta that gives no rank more than its cap.

    Args:
        size: number of samples of the iteration.
        caps: maximum number of samples by rank; None for no cap.
        quantum: every local batch is a multiple of it; one rank also gets the samples below one quantum.

    Raises:
        SettingError: the ranks together cannot hold ``size`` samples.
    """
    batches = [0] * len(caps)
    open_ranks, left = list(range(len(caps))), size
    # Each pass fixes the batches of the ranks that reach their caps; the others share the rest.
    while open_ranks:
        shared = apportion(left, [1] * len(open_ranks), quantum)
        full = {rank for rank, batch in zip(open_ranks, shared, strict=True) if not _fits(batch, caps[rank])}
        if not full:
            for rank, batch in zip(open_ranks, shared, strict=True):
                batches[rank] = batch
            return Plan.of(batches)
        for rank in full:
            batches[rank] = (caps[rank] or 0) // quantum * quantum
            left -= batches[rank]
        open_ranks = [rank for rank in open_ranks if rank not in full]
    quanta = f" in whole quanta of {quantum}" if quantum > 1 else ""
    raise SettingError(
        f"max_local_batch={list(caps)} by rank: all ranks together hold {size - left} samples{quanta}, but "
        f"global_batch is {size}: lower global_batch or raise the caps"
    )


def without_singles(plan: Plan, micro_batches: int, caps: Sequence[int | None] = ()) -> Plan:
    """Returns the plan without micro-batches of a single sample.

    Each rank that has them gets as much again from the rank with the largest share. If that one has too few to spare,
    or the rank's cap is too low, the samples go to the largest share that may grow, else to a rank without samples.
    Only a plan of one sample in total does not change.

    Args:
        plan: the shares of all ranks, perhaps with a tail, which stays.
        micro_batches: number of micro-batches of each rank.
        caps: maximum number of samples by rank; None for no cap. Empty if no rank has one.

    Raises:
        SettingError: the caps leave a rank with micro-batches of a single sample.
    """
    batches, least = plan.batches, 2 * micro_batches
    if micro_batches not in batches or sum(batches) == micro_batches:
        return plan
    caps = caps or [None] * len(batches)
    for rank, batch in enumerate(batches):
        if batch != micro_batches:
            continue
        others = sorted((other for other in range(len(batches)) if other != rank), key=lambda other: -batches[other])
        largest = others[0]
        growing = [other for other in others if _fits(max(batches[other] + micro_batches, least), caps[other])]
        if batches[largest] > least and _fits(least, caps[rank]):
            batches[rank] += micro_batches
            batches[largest] -= micro_batches
        elif growing and (batches[growing[0]] or batches[largest] > least):
            batches[rank] = 0
            if not batches[growing[0]]:
                batches[largest] -= micro_batches
                batches[growing[0]] = micro_batches
            batches[growing[0]] += micro_batches
        else:
            raise SettingError(
                f"max_local_batch={list(caps)} by rank: batch norm requires micro-batches of at least 2 samples, which "
                f"is impossible for an iteration of {sum(batches)} samples with {micro_batches} micro-batches by rank: "
                "raise the caps, change global_batch, or pass drop_last=True if it is the last iteration of an epoch"
            )
    return _replaced(plan, batches)


def without_empty(plan: Plan, wanted: Plan | None, quantum: int, caps: Sequence[int | None]) -> Plan:
    """Returns the plan with one quantum for ranks without samples, from the largest shares.

    The plan does not change if it has fewer quanta than ranks. A rank with a lower cap keeps no samples.

    Args:
        plan: the shares of all ranks, perhaps with a tail, which stays.
        wanted: the plan whose ranks with samples must have some; None for all ranks.
        quantum: number of samples for each of them.
        caps: maximum number of samples by rank; None for no cap. Empty if no rank has one.
    """
    batches = plan.batches
    if 0 not in batches or sum(batches) < quantum * len(batches):
        return plan
    for rank in (rank for rank, batch in enumerate(batches) if not batch and (wanted is None or wanted.batches[rank])):
        largest = max(range(len(batches)), key=batches.__getitem__)
        if batches[largest] >= 2 * quantum and _fits(quantum, caps[rank] if caps else None):
            batches[largest] -= quantum
            batches[rank] = quantum
    return plan if batches == plan.batches else _replaced(plan, batches)


def _replaced(plan: Plan, batches: Sequence[int]) -> Plan:
    offsets = accumulate(batches, initial=0)
    return Plan([Share(offset, batch) for offset, batch in zip(offsets, batches, strict=False)], plan.rate, plan.tail)


def micro_batches(samples: int, count: int, least: int) -> tuple[int, ...]:
    """Returns the sizes of a rank's micro-batches: nearly equal, at least ``least`` if possible, and else 0."""
    used = max(1, min(count, samples // least))
    size, larger = divmod(samples, used)
    return tuple(size + (at < larger) if at < used else 0 for at in range(count))


def first_above_cap(plan: Plan, caps: Sequence[int | None]) -> int | None:
    """Returns the first rank whose batch is larger than its cap; None if all batches fit."""
    batches = zip(plan.batches, caps, strict=True)
    return next((rank for rank, (batch, cap) in enumerate(batches) if not _fits(batch, cap)), None)


def _fits(batch: int, cap: int | None) -> bool:
    return cap is None or batch <= cap
