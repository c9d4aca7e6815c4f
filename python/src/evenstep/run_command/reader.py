"""The iterator of a DataLoader that the script reads."""

from collections.abc import Iterator
from typing import Any, Protocol


class Observer(Protocol):
    """The observation of a script, as far as its readers need it."""

    def reads_batch(self, reader: "Reader") -> Iterator[Any] | None:
        """Learns that a batch will be read; returns an iterator that replaces the script's own."""

    def local(self, own: int) -> int:
        """Returns the number of this rank's samples if the script's own batch has this number."""

    def read(self, reader: "Reader", batch: Any, own: int) -> None:
        """Learns of a batch, and the number of samples in the script's own."""

    def left(self, position: int, count: int) -> None:
        """Learns that an epoch was left early."""


class Reader:
    """An iterator of a DataLoader of the script."""

    def __init__(self, script: Observer, loader: Any, source: Any, batches: Any) -> None:
        """Reads from an iterator, which the script may replace within the epoch."""
        self._script, self.loader, self.source, self._batches = script, loader, source, batches
        #: Number of batches that were read, samples in them, and in the script's own ones; all, and in the last one.
        self.position = self._samples = self._own_samples = 0
        self._last = self._own_last = 0
        self._count = len(loader)
        self._is_closed = False

    @property
    def is_at_end(self) -> bool:
        """Whether all batches were read."""
        return self.position >= self._count

    def is_uneven(self, length: int) -> bool:
        """Returns whether a length is of the samples in a batch, or in the epoch so far, and not in the script's."""
        lengths = {self._last: self._own_last, self._samples: self._own_samples}
        return length in lengths and lengths[length] != length

    def drop(self) -> None:
        """Ends the script's own iterator, and its workers."""
        if end := getattr(self._batches, "_shutdown_workers", None):
            end()
        self.loader._iterator = None  # noqa: SLF001  # A DataLoader with persistent workers keeps it.

    def close(self) -> None:
        """Ends the reading; an epoch that is left early must be left by all ranks."""
        if not self._is_closed and self.position and not self.is_at_end:
            self._script.left(self.position, self._count)
        self._is_closed = True

    def __del__(self) -> None:
        """Ends the reading."""
        self.close()

    def __iter__(self) -> "Reader":
        """Returns itself."""
        return self

    def __len__(self) -> int:
        """The number of batches in the epoch."""
        return self._count

    def __next__(self) -> Any:
        """Returns the next batch."""
        self._batches = self._script.reads_batch(self) or self._batches
        batch = next(self._batches)
        self._own_last = self.source.samples(self.position)
        self._last = self._script.local(self._own_last)
        self._samples, self._own_samples = self._samples + self._last, self._own_samples + self._own_last
        self._script.read(self, batch, self._own_last)
        self.position += 1
        return batch
