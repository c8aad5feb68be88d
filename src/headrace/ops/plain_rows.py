"""A row of the log as columns of SQLite, in which what stores hold is compared: by the documented rule, and by nobody
else's code.

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

from headrace.model.errors import ValueDoesNotFit
from headrace.model.kinds import Digits, Field, Kind, Many, Named, Plain, Record
from headrace.model.schema import Schema
from headrace.model.texts import date_text, digits_text, time_text
from headrace.model.values import Codec
from headrace.model.writing import writer

__all__ = ["Column", "PlainRows", "Value", "column_type"]

Value = None | int | float | str | bytes
Column = tuple[str, str]
"""Its name and its type."""

_TYPES = {"int": "INTEGER", "bool": "INTEGER", "float": "REAL", "bytes": "BLOB"}


def column_type(field: Field) -> str:
    return _TYPES.get(field.kind.name, "TEXT") if isinstance(field.kind, Plain) else "TEXT"


class PlainRows:
    """Of one schema; ``topic_key`` are the fields that a record's key holds, ``key`` those of the view's."""

    def __init__(self, fields: tuple[Field, ...], topic_key: tuple[str, ...], key: tuple[str, ...]) -> None:
        self._codec = Codec(Schema("row", fields))
        self._plain = [_plain(one.kind) for one in fields]
        self._topic_key = topic_key
        names = [one.name for one in fields]
        self._places = [names.index(name) for name in key]
        self._key = key

    def row(self, value: bytes) -> tuple[Value, ...]:
        """Raises ``ValueDoesNotFit`` for what no view can hold."""
        found = self._codec.decode(value).values()
        row = tuple(None if one is None else make(one) for one, make in zip(found, self._plain, strict=True))
        for place, name in zip(self._places, self._key, strict=True):
            if row[place] is None:
                raise ValueDoesNotFit("null, and it is the key", path=name)
        return row

    def key_of(self, row: tuple[Value, ...]) -> tuple[Value, ...]:
        return tuple(row[place] for place in self._places)

    def key(self, raw: bytes | None) -> tuple[Value, ...]:
        """Of a record that deletes: its key is all that there is of it."""
        if raw is None or set(self._topic_key) != set(self._key):
            raise ValueDoesNotFit("a deletion that does not name the key")
        found = self._codec.key(self._topic_key).decode(raw)
        return tuple(
            self._plain[place](found[name]) for place, name in zip(self._places, self._key, strict=True)
        )


def _plain(kind: Kind) -> Callable[[Any], Value]:
    match kind:
        case Plain("float"):
            return lambda value: "NaN" if math.isnan(value) else value
        case Plain("bool"):
            return int
        case Plain("time"):
            return time_text
        case Plain("date"):
            return date_text
        case Digits():
            return digits_text
        case Many() | Named() | Record():
            write = writer(kind)
            return lambda value: msgspec.json.encode(write(value)).decode()
        case _:
            return lambda value: value
