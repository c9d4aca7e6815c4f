"""The three runs and their comparison."""

import importlib
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from evenstep.errors import SettingError
from evenstep.verify import compare
from evenstep.verify.device import check_device
from evenstep.verify.launch import RunFailedError, launch
from evenstep.verify.recording.plans import default_plans
from evenstep.verify.recording.task import Recorded, Reference, Role, Task
from evenstep.verify.target import Target
from evenstep.verify.verdict import Verdict, could_not_run, judge, missing_line, mixing

#: Default number of ranks.
RANKS = 3

#: Default number of compared iterations: one for each default plan.
STEPS = 6

#: Default time limit of a run, in seconds.
TIMEOUT_S = 600.0

#: Modules that DistributedDataParallel loads at its first use; loaded once, before processes are forked.
_PRELOADED = ("torch._dynamo", "torch._dynamo.callback")


def verify(
    target: str | Path | Callable[[], Any],
    arguments: Sequence[str] = (),
    *,
    is_module: bool = False,
    ranks: int | None = None,
    steps: int = STEPS,
    plans: Sequence[Sequence[int]] = (),
    tolerance: float | None = None,
    device: str = "cpu",
    plain: bool = False,
    micro_batch: int | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Verdict:
    """Runs a script for a few iterations with uneven plans and in one process, and compares the results.

    Processes are forked from this one, so it must not have used a GPU and should have no threads.

    Args:
        target: a path, ``module:function``, a function without parameters, or with ``is_module`` a module's name.
        arguments: arguments of the script.
        is_module: run the module of that name, as ``python -m`` does.
        ranks: number of processes of the uneven run; default the length of the plans, else 3.
        steps: number of compared iterations.
        plans: proportions of the ranks, such as ``[12, 3, 1]``, for successive iterations. Default a set of very uneven
            plans, some of which leave a rank without samples.
        tolerance: maximum gradient difference, relative to the largest entry; default by type.
        device: ``"cpu"`` hides all GPUs, ``"cuda"`` gives each rank one.
        plain: switch dropout off and use batch norm's running statistics.
        micro_batch: maximum number of samples in a pass of the one process, if the global batch does not fit into its
            memory; default the whole batch.
        timeout_s: time limit of each of the three runs, in seconds.

    Raises:
        SettingError: an argument breaks its rule.
    """
    ranks = _checked_ranks(ranks, plans)
    _check_at_least_one("steps", steps)
    _check_at_least_one("micro_batch", micro_batch)
    what = Target.of(target, arguments, is_module=is_module)
    if problem := check_device(device, ranks):
        return could_not_run("device", problem)
    for name in _PRELOADED:
        importlib.import_module(name)
    chosen = tuple(tuple(plan) for plan in plans) or default_plans(ranks)
    with tempfile.TemporaryDirectory(prefix="evenstep-verify-") as name:
        folder = Path(name)

        def tasks(role: Role, reference: Reference | None) -> list[Task]:
            world_size = 1 if reference else ranks
            return [
                Task(role, folder / role, rank, world_size, steps, chosen, plain, micro_batch, reference)
                for rank in range(world_size)
            ]

        def run(role: Role, reference: Reference | None = None) -> list[Recorded]:
            begun = tasks(role, reference)
            launch(begun, what, device=device, timeout_s=timeout_s)
            return compare.load(folder / role, len(begun))

        try:
            uneven = run("ranks")
            seen = uneven[0].seen
            if missing := missing_line(seen, min(len(rank.updates) for rank in uneven)):
                return missing
            if micro_batch and seen.batch_norms:
                return could_not_run("micro-batch", mixing(seen))
            reference = Reference(folder / "ranks", seen.global_batch)
            one, again = run("one", reference)[0], run("again", reference)[0]
        except RunFailedError as failure:
            return could_not_run(f"run of {what.name}", failure.why, failure.tail)
        count = min(len(uneven[0].updates), len(one.updates))
        repeated = compare.compare_gradients(folder / "again", folder / "one", one, min(count, len(again.updates)))
        allowed = compare.tolerance(uneven[0], repeated)
        return judge(
            uneven,
            one,
            samples=compare.compare_samples(uneven, one, folder / "ranks", folder / "one"),
            unlike_ranks=compare.unlike_between_ranks(uneven),
            gradients=compare.compare_gradients(folder / "ranks", folder / "one", uneven[0], count),
            repeated=repeated,
            micro_batch=micro_batch,
            allowed=allowed if tolerance is None else (allowed[0], tolerance),
        )


def _check_at_least_one(name: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise SettingError(f"{name}={value}: must be at least 1")


def _checked_ranks(ranks: int | None, plans: Sequence[Sequence[int]]) -> int:
    ranks = ranks if ranks is not None else len(plans[0]) if plans else RANKS
    if ranks < 2:
        raise SettingError(f"ranks={ranks}: must be at least 2, for a comparison with one process")
    for plan in plans:
        if len(plan) != ranks:
            raise SettingError(f"plan {list(plan)}: must have one number for each of the {ranks} ranks")
        if min(plan) < 0 or not any(plan):
            raise SettingError(f"plan {list(plan)}: must not have negative numbers, and at least one must be above 0")
    return ranks
