"""Batches of length 0, for ranks without samples."""

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any


def emptied(batch: Any, samples: int) -> Any:
    """Returns a batch of the same types, with length 0.

    Texts and None stay, because they describe no sample.

    Args:
        batch: tensors and arrays whose first dimension has the samples, and lists of their texts, in nested lists,
            tuples, mappings and dataclasses.
        samples: number of samples in the batch.

    Raises:
        ValueError: a part of the batch has no such dimension.
    """
    if batch is None or isinstance(batch, str | bytes):
        return batch
    # Before mappings: those of tensors have a shape, too.
    if hasattr(batch, "shape"):
        if len(batch.shape) and batch.shape[0] == samples:
            return batch[:0]
        raise ValueError(f"{type(batch).__name__} of shape {tuple(batch.shape)}")
    if isinstance(batch, Mapping):
        # Before any assignment: a copy may share its contents with the batch.
        named = {name: emptied(part, samples) for name, part in batch.items()}
        cut: Any = copy.copy(batch)
        for name, part in named.items():
            cut[name] = part
        return cut
    if isinstance(batch, list | tuple):
        if len(batch) == samples and all(isinstance(part, str | bytes) for part in batch):
            return batch[:0]
        parts = [emptied(part, samples) for part in batch]
        kind: Any = type(batch)
        return kind(*parts) if hasattr(batch, "_fields") else kind(parts)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        fields = [field.name for field in dataclasses.fields(batch)]
        return dataclasses.replace(batch, **{name: emptied(getattr(batch, name), samples) for name in fields})
    raise ValueError(f"{type(batch).__name__} {batch!r:.60}")
