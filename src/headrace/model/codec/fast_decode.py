"""Fast decoding of common values. The decoder returns the row, or None if ``strict_decode`` must decode the value.

msgspec checks types, ranges and UTF-8 while it parses, about three times as fast as ``strict_decode``. It does not
check three things, so this module checks them:

- If two fields have the same name, msgspec returns the last. Every key in JSON ends in a quote and a colon. So the text
  is accepted only if it contains ``":`` no more often than the result has distinct keys. Such a text has no duplicate
  fields and no fields that the schema does not have.
- msgspec accepts numbers of a thousand digits. A long text is therefore searched for a long run of digits.
- An exact number or a time can be written in many ways. msgspec returns them as text, and this module parses them.

``strict_decode`` defines the result. A test checks that both modules decode the same values.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from headrace.model.codec.scalar_text import bytes_from, date_from, quantizer, time_from
from headrace.model.codec.strict_decode import FLOAT_NAMES, INT_MAX, INT_MIN
from headrace.model.kinds import Digits, Enum, Field, Kind, List, Map, Record, Scalar

__all__ = ["FastDecoder", "fast_decoder"]

_LONG_NUMBER_BYTES = 1_000
# A number of 1,000 characters has at least 300 digits in a row, before or after its point.
_MANY_DIGITS = re.compile(rb"[0-9]{300}").search
_ESCAPED = re.compile(r'[\x00-\x1f"\\]').search
_BLANK_BEFORE_COLON = re.compile(rb":(?<=[ \t\r\n]:)").search


@dataclass(frozen=True, slots=True)
class _Part:
    type: Any
    """The type that msgspec decodes to."""
    finish: Callable[[Any], Any] | None = None
    """Converts msgspec's result to the value; None if no conversion is needed."""
    keys: Callable[[Any], int] | None = None
    """Counts the distinct keys of all objects in a value; None if the kind contains no objects."""


def fast_decoder(fields: tuple[Field, ...]) -> FastDecoder | None:
    """Return None if JSON must escape the name of a field: msgspec does not support such names."""
    return None if any(map(_ESCAPED, _names(fields))) else FastDecoder(fields)


class FastDecoder:
    __slots__ = ("_decode", "_finish", "_keys")

    def __init__(self, fields: tuple[Field, ...]) -> None:
        row = _record(fields)
        assert row.finish is not None
        assert row.keys is not None
        self._decode = msgspec.json.Decoder(row.type).decode
        self._finish = row.finish
        self._keys = row.keys

    def decode(self, raw: bytes) -> dict[str, Any] | None:
        try:
            row = self._decode(raw)
            if raw.count(b'":') > self._keys(row) or _may_hide_keys(raw):
                return None
            if len(raw) > _LONG_NUMBER_BYTES and _MANY_DIGITS(raw):
                return None
            decoded: dict[str, Any] = self._finish(row)
        except (msgspec.DecodeError, ValueError, ArithmeticError, RecursionError):
            # The strict decoder finds the reason.
            return None
        return decoded


def _names(fields: tuple[Field, ...]) -> Iterator[str]:
    """Yield the names of all fields, including nested fields."""
    for field in fields:
        yield field.name
        kind = field.kind
        while isinstance(kind, List | Map):
            kind = kind.of
        if isinstance(kind, Record):
            yield from _names(kind.fields)


def _may_hide_keys(raw: bytes) -> bool:
    """Whether blanks might separate a key from its colon. The cheap test is first: most texts have no blanks."""
    return (32 in raw or 10 in raw or 13 in raw or 9 in raw) and _BLANK_BEFORE_COLON(raw) is not None


def _part(kind: Kind, optional: bool) -> _Part:
    match kind:
        case Scalar(name):
            return _SCALARS[name]
        case Digits():
            return _Part(msgspec.Raw, functools.partial(_digits, quantizer(kind), optional))
        case Enum(values):
            return _Part(Literal[values])
        case List(element_part, element_optional):
            return _list(_part(element_part, element_optional), element_optional)
        case Map(element_part, element_optional):
            return _map(_part(element_part, element_optional), element_optional)
        case Record(fields):
            return _record(fields)


def _list(element_part: _Part, optional: bool) -> _Part:
    finish, keys = element_part.finish, element_part.keys
    return _Part(
        list[_nullable(element_part.type, optional)],  # type: ignore[misc]
        finish and (lambda value: [None if element is None else finish(element) for element in value]),
        keys and (lambda value: sum(keys(element) for element in value if element is not None)),
    )


def _map(element_part: _Part, optional: bool) -> _Part:
    finish, keys = element_part.finish, element_part.keys
    return _Part(
        dict[str, _nullable(element_part.type, optional)],  # type: ignore[misc]
        finish
        and (lambda value: {k: None if element is None else finish(element) for k, element in value.items()}),
        (lambda value: len(value) + sum(keys(element) for element in value.values() if element is not None))
        if keys
        else len,
    )


def _record(fields: tuple[Field, ...]) -> _Part:
    """Return a struct with generated attribute names, because a column name need not be a valid attribute name."""
    parts = [_part(field.kind, field.optional) for field in fields]
    declared: list[Any] = [
        (f"f{index}", _nullable(part.type, True) | UnsetType, UNSET)
        if field.optional
        else (f"f{index}", part.type)
        for index, (field, part) in enumerate(zip(fields, parts, strict=True))
    ]
    renamed = {f"f{index}": field.name for index, field in enumerate(fields)}
    struct = msgspec.defstruct("Row", declared, rename=renamed, kw_only=True)

    names = tuple(field.name for field in fields)
    finishes = [(index, part.finish) for index, part in enumerate(parts) if part.finish]
    optionals = [(index, field) for index, field in enumerate(fields) if field.optional]
    nested = [(operator.attrgetter(f"f{index}"), part.keys) for index, part in enumerate(parts) if part.keys]
    as_tuple = msgspec.structs.astuple

    def finish(row: Any) -> dict[str, Any]:
        values = list(as_tuple(row))
        for index, finish_part in finishes:
            value = values[index]
            if value is not None and value is not UNSET:
                values[index] = finish_part(value)
        for index, field in optionals:
            if values[index] is None or values[index] is UNSET:
                values[index] = field.fresh_default()
        return dict(zip(names, values, strict=True))

    optional_getters = [operator.attrgetter(f"f{index}") for index, _ in optionals]
    count = len(names)

    def keys(row: Any) -> int:
        key_count = count
        for get in optional_getters:
            if get(row) is UNSET:
                key_count -= 1
        for get, keys_of in nested:
            part = get(row)
            if part is not None and part is not UNSET:
                key_count += keys_of(part)
        return key_count

    return _Part(struct, finish, keys)


def _nullable(type_: Any, optional: bool) -> Any:
    # Raw accepts any JSON, including null.
    return type_ | None if optional and type_ is not msgspec.Raw else type_


def _digits(fit: Callable[[Decimal], Decimal], optional: bool, raw: msgspec.Raw) -> Decimal | None:
    text = bytes(raw).decode()
    if text[0] not in "-0123456789":
        if optional and text == "null":
            return None
        raise ValueError(text)
    return fit(Decimal(text))


def _float(value: float | str) -> float:
    return value if type(value) is float else float(value)


_SCALARS = {
    "text": _Part(str),
    "int": _Part(Annotated[int, msgspec.Meta(ge=INT_MIN, le=INT_MAX)]),
    "float": _Part(float | Literal[FLOAT_NAMES], _float),
    "bool": _Part(bool),
    "time": _Part(str, time_from),
    "date": _Part(str, date_from),
    "bytes": _Part(str, bytes_from),
}
