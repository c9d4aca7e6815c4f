"""Checks of the ranks over which models sum their gradients."""

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from evenstep.errors import UnsupportedError
from evenstep.run.losses import Loss
from evenstep.settings.workers import Workers

if TYPE_CHECKING:
    from evenstep.run.run import Run
    from evenstep.run.step import Step

#: The modules of PyTorch's communication hooks.
_HOOKS = "torch.distributed.algorithms.ddp_comm_hooks"

#: The modules of the stages and the schedules of pipelines.
_STAGE, _SCHEDULES = "torch.distributed.pipelining.stage", "torch.distributed.pipelining.schedules"

#: The schedules that were checked.
_checked = WeakSet[Any]()


def check_group(model: DistributedDataParallel) -> None:
    """Checks that a model sums its gradients over all ranks, because plans split each iteration over all ranks.

    Raises:
        UnsupportedError: the model's process group is a part of the ranks.
    """
    size, world_size = model.process_group.size(), dist.get_world_size()
    if size != world_size:
        raise UnsupportedError(
            f"the model's process group has {size} of the {world_size} ranks: must have all of them, because evenstep "
            "splits each iteration over all ranks; if some ranks get the same samples, as with tensor or pipeline "
            'parallelism, pass the others to evenstep.init(mesh=mesh["dp"])'
        )


def check_inner(group: dist.ProcessGroup, inner: Callable[..., Any] | None, state: Any) -> None:
    """Checks that a communication hook of PyTorch averages over the process group of the model.

    Raises:
        UnsupportedError: it averages over all ranks, and the group has a part of them.
    """
    is_known = getattr(inner, "__module__", "").startswith(_HOOKS)
    over = getattr(state, "process_group", state)
    if is_known and over in (None, dist.group.WORLD) and group.size() < dist.get_world_size():
        raise UnsupportedError(
            f"wrap(inner={getattr(inner, '__name__', inner)}, inner_state={state}): it averages over all "
            f"{dist.get_world_size()} ranks, and the process group of the model has {group.size()}: pass "
            "inner_state=model.process_group, or a state with this group"
        )


def check_parts(model: Any, workers: Workers) -> None:
    """Checks that the parts of each parameter, as with tensor parallelism, belong to ranks of one worker.

    Raises:
        UnsupportedError: they belong to several.
    """
    for name, parameter in model.module.named_parameters():
        # With device_mesh=, DDP keeps the local part of a DTensor, and how it was distributed.
        if layout := getattr(parameter, "_st_info", None):
            workers.check_parts(name, layout.mesh.mesh.flatten().tolist())


def may_have_stages() -> bool:
    """Returns whether this process may train stages of a pipeline."""
    return _STAGE in sys.modules


def check_scale() -> None:
    """Checks that no pipeline computes the loss that is scaled.

    Raises:
        UnsupportedError: one does.
    """
    if may_have_stages() and _caller(sys._getframe(), _SCHEDULES):  # noqa: SLF001  # inspect reads sources.
        raise UnsupportedError(
            "job.scale in the loss_fn of a pipeline would weight a mean over one micro-batch as a mean over the batch: "
            'use job.wrap(DistributedDataParallel(stage, process_group=..), loss="sum") for each stage'
        )


def is_stage(model: DistributedDataParallel | None, loss: Loss, run: "Run | None") -> bool:
    """Returns whether the model that begins a forward pass is a stage of a pipeline.

    Args:
        model: the model; None stands for one made with ``fully_shard``.
        loss: the reduction of its loss.
        run: the run of this rank.

    Raises:
        UnsupportedError: it is a stage whose gradients would be wrong.
    """
    stage = _caller(sys._getframe(), _STAGE) if may_have_stages() else None  # noqa: SLF001  # inspect reads sources.
    if stage is None or run is None:
        return False
    schedule: Any = at.f_locals.get("self") if (at := _caller(stage, _SCHEDULES)) else None
    if model is None:
        raise UnsupportedError(
            "fully_shard in a pipeline reduces gradients outside of backward passes, and they would have no weight: "
            "use DistributedDataParallel(stage, process_group=..)"
        )
    if schedule is not None and schedule not in _checked:
        orders = getattr(schedule, "pipeline_order", {}).values()
        if any(at and at.computation_type.name == "BACKWARD_WEIGHT" for order in orders for at in order):
            raise UnsupportedError(
                f"{type(schedule).__name__} adds gradients without DistributedDataParallel, which would not reduce "
                "them: use a schedule without zero bubbles, such as ScheduleInterleaved1F1B"
            )
        _checked.add(schedule)
    scales = getattr(schedule, "scale_grads", False)
    if scales or loss == "mean":
        raise UnsupportedError(
            f"a pipeline whose schedule has scale_grads={scales}, with job.wrap(loss={loss!r}): workers have different "
            "numbers of micro-batches, so a mean over the micro-batches of a worker would be wrong; use "
            'scale_grads=False, job.wrap(.., loss="sum"), and a loss_fn that returns the sum over samples'
        )
    if getattr(model, "static_graph", False):
        raise UnsupportedError(
            "static_graph=True in a pipeline: the first iteration has several passes, and DistributedDataParallel "
            "would not reduce all of them; remove static_graph"
        )
    if loss == "tokens" and run.accumulates:
        raise UnsupportedError(
            'a pipeline with loss="tokens" and accumulate: each call of schedule.step reduces gradients, and the first '
            "ones would be divided by a part of the tokens; use more micro-batches in the schedule instead"
        )
    if not run.binding.is_marked:
        raise UnsupportedError(
            "a pipeline has several passes for each batch: call schedule.step(..) inside of `with job.step():`"
        )
    turn = run.binding.next_pass
    if turn:
        check_shares(turn.step)
    return True


def check_shares(step: "Step") -> None:
    """Checks that each worker of a pipeline has samples of an iteration.

    Raises:
        UnsupportedError: a worker has none.
    """
    if not step.smallest_batch:
        raise UnsupportedError(
            f"iteration {step.iteration}: a worker has none of the {step.global_batch} samples, and a pipeline "
            "requires some: pass drop_last=True if it is the last one of an epoch; else raise global_batch or lower "
            "quantum, and remove sizes of 0"
        )


def finds_stages(run: "Run") -> bool:
    """Returns whether this rank has stages of a pipeline. It searches them until it is known.

    A stage that waits for the one before it cannot raise an error, so this is to be known before the first pass.
    """
    if run.has_stages is None and may_have_stages():
        stage = sys.modules[_STAGE]._PipelineStageBase  # noqa: SLF001  # Private, but all stages have it.
        # Some objects claim other types if isinstance is used.
        found = any(issubclass(type(at), stage) for at in gc.get_objects())
        # Later iterations have the same ones.
        run.has_stages = found or (False if run.binding.has_trained else None)
    return bool(run.has_stages)


def _caller(frame: FrameType | None, module: str) -> FrameType | None:
    """Returns the last caller that is in a module; None if no caller is."""
    while frame and frame.f_globals.get("__name__") != module:
        frame = frame.f_back
    return frame
