"""Reads views in Delta tables. A query scans one version of the table, which contains both rows and position. Arrow
skips files and rows that cannot match. ``DeltaArrowReader`` returns Arrow, for SQL.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.stores.arrow import ArrowRows, Deadline, TableScan, arrow_schema
from headrace.stores.catalog import CatalogFolder, CatalogReader
from headrace.stores.delta.layout import CATALOG, HEADRACE_DIR, Columns, newest_version
from headrace.stores.delta.table import LakeTable, kept_folder
from headrace.stores.errors import StoreReplaced
from headrace.stores.file_errors import translate_errors
from headrace.stores.position import ViewSchema, ViewState
from headrace.stores.query import All, Compare, Condition, QueryResult, key_equals
from headrace.stores.reader import QueryBuilder, no_text_index
from headrace.stores.rows import Row
from headrace.stores.scan import predicate_for, select_rows, with_deadline
from headrace.stores.writer import Part

__all__ = ["DeltaArrowReader", "DeltaReader", "scan_filter"]

_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "=": pc.Expression.__eq__,
    "<": pc.Expression.__lt__,
    "<=": pc.Expression.__le__,
    ">": pc.Expression.__gt__,
    ">=": pc.Expression.__ge__,
}
_EXACT_TYPES = (pa.int64(), pa.bool_(), pa.date32())


class DeltaReader(CatalogReader):
    def table(self, view: str, part: Part) -> LakeTable | None:
        """Return the table of the part, or None if the table does not exist or has no state."""
        path = self.path / view
        if part is not Part.SERVING:
            folder = self._folder(view, part)
            path = self.path / HEADRACE_DIR / view / folder
            if not folder:
                return None
        try:
            with translate_errors(path):
                if newest_version(path) is None:
                    return None
                table = LakeTable(path)
        except StoreReplaced:
            return None
        return table if table.commit_state is not None else None

    def _folder(self, view: str, part: Part) -> str:
        if part is Part.BUILDING:
            return CatalogFolder(self.path / HEADRACE_DIR / view / CATALOG, view).read().building
        return kept_folder(self.table(view, Part.SERVING))

    def _serving(self, view: str) -> LakeTable:
        table = self.table(view, Part.SERVING)
        if table is None:
            raise self.not_serving(view)
        return table

    def _view_names(self) -> Iterable[str]:
        state_dir = self.path / HEADRACE_DIR
        return (path.name for path in state_dir.iterdir()) if state_dir.is_dir() else ()

    def _part_state(self, view: str, part: Part) -> ViewState | None:
        table = self.table(view, part)
        return None if table is None else table.state

    def count(self, view: str) -> int:
        table = self._serving(view)
        with translate_errors(table.folder):
            return table.count()

    def query(self, view: str, build: QueryBuilder, timeout_s: float) -> QueryResult | None:
        table = self.table(view, Part.SERVING)
        state = None if table is None else table.state
        if table is None or state is None:
            return None
        query = build(state.schema)
        if query.words:
            raise no_text_index(view, self.where)
        condition = query.where if query.key is None else key_equals(state.schema, query.key)
        with translate_errors(table.folder):
            candidates = table.rows(scan_filter(state.schema, table.columns(), condition))
            rows = with_deadline(candidates, self._clock, timeout_s)
            if query.key is not None:
                matching = filter(predicate_for(state.schema, condition), rows)
                return QueryResult(state, query, [*matching][: query.limit], False)
            return QueryResult(state, query, *select_rows(state.schema, rows, query))

    @contextlib.contextmanager
    def scan(
        self, view: str, timeout_s: float, words: str | None = None
    ) -> Iterator[tuple[list[str], Iterator[Row]]]:
        if words is not None:
            raise no_text_index(view, self.where)
        table = self._serving(view)
        assert table.state is not None
        yield list(table.state.schema.names), self._rows(table, timeout_s)

    def _rows(self, table: LakeTable, timeout_s: float) -> Iterator[Row]:
        with translate_errors(table.folder):
            yield from with_deadline(table.rows(), self._clock, timeout_s)


def scan_filter(schema: ViewSchema, columns: Columns, condition: Condition) -> Any:
    """Return an Arrow expression that is true for all matching rows and possibly for others. None if it cannot exclude
    any row.

    The expression contains only comparisons of integers, dates and booleans that are joined by AND. For other types,
    the minimum and maximum in the table's log are inexact, or Arrow cannot compare the values, or compares them
    differently (NaN).
    """
    if isinstance(condition, All):
        filters = (scan_filter(schema, columns, part) for part in condition.parts)
        usable = [expression for expression in filters if expression is not None]
        return reduce(operator.and_, usable) if usable else None
    if isinstance(condition, Compare):
        index = schema.names.index(condition.column)
        kind = columns.schema.field(index).type
        if kind not in _EXACT_TYPES:
            return None
        try:
            value = pa.scalar(condition.value)
            value = value if value.type == kind else value.cast(kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return None
        return _OPERATORS[condition.operator](pc.field(columns.names[index]), value)
    return None


class DeltaArrowReader:
    def __init__(self, path: Path, remaining_s: Deadline) -> None:
        self._reader = DeltaReader(path)
        self._remaining_s = remaining_s
        self._tables: dict[str, LakeTable] = {}

    def state(self, view: str) -> ViewState | None:
        if view not in self._tables:
            table = self._reader.table(view, Part.SERVING)
            if table is None:
                return None
            self._tables[view] = table
        return self._tables[view].state

    def read(self, view: str, scan: TableScan, words: str) -> ArrowRows | None:
        if words:
            raise no_text_index(view, self._reader.where)
        state = self.state(view)
        if state is None:
            return None
        return ArrowRows(state, self._batches(self._tables[view], state, scan))

    def _batches(self, table: LakeTable, state: ViewState, scan: TableScan) -> Iterator[pa.RecordBatch]:
        columns = table.columns()
        schema = arrow_schema([state.schema.fields[index] for index in scan.columns])
        with translate_errors(table.folder):
            scanner = table.delta.to_pyarrow_dataset().scanner(
                columns=[columns.names[index] for index in scan.columns],
                filter=scan_filter(state.schema, columns, scan.where),
            )
            for batch in scanner.to_reader():
                self._remaining_s()
                arrays = [
                    array.cast(column.type) for array, column in zip(batch.columns, schema, strict=True)
                ]
                yield pa.record_batch(arrays, schema=schema)
