"""The reduction in the last pass of an iteration only, if each rank has its own number of passes: DDP, and FSDP2."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch
from torch.autograd.graph import Node, get_gradient_edge
from torch.nn.parallel import DistributedDataParallel

from evenstep.errors import UnsupportedError
from evenstep.gradients.buffers import Kept
from evenstep.gradients.fsdp_state import at_end_of_backward, drop_unreduced, forget_evaluations, groups, reset
from evenstep.gradients.passes import ENTRY

if TYPE_CHECKING:
    from evenstep.run.passes import Passes
    from evenstep.run.run import Run
    from evenstep.run.step import Step, Turn


class LastPass:
    """Decides before each forward pass whether DDP reduces its gradients, as ``no_sync`` does."""

    def __init__(
        self, model: DistributedDataParallel, observed: torch.nn.Module, run: Callable[[], "Run | None"]
    ) -> None:
        """Registers the hook of forward passes; ``observed`` is what the loop calls.

        Raises:
            UnsupportedError: DDP cannot leave passes out of its reduction.
        """
        if model.static_graph:
            raise UnsupportedError(
                "micro_batch with static_graph=True: DDP fails if it does not reduce the first pass: remove "
                "static_graph, or use accumulate=N without no_sync"
            )
        self._model = ref(model)
        ignored = model.parameters_to_ignore
        self._parameters = [at for name, at in model.module.named_parameters() if name not in ignored]
        self._run = run
        #: Whether DDP leaves out its reduction.
        self._holds = False
        #: The last iteration with gradients.
        self._summed: Step | None = None
        #: Whether the gradients of a first pass are not all 0; None before they are read.
        self._is_nonzero: bool | None = None
        #: The buffers before a pass that does not count.
        self._kept: Kept | None = None
        observed.register_forward_pre_hook(torch.compiler.disable(self._begins), prepend=True)

    def _begins(self, *_: Any) -> None:
        """Tells DDP whether to reduce the pass that begins; called before DDP's own code."""
        run, model = self._run(), self._model()
        # A repeated forward pass of checkpointing belongs to a pass that has begun.
        if model is None or not torch.is_grad_enabled() or torch._C._current_graph_task_id() >= 0:  # noqa: SLF001
            return
        turn = run.binding.next_pass if run else None
        is_open = turn is not None and not turn.is_last
        if is_open or self._holds:
            model.require_backward_grad_sync, self._holds = not is_open, is_open
        if not run or not run.passes:
            return
        # A pass that is repeated must not communicate. All ranks have the same buffers since the last reduction.
        model.require_forward_param_sync = False
        if is_open:
            run.passes.unreduced[self] = self._parameters
        else:
            run.passes.unreduced.pop(self, None)
        if turn and turn.step.local_batch and not turn.samples:
            self._kept = self._kept or Kept([model])

    def reduces(self) -> None:
        """Removes what a pass without samples has added to the statistics of this rank."""
        if self._kept:
            self._kept.restore()
            self._kept = None

    def computes(self, turn: "Turn") -> None:
        """Checks that the gradients of earlier passes are still there when a pass adds to them.

        Zeros are noticed only once, because that reads the gradients.

        Raises:
            UnsupportedError: the loop has cleared them.
        """
        is_first, self._summed = self._summed is not turn.step, turn.step
        if is_first:
            if self._is_nonzero is None and not turn.is_last:
                at_end_of_backward(self._reads)
            return
        has_read, self._is_nonzero = self._is_nonzero, self._is_nonzero and False
        if not (self._has_any() if has_read else any(at.grad is not None for at in self._parameters)):
            raise UnsupportedError(
                f"iteration {turn.step.iteration}: the gradients of its earlier passes were cleared: call zero_grad "
                "after the step of the optimizer, `if loader.is_last`, because it needs the gradients of all passes"
            )

    def _reads(self) -> None:
        self._is_nonzero = self._has_any()

    def _has_any(self) -> bool:
        """Returns whether a gradient is not 0."""
        return any(at.grad is not None and bool(at.grad.any()) for at in self._parameters)


