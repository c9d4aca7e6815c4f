"""Conversion between JSON and dataclasses, driven by the fields of a message.

Reading is strict about required fields and ignores unknown ones, because responses may get new fields. Writing omits
fields that have their default value: the defaults of messages are the same as in the HTTP interface.
"""

import functools
import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from evenstep.errors import SettingError
from evenstep.wire.errors import UnusableError

if TYPE_CHECKING:
    from typing_extensions import Self

M = TypeVar("M", bound="Message")

Decode = Callable[[object, str], Any]
"""Converts a parsed JSON value; the string is the field's path, for error messages."""


class Message:
    """A dataclass that is sent as a JSON object, with fields of the same names."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def to_json(self) -> dict[str, object]:
        """Returns the message as a JSON object, without the fields that have their default value.

        Raises:
            SettingError: A number is not finite, which JSON cannot represent.
        """
        said: dict[str, object] = {}
        for name, wire_name, default in self._written():
            value = getattr(self, name)
            if value != default:
                said[wire_name] = _encode(value, name)
        return said

    @classmethod
    @functools.cache
    def _written(cls) -> tuple[tuple[str, str, object], ...]:
        """Returns each field's name here and in JSON, and its default."""
        return tuple((field.name, _wire_name(field), _default(field)) for field in fields(cls))

    @classmethod
    def from_json(cls, value: object) -> "Self":
        """Reads a parsed JSON object. Unknown fields are ignored.

        Raises:
            UnusableError: A field is missing or of another type; the message names it.
        """
        return _object(cls, value, "")


def _encode(value: object, path: str) -> object:
    # The most frequent type comes first.
    if isinstance(value, float):
        if not math.isfinite(value):
            raise SettingError(f"{path}: {value}: must be finite")
        return value
    if isinstance(value, (int, str)):
        return value
    if isinstance(value, Message):
        return value.to_json()
    if isinstance(value, Mapping):
        return {key: _encode(item, f"{path}.{key}") for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_encode(item, f"{path}[{at}]") for at, item in enumerate(value)]
    return value


def _object(cls: type[M], value: object, path: str) -> M:
    if not isinstance(value, dict):
        raise _unusable(path, value, "must be an object")
    read: dict[str, object] = {}
    for name, wire_name, decode, required in _decoders(cls):
        if (given := value.get(wire_name)) is not None:
            read[name] = decode(given, f"{path}.{wire_name}" if path else wire_name)
        elif required:
            raise UnusableError(f"unusable response: {path or cls.__name__} has no field {wire_name!r}")
    return cls(**read)


# Cached per class: resolving the type hints takes a hundred times as long as reading a message.
_KNOWN: dict[type[Message], tuple[tuple[str, str, Decode, bool], ...]] = {}


def _decoders(cls: type[Message]) -> tuple[tuple[str, str, Decode, bool], ...]:
    """Returns each field's name here and in JSON, its decoder, and whether it is required."""
    if (known := _KNOWN.get(cls)) is None:
        hints = typing.get_type_hints(cls)
        known = _KNOWN[cls] = tuple(
            (field.name, _wire_name(field), _decoder(hints[field.name]), _default(field) is MISSING)
            for field in fields(cls)
        )
    return known


def _wire_name(field: Field[Any]) -> str:
    # Python keywords, such as `from`, have a trailing underscore.
    return field.name.removesuffix("_")


def _default(field: Field[Any]) -> object:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _decoder(hint: Any) -> Decode:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        (inner,) = (argument for argument in arguments if argument is not type(None))
        return _decoder(inner)
    if origin is tuple:
        return _list_of(_decoder(arguments[0]))
    if origin is Mapping:
        return _map_of(_decoder(arguments[1]))
    if origin is typing.Literal:
        return _one_of(arguments)
    if isinstance(hint, type) and issubclass(hint, Message):
        return lambda value, path: _object(hint, value, path)
    return _PLAIN[hint]


def _count(value: object, path: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise _unusable(path, value, "must be a whole number, 0 or more")


def _number(value: object, path: str) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    raise _unusable(path, value, "must be a finite number")


def _flag(value: object, path: str) -> bool:
    if isinstance(value, bool):
        return value
    raise _unusable(path, value, "must be true or false")


def _text(value: object, path: str) -> str:
    if isinstance(value, str):
        return value
    raise _unusable(path, value, "must be text")


_PLAIN: dict[type, Decode] = {int: _count, float: _number, bool: _flag, str: _text}


def _one_of(choices: tuple[str, ...]) -> Decode:
    def decode(value: object, path: str) -> str:
        if isinstance(value, str) and value in choices:
            return value
        raise _unusable(path, value, f"must be one of {', '.join(choices)}")

    return decode


def _list_of(decode_item: Decode) -> Decode:
    def decode(value: object, path: str) -> tuple[object, ...]:
        if isinstance(value, list):
            return tuple(decode_item(item, f"{path}[{at}]") for at, item in enumerate(value))
        raise _unusable(path, value, "must be a list")

    return decode


def _map_of(decode_item: Decode) -> Decode:
    def decode(value: object, path: str) -> dict[str, object]:
        if isinstance(value, dict):
            return {key: decode_item(item, f"{path}.{key}") for key, item in value.items()}
        raise _unusable(path, value, "must be an object")

    return decode


_SHOWN_CHARS_MAX = 80


def _unusable(path: str, value: object, rule: str) -> UnusableError:
    shown = repr(value)
    if len(shown) > _SHOWN_CHARS_MAX:
        shown = shown[:_SHOWN_CHARS_MAX] + "..."
    return UnusableError(f"unusable response: {path or 'the body'}: {shown}: {rule}")
