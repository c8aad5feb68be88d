"""A value of the log as a row of a view: one plain value per column, or ``ValueDoesNotFit``.

The plain values are those that every store can take:

    text, enum            str
    int                   int, 64 bits
    float                 float; NaN is the text ``NaN``, since it equals nothing, and SQLite makes a null of it
    bool                  bool
    decimal, time, date   str, as flows write them: ``12.500000``, ``2026-01-31T12:00:00.123456Z``, ``2026-01-31``
    bytes                 bytes
    list, map, record     str, compact JSON

Which values fit is for ``headrace.model.values`` to say, also here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from headrace.model.errors import ValueDoesNotFit
from headrace.model.kinds import Digits, Kind, Many, Named, Plain, Record
from headrace.model.schema import Schema
from headrace.model.texts import date_text, digits_text, time_text
from headrace.model.values import Codec
from headrace.model.writing import writer
from headrace.views.position import Shape
from headrace.views.quick_rows import QuickRows

__all__ = ["Row", "RowDecoder", "Value", "key_order", "plain"]

Value = None | bool | int | float | str | bytes
Row = tuple[Value, ...]

_encode = msgspec.json.Encoder().encode


class RowDecoder:
    """``topic_key`` says which fields a record's key holds: the key of a deletion is all there is of it."""

    def __init__(self, shape: Shape, topic_key: tuple[str, ...]) -> None:
        self._codec = Codec(Schema("row", shape.fields))
        self._plain = [plain(one.kind) for one in shape.fields]
        self._quick = QuickRows(shape.fields, self._plain)
        self._key_places = [(at, shape.names[at]) for at in shape.key_places]
        self._key_may_be_null = [(at, name) for at, name in self._key_places if shape.fields[at].optional]
        self._view_key = shape.key
        self._topic_key = topic_key
        self._names_key = set(topic_key) == set(shape.key)

    def row(self, value: bytes) -> Row:
        row = self._quick.row(value)
        if row is None:
            found = self._codec.decode(value).values()
            row = tuple(
                None if one is None else make(one) for one, make in zip(found, self._plain, strict=True)
            )
        for at, name in self._key_may_be_null:
            if row[at] is None:
                raise ValueDoesNotFit("null, and it is the view's key", path=name)
        return row

    def key(self, key: bytes | None) -> Row:
        """The view's key, out of the key of a record that deletes."""
        if key is None:
            raise ValueDoesNotFit("a deletion without a key")
        if not self._names_key:
            told = ", ".join(self._topic_key) or "nothing"
            raise ValueDoesNotFit(
                f"a deletion names {told}, and the view's key is {', '.join(self._view_key)}"
            )
        found = self._codec.key(self._topic_key).decode(key)
        values = ((at, found[name]) for at, name in self._key_places)
        return tuple(None if one is None else self._plain[at](one) for at, one in values)


def key_order(shape: Shape) -> Callable[[Row], list[Any]]:
    """What rows are sorted by: their key. NaN comes behind every number."""
    places = [(at, shape.fields[at].kind == Plain("float")) for at in shape.key_places]

    def place(value: Any, is_float: bool) -> Any:
        return value if not is_float else (1, 0.0) if value == "NaN" else (0, value)

    return lambda row: [place(row[at], is_float) for at, is_float in places]


def plain(kind: Kind) -> Callable[[Any], Value]:
    """From a value as ``headrace.model.values`` reads it to what a store takes."""
    match kind:
        case Plain("float"):
            return _float
        case Plain("time"):
            return time_text
        case Plain("date"):
            return date_text
        case Digits():
            return digits_text
        case Many() | Named() | Record():
            write = writer(kind)
            return lambda value: _encode(write(value)).decode()
    return _same


def _same(value: Value) -> Value:
    return value


def _float(value: float) -> Value:
    return value if value == value else "NaN"