class OwnPasses:
    """Decides before each pass whether FSDP reduces its gradients, and weights them before FSDP adds them."""

    def __init__(
        self,
        model: torch.nn.Module,
        modules: Sequence[Any],
        roots: Sequence[Any],
        shards: Sequence[torch.nn.Parameter],
    ) -> None:
        """Registers the hooks of a model.

        Args:
            model: the model.
            modules: its modules of ``fully_shard``.
            roots: those of them that are in no other.
            shards: the parameters of the optimizer.
        """
        self._model, self._modules, self._roots, self.shards = model, modules, roots, shards
        self._groups = [group for module in modules for group in groups(module)]
        #: Whether the script frees the parameters of each group after a backward pass, and what was set last.
        self._frees = [bool(group.reshard_after_backward) for group in self._groups]
        self._set = list(self._frees)
        #: The iteration whose parameters are gathered, one that is repeated, and whether they are being gathered.
        self._step: Step | None = None
        self._repeated: int | None = None
        self.is_gathering = False
        #: The batch of the pass, and its modules so far.
        self._turn: Turn | None = None
        self._called = set[torch.nn.Module]()
        #: The weight of the pass, and the nodes that add gradients of whole parameters.
        self._factor = 1.0
        self._nodes: list[Node] = []
        #: The buffers before a pass that does not count.
        self._kept: Kept | None = None
        for module in modules:
            module.register_forward_pre_hook(torch.compiler.disable(self._module_begins))

    def gather(self, step: "Step", passes: "Passes") -> None:
        """Gathers all parameters before the first pass of an iteration, so that none before the last one communicates.

        It precedes FSDP's own hooks. Ranks call it in the same order, as they call their models.
        """
        if step is self._step:
            return
        # The loop may have left the iteration before.
        drop_unreduced(self._groups)
        # This rank alone repeats the iteration, so it must not communicate.
        if step.iteration != self._repeated:
            self.is_gathering = True
            for module in self._modules:
                # The script may keep whole parameters, which the step of the optimizer does not change.
                module.reshard()
            for module in self._modules if passes.can_repeat else ():
                module.unshard()
            self.is_gathering = False
        self._step, self._repeated = step, None

    def repeat(self, step: "Step") -> None:
        """Forgets the passes of the iteration, of which one failed; this rank keeps the gathered parameters."""
        if step is self._step:
            self._repeated = step.iteration
            reset(self._roots, keeps=self._groups)

    def begin(self, turn: "Turn", passes: "Passes") -> None:
        """Decides whether FSDP reduces the pass that begins."""
        if turn is not self._turn:
            self._turn = turn
            self._called.clear()
        self._reduce(is_last=turn.is_last)
        forget_evaluations(self._groups)
        if turn.is_last:
            passes.unreduced.pop(self, None)
        else:
            passes.unreduced[self] = self.shards
        if turn.step.local_batch and not turn.samples:
            self._kept = self._kept or Kept([self._model])

    def computes(self, turn: "Turn", *, is_mean: bool) -> None:
        """Begins the backward pass of a batch."""
        self._factor = turn.factor if is_mean or not turn.samples else 1.0
        for parameter in self._model.parameters():
            node = get_gradient_edge(parameter).node if parameter.requires_grad else None
            entries: Any = node.metadata if node else {}
            if node and entries.get(ENTRY) is not self:
                entries[ENTRY] = self
                node.register_prehook(self._weigh)
                self._nodes.append(node)

    def computed(self) -> None:
        """Ends a backward pass."""
        self._factor = 1.0
        self._called.clear()
        if self._kept:
            self._kept.restore()
            self._kept = None

    def end(self) -> None:
        """Makes FSDP reduce the gradients of all passes, without what passes have left."""
        self._turn = None
        # The last backward pass may have failed.
        self.computed()
        self._reduce(is_last=True)
        drop_unreduced(self._groups)

    def _reduce(self, *, is_last: bool) -> None:
        for at, group in enumerate(self._groups):
            if group.reshard_after_backward != self._set[at]:
                self._frees[at] = group.reshard_after_backward
            group.reshard_after_backward = self._set[at] = self._frees[at] and is_last
        for module in self._modules:
            module.set_requires_gradient_sync(is_last, recurse=False)

    def _weigh(self, gradients: tuple[torch.Tensor | None, ...]) -> tuple[torch.Tensor | None, ...] | None:
        [gradient] = gradients
        if gradient is None or self._factor == 1:
            return None
        # 0 times NaN is not 0.
        return (gradient * self._factor if self._factor else torch.zeros_like(gradient),)

    def _module_begins(self, module: torch.nn.Module, _: Any) -> None:
        """Checks that a module runs once in a pass.

        Raises:
            UnsupportedError: FSDP would reduce what earlier passes have left, which not all ranks have.
        """
        if self._turn is None or not torch.is_grad_enabled() or torch._C._current_graph_task_id() >= 0:  # noqa: SLF001
            return
        if module in self._called:
            raise UnsupportedError(
                f"micro_batch: a {type(module).__name__} of fully_shard runs twice before a backward pass: call "
                "backward() after each forward pass, use torch.no_grad() without gradients, or use accumulate=N; after "
                "an error in a backward pass, create a new job, or restart from the checkpoint"
            )
        self._called.add(module)
