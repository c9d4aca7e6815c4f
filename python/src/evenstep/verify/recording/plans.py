"""The default plans: nearly even, very uneven, and with a rank without samples."""

from evenstep._native import apportion
from evenstep.errors import SettingError

#: Ratio of the shares of two successive ranks in a very uneven plan.
_UNEVEN = 4

#: Maximum exponent of this ratio. Proportions are 64-bit numbers.
_EXPONENT_MAX = 20


def default_plans(world_size: int) -> tuple[tuple[int, ...], ...]:
    """Returns the proportions of the ranks for successive iterations.

    Each differs from the previous one, also if ranks without samples get some. The first one is very uneven, so that a
    run of a single step is already a useful check.
    """
    if world_size == 1:
        return ((1,),)
    uneven = tuple(_UNEVEN ** min(world_size - 1 - rank, _EXPONENT_MAX) for rank in range(world_size))
    nearly_even = (5,) + (4,) * (world_size - 1)
    without_first = (0, *uneven[:-1])
    return uneven, without_first, nearly_even, uneven[::-1], without_first[::-1], nearly_even[::-1]


def parse_plan(text: str) -> tuple[int, ...]:
    """Parses a plan such as ``12,3,1``.

    Raises:
        SettingError: it is not a list of whole numbers with at least one above 0.
    """
    try:
        plan = tuple(int(part) for part in text.split(","))
    except ValueError:
        plan = ()
    if not plan or min(plan) < 0 or not any(plan):
        raise SettingError(
            f"plan {text!r}: must be whole numbers such as 12,3,1, none negative and at least one above 0"
        )
    return plan


def batches(plans: tuple[tuple[int, ...], ...], iteration: int, global_batch: int, accumulate: int) -> list[int]:
    """Returns the local batches by rank in an iteration: in the plan's proportions, with equal micro-batches."""
    return apportion(global_batch, plans[iteration % len(plans)], accumulate)
