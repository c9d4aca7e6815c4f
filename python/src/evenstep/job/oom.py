"""Handling of out-of-memory errors."""

import logging
import socket
import traceback
from collections.abc import Sequence
from typing import Any

import torch

from evenstep._native import report_oom
from evenstep.errors import EvenstepError
from evenstep.gradients import fsdp
from evenstep.gradients.buffers import Kept
from evenstep.run.run import Run
from evenstep.run.step import Step, Turn
from evenstep.settings.connection import client_tls
from evenstep.settings.options import RunOptions
from evenstep.start.opening import Place

log = logging.getLogger("evenstep")

#: Parts of the messages of other errors that mean the same: of CUDA itself, of its libraries, and of NCCL.
_MESSAGES = ("CUDA error: out of memory", "_STATUS_ALLOC_FAILED", "Cuda failure 2 'out of memory'")

#: Smallest failing batch that can be reduced.
_SAMPLES_MIN = 2


def is_out_of_memory(error: RuntimeError) -> bool:
    """Returns whether the memory of a device was exhausted."""
    return isinstance(error, torch.OutOfMemoryError) or any(part in str(error) for part in _MESSAGES)


class Attempt:
    """An iteration whose passes can be computed again if one does not fit into memory.

    Gradients of a failed pass may be incomplete, so all passes of the iteration are repeated. It is rare.
    """

    def __init__(self, step: Step, models: Sequence[torch.nn.Module], weights: Sequence[Any]) -> None:
        """Keeps what passes change in the models; gradients that are None need no memory."""
        self.step = step
        self._sharded = [own for at in weights if isinstance(at, fsdp.GradientWeights) and (own := at.own)]
        parameters = [at for own in self._sharded for at in own.shards]
        parameters += [at for model in models if not fsdp.modules(model) for at in model.parameters()]
        self._parameters = {at: _copy(at.grad) for at in parameters if at.requires_grad}
        self._buffers = Kept(models)

    def repeat(self, run: Run, error: RuntimeError) -> bool:
        """Prepares to compute the iteration again, in smaller passes; returns whether that is possible."""
        turn, passes = run.current, run.passes
        # The last pass communicates once it has begun. If the loop has read ahead, samples would follow twice.
        communicates = (turn.is_last and turn.forwarded) or any(own.is_gathering for own in self._sharded)
        if passes is None or turn.step is not self.step or turn is not run.binding.next_pass or communicates:
            return False
        if not passes.failed(turn.samples, run.least):
            return False
        log.warning(
            "iteration %s: a pass of %s samples did not fit into the memory of rank %s, which computes the iteration "
            "again, with at most %s samples in a pass (%s)",
            self.step.iteration,
            turn.samples,
            run.rank,
            passes.size,
            error,
        )
        # They hold the tensors of the pass.
        traceback.clear_frames(error.__traceback__)
        for own in self._sharded:
            own.repeat(self.step)
        for parameter, before in self._parameters.items():
            parameter.grad = before
        self._buffers.restore()
        run.losses.take(self.step.iteration)
        # The time of the failed passes says nothing about the speed.
        run.sensor.iteration_begins()
        run.binding.repeats()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
        return True


def _copy(gradient: torch.Tensor | None) -> torch.Tensor | None:
    return None if gradient is None else gradient.detach().clone()


def report(job_options: RunOptions, place: Place | None, turn: Turn, error: BaseException) -> None:
    """Reports the batch that did not fit to the predictor, so that this worker never gets it again. Never raises."""
    settings, step = job_options.settings, turn.step
    if step.has_own_passes and not turn.samples:
        log.error(
            "iteration %s: the pass that only reduces gradients did not fit into the memory of %s (%s): the model, its "
            "gradients and the optimizer need more, whatever micro_batch is",
            step.iteration,
            settings.worker,
            error,
        )
        return
    if step.has_own_passes:
        log.error(
            "iteration %s: a pass of %s samples did not fit into the memory of %s (%s), and cannot be repeated: lower "
            "micro_batch",
            step.iteration,
            turn.samples,
            settings.worker,
            error,
        )
        return
    if step.work is not None and step.passes and (len(step.passes) > 1 or turn.passing is not None):
        log.error(
            "iteration %s: a pass of %s samples did not fit into the memory of %s (%s); lower max_tokens",
            step.iteration,
            turn.passing or turn.samples,
            settings.worker,
            error,
        )
        return
    if turn.passing is None:
        # Caps bound all micro-batches of an iteration together.
        samples, smallest = step.local_batch if step.work is None else round(step.work.total), step.batch_size
        passes = f" in {step.micro_batches} micro-batches" if step.micro_batches > 1 else ""
    else:
        # Caps bound the base batch and each chunk of a hedged step separately, and so all of its passes.
        samples = smallest = turn.passing
        passes = " in one pass"
    unit = "samples" if step.work is None else "tokens"
    what = (
        f"iteration {step.iteration}: {samples} {unit}{passes} did not fit into the memory of {settings.worker} "
        f"({error})"
    )
    if place is None:
        log.error("%s; give it fewer samples in init(plan=..), or cap it with init(max_local_batch=..)", what)
        return
    if smallest < _SAMPLES_MIN:
        log.error("%s; no batch below %s samples is possible", what, _SAMPLES_MIN)
        return
    if place.host not in (None, socket.gethostname()):
        log.error("%s; only workers on %s reach the predictor: cap it with init(max_local_batch=..)", what, place.host)
        return
    try:
        timeout_s = job_options.timeout_s
        server, tls = place.current_server(), client_tls()
        cap = report_oom(server, place.job, settings.worker, step.iteration, samples, timeout_s, tls)
    except EvenstepError as unheard:
        log.error("%s; reporting it to the predictor failed: %s", what, unheard)  # noqa: TRY400  # The message contains the cause.
    else:
        log.error("%s; its batch is now limited to %s %s. Restart the processes.", what, cap, unit)
