"""The first iterations of a script, and the decision whether to balance it.

All ranks have the script's own batches until they decide together. An iteration is plain if it has one batch of one
DataLoader, one forward pass of one model, one backward pass, and one step of an optimizer, in this order. The loop may
read ahead.
"""

import atexit
import logging
import sys
from collections import deque
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch.distributed.distributed_c10d import _get_default_store
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from evenstep.errors import EvenstepError, UnsupportedError
from evenstep.run_command import patches, reductions, stock
from evenstep.run_command.balance import ADVICE, Balance, same_values, tensors
from evenstep.run_command.meetings import Meetings, decide
from evenstep.run_command.options import Options
from evenstep.run_command.reader import Reader
from evenstep.run_command.watch import Watch
from evenstep.start import lines

log = logging.getLogger("evenstep")

#: Number of forward passes after which the ranks decide, and of plain iterations before. The first steps may be
#: skipped, for example by a GradScaler.
_PASSES, _PLAIN = 6, 3

#: Maximum number of batches that a loop may read ahead.
_AHEAD_MAX = 8

#: The reason of runs that the user wants to be watched.
_ASKED = "--watch"

_CODE = (
    "to balance it in the script: job = evenstep.init(); loader = job.loader(dataset, global_batch=..); "
    "model = job.wrap(DistributedDataParallel(net)); see `evenstep run` in the documentation"
)


