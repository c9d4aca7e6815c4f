"""The progress of a run, and its state in checkpoints."""

import json
from dataclasses import dataclass
from typing import Any

from evenstep._native import Plan
from evenstep.errors import SettingError
from evenstep.samples.order import Order
from evenstep.samples.work import Prior

#: Format version of checkpoints.
_VERSION = 1


@dataclass(slots=True)
class Progress:
    """The position after the last iteration whose gradients are complete."""

    iteration: int = 0
    epoch: int = 0
    position: int = 0
    #: Number of samples of the epoch before this position.
    sample: int = 0


def state_of(progress: Progress, order: Order, plan: Plan, share: float, job: str | None) -> dict[str, Any]:
    """Returns the state of a run for a checkpoint.

    It is the progress, the plan, the quadratic share if samples have costs, and the id of the job at the predictor.
    """
    return {
        "version": _VERSION,
        "iteration": progress.iteration,
        "epoch": progress.epoch,
        "position": progress.position,
        # Without a budget it follows from the position.
        **({"sample": progress.sample} if _has_budget(order) else {}),
        **_samples_of(order),
        "plan": json.loads(plan.to_json()),
        **({"quadratic_share": share} if order.costs else {}),
        **({"job": job} if job else {}),
    }


def resumed(state: dict[str, Any], order: Order) -> tuple[Progress, Plan, Prior | None]:
    """Returns the progress, the plan, and the prior of the quadratic share stored in a checkpoint.

    Raises:
        SettingError: the checkpoint has another format, or another order of samples, so that samples would repeat or
            be missed.
    """
    if state.get("version") != _VERSION:
        raise SettingError(f"the state has version {state.get('version')!r}: must be {_VERSION}")
    for name, value in _samples_of(order).items():
        # Earlier versions stored fewer values, and had no costs.
        stored = state.get(name, False if name == "with_costs" else value)
        if stored != value:
            raise SettingError(
                f"{name}: the state has {stored} but the loader has {value}; use the same value, or samples "
                "would be repeated or missed"
            )
    sample = state.get("sample", 0) if _has_budget(order) else state["position"] * order.global_batch
    progress = Progress(state["iteration"], state["epoch"], state["position"], sample)
    if not 0 <= sample < order.trained_samples:
        raise SettingError(
            f"the state's position {progress.position} is at sample {sample}: must be below the epoch's "
            f"{order.trained_samples} samples; use the earlier drop_last until the end of the epoch"
        )
    learned = state.get("quadratic_share")
    prior = Prior.learned(learned) if order.costs and learned is not None else order.prior
    return progress, Plan.from_json(json.dumps(state["plan"])), prior


def _has_budget(order: Order) -> bool:
    """Returns whether iterations have different numbers of samples."""
    return order.costs is not None and order.costs.budget is not None


def _samples_of(order: Order) -> dict[str, Any]:
    """Returns the values that decide which samples an iteration has; ``drop_last`` only ends an epoch earlier."""
    return {
        "seed": order.seed,
        "samples": order.samples,
        "global_batch": order.global_batch,
        "shuffle": order.shuffle,
        "order_checksum": order.given.checksum if order.given else None,
        "with_costs": order.is_computed,
    }
