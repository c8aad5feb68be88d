"""Decodes a value of the log into a row of a view, which has one plain value per column.

Raises ``ValueDoesNotFit`` if the value does not match the schema. Every store can hold these plain values:

    text, enum            str
    int                   int, 64 bits
    float                 float; NaN is the text ``NaN``, because NaN != NaN, and SQLite stores NaN as null
    bool                  bool
    decimal, time, date   str, as flows write them: ``12.500000``, ``2026-01-31T12:00:00.123456Z``, ``2026-01-31``
    bytes                 bytes
    list, map, record     str, compact JSON

The strict decoder in ``headrace.model.codec.codec`` defines which values are valid. ``FastRowDecoder`` handles the
common case: values that a flow wrote, whose times and decimals already have the text that stores use. It returns the
row only if it is certain that the strict decoder would return the same row. Otherwise it returns None, and the strict
decoder decodes the value. The fast decoder is certain under these conditions:

- msgspec finds every field with its type;
- no name occurs twice, because the number of names with a colon equals the number of fields;
- no number is too long;
- times, dates and decimals have their canonical form.

A value with all its fields is decoded fastest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import date, datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import astuple

from headrace.model.codec.codec import new_codec
from headrace.model.codec.encode import writer
from headrace.model.codec.scalar_text import bytes_from, date_text, digits_text, time_text
from headrace.model.errors import ValueDoesNotFit
from headrace.model.kinds import Digits, Enum, Field, Kind, List, Map, Record, Scalar
from headrace.model.schema import Schema
from headrace.model.upcast import Upcaster
from headrace.stores.position import ViewSchema

__all__ = ["FastRowDecoder", "Row", "RowDecoder", "Value", "key_order", "to_store_value"]

Value = None | bool | int | float | str | bytes
Row = tuple[Value, ...]

_encode = msgspec.json.Encoder().encode


class RowDecoder:
    """``topic_key`` are the fields in a record's key. The record of a deletion (a tombstone) has only these fields.
    ``upcast`` are the upcasters of the topic.
    """

    def __init__(
        self, schema: ViewSchema, topic_key: tuple[str, ...], upcast: Upcaster | None = None
    ) -> None:
        self._upcast = upcast
        self._codec = new_codec(Schema("row", schema.fields))
        self._converters = [to_store_value(field.kind) for field in schema.fields]
        self._fast = FastRowDecoder(schema.fields, self._converters)
        self._key_columns = [(index, schema.names[index]) for index in schema.key_indexes]
        self._optional_key_columns = [
            (index, name) for index, name in self._key_columns if schema.fields[index].optional
        ]
        self._view_key = schema.key
        self._topic_key = topic_key
        self._keys_match = set(topic_key) == set(schema.key)

    def row(self, value: bytes) -> Row:
        if self._upcast is not None:
            value = self._upcast.apply(value)
        row = self._fast.row(value)
        if row is None:
            decoded = self._codec.decode(value).values()
            row = tuple(
                None if field is None else convert(field)
                for field, convert in zip(decoded, self._converters, strict=True)
            )
        for index, name in self._optional_key_columns:
            if row[index] is None:
                raise ValueDoesNotFit("null is not allowed in a column of the view's key", path=name)
        return row

    def key(self, key: bytes | None) -> Row:
        """Decode the view's key from the record key of a deletion."""
        if key is None:
            raise ValueDoesNotFit("the record is a deletion (null value) but has no key")
        if not self._keys_match:
            names = ", ".join(self._topic_key) or "nothing"
            raise ValueDoesNotFit(
                f"the key of the deletion has the fields {names}, but the view's key is {', '.join(self._view_key)}"
            )
        decoded = self._codec.key(self._topic_key).decode(key)
        values = ((index, decoded[name]) for index, name in self._key_columns)
        return tuple(None if value is None else self._converters[index](value) for index, value in values)


