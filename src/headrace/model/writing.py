"""Python values to what is written of them: the opposite of ``headrace.model.fitting``, as strict.

Nothing is made to fit: no float becomes an exact number, no time without an offset is taken for UTC, no field that the
schema does not know is left out in silence.
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

from headrace.model.errors import ValueDoesNotFit
from headrace.model.fitting import INT_MAX, INT_MIN, expected
from headrace.model.json_text import shown, step
from headrace.model.kinds import Choice, Digits, Field, Kind, Many, Named, Plain, Record
from headrace.model.texts import bytes_text, date_text, digits_text, exactly, time_text

__all__ = ["Write", "writer", "writer_of_fields"]

Write = Callable[[Any], Any]
"""From a Python value to what ``msgspec.json`` writes as it must be; raises ValueDoesNotFit."""


def writer(kind: Kind) -> Write:
    match kind:
        case Plain(name):
            return _PLAIN[name]
        case Digits():
            return functools.partial(_digits, kind, exactly(kind))
        case Choice():
            return functools.partial(_choice, kind)
        case Many(of, optional):
            return functools.partial(_many, kind, _or_none(of, optional))
        case Named(of, optional):
            return functools.partial(_named, kind, _or_none(of, optional))
        case Record(fields):
            return writer_of_fields(fields)


def writer_of_fields(fields: tuple[Field, ...], *, all_of_them: bool = True) -> Write:
    """Takes a dataclass or a mapping, and writes every field in the order given; ``all_of_them`` says that the fields
    are all that the value may have.
    """
    writers = tuple((field, field.name, _or_none(field.kind, field.may_be_none)) for field in fields)
    known = frozenset(field.name for field in fields)

    def write(value: Any) -> dict[str, Any]:
        given: Mapping[str, Any]
        if isinstance(value, Mapping):
            given = value
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            given = {name: getattr(value, name) for name in _names_of(type(value))}
        else:
            raise ValueDoesNotFit(f"expected a dataclass or a mapping, found {shown(value)}")
        made = {}
        for field, name, write_one in writers:
            try:
                made[name] = write_one(given[name] if name in given else _absent(field))
            except ValueDoesNotFit as error:
                raise error.inside(name) from None
        if all_of_them and not known.issuperset(given):
            unknown = next(name for name in given if name not in known)
            raise ValueDoesNotFit(f"the schema has no field {unknown!a}")
        return made

    return write


def _absent(field: Field) -> Any:
    if not field.optional:
        raise ValueDoesNotFit(f"missing, and it must be there ({expected(field.kind)})")
    return field.default


@functools.lru_cache(maxsize=1_000)
def _names_of(cls: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(cls))


def _or_none(kind: Kind, optional: bool) -> Write:
    write = writer(kind)
    return (lambda value: None if value is None else write(value)) if optional else write


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _unfit(Plain("text"), value)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            half = ord(value[error.start])
            raise ValueDoesNotFit(f"half a surrogate pair, \\u{half:04x}, is no character") from None
    return value if type(value) is str else str.__str__(value)


def _int(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not INT_MIN <= value <= INT_MAX:
        raise _unfit(Plain("int"), value)
    return int(value)


def _float(value: Any) -> float | str:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise _unfit(Plain("float"), value)
    try:
        number = float(value)
    except OverflowError:
        raise _unfit(Plain("float"), value) from None
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def _bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _unfit(Plain("bool"), value)
    return value


def _time(value: Any) -> str:
    if not isinstance(value, datetime):
        raise _unfit(Plain("time"), value)
    if value.utcoffset() is None:
        raise ValueDoesNotFit(
            f"the time {value.isoformat()} has no offset: give it one, as datetime.now(UTC) does"
        )
    try:
        return time_text(value)
    except OverflowError:
        raise ValueDoesNotFit(
            f"the time {value.isoformat()} lies outside the years 1 to 9999 of UTC"
        ) from None


def _date(value: Any) -> str:
    if not isinstance(value, date) or isinstance(value, datetime):
        raise _unfit(Plain("date"), value)
    return date_text(value)


def _bytes(value: Any) -> str:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise _unfit(Plain("bytes"), value)
    return bytes_text(bytes(value))


def _digits(kind: Digits, fit: Callable[[Decimal], Decimal], value: Any) -> msgspec.Raw:
    if isinstance(value, float):
        raise ValueDoesNotFit(
            f"{value!r} is a float, and not exact: give Decimal('{value!r}') if that is the number"
        )
    if not isinstance(value, (Decimal, int)) or isinstance(value, bool):
        raise _unfit(kind, value)
    try:
        return msgspec.Raw(digits_text(fit(Decimal(value))).encode())
    except (ValueError, ArithmeticError):
        raise _unfit(kind, value) from None


def _choice(kind: Choice, value: Any) -> str:
    told = value.value if isinstance(value, enum.Enum) else value
    if not isinstance(told, str) or told not in kind.values:
        raise _unfit(kind, value)
    return str.__str__(told)


def _many(kind: Many, write: Write, value: Any) -> list[Any]:
    if not isinstance(value, (list, tuple)):
        raise _unfit(kind, value)
    made = []
    for number, one in enumerate(value):
        try:
            made.append(write(one))
        except ValueDoesNotFit as error:
            raise error.inside(f"[{number}]") from None
    return made


def _named(kind: Named, write: Write, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise _unfit(kind, value)
    made = {}
    for key, one in value.items():
        try:
            made[_text(key)] = write(one)
        except ValueDoesNotFit as error:
            raise error.inside(step(key)) from None
    return made


def _unfit(kind: Kind, value: Any) -> ValueDoesNotFit:
    return ValueDoesNotFit(f"expected {expected(kind)}, found {shown(value)}")


_PLAIN: dict[str, Write] = {
    "text": _text,
    "int": _int,
    "float": _float,
    "bool": _bool,
    "time": _time,
    "date": _date,
    "bytes": _bytes,
}
