"""A check of the losses of ``wrap(loss="mean")``: cross entropies whose mean is not over samples.

PyTorch divides by the weights of the labels with class weights, and by the number of the other labels if some are
ignored. Both differ between the batches of ranks. Between the first forward passes of a model and their backward
passes, a profile function of Python sees the calls of ``cross_entropy`` and ``nll_loss``, however the script imported
them. It sees neither other functions nor compiled ones. Labels that the model itself gets are looked at once.
"""

import logging
import sys
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import cross_entropy, nll_loss

if TYPE_CHECKING:
    from collections.abc import Callable

    from evenstep.run.run import Run

log = logging.getLogger("evenstep")

#: The label of tokens that do not count, in PyTorch and Transformers.
_IGNORED = -100

#: Number of forward passes after which losses are looked at.
_PASSES = 8

#: Maximum number of calls and returns after a forward pass that are looked at.
_EVENTS = 10_000

#: Minimum number of labels that cannot be 0, 1, 2, .. by chance.
_CONTRASTIVE_MIN = 8

#: The functions that are looked for, and those that begin a backward pass, by their code.
_LOSSES = {function.__code__: function.__name__ for function in (cross_entropy, nll_loss)}
_BACKWARD = {torch.autograd.backward.__code__, torch.autograd.grad.__code__}

_ADVICE = (
    'use job.wrap(.., loss="tokens"), reduction="sum", and job.count(the sum of the weights of the labels that count)'
)


class MeanCheck:
    """Warns once if the loss of a model is not a mean over samples."""

    def __init__(self, run: "Callable[[], Run | None]") -> None:
        """Prepares the check; ``run`` returns the run, or None if it has not started."""
        self._run = run
        self._has_looked_for_padding = False
        self._passes = _PASSES
        self._events = 0
        # It runs inside of compiled models, too, which must not compile it.
        self._profile = torch.compiler.disable(self._see)

    def forward_begins(self, inputs: dict[str, Any]) -> None:
        """Warns if labels by token suggest that the loss is not a mean over samples."""
        labels = inputs.get("labels")
        if self._has_looked_for_padding:
            return
        self._has_looked_for_padding = True
        if isinstance(labels, torch.Tensor) and labels.ndim > 1 and bool((labels == _IGNORED).any()):
            log.warning(
                "the labels contain %s (tokens that do not count), but job.wrap weights batches by samples: if the "
                'loss is a mean over tokens, use job.wrap(.., loss="tokens") and job.count',
                _IGNORED,
            )

    def forward_ends(self) -> None:
        """Looks at the losses that follow, in the first passes. Another profile function stays."""
        # Inside of a backward pass, checkpoints compute again.
        in_backward = torch._C._current_graph_task_id() >= 0  # noqa: SLF001  # PyTorch has no public way to ask.
        if self._passes and not in_backward and sys.getprofile() is None:
            self._passes -= 1
            self._events = _EVENTS
            sys.setprofile(self._profile)

    def _see(self, frame: FrameType, event: str, value: Any) -> None:
        self._events -= 1
        if not self._events or frame.f_code in _BACKWARD:
            sys.setprofile(None)
        elif event == "return" and frame.f_code in _LOSSES and isinstance(value, torch.Tensor) and value.requires_grad:
            sys.setprofile(None)
            # Tensors of torch.func and of compilers have no values. A training never fails by this check.
            with suppress(Exception):
                if why := self._why(frame.f_locals):
                    told = f"{_LOSSES[frame.f_code]} {why}"
                    # A loss that is only printed has no backward pass.
                    value.register_hook(lambda _: self._warn(told))
            sys.setprofile(self._profile)

    def _why(self, called: dict[str, Any]) -> str:
        """Returns why a loss is not a mean over samples; empty if it is, or if it is unknown."""
        run, outputs, labels, weight = self._run(), called["input"], called["target"], called["weight"]
        # With probabilities instead of labels, PyTorch divides by their number.
        if run is None or not run.binding.has_batch or called["reduction"] != "mean" or labels.is_floating_point():
            return ""
        samples = run.current.samples if run.current.passing is None else run.current.passing
        is_unknown = not samples or not labels.ndim or not labels.numel()
        # The capture of a CUDA graph cannot read labels.
        if is_unknown or (labels.is_cuda and torch.cuda.is_current_stream_capturing()):
            return ""
        if weight is not None and bool((weight != weight.flatten()[0]).any()):
            return "with class weights (weight=) divides by the weights of the labels"
        counts = (labels != called["ignore_index"]).flatten()
        # Labels may be sorted by sample or by token.
        ways = ((samples, -1), 1), ((-1, samples), 0)
        has_equal = len(counts) % samples == 0 and any(_equal(counts.view(shape).sum(at)) for shape, at in ways)
        if not has_equal and not bool(counts.all()):
            return f"with ignored labels (ignore_index={called['ignore_index']}) divides by the number of the others"
        numbers = torch.arange(size := len(labels), device=labels.device)
        if outputs.shape == (size, size) and size >= _CONTRASTIVE_MIN and torch.equal(labels, numbers):
            return "of each sample with the others of its rank (a contrastive loss) depends on the shares of ranks"
        return ""

    def _warn(self, told: str) -> None:
        if not self._passes:
            return
        self._passes = 0
        run = self._run()
        if run is not None:
            run.observer.not_a_mean(told)
        advice = "" if "contrastive" in told else f"; {_ADVICE}"
        log.warning("%s, so it is not a mean over samples, as job.wrap needs it%s", told, advice)


def _equal(counts: torch.Tensor) -> bool:
    return bool((counts == counts[0]).all())
