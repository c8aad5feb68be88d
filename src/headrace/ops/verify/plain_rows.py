"""Converts a record of the log to SQLite columns for the comparison. It shares no code with the stores.

text, enum            TEXT
int                   INTEGER
float                 REAL; NaN is the text ``NaN``
bool                  INTEGER, 0 or 1
decimal, time, date   TEXT, as in the log: ``12.500000``, ``2026-01-31T12:00:00.123456Z``, ``2026-01-31``
bytes                 BLOB
list, map, record     TEXT, compact JSON
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec

from headrace.model.codec.codec import new_codec, value_decoder
from headrace.model.codec.encode import writer
from headrace.model.codec.scalar_text import date_text, digits_text, time_text
from headrace.model.errors import ValueDoesNotFit
from headrace.model.kinds import Digits, Field, Kind, List, Map, Record, Scalar
from headrace.model.schema import Schema
from headrace.model.upcast import Upcaster

__all__ = ["Column", "PlainRows", "Value", "column_type"]

Value = None | int | float | str | bytes
Column = tuple[str, str]
"""Name and type."""

_TYPES = {"int": "INTEGER", "bool": "INTEGER", "float": "REAL", "bytes": "BLOB"}


def column_type(field: Field) -> str:
    return _TYPES.get(field.kind.name, "TEXT") if isinstance(field.kind, Scalar) else "TEXT"


class PlainRows:
    """Converts records of one schema. ``topic_key`` has the fields of a record's key, ``key`` the view's key."""

    def __init__(
        self,
        fields: tuple[Field, ...],
        topic_key: tuple[str, ...],
        key: tuple[str, ...],
        upcast: Upcaster | None = None,
    ) -> None:
        self._codec = new_codec(Schema("row", fields))
        self._decode = value_decoder(Schema("row", fields), upcast)
        self._converters = [_converter(field.kind) for field in fields]
        self._topic_key = topic_key
        names = [field.name for field in fields]
        self._key_indexes = [names.index(name) for name in key]
        self._key = key

    def row(self, value: bytes) -> tuple[Value, ...]:
        """Convert a value. Raise ``ValueDoesNotFit`` if the view cannot store it."""
        decoded = self._decode(value).values()
        row = tuple(
            None if field is None else convert(field)
            for field, convert in zip(decoded, self._converters, strict=True)
        )
        for index, name in zip(self._key_indexes, self._key, strict=True):
            if row[index] is None:
                raise ValueDoesNotFit("null, but it is part of the key", path=name)
        return row

    def key_of(self, row: tuple[Value, ...]) -> tuple[Value, ...]:
        return tuple(row[index] for index in self._key_indexes)

    def key(self, raw: bytes | None) -> tuple[Value, ...]:
        """Return the view's key of a deletion, from the record's key."""
        if raw is None or set(self._topic_key) != set(self._key):
            raise ValueDoesNotFit("a deletion without the view's key")
        decoded = self._codec.key(self._topic_key).decode(raw)
        return tuple(
            self._converters[index](decoded[name])
            for index, name in zip(self._key_indexes, self._key, strict=True)
        )


def _converter(kind: Kind) -> Callable[[Any], Value]:
    match kind:
        case Scalar("float"):
            return lambda value: "NaN" if math.isnan(value) else value
        case Scalar("bool"):
            return int
        case Scalar("time"):
            return time_text
        case Scalar("date"):
            return date_text
        case Digits():
            return digits_text
        case List() | Map() | Record():
            write = writer(kind)
            return lambda value: msgspec.json.encode(write(value)).decode()
        case _:
            return lambda value: value
