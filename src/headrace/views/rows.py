"""A value of the log as a row of a view: JSON in, one plain value per column out, or ``ValueDoesNotFit``.

The plain values are those that every store can take:

    text, enum            str
    int                   int, 64 bits
    float                 float; NaN is the text ``NaN``, since it equals nothing, and SQLite makes a null of it
    bool                  bool
    decimal, time, date   str, in the form that flows write: ``12.500000``, ``2026-01-31T12:00:00.123456Z``
    bytes                 bytes
    list, map, record     str, compact JSON

Numbers with a decimal point keep their digits: they never become a float on the way. A name that is in an object twice
is refused, since readers differ on which one counts.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal

import msgspec

from headrace.model.kinds import Choice, Digits, Field, Kind, Many, Named, Plain, Record
from headrace.views.errors import ShapeRefused, ValueDoesNotFit
from headrace.views.position import Shape

__all__ = ["Row", "RowDecoder", "Value"]

Value = None | bool | int | float | str | bytes
Row = tuple[Value, ...]

_INT = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_PLAIN: dict[str, Any] = {
    "text": str,
    "int": _INT,
    "float": float | Literal["NaN", "Infinity", "-Infinity"],
    "bool": bool,
    "time": Annotated[datetime, msgspec.Meta(tz=True)],
    "date": date,
    "bytes": bytes,
}
_FLOATS = {"Infinity": float("inf"), "-Infinity": float("-inf")}
_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_encode = msgspec.json.Encoder(decimal_format="number").encode
_DIGITS_MAX = 1_000
_NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError)


class RowDecoder:
    """``topic_key`` says which fields a record's key holds: the key of a deletion is all there is of it."""

    def __init__(self, shape: Shape, topic_key: tuple[str, ...]) -> None:
        self._shape = shape
        self._type = _struct("row", shape.fields)
        self._decoder = msgspec.json.Decoder(self._type)
        finish = [(at, _finisher(one.kind)) for at, one in enumerate(shape.fields)]
        self._finish = [(at, function) for at, function in finish if function is not None]
        self._defaults = [_default(one) for one in shape.fields]
        self._nested = any(isinstance(one.kind, (Many, Named, Record)) for one in shape.fields)
        self._may_lack = [at for at, one in enumerate(shape.fields) if one.optional]
        self._must = [at for at, one in enumerate(shape.fields) if one.name in shape.key]
        self._key = _KeyDecoder(shape, topic_key)

    def row(self, value: bytes) -> Row:
        try:
            read = list(msgspec.structs.astuple(self._decoder.decode(value)))
        except _NOT_JSON as error:
            raise ValueDoesNotFit(str(error)) from None
        absent = sum(read[at] is msgspec.UNSET for at in self._may_lack)
        if self._nested or _may_have_twins(value, len(read) - absent):
            _refuse_twins(value)
        if absent:
            read = [
                default if one is msgspec.UNSET else one
                for one, default in zip(read, self._defaults, strict=True)
            ]
        for at, finish in self._finish:
            if read[at] is not None:
                try:
                    read[at] = finish(read[at])
                except (ValueDoesNotFit, OverflowError) as error:
                    reason = error.message if isinstance(error, ValueDoesNotFit) else str(error)
                    raise ValueDoesNotFit(f"{reason} - at `$.{self._shape.names[at]}`") from None
        for at in self._must:
            if read[at] is None:
                raise ValueDoesNotFit(f"the key is null - at `$.{self._shape.names[at]}`")
        return tuple(read)

    def key(self, key: bytes | None) -> Row:
        """The view's key out of a record's."""
        return self._key.values(key)


class _KeyDecoder:
    def __init__(self, shape: Shape, topic_key: tuple[str, ...]) -> None:
        self._view_key = shape.key
        self._topic_key = topic_key
        self._knows = set(topic_key) == set(shape.key)
        fields = {one.name: one for one in shape.fields}
        self._kinds = [fields[name].kind for name in shape.key]
        self._decoder = msgspec.json.Decoder(
            _struct("key", tuple(Field(name, fields[name].kind, False) for name in shape.key))
        )

    def values(self, key: bytes | None) -> Row:
        if key is None:
            raise ValueDoesNotFit("a deletion without a key")
        if not self._knows:
            raise ValueDoesNotFit(
                f"a deletion names only {', '.join(self._topic_key) or 'no field'},"
                f" and the view's key is {', '.join(self._view_key)}"
            )
        try:
            if len(self._kinds) > 1:
                read = msgspec.structs.astuple(self._decoder.decode(key))
                _refuse_twins(key)
            else:
                read = (_from_text(self._kinds[0], key),)
            finished = (_finished(kind, one) for kind, one in zip(self._kinds, read, strict=True))
            return tuple(finished)
        except _NOT_JSON as error:
            raise ValueDoesNotFit(f"the record's key: {error}") from None


def _from_text(kind: Kind, text: bytes) -> Any:
    """A single key is written as in JSON, but without the quotes."""
    try:
        if kind in (Plain("int"), Plain("bool")) or isinstance(kind, (Digits, Many, Named, Record)):
            return msgspec.json.decode(text, type=_type(kind))
        if kind == Plain("float") and text not in (b"NaN", b"Infinity", b"-Infinity"):
            return msgspec.json.decode(text, type=float)
        return msgspec.convert(text.decode(), _type(kind))
    except msgspec.ValidationError as error:
        raise ValueDoesNotFit(f"the record's key: {error}") from None


