"""Rows of a view as columns of a Delta table, and back.

    text, enum            string
    int                   long
    float                 double; the text ``NaN`` is the number
    bool                  boolean
    decimal               decimal, with the declared digits; string beyond 38 of them
    time                  timestamp, UTC, microseconds
    date                  date
    bytes                 binary
    list, map, record     string, JSON

A column has its name, unless engines do not take it: then with ``_`` in the place of what they refuse, and a number if
another has that name already (they do not tell names apart by case).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from headrace.model.kinds import Digits, Field, Plain
from headrace.model.texts import date_text, digits_text, time_text
from headrace.views.position import Shape
from headrace.views.rows import Row

__all__ = ["GONE", "Columns", "column_names"]

GONE = "_headrace_gone"
_REFUSED = re.compile(r"[\x00-\x20,;{}()=\"'`\\.:\x7f]")
_TYPES: dict[str, pa.DataType] = {
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
    "time": pa.timestamp("us", tz="UTC"),
    "date": pa.date32(),
    "bytes": pa.binary(),
}
_DIGITS_MAX = 38
_FLOAT_DIGITS = 15
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def column_names(names: Sequence[str]) -> list[str]:
    taken = {GONE}
    made = []
    for name in names:
        plain = _REFUSED.sub("_", name) or "column"
        unique, number = plain, 2
        while unique.lower() in taken:
            unique, number = f"{plain}_{number}", number + 1
        taken.add(unique.lower())
        made.append(unique)
    return made


class Columns:
    def __init__(self, shape: Shape) -> None:
        self.names = column_names(shape.names)
        self.keys = [self.names[at] for at in shape.key_places]
        types = [_type(one) for one in shape.fields]
        self.schema = pa.schema(list(zip(self.names, types, strict=True)))
        self.inexact = [name for name, kind in zip(self.names, types, strict=True) if _is_inexact(kind)]
        """Those whose least and greatest value the log would have as floats, so that files are taken for others."""
        self._key_places = shape.key_places
        self._put = [_putter(kind, at in shape.key_places) for at, kind in enumerate(types)]
        self._got = [_getter(one) for one in types]

    def changes(self, upserts: Sequence[Row], deletes: Sequence[Row]) -> pa.Table:
        """Rows to put, and keys to delete, the latter with ``GONE``. Raises OverflowError or UnicodeEncodeError."""
        width = len(self.names)
        nothing = [None] * len(deletes)
        columns: list[Any] = list(zip(*upserts, strict=True)) if upserts else [()] * width
        gone = dict(zip(self._key_places, zip(*deletes, strict=True), strict=True)) if deletes else {}
        arrays = [
            put([*columns[at], *gone.get(at, nothing)], one.type)
            for at, (put, one) in enumerate(zip(self._put, self.schema, strict=True))
        ]
        marks = pa.array([False] * len(upserts) + [True] * len(deletes))
        return pa.table([*arrays, marks], schema=self.schema.append(pa.field(GONE, pa.bool_())))

    def rows(self, batch: pa.RecordBatch) -> Iterator[Row]:
        columns = [got(batch.column(name)) for name, got in zip(self.names, self._got, strict=True)]
        return zip(*columns, strict=True)


def _type(field: Field) -> pa.DataType:
    match field.kind:
        case Plain(name):
            return _TYPES.get(name, pa.string())
        case Digits(precision, scale) if precision <= _DIGITS_MAX:
            return pa.decimal128(precision, scale)
    return pa.string()


def _is_inexact(kind: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(kind) and kind.precision > _FLOAT_DIGITS)


def _putter(kind: pa.DataType, is_key: bool) -> Callable[[list[Any], pa.DataType], pa.Array]:
    if pa.types.is_int64(kind):
        return _ints
    if pa.types.is_floating(kind):
        # One zero: engines tell -0.0 from it, and a key of the log does not.
        zero = 0.0 if is_key else -0.0
        return lambda values, to: pa.array([None if one is None else float(one) + zero for one in values], to)
    if pa.types.is_decimal(kind) or pa.types.is_temporal(kind):
        return lambda values, to: pa.array(values, pa.string()).cast(to)
    return lambda values, to: pa.array(values, to)


def _ints(values: list[Any], to: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, to)
    except pa.ArrowInvalid as error:
        raise OverflowError(str(error)) from error


def _getter(kind: pa.DataType) -> Callable[[pa.Array], list[Any]]:
    if pa.types.is_floating(kind):
        return lambda array: [one if one is None or one == one else "NaN" for one in array.to_pylist()]
    if pa.types.is_decimal(kind):
        return lambda array: [None if one is None else digits_text(one) for one in array.to_pylist()]
    if pa.types.is_date(kind):
        return lambda array: [None if one is None else date_text(one) for one in array.to_pylist()]
    if pa.types.is_timestamp(kind):
        return lambda array: [
            None if one is None else time_text(_EPOCH + timedelta(microseconds=one))
            for one in array.cast(pa.int64()).to_pylist()
        ]
    return lambda array: array.to_pylist()
