"""Checks that a sample is the same in every process: a data set split or augmented at random is not."""

import os
import pickle
import struct
import zlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from evenstep.samples.checksums import tensor_bytes

#: The sample's index and the checksum of its content.
_ROW = struct.Struct("<qI")


class RecordingDataset:
    """A data set that records the checksum of each sample, also in the worker processes of a DataLoader."""

    def __init__(self, dataset: Any, folder: Path, rank: int) -> None:
        """Writes the records to the folder, one file per process."""
        self._dataset = dataset
        self._folder = folder
        self._rank = rank

    def __len__(self) -> int:
        """Returns the number of samples."""
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        """Returns a sample."""
        item = self._dataset[index]
        self._record(index, item)
        return item

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """Returns samples, in one call if the data set supports it."""
        if getattr(self._dataset, "__getitems__", None):
            items: list[Any] = self._dataset.__getitems__(indices)
            for index, item in zip(indices, items, strict=False):
                self._record(index, item)
            return items
        return [self[index] for index in indices]

    def __getattr__(self, name: str) -> Any:
        """Forwards all other attributes to the data set."""
        if name == "_dataset":
            # During unpickling.
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def _record(self, index: int, item: Any) -> None:
        row = _ROW.pack(index, checksum(item))
        with (self._folder / f"items-{self._rank}-{os.getpid()}").open("ab") as file:
            file.write(row)


def recorded_checksums(folder: Path) -> dict[int, set[int]]:
    """Returns the checksums by sample, from all ranks of a folder."""
    found: dict[int, set[int]] = defaultdict(set)
    for path in folder.glob("items-*"):
        for index, value in _ROW.iter_unpack(path.read_bytes()):
            found[index].add(value)
    return found


def checksum(item: Any) -> int:
    """Returns a checksum of a sample's contents, independent of addresses."""
    value = 0
    for part in _parts(item):
        value = zlib.crc32(part, value)
    return value


def _parts(item: Any) -> Iterator[bytes]:
    if isinstance(item, torch.Tensor):
        yield tensor_bytes(item.to_dense())
    elif isinstance(item, dict):
        for key, value in item.items():
            yield repr(key).encode()
            yield from _parts(value)
    elif isinstance(item, list | tuple):
        for value in item:
            yield from _parts(value)
    elif hasattr(item, "tobytes"):
        # NumPy arrays and Pillow images.
        yield item.tobytes()
    else:
        try:
            yield pickle.dumps(item)
        except Exception:  # noqa: BLE001  # objects that cannot be compared count as equal.
            yield type(item).__name__.encode()
