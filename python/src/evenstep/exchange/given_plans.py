"""Plans without a predictor: given plans, the plan of a checkpoint, and even shares."""

import functools
import json
import logging
import operator
from collections.abc import Callable, Sequence

from torch.distributed import Store  # type: ignore[attr-defined]  # missing in torch's type stubs.

from evenstep._native import Plan, apportion
from evenstep.errors import EvenstepError, SettingError
from evenstep.samples import shares
from evenstep.samples.order import Order
from evenstep.settings.options import Fixed

log = logging.getLogger("evenstep")

#: Number of iterations that another rank may have read less than this one.
_KEPT = 4096

#: Number of plans that each rank remembers.
_REMEMBERED = 64


class AgreedPlans:
    """A function of a script that returns the given batches of an iteration. It may differ between ranks.

    The first rank that reads an iteration decides for all. No rank waits for another one, because loops may read ahead.
    """

    def __init__(self, given: Callable[[int], Sequence[int]], store: Store, name: str, *, deletes: bool) -> None:
        """Creates one rank's side; exactly one rank ``deletes`` the plans of old iterations.

        Args:
            given: the function.
            store: a store of all ranks.
            name: the beginning of the keys, the same on all ranks and new in the store.
            deletes: whether this rank removes the plans of old iterations.
        """
        self._given, self._store, self._name, self._deletes = given, store, name, deletes
        #: The first iteration that was read without the store, and why: the process that has the store may have ended.
        self._alone: tuple[int, RuntimeError] | None = None
        # The state of a run may be saved after the end of the store.
        self._agreed = functools.lru_cache(_REMEMBERED)(self._agree)

    def __call__(self, iteration: int) -> list[int]:
        """Returns the batches of an iteration, the same on all ranks."""
        return self._agreed(iteration)

    def check(self, iteration: int) -> None:
        """Checks that all ranks have agreed on an iteration before it begins: loops may read ahead, over their own end.

        Raises:
            EvenstepError: the store had ended before.
        """
        if self._alone and iteration >= self._alone[0]:
            raise EvenstepError(
                f"iteration {iteration}: the store of the process group has ended, so the ranks cannot agree on plan=: "
                "rank 0 must not end before the others"
            ) from self._alone[1]

    def _agree(self, iteration: int) -> list[int]:
        # Integers of other types, such as NumPy's, have an index. Fractions remain, and are refused.
        own = json.dumps(list(self._given(iteration)), default=operator.index)
        try:
            agreed: list[int] = json.loads(self._store.compare_set(f"{self._name}/{iteration}", "", own))
        except RuntimeError as error:
            self._alone = self._alone or (iteration, error)
            return list(json.loads(own))
        if self._deletes and iteration >= _KEPT:
            self._store.delete_key(f"{self._name}/{iteration - _KEPT}")
        return agreed


class FilledPlans:
    """Plans in which each rank has samples if there are enough, by iteration."""

    def __init__(self, plans: Callable[[int], Plan], quantum: int, caps: Sequence[int | None], *, tells: bool) -> None:
        """Changes ``plans``; ``tells`` logs the first change."""
        self._plans, self._quantum, self._caps, self._tells = plans, quantum, caps, tells

    def __call__(self, iteration: int) -> Plan:
        """Returns the plan of an iteration."""
        plan = self._plans(iteration)
        filled = shares.without_empty(plan, None, self._quantum, self._caps)
        if self._tells and filled is not plan:
            self._tells = False
            log.warning(
                "plan=%s of iteration %s becomes %s: unless losses are sums, a rank without samples would compute some "
                "that do not count, which takes as long",
                plan.batches,
                iteration,
                filled.batches,
            )
        return filled


def given_plans(fixed: Fixed, order: Order, caps: Sequence[int | None], first: int) -> Callable[[int], Plan]:
    """Returns given plans by iteration; the first one is checked now.

    Raises:
        SettingError: the first plan breaks a rule, or does not cover a whole iteration.
    """

    def checked(batches: Sequence[int], iteration: int) -> Plan:
        what = f"plan={list(batches)} of iteration {iteration}"
        if len(batches) != len(caps):
            raise SettingError(
                f"{what}: must have one batch for each of the {len(caps)} ranks, or workers of init(mesh=..)"
            )
        # With costs, a plan has the ratios of shares.
        quantum = 1 if order.costs else order.accumulate
        if any(batch < 0 or batch % quantum for batch in batches) or not any(batches):
            raise SettingError(f"{what}: batches must be multiples of accumulate={quantum}, at least 0, and not all 0")
        plan = Plan.of(batches)
        if (rank := shares.first_above_cap(plan, caps)) is not None:
            raise SettingError(
                f"{what}: {batches[rank]} exceeds max_local_batch={caps[rank]} of rank {rank}, or of that worker of "
                "init(mesh=..); give it fewer samples or raise its cap"
            )
        return plan

    plan = checked(fixed(first) if callable(fixed) else fixed, first)
    if plan.size != order.global_batch and not order.costs:
        raise SettingError(
            f"plan={plan.batches} sums to {plan.size}, but global_batch is {order.global_batch}: make them equal"
        )
    return (lambda iteration: checked(fixed(iteration), iteration)) if callable(fixed) else (lambda _: plan)


def even_plan(before: Plan | None, order: Order, caps: Sequence[int | None], quantum: int) -> Plan:
    """Returns the plan of a whole iteration without a predictor: the checkpoint's if it still fits, else even shares.

    Raises:
        SettingError: the caps do not allow the global batch.
    """
    size = order.plan_size
    even = shares.even(size, caps, quantum)
    # An earlier version may have stored the plan of an epoch's remainder.
    if before is None or len(before.shares) != len(caps) or before.size != size:
        return even
    # The quantum may have changed.
    batches = apportion(size, before.resized(size, quantum).batches, quantum)
    plan = Plan.of(batches, before.rate)
    return even if shares.first_above_cap(plan, caps) is not None else plan