def key_order(schema: ViewSchema) -> Callable[[Row], list[Any]]:
    """Return a sort key for sorting rows by the view's key. NaN sorts after every number."""
    columns = [(index, schema.fields[index].kind == Scalar("float")) for index in schema.key_indexes]

    def comparable(value: Any, is_float: bool) -> Any:
        return value if not is_float else (1, 0.0) if value == "NaN" else (0, value)

    return lambda row: [comparable(row[index], is_float) for index, is_float in columns]


def to_store_value(kind: Kind) -> Callable[[Any], Value]:
    """Return the function that converts a value decoded by ``headrace.model.codec.codec`` to a plain value."""
    match kind:
        case Scalar("float"):
            return _float
        case Scalar("time"):
            return time_text
        case Scalar("date"):
            return date_text
        case Digits():
            return digits_text
        case List() | Map() | Record():
            write = writer(kind)
            return lambda value: _encode(write(value)).decode()
    return _unchanged


def _unchanged(value: Value) -> Value:
    return value


def _float(value: float) -> Value:
    return value if value == value else "NaN"


# The fast path

_DAY = (
    r"(?!0000)[0-9]{4}-"
    r"(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
)
"""Matches every valid day except February 29, which exists only in leap years."""
_CLOCK = r"T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]\.[0-9]{6}Z"
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}" + _CLOCK).fullmatch
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}").fullmatch
_WHITESPACE = b" \t\n\r"
_LONG_VALUE_BYTES = 1_000
_LONG_NUMBER = re.compile(rb"[0-9]{300}").search
_FLOATS = {"Infinity": float("inf"), "-Infinity": float("-inf"), "NaN": "NaN"}
_TYPES: dict[str, Any] = {
    "text": str,
    "int": Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)],
    "float": float | Literal["NaN", "Infinity", "-Infinity"],
    "bool": bool,
    "time": str,
    "date": str,
    "bytes": str,
}
_COMPLETE_TYPES: dict[Kind, Any] = {
    Scalar("float"): float,
    Scalar("time"): Annotated[str, msgspec.Meta(pattern=rf"\A{_DAY}{_CLOCK}\Z")],
    Scalar("date"): Annotated[str, msgspec.Meta(pattern=rf"\A{_DAY}\Z")],
}
"""With these types, msgspec itself checks the common values. ``_partial_row`` decodes other values."""


class _Uncertain(Exception):
    pass


