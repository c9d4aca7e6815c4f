"""The weights of the gradients of uneven batches in DDP models.

A hook on each parameter multiplies the gradient of a backward pass before it is added to ``.grad``. DDP then averages
as usual, and the average is the gradient of one process. So each gradient has the weight of its own batch, in whatever
order passes are added and reduced, and DDP's options for its reduction do not matter. Where DDP's buckets can have the
weight instead, by one operation for each (:mod:`evenstep.gradients.reduction`), the hooks do nothing.

Passes before DDP's reduction have the weight, for example of micro-batches under ``no_sync``, or of the bare module.
Passes after it keep their gradients until the next forward pass or the next batch, because nothing averages them.

The hooks are on the nodes that add gradients, not on the tensors: ``torch.autograd.grad`` does not call them.
``SyncBatchNorm`` needs a scaled loss instead, because its gradients cross between ranks before.
"""

import logging
import sys
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch.autograd.graph import Node, get_gradient_edge
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _find_tensors

from evenstep.errors import SettingError, UnsupportedError
from evenstep.gradients import buffers, ranks
from evenstep.gradients.fsdp_state import at_end_of_backward, leave_out_waits
from evenstep.gradients.later import LaterScale
from evenstep.gradients.mean_check import MeanCheck
from evenstep.gradients.passes import ENTRY, entries_of, has_gradients, is_recomputing
from evenstep.gradients.reduction import Hook, Reduction
from evenstep.run.losses import Loss
from evenstep.samples import items
from evenstep.settings.workers import Workers

if TYPE_CHECKING:
    from evenstep.gradients.last_pass import LastPass
    from evenstep.run.run import Run
    from evenstep.run.step import Step, Turn

log = logging.getLogger("evenstep")

#: A hook that does nothing, without a frame of Python.
_IGNORE: Callable[..., Any] = deque[Any](maxlen=0).append


def weight(loss: Loss, local_batch: int, size: int, world_size: int, copies: int = 1) -> float:
    """Returns the weight of a rank's gradient in the sum over ranks.

    Let ``g_i`` be the gradient of the mean over the ``n_i`` samples of rank i. The gradient of the mean over all ``N``
    samples is ``sum_i (n_i / N) g_i``. If the loss is a sum over samples, it is ``sum_i g_i / N``. If it is a sum over
    tokens, the sum over ranks is divided by the number of tokens later. A rank without samples has the weight 0. Means
    of ``copies`` ranks with the same samples count as one.
    """
    if not local_batch:
        return 0.0
    if loss == "mean":
        return local_batch / (size * copies)
    if loss == "sum":
        return 1 / size
    return 1.0 if loss == "tokens" else 1 / world_size


def ddp_of(model: Any) -> DistributedDataParallel | None:
    """Returns the DDP model that a model is, or that ``torch.compile`` got; None for other models."""
    inner = getattr(model, "_orig_mod", model)
    return inner if isinstance(inner, DistributedDataParallel) else None


