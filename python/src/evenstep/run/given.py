"""The objects of batches, by which ``job.step(batch)`` knows the batch: what the loader yielded, or a tensor of it."""

from collections.abc import Mapping
from functools import partial
from itertools import islice
from typing import Any
from weakref import ref

from evenstep.errors import SettingError
from evenstep.run.step import Turn

#: Maximum number of parts of a batch by which it is known.
PARTS_MAX = 30


class Given:
    """The batches whose objects the training loop holds. It keeps none of them alive."""

    def __init__(self) -> None:
        """Creates the state before the first batch."""
        #: By the id of each part: a reference that removes the entry with the part, and the batches that have the part.
        self._turns: dict[int, tuple[ref[Any], list[Turn]]] = {}

    def read(self, batch: Any, turn: Turn) -> None:
        """Records the object that the training loop gets as a batch."""
        for part in (batch, *_parts(batch)):
            if type(part).__weakrefoffset__:
                # Constants and stored samples may be in several batches.
                _, turns = self._turns.get(id(part), (None, []))
                turns = [other for other in turns if not other.ended and other is not turn]
                # The reference is never followed: it may die before the part does, if a graph keeps the part's data.
                self._turns[id(part)] = ref(part, partial(self._forget, id(part))), [*turns, turn]

    def _forget(self, key: int, _: object) -> None:
        self._turns.pop(key, None)

    def turn(self, batch: Any) -> Turn:
        """Returns the batch of an object.

        Raises:
            SettingError: the loader yielded no such object, or it is in several batches.
        """
        parts = [batch] if id(batch) in self._turns else _parts(batch)
        found = [self._turns.get(id(part), (None, []))[1] for part in parts if type(part).__weakrefoffset__]
        if not found or not all(found):
            raise SettingError(
                f"step(batch): the {type(batch).__name__} is no batch of job.loader, nor a tensor of one: pass the "
                "batch as job.loader yielded it, before .to(device) and other changes; a prefetcher that moves batches "
                "must keep them too; a batch must have a tensor, an array or another object"
            )
        common = [turn for turn in found[0] if all(any(turn is other for other in turns) for turns in found)]
        if len(common) > 1:
            common = [turn for turn in common if not turn.ended] or common[-1:]
        if len(common) != 1:
            raise SettingError(
                f"step(batch): the {type(batch).__name__} is in {len(common) or 'parts of several'} batches: pass one "
                "batch as job.loader yielded it"
            )
        return common[0]


def _parts(batch: Any) -> list[Any]:
    """Returns the parts of nested lists, tuples and mappings."""
    parts = [batch]
    for part in parts:
        if isinstance(part, Mapping):
            parts += islice(part.values(), PARTS_MAX)
        elif isinstance(part, list | tuple):
            parts += part[:PARTS_MAX]
        if len(parts) > PARTS_MAX:
            break
    return [part for part in parts[: PARTS_MAX + 1] if not isinstance(part, Mapping | list | tuple)]
