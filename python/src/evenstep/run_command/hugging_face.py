"""Losses of Hugging Face's Trainer, which are divided by the number of items of all ranks."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

#: Maximum number of callers of a backward pass that are looked at.
_FRAMES_MAX = 32


def items_over_ranks() -> float | None:
    """Returns the number of items of all ranks by which a Trainer divides the loss whose backward pass begins.

    None if no Trainer computes it, or if its loss is divided by another number.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  # The only way to see who calls.
    for _ in range(_FRAMES_MAX):
        if frame is None:
            return None
        if frame.f_code.co_name == "training_step" and frame.f_globals.get("__name__") == "transformers.trainer":
            trainer, items = frame.f_locals["self"], frame.f_locals.get("num_items_in_batch")
            counts_all = trainer.args.average_tokens_across_devices and trainer.args.gradient_accumulation_steps == 1
            return float(items) if items is not None and counts_all else None
        frame = frame.f_back
    return None