def _struct(name: str, fields: tuple[Field, ...]) -> Any:
    members = [
        (
            f"f{at}",
            _type(one.kind) | None | msgspec.UnsetType,
            msgspec.field(default=msgspec.UNSET, name=one.name),
        )
        if one.optional
        else (f"f{at}", _type(one.kind), msgspec.field(name=one.name))
        for at, one in enumerate(fields)
    ]
    return msgspec.defstruct(name, members, kw_only=True, gc=False)


def _type(kind: Kind) -> Any:
    match kind:
        case Plain(name):
            return _PLAIN[name]
        case Digits():
            return Decimal
        case Choice(values):
            return Literal[values]
        case Many(of, optional):
            return list[_type(of) | None if optional else _type(of)]  # type: ignore[misc]
        case Named(of, optional):
            return dict[str, _type(of) | None if optional else _type(of)]  # type: ignore[misc]
        case Record(fields):
            return _struct("record", fields)


# From what msgspec reads to the plain values


def _finisher(kind: Kind) -> Callable[[Any], Any] | None:
    match kind:
        case Plain("float"):
            return lambda read: _FLOATS.get(read, read)
        case Plain("time"):
            return _time
        case Plain("date"):
            return date.isoformat
        case Digits(precision, scale):
            return lambda read: _exact(read, precision, scale)
        case Many() | Named() | Record():
            return lambda read: _encode(_nested(kind, read)).decode()
    return None


def _finished(kind: Kind, read: Any) -> Value:
    finish = _finisher(kind)
    value: Value = read if finish is None else finish(read)
    return value


def _time(read: datetime) -> str:
    text = _encode(read if read.tzinfo is UTC else read.astimezone(UTC)).decode()
    return text[1:28] if len(text) == 29 else f"{text[1:20]}.000000Z"


def _exact(read: Decimal, precision: int, scale: int) -> str:
    """The same number with as many digits behind the point as are declared, if it has no more than fit."""
    text = str(read)
    point = len(text) - scale - 1
    if (
        0 < point < precision
        and len(text) <= precision + 1
        and text[point] == "."
        and text[0] != "-"
        and "E" not in text
    ):
        return text  # As flows write it.
    sign, digits, exponent = read.as_tuple()
    if not isinstance(exponent, int):
        raise ValueDoesNotFit(f"{read} is not a number")
    if len(digits) > _DIGITS_MAX or abs(exponent) > _DIGITS_MAX:
        raise ValueDoesNotFit(f"a number of {len(digits)} digits and exponent {exponent}")
    front, _, back = format(read.copy_abs(), "f").partition(".")
    front, back = front.lstrip("0"), back.rstrip("0")
    if len(front) > precision - scale or len(back) > scale:
        raise ValueDoesNotFit(f"{read} has more than {precision} digits, {scale} of them behind the point")
    text = f"{front or '0'}.{back:0<{scale}}" if scale else front or "0"
    return f"-{text}" if sign and (front or back) else text


def _nested(kind: Kind, read: Any) -> Any:
    """As JSON can be written of it, with all fields of a record."""
    if read is None:
        return None
    match kind:
        case Plain("time"):
            return _time(read)
        case Digits(precision, scale):
            return msgspec.Raw(_exact(read, precision, scale).encode())
        case Many(of):
            return [_nested(of, one) for one in read]
        case Named(of):
            return {name: _nested(of, one) for name, one in read.items()}
        case Record(fields):
            parts = zip(fields, msgspec.structs.astuple(read), strict=True)
            return {
                one.name: _default(one, nested=True) if part is msgspec.UNSET else _nested(one.kind, part)
                for one, part in parts
            }
    return read


def _default(one: Field, *, nested: bool = False) -> Any:
    """As msgspec would have read it, or as it is written within another value."""
    if one.default is None:
        return None
    told = one.default
    if isinstance(one.kind, Digits):
        told = str(told)
    elif isinstance(told, float):
        told = _NOT_FINITE.get(str(told), told)
    elif not isinstance(told, str):
        told = msgspec.json.decode(_encode(told))
    try:
        read = msgspec.convert(told, _type(one.kind))
    except msgspec.ValidationError as error:
        raise ShapeRefused(f"the default {one.default!r} of field {one.name!r}: {error}") from None
    return _nested(one.kind, read) if nested else read


# Names that are in an object twice


def _may_have_twins(value: bytes, present: int) -> bool:
    """Exact where it says no: every name ends in a quote and a colon, and there are as many as fields were found."""
    find = (
        value.find
    )  # ``in`` would first try whether the bytes are a number, which takes four times as long.
    return (
        value.count(b'":') != present
        or find(b"\\u") >= 0
        or find(b" :") >= 0
        or find(b"\t:") >= 0
        or find(b"\n:") >= 0
        or find(b"\r:") >= 0
    )


def _refuse_twins(value: bytes) -> None:
    try:
        json.loads(value, object_pairs_hook=_without_twins, parse_int=str, parse_float=str)
    except RecursionError as error:
        raise ValueDoesNotFit(str(error)) from None


def _without_twins(pairs: list[tuple[str, Any]]) -> None:
    if len(pairs) != len({name for name, _ in pairs}):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueDoesNotFit(f"the name {name!r} is in an object twice")
            seen.add(name)