class Script:
    """One rank of the script."""

    #: The one of this process.
    current: ClassVar["Script | None"] = None
    #: Number of those before: a script may end its process group, and train again.
    count: ClassVar[int] = 0

    def __init__(self, options: Options, rank: int, ranks: int) -> None:
        """Begins to observe this process."""
        self.options, self.rank, self.ranks = options, rank, ranks
        self._store, self._name = _get_default_store(), f"evenstep/run/{Script.count}"
        Script.count += 1
        self._meetings = Meetings(self._store, self._name, rank, ranks)
        self._watch: Watch | None = Watch()
        self._balance: Balance | None = None
        self._models: list[Any] = []
        #: Why the script is not balanced; empty if it can be, as far as is known.
        self._why_not = _ASKED if options.watch else ""
        self._is_decided = False
        #: Whether the process group has ended, so that a new model belongs to another training.
        self.has_ended = False
        #: The reader of training batches, its batches that wait for a pass, and those that the loop reads ahead.
        self._reader: Reader | None = None
        self._waiting: deque[tuple[Any, int]] = deque()
        self._ahead: int | None = None
        #: Since the last step of an optimizer: passes, and the terms of losses.
        self._forwards = 0
        self._losses: list[list[reductions.Term] | str] = []
        self._optimizer: Any = None
        #: Why the last iteration was not plain, the number of successive plain ones, and of passes.
        self._odd = "the script has trained no iteration"
        self._plain = self._passes = 0
        self._terms: list[reductions.Term] = []
        #: Whether the pass is of the batch that waits the longest.
        self._is_known = True
        #: The nodes of the model's outputs, and the first reason why the script may need equal batches.
        self._outputs: list[Any] = []
        self._needs_equal = ""
        #: Number of batches that were read since the last forward pass.
        self._unused = 0
        #: The mark of the batch that is being computed, if the loop reads ahead.
        self._mark: Any = None
        #: Whether the last training batch was read from the balanced DataLoader.
        self._is_ours = True
        patches.install(
            reads=self._reads,
            forward=self._forward,
            computed=self._computed,
            backward=self._backward,
            grad=self._grad,
            gathers=self._gathers,
            meets=self._meetings.check,
            ends=self._ends,
        )
        self._handles = register_optimizer_step_pre_hook(self._steps), register_optimizer_step_post_hook(self._step)
        atexit.register(self._ends)

    def made(self, model: Any) -> None:
        """Follows a model."""
        self._models.append(model)
        if self._balance:
            # It may only evaluate.
            return
        if len(self._models) > 1:
            self._refuse("the script has several DistributedDataParallel models")
        elif model.process_group.size() != self.ranks:
            self._refuse("the model is on a part of the ranks")
        elif any(isinstance(module, torch.nn.SyncBatchNorm) for module in model.modules()):
            self._refuse("SyncBatchNorm sends gradients between ranks before they can be weighted")
        if self._watch:
            self._watch.follow(model)

    def _refuse(self, why: str) -> None:
        """Notes the first reason. After the decision, the ranks have shares, and it is an error."""
        self._why_not = self._why_not or why
        if self._balance:
            raise UnsupportedError(f"{why}, after evenstep has begun to balance: {ADVICE}")

    def _trains(self, loader: Any) -> bool:
        """Returns whether a DataLoader is read to train. Some loops set the mode of the model later."""
        is_known = self._reader is not None and loader is self._reader.loader
        return torch.is_grad_enabled() and (is_known or any(model.module.training for model in self._models))

    def _reads(self, loader: Any) -> Any:
        """Returns an iterator of a DataLoader."""
        if type(loader).__module__ == "evenstep.run.loader" or not self._trains(loader):
            return patches.stock_iter(loader)
        if self._balance:
            if stock.why_not(loader, self.rank, self.ranks) or not self._balance.reads(loader):
                self._is_ours = False
                return patches.stock_iter(loader)
            if self._reader:
                self._reader.close()
            self._meetings.check()
            self._unused = 0
            self._reader = Reader(self, loader, stock.source(loader), self._balance.epoch(loader))
            return self._reader
        if self._is_decided:
            return patches.stock_iter(loader)
        if why := stock.why_not(loader, self.rank, self.ranks):
            self._odd = why if self._reader is None else self._odd
            return patches.stock_iter(loader)
        # Before the workers of the DataLoader draw the first indices.
        source = stock.source(loader)
        return Reader(self, loader, source, patches.stock_iter(loader))

    def reads_batch(self, reader: Reader) -> Iterator[Any] | None:
        """Called before a batch is read; returns another iterator if the ranks begin to balance."""
        self._is_ours = reader is self._reader or not self._balance
        if self._balance:
            if not self._is_ours:
                self._refuse("the script reads two DataLoaders at once, or reads one again within its epoch")
            if self._unused > (self._ahead or 0):
                self._refuse(
                    "the script reads another batch without a forward pass of the one before, perhaps because it skips "
                    "batches that have another size than it has set"
                )
        if self._is_decided or self._passes < _PASSES or reader.is_at_end:
            return None
        self._is_decided = True
        why_not = self._why_not or self._why_not_now(reader)
        facts = {
            "the iteration": reader.position,
            "batches read ahead": self._ahead,
            "the DataLoader": repr(reader.source.shape),
            "the epoch of the sampler": reader.source.epoch,
            "the loss": repr(self._terms),
        }
        try:
            why_not = decide(self._store, self._name, self.rank, self.ranks, facts=facts, why_not=why_not)
            if not why_not:
                return self._begin(reader)
        except EvenstepError as error:
            if self.options.plan or self.options.max_batch:
                raise
            why_not = str(error)
        reader.source.close()
        self._give_up(why_not)
        return None

    def _why_not_now(self, reader: Reader) -> str:
        is_next = not (reader.position or self._waiting) and self._reader and self._reader.loader is reader.loader
        if reader is not self._reader and not is_next:
            return "the script reads several DataLoaders, or begins to read again before it has trained all its batches"
        if self._plain < _PLAIN:
            return self._odd
        if why := self._hooks():
            return why
        if any(isinstance(at, _BatchNorm) and at.training for at in self._models[0].modules()):
            return "batch norm normalises over the batch of each rank, so its result depends on the shares"
        try:
            reader.source.running()
        except UnsupportedError as error:
            return str(error)
        return ""

    def _hooks(self) -> str:
        """Returns which hooks of the script may depend on the gradients of a rank; empty if none."""
        model = self._models[0]
        if getattr(model, "_comm_hooks", ()):
            return "the model has a communication hook"
        ours = self._watch.hooked() if self._watch else ()
        later = [getattr(at, "_post_accumulate_grad_hooks", None) or {} for at in model.parameters()]
        has_later = any(hook not in ours for hooks in later for hook in hooks.values())
        has_modules = any(at._backward_hooks or at._backward_pre_hooks for at in model.modules())  # noqa: SLF001
        if has_later or has_modules or any(at._backward_hooks for at in model.parameters()):  # noqa: SLF001
            return "the model has hooks that may change its gradients before they are averaged"
        return ""

    def _begin(self, reader: Reader) -> Iterator[Any]:
        """Begins to balance, together with all ranks, and returns the rest of the epoch."""
        ahead, loader = len(self._waiting), reader.loader
        self._reader = reader
        self._balance = Balance(
            self.options,
            self._models[0],
            loader,
            reader.source,
            position=reader.position - ahead,
            terms=self._terms,
        )
        if self._watch:
            self._watch.close()
            self._watch = None
        self._balance.keep_even(ahead)
        if self._ahead:
            self._models[0].register_forward_pre_hook(_begins_pass, prepend=True)
        reader.drop()
        reader.source.close()
        batches = self._balance.rest()
        for _ in range(ahead):
            # The loop has them already.
            next(batches)
        if not self.rank:
            lines.show([f"balancing from iteration {reader.position} on; each iteration keeps its samples"])
        return batches

    def _give_up(self, why_not: str) -> None:
        self._why_not = self._why_not or why_not
        self._waiting.clear()
        if not self.rank:
            lines.show(
                [
                    "watching only, with the script's own batches"
                    + (f": {self._why_not}" if self._why_not != _ASKED else "")
                ]
            )

    def read(self, reader: Reader, batch: Any, samples: int) -> None:
        """Called when a training batch was read."""
        if self._balance:
            self._unused += 1
        if self._is_decided:
            return
        if self._reader is not reader:
            if self._reader is not None and self._waiting:
                self._plain, self._odd = 0, "the script reads several batches for one step, or skips some"
            if self._reader is not None and self._reader.loader is not reader.loader:
                self._plain, self._odd = 0, "the script reads several DataLoaders in turn"
            self._reader = reader
            self._waiting.clear()
        self._waiting.append((batch, samples))
        if len(self._waiting) > _AHEAD_MAX:
            self._waiting.popleft()
            self._plain, self._odd = 0, "the script reads many batches before it trains on them"

    def _forward(self, model: Any, inputs: Any) -> None:
        """Observes the begin of a forward pass."""
        if not (torch.is_grad_enabled() and model.module.training):
            return
        if self._watch:
            self._watch.forward_begins()
        if self._balance and model is not self._models[0]:
            self._refuse("the script trains several DistributedDataParallel models")
        if self._balance and not self._is_ours:
            self._refuse("the model trains on batches that were not read from the balanced DataLoader")
        self._outputs, self._unused = [], 0
        if self._balance:
            self._meetings.check()
        if self._is_decided:
            return
        self._passes += 1
        self._forwards += 1
        waiting = self._waiting
        self._is_known = bool(waiting) and (len(waiting) == 1 or same_values(inputs, waiting[0][0]))

    def begins_pass(self, model: Any) -> None:
        """Marks the batch of a forward pass, if the loop reads ahead."""
        if self._balance and self._mark is None and model.module.training and torch.is_grad_enabled():
            self._mark = self._balance.job.step()
            self._mark.__enter__()

    def _computed(self, output: Any) -> None:
        """Keeps the outputs of a forward pass until its backward pass."""
        if torch.is_grad_enabled() and (self._balance or not self._is_decided):
            self._outputs = [at.grad_fn for at in tensors(output) if at.grad_fn is not None]

    def _backward(self, values: Any, gradients: Any) -> None:
        """Observes the begin of a backward pass."""
        # Checkpoints compute a backward pass within another one.
        if torch._C._current_graph_task_id() >= 0:  # noqa: SLF001  # PyTorch has no public way to ask.
            return
        outputs, self._outputs = self._outputs, []
        if gradients is not None:
            self._has_needs("the script weights its loss by backward(gradient=..)")
        if self._balance:
            self._balance.check(values, outputs)
        if self._is_decided:
            return
        samples = self._waiting[0][1] if self._waiting else 1
        try:
            items = reductions.items_over_ranks()
            self._losses.append(reductions.terms(values, samples, self._suspects(samples), items, outputs=outputs))
        except reductions.UnknownLossError as error:
            self._losses.append(str(error))

    def _grad(self) -> None:
        """Observes gradients that are not added to parameters."""
        if torch._C._current_graph_task_id() < 0 and self._forwards:  # noqa: SLF001
            self._has_needs("the script calls torch.autograd.grad, whose gradients are not weighted")

    def _has_needs(self, why: str) -> None:
        self._needs_equal = self._needs_equal or why
        if self._balance:
            self._refuse(why)

    def _gathers(self, value: Any) -> None:
        """Observes that ranks gather or reduce something whose length may be a rank's number of samples."""
        reader = self._reader
        if reader is None or (self._is_decided and not self._balance):
            return
        for tensor in tensors(value):
            length = len(tensor) if tensor.ndim else 0
            if self._balance:
                is_sized = length > 1 and reader.is_uneven(length)
            else:
                size = reader.source.batch_size
                is_sized = length >= size > 1 and length % size == 0
            if is_sized and all(tensor.shape != at.shape for at in self._models[0].parameters()):
                self._has_needs("the script gathers or reduces a value for each sample, which requires equal batches")

    def _suspects(self, samples: int) -> list[float]:
        """Returns factors of a loss that may depend on the size of the batch."""
        length = len(self._reader.loader.dataset) if self._reader else 1
        numbers = [samples, samples * self.ranks, samples / length, samples * self.ranks / length]
        return [*numbers, *(1 / number for number in numbers)]

    def _steps(self, optimizer: Any, *_: Any) -> None:
        """Observes the begin of a step of an optimizer."""
        if self._balance:
            self._meetings.compare([float(group["lr"]) for group in optimizer.param_groups])

    def _step(self, optimizer: Any, *_: Any) -> None:
        """Observes the end of a step of an optimizer."""
        if self._watch:
            self._watch.step_ends()
        if self._mark is not None:
            mark, self._mark = self._mark, None
            mark.__exit__(None, None, None)
        if self._is_decided:
            return
        odd = self._why_odd(optimizer)
        if self._waiting:
            self._waiting.popleft()
        if not odd:
            # At its end, an epoch has less to read ahead.
            at_end = self._reader is not None and self._reader.is_at_end
            if self._ahead is not None and self._ahead != len(self._waiting) and not at_end:
                odd = "the script reads several batches for one step, or skips some"
            self._ahead = self._ahead if at_end and self._ahead is not None else len(self._waiting)
        self._plain = 0 if odd else self._plain + 1
        self._odd = odd or self._odd
        self._forwards, self._losses, self._optimizer = 0, [], optimizer

    def _why_odd(self, optimizer: Any) -> str:
        """Returns why the iteration that ends is not plain."""
        losses = self._losses
        if self._optimizer is not None and self._optimizer is not optimizer:
            return "the script has several optimizers"
        if self._reader is None:
            return self._odd if "trained no" not in self._odd else "no DataLoader with a DistributedSampler was read"
        if self._forwards != 1 or len(losses) != 1:
            why_not = (
                f"a step has {self._forwards} forward and {len(losses)} backward passes (accumulation, several losses, "
                "or batches that no DataLoader with a DistributedSampler gave)"
            )
        elif self._needs_equal:
            why_not = self._needs_equal
        elif not self._is_of_model(optimizer):
            why_not = "the optimizer has parameters that are not in the DistributedDataParallel model"
        elif not self._is_known:
            why_not = (
                "it is unknown of which batch a forward pass is: the script reads several, repeats or changes them"
            )
        elif isinstance(losses[0], str):
            why_not = losses[0]
        else:
            is_same = not self._terms or reductions.same(losses[0], self._terms)
            self._terms = losses[0]
            why_not = "" if is_same else "the shapes of the loss change, so it is no mean over samples"
        return why_not

    def _is_of_model(self, optimizer: Any) -> bool:
        own = {id(parameter) for parameter in self._models[0].parameters()}
        return all(id(parameter) in own for group in optimizer.param_groups for parameter in group["params"])

    def local(self, own: int) -> int:
        """Returns the number of samples in the batch that was read last; ``own`` in the script's own one."""
        return self._balance.local() if self._balance else own

    def left(self, position: int, count: int) -> None:
        """Called when the script has left an epoch."""
        if self._balance and not self.has_ended:
            self._meetings.leaves(position, count)

    def _ends(self) -> None:
        """Ends the run, before the process group or the process ends; rank 0 shows the last lines."""
        if self.has_ended:
            return
        self.has_ended = True
        atexit.unregister(self._ends)
        for handle in self._handles:
            handle.remove()
        patches.end()
        if self._balance:
            if self._reader:
                self._reader.close()
            self._balance.job.close()
            self._meetings.end()
            return
        batch = self._reader.source.batch_size if self._reader else None
        told = self._watch.summary(self._store, self._name, self.rank, self.ranks, batch) if self._watch else []
        if not self.rank:
            why_not = [] if self.options.watch else [f"not balanced: {self._why_not or self._odd}", _CODE]
            lines.show([*told, *why_not])
            sys.stderr.flush()


def _begins_pass(model: Any, _: Any) -> None:
    """A hook that scripts may copy with their model."""
    if Script.current:
        Script.current.begins_pass(model)
