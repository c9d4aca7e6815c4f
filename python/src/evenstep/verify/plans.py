"""Plans that a right script does not notice: nearly even, very uneven, and with a rank that has nothing."""

from evenstep.errors import SettingError
from evenstep.plan import apportion

#: What a rank has of what the rank before it has, in a very uneven plan.
_UNEVEN = 4


def default_plans(world_size: int) -> tuple[tuple[int, ...], ...]:
    """Proportions of the ranks for iterations, one after the other: each differs from the one before.

    The first is very uneven, so that a run of a single step says something already.
    """
    if world_size == 1:
        return ((1,),)
    uneven = tuple(_UNEVEN ** (world_size - 1 - rank) for rank in range(world_size))
    nearly_even = (5,) + (4,) * (world_size - 1)
    without_last = (*uneven[:-1], 0)
    return uneven, without_last, nearly_even, uneven[::-1], without_last[::-1], nearly_even[::-1]


def parse_plan(text: str) -> tuple[int, ...]:
    """Reads ``12,3,1``.

    Raises:
        SettingError: it is no list of whole numbers of which one is above 0.
    """
    try:
        plan = tuple(int(part) for part in text.split(","))
    except ValueError:
        plan = ()
    if not plan or min(plan) < 0 or not any(plan):
        raise SettingError(f"plan {text!r}: must be whole numbers such as 12,3,1, none negative and one above 0")
    return plan


def batches(plans: tuple[tuple[int, ...], ...], iteration: int, global_batch: int, accumulate: int) -> list[int]:
    """Local batches by rank in an iteration: in the plan's proportions, and with equally large micro-batches."""
    return apportion(global_batch, plans[iteration % len(plans)], accumulate)
