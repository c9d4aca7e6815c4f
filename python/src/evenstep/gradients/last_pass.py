"""The reduction of a DDP model in the last pass of an iteration only, if each rank has its own number of passes."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch
from torch.nn.parallel import DistributedDataParallel

from evenstep.errors import UnsupportedError

if TYPE_CHECKING:
    from evenstep.run.run import Run
    from evenstep.run.step import Step, Turn


class LastPass:
    """Decides before each forward pass whether DDP reduces its gradients, as ``no_sync`` does."""

    def __init__(
        self, model: DistributedDataParallel, parameters: Sequence[torch.nn.Parameter], run: Callable[[], "Run | None"]
    ) -> None:
        """Prepares the decisions; ``parameters`` are those that DDP reduces.

        Raises:
            UnsupportedError: DDP cannot leave passes out of its reduction.
        """
        if model.static_graph:
            raise UnsupportedError(
                "micro_batch with static_graph=True: DDP fails if it does not reduce the first pass: remove "
                "static_graph, or use accumulate=N without no_sync"
            )
        self._model = ref(model)
        self._parameters = parameters
        self._run = run
        #: Whether DDP leaves out its reduction.
        self._holds = False
        #: The last iteration with gradients.
        self._summed: Step | None = None
        self._has_read = False

    def begins(self, *_: Any) -> None:
        """Tells DDP whether to reduce the pass that begins; a forward pre-hook that is called before DDP's own code."""
        run, model = self._run(), self._model()
        # A repeated forward pass of checkpointing belongs to a pass that has begun.
        if model is None or not torch.is_grad_enabled() or torch._C._current_graph_task_id() >= 0:  # noqa: SLF001
            return
        turn = run.binding.next_pass if run else None
        is_open = turn is not None and not turn.is_last
        if is_open or self._holds:
            model.require_backward_grad_sync, self._holds = not is_open, is_open
        if run and run.passes:
            # A pass that is repeated must not communicate. All ranks have the same buffers since the last reduction.
            model.require_forward_param_sync = False
            (run.passes.unreduced.add if is_open else run.passes.unreduced.discard)(self)

    def computes(self, turn: "Turn") -> None:
        """Checks that the gradients of earlier passes are still there when a pass adds to them.

        Zeros are noticed only once, because that reads the gradients.

        Raises:
            UnsupportedError: the loop has cleared them.
        """
        is_first, self._summed = self._summed is not turn.step, turn.step
        if is_first:
            return
        has_read, self._has_read = self._has_read, True
        if not any(at.grad is not None and (has_read or at.grad.any()) for at in self._parameters):
            raise UnsupportedError(
                f"iteration {turn.step.iteration}: the gradients of its earlier passes were cleared: call zero_grad "
                "after the step of the optimizer, `if loader.is_last`, because it needs the gradients of all passes"
            )
