"""Encoding: converts Python values to values that the JSON writer accepts, with the same rules as ``strict_decode``.

A value of the wrong type is an error and is never converted. For example, a float is not accepted as an exact number,
nor a time without a UTC offset. A field that the schema does not have is an error.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import msgspec

from headrace.model.codec.json_text import describe_python, key_step, parse
from headrace.model.codec.scalar_text import bytes_text, date_text, digits_text, quantizer, time_text
from headrace.model.codec.strict_decode import INT_MAX, INT_MIN, expected, fit
from headrace.model.errors import ValueDoesNotFit
from headrace.model.kinds import Digits, Enum, Field, Kind, List, Map, Record, Scalar

__all__ = ["Write", "default_from_text", "default_text", "writer", "writer_of_fields"]

Write = Callable[[Any], Any]
"""Converts a Python value to a value that ``msgspec.json`` writes in our format. Raises ValueDoesNotFit."""


def writer(kind: Kind) -> Write:
    match kind:
        case Scalar(name):
            return _SCALAR_WRITERS[name]
        case Digits():
            return functools.partial(_digits, kind, quantizer(kind))
        case Enum():
            return functools.partial(_enum, kind)
        case List(of, optional):
            return functools.partial(_list, kind, _or_none(of, optional))
        case Map(of, optional):
            return functools.partial(_map, kind, _or_none(of, optional))
        case Record(fields):
            return writer_of_fields(fields)


def writer_of_fields(fields: tuple[Field, ...], *, reject_unknown: bool = True) -> Write:
    """Return a function that writes these fields of a dataclass or a mapping, in the order of ``fields``.

    With ``reject_unknown``, any other field in the value is an error.
    """
    writers = tuple((field, field.name, _or_none(field.kind, field.may_be_none)) for field in fields)
    known_names = frozenset(field.name for field in fields)

    def write(value: Any) -> dict[str, Any]:
        values: Mapping[str, Any]
        if isinstance(value, Mapping):
            values = value
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            values = {name: getattr(value, name) for name in _names_of(type(value))}
        else:
            raise ValueDoesNotFit(f"expected a dataclass or a mapping, found {describe_python(value)}")
        written = {}
        for field, name, write_field in writers:
            try:
                written[name] = write_field(values[name] if name in values else _default_of(field))
            except ValueDoesNotFit as error:
                raise error.inside(name) from None
        if reject_unknown and not known_names.issuperset(values):
            unknown = next(name for name in values if name not in known_names)
            raise ValueDoesNotFit(f"the schema has no field {unknown!a}")
        return written

    return write


def _default_of(field: Field) -> Any:
    if not field.optional:
        raise ValueDoesNotFit(f"the required field is missing (expected {expected(field.kind)})")
    return field.default


@functools.lru_cache(maxsize=1_000)
def _names_of(cls: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(cls))


def _or_none(kind: Kind, optional: bool) -> Write:
    write = writer(kind)
    return (lambda value: None if value is None else write(value)) if optional else write


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _unfit(Scalar("text"), value)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            code_point = ord(value[error.start])
            raise ValueDoesNotFit(f"half a surrogate pair, \\u{code_point:04x}, is not a character") from None
    return value if type(value) is str else str.__str__(value)


def _int(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not INT_MIN <= value <= INT_MAX:
        raise _unfit(Scalar("int"), value)
    return int(value)


def _float(value: Any) -> float | str:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise _unfit(Scalar("float"), value)
    try:
        number = float(value)
    except OverflowError:
        raise _unfit(Scalar("float"), value) from None
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def _bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _unfit(Scalar("bool"), value)
    return value


def _time(value: Any) -> str:
    if not isinstance(value, datetime):
        raise _unfit(Scalar("time"), value)
    if value.utcoffset() is None:
        raise ValueDoesNotFit(
            f"the time {value.isoformat()} has no offset: set one, for example with datetime.now(UTC)"
        )
    try:
        return time_text(value)
    except OverflowError:
        raise ValueDoesNotFit(f"the time {value.isoformat()} is not in the years 1 to 9999 in UTC") from None


def _date(value: Any) -> str:
    if not isinstance(value, date) or isinstance(value, datetime):
        raise _unfit(Scalar("date"), value)
    return date_text(value)


def _bytes(value: Any) -> str:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise _unfit(Scalar("bytes"), value)
    return bytes_text(bytes(value))


def _digits(kind: Digits, fit: Callable[[Decimal], Decimal], value: Any) -> msgspec.Raw:
    if isinstance(value, float):
        raise ValueDoesNotFit(
            f"{value!r} is a float, and floats are not exact: use Decimal('{value!r}') if you mean that number"
        )
    if not isinstance(value, (Decimal, int)) or isinstance(value, bool):
        raise _unfit(kind, value)
    try:
        return msgspec.Raw(digits_text(fit(Decimal(value))).encode())
    except (ValueError, ArithmeticError):
        raise _unfit(kind, value) from None


def _enum(kind: Enum, value: Any) -> str:
    text = value.value if isinstance(value, enum.Enum) else value
    if not isinstance(text, str) or text not in kind.values:
        raise _unfit(kind, value)
    return str.__str__(text)


def _list(kind: List, write: Write, value: Any) -> list[Any]:
    if not isinstance(value, (list, tuple)):
        raise _unfit(kind, value)
    written = []
    for number, element in enumerate(value):
        try:
            written.append(write(element))
        except ValueDoesNotFit as error:
            raise error.inside(f"[{number}]") from None
    return written


def _map(kind: Map, write: Write, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise _unfit(kind, value)
    written = {}
    for key, element in value.items():
        try:
            written[_text(key)] = write(element)
        except ValueDoesNotFit as error:
            raise error.inside(key_step(key)) from None
    return written


def _unfit(kind: Kind, value: Any) -> ValueDoesNotFit:
    return ValueDoesNotFit(f"expected {expected(kind)}, found {describe_python(value)}")


_SCALAR_WRITERS: dict[str, Write] = {
    "text": _text,
    "int": _int,
    "float": _float,
    "bool": _bool,
    "time": _time,
    "date": _date,
    "bytes": _bytes,
}


def default_text(kind: Kind, default: Any) -> str:
    return msgspec.json.encode(writer(kind)(default)).decode()


def default_from_text(kind: Kind, text: str) -> Any:
    return fit(kind, parse(text.encode()))
