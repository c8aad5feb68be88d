"""Bulk reads as Arrow, for SQL. A read returns some columns of a view, optionally filtered.

An ``ArrowReader`` is open for one statement. It can read several views of a store. If the store has transactions, the
reader returns all views as of the same moment. The columns of a batch are named ``c0``, ``c1``, … in the order of the
scan's columns, because a view's column can have any name. A batch can contain rows that do not match the scan's
condition: the condition only allows a store to skip rows.

    text, enum            string
    int                   int64
    float                 double; the text ``NaN`` becomes the number NaN
    bool                  bool
    decimal               decimal128 with the declared digits; string for more than 38 digits
    time                  timestamp, UTC, microseconds
    date                  date32
    bytes                 binary
    list, map, record     string, JSON
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import pyarrow as pa

from headrace.model.kinds import Digits, Field, Scalar
from headrace.stores.position import ViewSchema, ViewState
from headrace.stores.query import EVERY_ROW, NO_ROW, Condition, Query, key_in
from headrace.stores.reader import StoreReader
from headrace.stores.rows import Row

__all__ = [
    "ArrowReader",
    "ArrowRows",
    "Deadline",
    "QueryArrowReader",
    "TableScan",
    "arrow_schema",
    "arrow_type",
    "batches_of",
]

Deadline = Callable[[], float]
"""Returns the remaining seconds. Raises after the deadline."""

_TYPES: dict[str, pa.DataType] = {
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
    "time": pa.timestamp("us", tz="UTC"),
    "date": pa.date32(),
    "bytes": pa.binary(),
}
_DIGITS_MAX = 38
_BATCH_ROWS = 10_000
_ROWS_MAX = 1_000_000
"""The limit of a query for all rows. It is higher than the scan limit of any store without bulk reads."""
_MATCHES_MAX = 9_999


@dataclass(frozen=True, slots=True)
class TableScan:
    columns: tuple[int, ...]
    """Indexes into the view's columns."""
    where: Condition = EVERY_ROW


@dataclass(frozen=True, slots=True)
class ArrowRows:
    state: ViewState
    batches: Iterator[pa.RecordBatch]


class ArrowReader(Protocol):
    def state(self, view: str) -> ViewState | None: ...

    def read(self, view: str, scan: TableScan, words: str) -> ArrowRows | None:
        """Return the rows, or None if the store does not serve the view yet. A store without transactions can return a
        later state than ``state`` did. ``words`` search a full-text index.
        """


class QueryArrowReader:
    """Reads stores that have only queries and no bulk reads.

    A query by key or by words works for views of any size. Other queries read all rows, up to the store's scan limit.
    One query reads a view, so its rows and position are from the same moment.
    """

    def __init__(self, reader: StoreReader, remaining_s: Deadline) -> None:
        self._reader = reader
        self._remaining_s = remaining_s

    def state(self, view: str) -> ViewState | None:
        return self._reader.state(view)

    def read(self, view: str, scan: TableScan, words: str) -> ArrowRows | None:
        if scan.where == NO_ROW:
            state = self.state(view)
            return None if state is None else ArrowRows(state, iter(()))

        def build(schema: ViewSchema) -> Query:
            if words:
                return Query(_MATCHES_MAX, words=words)
            key = key_in(schema, scan.where)
            return Query(_ROWS_MAX if key is None else 1, key=key)

        result = self._reader.query(view, build, self._remaining_s())
        if result is None:
            return None
        fields = [result.state.schema.fields[index] for index in scan.columns]
        rows = (tuple(row[index] for index in scan.columns) for row in result.rows)
        return ArrowRows(result.state, batches_of(fields, rows))


def arrow_type(field: Field) -> pa.DataType:
    match field.kind:
        case Scalar(name):
            return _TYPES.get(name, pa.string())
        case Digits(precision, scale) if precision <= _DIGITS_MAX:
            return pa.decimal128(precision, scale)
    return pa.string()


def arrow_schema(fields: Sequence[Field]) -> pa.Schema:
    return pa.schema([(f"c{index}", arrow_type(field)) for index, field in enumerate(fields)])


def batches_of(fields: Sequence[Field], rows: Iterable[Row]) -> Iterator[pa.RecordBatch]:
    schema = arrow_schema(fields)
    builders = [_array_builder(column.type) for column in schema]
    remaining = iter(rows)
    while chunk := list(islice(remaining, _BATCH_ROWS)):
        columns = zip(*chunk, strict=True)
        arrays = [build(values) for build, values in zip(builders, columns, strict=True)]
        yield pa.record_batch(arrays, schema=schema)


def _array_builder(kind: pa.DataType) -> Callable[[tuple[Any, ...]], pa.Array]:
    if pa.types.is_floating(kind):
        return lambda values: pa.array([None if value is None else float(value) for value in values], kind)
    if pa.types.is_boolean(kind):
        return lambda values: pa.array([None if value is None else bool(value) for value in values], kind)
    if pa.types.is_decimal(kind) or pa.types.is_temporal(kind):
        return lambda values: pa.array(values, pa.string()).cast(kind)
    return lambda values: pa.array(values, kind)
