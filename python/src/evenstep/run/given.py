"""The objects of batches, by which ``job.step(batch)`` knows the batch: what the loader yielded, or a part of it."""

from collections import UserDict
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from itertools import islice
from typing import Any
from weakref import ref

from evenstep.errors import SettingError
from evenstep.run.step import Turn

#: Maximum number of objects by which a batch is known, and of containers and values that are searched for them.
OBJECTS_MAX = 30
_SEARCHED_MAX = 1024
#: Values without parts, of which a batch may have a thousand.
_PLAIN = frozenset((str, bytes, int, float, bool, type(None)))


def references(batch: Any) -> list[ref[Any]]:
    """Returns weak references to the objects by which a batch is known, such as its tensors. They keep none alive."""
    return [ref(found) for found in _objects(batch)]


def turn_of(batch: Any, turns: Iterable[Turn]) -> Turn:
    """Returns the one of ``turns`` to which an object belongs: the whole batch, or a part of it.

    Raises:
        SettingError: the object belongs to none of them, or to several.
    """
    ids = {id(found) for found in ([batch] if _is_object(batch) else _objects(batch))}
    found = [(turn, known) for turn in turns if ids <= (known := {id(at()) for at in turn.objects})]
    if not ids or not found:
        raise SettingError(
            f"step(batch): the {type(batch).__name__} is no batch that waits to be trained, nor a part of one: pass "
            "batches as job.loader yielded them, before .to(device) and other changes; a prefetcher that moves batches "
            "must keep them too, and itertools.cycle repeats trained ones; a batch must have a tensor, an array or "
            "another object"
        )
    open_ones = [turn for turn, _ in found if not turn.ended] or [found[-1][0]]
    # The same stored samples may be in several batches. They begin in order.
    is_next = not open_ones[0].begun and all(ids == known for _, known in found)
    if len(open_ones) > 1 and not is_next:
        raise SettingError(
            f"step(batch): the {type(batch).__name__} is in {len(open_ones)} batches: pass one batch as job.loader "
            "yielded it"
        )
    return open_ones[0]


def _is_object(at: Any) -> bool:
    return bool(type(at).__weakrefoffset__) and not isinstance(at, dict | list | tuple)


def _objects(batch: Any) -> list[Any]:
    """Returns the objects in nested lists, tuples, dictionaries and data classes that can have weak references."""
    found, searched = [], [batch]
    for at in searched:
        if type(at) in _PLAIN:
            continue
        room = _SEARCHED_MAX - len(searched)
        if _is_object(at):
            found.append(at)
            if len(found) == OBJECTS_MAX:
                break
        # Subclasses may give their methods another meaning, and must not disturb the loop.
        inside = getattr(at, "data", None) if isinstance(at, UserDict) else at
        if isinstance(inside, dict):
            searched += islice(dict.values(inside), room)
        elif isinstance(inside, list):
            searched += islice(list.__iter__(inside), room)
        elif isinstance(inside, tuple):
            searched += islice(tuple.__iter__(inside), room)
        elif is_dataclass(inside):
            searched += [getattr(inside, field.name, None) for field in fields(inside)[:room]]
    return found
