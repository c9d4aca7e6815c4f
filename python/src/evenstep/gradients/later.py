"""Factors of gradients: in place, and after their sum over ranks, to what is new in the sum."""

from collections.abc import Callable, Sequence

import torch


def apply_weight(gradient: torch.Tensor, weight: float) -> None:
    """Multiplies a gradient in place; weight 0 also clears NaN and infinity."""
    if weight == 0:
        gradient.zero_()
    elif weight != 1:
        gradient.mul_(weight)


class LaterScale:
    """Gradients that lack a factor since their first backward pass.

    Gradients that were reduced before have it already. They are the same on all ranks, so the average over ranks keeps
    them, and only what was added to them is scaled.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Watches the gradients of parameters."""
        self.parameters = list(parameters)
        #: Copies of the gradients before the first pass; None if no gradient lacks the factor.
        self._before: dict[torch.nn.Parameter, torch.Tensor] | None = None

    @property
    def is_open(self) -> bool:
        """Whether gradients lack the factor."""
        return self._before is not None

    def begin(self) -> bool:
        """Begins a backward pass; returns whether it is the first one, also after the gradients were cleared."""
        if self.is_open and any(at.grad is not None for at in self.parameters):
            return False
        self._before = {at: at.grad.detach().clone() for at in self.parameters if at.grad is not None}
        return True

    @torch.no_grad()
    def apply(self, scale: Callable[[torch.Tensor], object]) -> None:
        """Scales what was added to each gradient, in place."""
        for parameter in self.parameters:
            gradient, before = parameter.grad, (self._before or {}).get(parameter)
            if gradient is None:
                continue
            if before is not None:
                gradient.sub_(before)
            scale(gradient)
            if before is not None:
                gradient.add_(before)

    def end(self) -> None:
        """Records that no gradient lacks the factor."""
        self._before = None