class FastRowDecoder:
    """``converters`` convert the default values of fields."""

    def __init__(self, fields: Sequence[Field], converters: Sequence[Callable[[Any], Any]]) -> None:
        self._decode_complete: Callable[[bytes], Any] | None = None
        self._count = len(fields)
        types = [_msgspec_type(field) for field in fields]
        if None in types:
            return
        self._decode_complete = _struct_decoder(
            [
                (f"f{index}", _complete_type(field, kind), msgspec.field(name=field.name))
                for index, (field, kind) in enumerate(zip(fields, types, strict=True))
            ]
        )
        self._decode_partial = _struct_decoder(
            [
                (f"f{index}", kind | UnsetType, msgspec.field(default=UNSET, name=field.name))
                if field.optional
                else (f"f{index}", kind, msgspec.field(name=field.name))
                for index, (field, kind) in enumerate(zip(fields, types, strict=True))
            ]
        )
        finishers = [(index, _finisher(field.kind, field.optional)) for index, field in enumerate(fields)]
        self._finish = [(index, finish) for index, finish in finishers if finish is not None]
        self._finish_complete = [
            (index, finish) for index, finish in self._finish if fields[index].kind not in _COMPLETE_TYPES
        ]
        self._defaults = [
            (index, None if field.default is None else converters[index](field.default))
            for index, field in enumerate(fields)
            if field.optional
        ]
        self._null_defaults = [(index, default) for index, default in self._defaults if default is not None]
        self._needs_finish = bool(self._finish_complete or self._null_defaults)

    def row(self, value: bytes) -> tuple[Any, ...] | None:
        if self._decode_complete is None or (
            len(value) > _LONG_VALUE_BYTES and _LONG_NUMBER(value) is not None
        ):
            return None
        # After removing whitespace, a colon follows every name. A text that looks like a name increases the count.
        names = value.translate(None, _WHITESPACE).count(b'":')
        try:
            if names == self._count:
                complete = astuple(self._decode_complete(value))
                if not self._needs_finish:
                    return complete
                row = list(complete)
                for index, finish in self._finish_complete:
                    if row[index] is not None:
                        row[index] = finish(row[index])
                for index, default in self._null_defaults:
                    if row[index] is None:
                        row[index] = default
                return tuple(row)
        except (msgspec.DecodeError, ValueError, RecursionError, _Uncertain):
            # A text looks like a name, or the value contains February 29, or a float such as "NaN".
            pass
        return self._partial_row(value, names)

    def _partial_row(self, value: bytes, names: int) -> tuple[Any, ...] | None:
        """Decode a value in which optional fields can be missing."""
        try:
            row = list(astuple(self._decode_partial(value)))
            for index, finish in self._finish:
                if row[index] is not None and row[index] is not UNSET:
                    row[index] = finish(row[index])
        except (msgspec.DecodeError, ValueError, RecursionError, _Uncertain):
            # The strict decoder determines the exact reason.
            return None
        present = self._count
        for index, default in self._defaults:
            if row[index] is UNSET:
                present -= 1
                row[index] = default
            elif row[index] is None:
                row[index] = default
        return tuple(row) if names == present else None


def _struct_decoder(members: list[tuple[str, Any, Any]]) -> Callable[[bytes], Any]:
    return msgspec.json.Decoder(msgspec.defstruct("Row", members, kw_only=True, gc=False)).decode


def _msgspec_type(field: Field) -> Any:
    """Return the type for msgspec, or None if only the strict decoder can decode this kind."""
    match field.kind:
        case Scalar(name):
            kind = _TYPES[name]
        case Digits():
            # Raw accepts any JSON value, including null.
            return msgspec.Raw
        case Enum(values):
            kind = Literal[values]
        case _:
            return None
    return kind | None if field.optional else kind


def _complete_type(field: Field, kind: Any) -> Any:
    complete = _COMPLETE_TYPES.get(field.kind)
    if complete is None:
        return kind
    return complete | None if field.optional else complete


def _finisher(kind: Kind, optional: bool) -> Callable[[Any], Any] | None:
    match kind:
        case Scalar("float"):
            return lambda value: value if type(value) is float else _FLOATS[value]
        case Scalar("time"):
            return _checked_time
        case Scalar("date"):
            return _checked_date
        case Scalar("bytes"):
            return bytes_from
        case Digits():
            return _decimal_finisher(kind, optional)
    return None


def _checked_time(text: str) -> str:
    if _TIME(text) is None:
        raise _Uncertain
    datetime.fromisoformat(text)
    return text


def _checked_date(text: str) -> str:
    if _DATE(text) is None:
        raise _Uncertain
    date.fromisoformat(text)
    return text


def _decimal_finisher(kind: Digits, optional: bool) -> Callable[[Any], str | None]:
    """Return a function that accepts only the form that flows write: all declared decimal places, no leading zeros and
    no negative zero.
    """
    integer = f"[1-9][0-9]{{0,{kind.precision - kind.scale - 1}}}" if kind.precision > kind.scale else "0"
    fraction = rf"\.[0-9]{{{kind.scale}}}" if kind.scale else ""
    is_canonical = re.compile(rf"(?!-0(?:\.0+)?\Z)-?(?:0|{integer}){fraction}").fullmatch

    def finish(raw: msgspec.Raw) -> str | None:
        text = str(raw, "ascii")
        if is_canonical(text) is None:
            if text == "null" and optional:
                return None
            raise _Uncertain
        return text

    return finish
