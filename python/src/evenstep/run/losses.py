"""The reduction of the user's loss, and the losses of a rank's batches for the predictor's page."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch

from evenstep.errors import SettingError

#: The reduction of the user's loss: the mean over the batch, its sum, the sum over the batch's tokens, or already
#: scaled so that DDP's average is right.
Loss = Literal["mean", "sum", "tokens", "scaled"]


def check_loss(loss: Loss) -> None:
    """Checks the name of a reduction.

    Raises:
        SettingError: it is unknown.
    """
    if loss not in get_args(Loss):
        raise SettingError(f"loss={loss!r}: must be one of {', '.join(map(repr, get_args(Loss)))}")


@dataclass(slots=True)
class Losses:
    """The losses of the batches of one iteration, until they are reported."""

    _iteration: int = -1
    #: Number of samples, and a function that returns their mean loss.
    _recorded: list[tuple[int, Callable[[], float]]] = field(default_factory=list)

    def record(self, iteration: int, samples: int, loss: "float | torch.Tensor") -> None:
        """Adds the mean loss of a batch. A batch without samples does not count.

        Raises:
            SettingError: the loss is not a scalar.
        """
        read = _later(loss)
        if iteration != self._iteration:
            # Losses of an iteration that was left with an error.
            self._iteration, self._recorded = iteration, []
        if samples:
            self._recorded.append((samples, read))

    def take(self, iteration: int) -> Callable[[], float | None]:
        """Returns a function for the mean over the samples of an iteration, and forgets its losses.

        The function may be called from another thread once the device has computed the batches. It returns None if no
        loss was recorded. The mean may be infinite or not a number.
        """
        recorded, self._recorded = (self._recorded if iteration == self._iteration else []), []

        def mean() -> float | None:
            samples = sum(size for size, _ in recorded)
            return sum(size * read() for size, read in recorded) / samples if samples else None

        return mean


def _later(loss: "float | torch.Tensor") -> Callable[[], float]:
    """Returns a function that reads a loss. The copy from a GPU is queued behind the loss, so nothing waits for it."""
    if not isinstance(loss, torch.Tensor):
        value = float(loss)
        return lambda: value
    if loss.numel() != 1:
        raise SettingError(f"record_loss: a loss of shape {tuple(loss.shape)} must be a scalar: pass its mean")
    given = loss.detach().reshape(())
    if given.device.type == "cuda":
        copied = torch.empty((), dtype=torch.float64, pin_memory=True)
        copied.copy_(given, non_blocking=True)
    else:
        copied = given.clone()
    return lambda: float(copied)