class GradientWeights:
    """Weights the gradients of one DDP model and observes its passes."""

    def __init__(
        self,
        model: DistributedDataParallel,
        loss: Loss,
        run: Callable[[], "Run | None"],
        inner: Hook | None = None,
        state: Any = None,
    ) -> None:
        """Prepares the hooks of a model.

        Args:
            model: the model.
            loss: the reduction of the loss.
            run: returns the run, or None if it has not started.
            inner: a communication hook that averages over ranks, for example with compression.
            state: the state of ``inner``.

        Raises:
            UnsupportedError: the gradients could not be weighted.
        """
        # The hooks of parameters hold this object, and DDP holds the parameters.
        self._model = weakref.ref(model)
        #: The reduction of the loss.
        self.loss = loss
        #: Returns the run; the same object for all models of a job.
        self.run = run
        self._inner = inner
        self._reduction = Reduction(model, inner, state, lambda: self._ready(is_reduced=True))
        self._group = model.process_group
        self._world_size = self._group.size()
        #: Number of ranks of the group with the same samples, and the first rank of each worker in it; empty if each
        #: rank is a worker.
        self._copies, self.sources = 1, list[int]()
        #: The models that have parameters with these hooks: this one, and earlier ones of the job that share some.
        self.models = [self._model]
        #: The owners of hooks of this model's parameters: later models of the job that share some.
        self.sharers: WeakSet[GradientWeights] = WeakSet()
        self._buffers = buffers.Buffers(model)
        delayed = getattr(model, "_delay_all_reduce_params", [])
        named = model.module.named_parameters()
        reduced = [parameter for name, parameter in named if name not in model.parameters_to_ignore]
        self._later = LaterScale([*reduced, *delayed])
        #: Parameters without a hook: they are frozen.
        self._frozen = self._later.parameters
        self._is_delayed = bool(delayed)
        #: The nodes that add gradients, which only DDP and this list keep, and the hook that all of them have.
        self._nodes: list[Node] = []
        self._hook: Any = partial(self._weigh)
        #: Whether float16 could overflow, so that factors are at most 1 before the sum. Other hooks get the weighted
        #: gradients: they may step an optimizer, or keep what they left out for the next iteration.
        is_half = any(at.dtype == torch.float16 for at in reduced) if inner is None else inner is fp16_compress_hook
        self._limits = loss != "scaled" and is_half
        if delayed and (self._limits or loss == "tokens"):
            raise UnsupportedError(
                f"wrap(loss={loss!r}, inner={inner}): delay_all_reduce_named_params reduces {len(delayed)} parameters "
                'on its own, and evenstep cannot wait for them; use loss="mean" without inner, or remove it'
            )
        #: The factor that is applied after the sum.
        self._scale = 1.0
        #: Whether the end of the running backward pass is awaited, and whether it has reached a parameter.
        self._is_awaited = self._is_open = False
        #: Whether the pass has computed all gradients of this rank.
        self._is_ready = True
        #: The batch whose gradients DDP has reduced, if no forward pass of the model followed.
        self._reduced: Turn | None = None
        #: Whether the model is a stage of a pipeline. Between its passes, it waits for other stages and their workers.
        self._is_stage = False
        #: Whether another DDP model has the module, and ran it last.
        self._is_other = False
        #: Whether the running backward pass has passed an output of the model.
        self._is_through_model = False
        #: The batch of the pass, the factor of its gradients, and the tokens over all ranks.
        self._turn: Turn | None = None
        self._factor = 1.0
        self._total: items.Total | None = None
        self._tokens = 1.0
        self._check = MeanCheck(run) if loss == "mean" else None
        #: Decides which passes are reduced, if the rank has its own number of them.
        self.last_pass: LastPass | None = None

    def register(self, observed: torch.nn.Module) -> None:
        """Registers the hooks; ``observed`` is the module whose forward passes are seen.

        Raises:
            UnsupportedError: the model has hooks of another job or of the script, or parameters of a model with another
                loss.
        """
        model: Any = self._model()
        self._observes_model = observed is not model.module
        entries = [entries_of(parameter).get(ENTRY) for parameter in self._frozen if parameter.requires_grad]
        owners: set[GradientWeights] = {entry[1] for entry in entries if entry}
        if getattr(model, "_comm_hooks", ()) or any(model is at() for owner in owners for at in owner.models):
            raise UnsupportedError(
                "wrap: this DistributedDataParallel model has a communication hook or was wrapped already: pass the "
                "script's own hook as inner=, and make a new DistributedDataParallel(model.module) for each job"
            )
        for owner in filter(self._shares, owners):
            if owner.loss != self.loss:
                raise UnsupportedError(
                    f"wrap: models with loss={owner.loss!r} and loss={self.loss!r} share parameters, whose gradients "
                    "can have one weight only: use the same loss for both, or put them into one module and wrap that"
                )
            owner.sharers.add(self)
            self.models += owner.models
        self._reduction.register()
        self._register_thawed()
        # Hooks are not to be compiled. Outside of a compiled model they are not even seen by the compiler.
        observed.register_forward_pre_hook(torch.compiler.disable(self._forward_begins), with_kwargs=True)
        observed.register_forward_hook(torch.compiler.disable(self._forward_ends))

    def follow(self, workers: Workers) -> None:
        """Checks that the model sums its gradients over the workers of the run, some of which have several ranks.

        Raises:
            UnsupportedError: it does not, or its loss would count samples several times, or ranks of several workers
                have the parts of a parameter.
        """
        summed = dist.get_process_group_ranks(self._group)
        self._copies = workers.copies(summed, self.loss)
        sources = {workers.of_ranks[rank]: rank for rank in reversed(summed)}
        self.sources = [sources[worker] for worker in range(len(sources))]
        ranks.check_inner(self._group, *self._reduction.inner)
        ranks.check_parts(self._model(), workers)

    def _shares(self, owner: "GradientWeights") -> bool:
        """Returns whether another model of the job, of another module, has parameters of this one."""
        own, other = self._model(), owner.models[0]()
        return bool(own and other and other.module is not own.module and owner.run is self.run)

    def _register_thawed(self) -> None:
        """Registers hooks for parameters that are trained and have none.

        Raises:
            UnsupportedError: DDP does not reduce them.
        """
        model: Any = self._model()
        thawed = [parameter for parameter in self._frozen if parameter.requires_grad]
        delayed = len(getattr(model, "_delay_all_reduce_params", ()))
        reduced = model._get_ddp_logging_data().get("num_parameter_tensors") if thawed else None  # noqa: SLF001
        if reduced is not None and (trained := len(self._nodes) + len(thawed) - delayed) > reduced:
            raise UnsupportedError(
                f"{trained} parameters are trained, but this DistributedDataParallel reduces {reduced}: the others "
                "were frozen when it was made; make a new DistributedDataParallel(model.module), and wrap it"
            )
        self._frozen = [parameter for parameter in self._frozen if not parameter.requires_grad]
        for parameter in thawed:
            node, entries = get_gradient_edge(parameter).node, entries_of(parameter)
            if before := entries.get(ENTRY):
                # A new DDP model, or job, of the same module.
                before[0].remove()
            entries[ENTRY] = node.register_prehook(self._hook), self
            self._nodes.append(node)

    def _ignore(self, is_ignoring: bool) -> None:
        """Sets whether the hook of all parameters does nothing."""
        self._hook.__setstate__((_IGNORE if is_ignoring else self._weigh, (), {}, None))

    def _weigh(self, gradients: tuple[torch.Tensor | None, ...]) -> tuple[torch.Tensor | None, ...] | None:
        """Weights the gradient of a parameter; a hook of the node that adds it.

        Raises:
            SettingError: no batch was read, or its tokens were not counted.
            UnsupportedError: the gradients would be wrong.
        """
        if not self._is_open:
            if self._leaves_alone():
                return None
            self._begin()
        factor, [gradient] = self._factor, gradients
        if gradient is None or factor == 1:
            return None
        # 0 times NaN is not 0. The gradient may have other readers, so it does not change.
        return (gradient * factor if factor else torch.zeros_like(gradient),)

    def _leaves_alone(self) -> bool:
        """Returns whether the gradients of a backward pass are not for DDP's average, so that they have no weight.

        Raises:
            UnsupportedError: another DDP model averages them.
        """
        run = self.run()
        if self._is_other:
            if run is not None and run.binding.has_batch and not run.binding.is_between_epochs:
                raise UnsupportedError(
                    "another DistributedDataParallel model has the module of a wrapped one, and would average its "
                    "gradients without weights: wrap it with job.wrap, or call job.close() if the training is over"
                )
            return True
        if all(model() is None for model in self.models):
            return True
        if self._reduction.is_expected:
            return False
        return run is None or not run.binding.has_batch or run.has_hedged or run.current is self._reduced

    def _begin(self) -> None:
        """Determines the factor of the gradients of a backward pass."""
        run = self.run()
        if run is None:
            raise SettingError(
                "gradients before the run has started: call job.loader before the first backward pass; after "
                "job.close(), make a new DistributedDataParallel(model.module)"
            )
        self._is_ready, self._factor, self._turn = run.is_hedging, 1.0, None
        if not run.is_hedging:
            self._turn = run.binding.backward()
            if self.last_pass:
                self.last_pass.computes(self._turn)
            self._factor = self._factor_of(run, self._turn.step)
        self._factor = self._reduction.factor(self._factor, may_weigh=self._fills_buckets)
        self._await_end()
        self._is_open = True
        self._ignore(self._factor == 1)

    def _fills_buckets(self) -> bool:
        """Returns whether DDP's buckets get only gradients of passes that begin now, and nothing reads them before.

        Hooks of the nodes that add gradients cannot be seen. What they add is averaged in the same way only if the
        factors of all ranks have the mean 1.
        """
        if self.loss != "mean" or self._is_delayed or self.sharers or len(self.models) > 1 or torch.is_grad_enabled():
            return False
        parameters = self._later.parameters
        # A generator takes three times as long.
        return not [None for at in parameters if at.grad is not None or at._post_accumulate_grad_hooks]  # noqa: SLF001

    def _factor_of(self, run: "Run", step: "Step") -> float:
        """Returns the factor of this rank's gradients, and starts to sum the tokens."""
        if (self._limits or self.loss == "tokens") and self._later.begin():
            self._scale = self._world_size * step.largest_batch / step.global_batch if self._limits else 1.0
        size, copies = self._world_size, self._copies
        factor = weight(self.loss, step.local_batch, step.global_batch, size, copies) * size
        # The micro-batches of a remainder may have unequal sizes, or no sample.
        factor *= run.current.factor if self.loss == "mean" else run.current.factor > 0
        if self.loss == "tokens" and self._reduction.is_expected:
            factor /= self._begin_total(run)
        return factor / self._scale

    def _begin_total(self, run: "Run") -> float:
        """Starts to sum the tokens in the first pass of a reduction; returns their number if it is needed now."""
        if not self._reduction.has_begun:
            self._tokens = 1.0
            if not run.current.is_last:
                raise UnsupportedError(
                    'loss="tokens" with several reductions in one iteration: the first ones would be divided by a part '
                    "of the tokens; run all passes but the last under model.no_sync()"
                )
            self._total = items.total(run.binding.items(), self._later.parameters[0].device, self._group)
            if self._inner:
                # A compressed sum over all tokens could overflow.
                with run.sensor.paused():
                    self._tokens = self._total.wait().item()
                    self._later.apply(self._total.divide)
                self._total = None
        return self._tokens

    def _await_end(self) -> None:
        if not self._is_awaited:
            at_end_of_backward(self._ends)
            self._is_awaited = True

    def _ready(self, *, is_reduced: bool) -> None:
        """Records that this rank has computed its gradients, before it waits for the others."""
        if not self._is_ready and (run := self.run()):
            self._is_ready = True
            if is_reduced:
                run.open_stages.discard(self)
            if not run.open_stages:
                run.binding.complete(is_reduced=is_reduced)
            if self._is_stage:
                run.sensor.pause()

    def _ends(self) -> None:
        """Ends a backward pass of this rank; DDP waits for the other ranks afterwards."""
        is_open, self._is_open, self._is_awaited = self._is_open, False, False
        self._ignore(False)
        is_through_model, self._is_through_model = self._is_through_model, False
        run, turn = self.run(), self._turn
        if not is_open or turn is None or run is None:
            return
        if not self._reduction.is_expected:
            self._ready(is_reduced=False)
            return
        is_paused = not self._is_ready and run.sensor.pause()
        self._reduction.wait()
        if self._reduction.is_complete:
            self._reduces(turn)
            return

        def ends() -> None:
            # DDP may wait for gradients of another pass, or it has skipped its last bucket.
            if is_paused:
                run.sensor.resume()
            if self._reduction.is_finished(is_through_model=is_through_model):
                self._ready(is_reduced=True)
                self._reduces(turn)

        _after_ddp(ends)

    def _reduces(self, turn: "Turn") -> None:
        """Ends the reduction of a batch's gradients."""
        self._reduction.is_expected, self._reduced = False, turn
        if self.last_pass:
            self.last_pass.reduces()
        source = self.sources[turn.step.source] if self.sources else turn.step.source
        pending = self._buffers.begin(turn.step, self._group, source, self._copies)

        def reduced() -> None:
            if self._total is not None:
                self._later.apply(self._total.divide)
            if self._scale != 1:
                self._later.apply(lambda gradient: gradient.mul_(self._scale))
            self._later.end()
            self._total, self._scale = None, 1.0
            for received in pending:
                received.store()

        if pending or self._later.is_open:
            _after_ddp(reduced)

    def _forward_begins(self, _: torch.nn.Module, __: Any, kwargs: dict[str, Any]) -> None:
        """Binds the gradients that follow to the batch of this forward pass; a forward pre-hook.

        Raises:
            UnsupportedError: the gradients would be wrong.
        """
        run, model = self.run(), self._model()
        if model is None or not has_gradients(run):
            return
        is_own = self._is_own(model)
        if run is None or self._is_other or self._reduction.is_trial:
            return
        if self._frozen:
            self._register_thawed()
        if is_recomputing(run):
            return
        # An earlier backward pass may have failed.
        self._is_open = self._is_awaited = self._is_through_model = False
        self._ignore(False)
        self._reduction.fails()
        if run.is_hedging:
            return
        is_alone = not (model.require_backward_grad_sync or run.accumulates or self._is_stage)
        if self.loss == "tokens" and is_alone:
            raise UnsupportedError(
                'no_sync with loss="tokens" would divide several iterations by the tokens of one: use '
                "job.loader(.., accumulate=N), where N is the number of batches per optimizer step"
            )
        others = run.binding.forward(self)
        if is_own and others:
            self._check_micro_batches(run.current.step)
        if self._check:
            self._check.forward_begins(kwargs)
        # An FSDP2 model may be evaluated in the passes of this one.
        if "torch.distributed.fsdp" in sys.modules:
            with suppress(UnsupportedError):
                leave_out_waits(run.sensor)
        run.sensor.forward_begins(model.device)

    def _is_own(self, model: DistributedDataParallel) -> bool:
        """Returns whether a forward pass is one of this model, and records whether it is one of another DDP model."""
        active = DistributedDataParallel._active_ddp_module  # noqa: SLF001  # The compiler uses it, too.
        is_own = self._observes_model or active is model
        if is_own:
            self._is_stage = bool(self.sources) and ranks.is_stage(model, self.loss, self.run())
            self._reduced, self._is_other = None, False
            self._reduction.forward_begins(model, is_stage=self._is_stage)
            if self._is_stage and (run := self.run()):
                run.has_stages = True
                run.open_stages.add(self)
                run.sensor.resume()
            for sharer in self.sharers:
                sharer.expects_pass()
        elif active is not None and any(at is model.module for at in active.modules()):
            self._is_other = True
        return is_own

    def expects_pass(self) -> None:
        """Records a forward pass of another model that has parameters with these hooks."""
        self._reduced = None

    def _check_micro_batches(self, step: "Step") -> None:
        """Checks that micro-batches that may get one weight have equal ones.

        Raises:
            UnsupportedError: one backward pass would give all of them the weight of the last one.
        """
        if step.work is None and (step.passes if self.loss == "mean" else 0 in step.passes):
            raise UnsupportedError(
                f"iteration {step.iteration}: the micro-batches have {list(step.passes)} samples, so their gradients "
                "have unequal weights: call backward() for each micro-batch before you read the next one, or mark each "
                "with `with job.step()`"
            )

    def _passes_output(self) -> None:
        """Records that a backward pass passes an output of the model, and awaits its end."""
        self._is_through_model = True
        if self._is_stage and not self._is_awaited and (run := self.run()):
            run.sensor.resume()
        self._await_end()

    def _forward_ends(self, _: torch.nn.Module, __: Any, output: Any) -> None:
        """Awaits the end of the backward pass from its begin: a checkpoint inside runs its own."""
        if torch.is_grad_enabled():
            for tensor in _find_tensors(output):
                if tensor.grad_fn is not None:
                    tensor.register_hook(lambda _: self._passes_output())
            if self._check and not self._is_other:
                self._check.forward_ends()
            if self._is_stage and (run := self.run()):
                run.sensor.pause()


def _after_ddp(callback: Callable[[], None]) -> None:
    """Calls a function at the end of the running backward pass, after DDP's own callback.

    That one is in the queue now, or the next one in the queue adds it.
    """
    at_end_of_backward(lambda: at_end_of_backward(callback))
