"""The reduction of a DDP model in the last pass of an iteration only, if each rank has its own number of passes."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch
from torch.nn.parallel import DistributedDataParallel

from evenstep.errors import UnsupportedError
from evenstep.gradients.buffers import Kept
from evenstep.gradients.fsdp_state import at_end_of_backward

if TYPE_CHECKING:
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
