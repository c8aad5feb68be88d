"""Views of a folder of Delta tables: of each one version, which has rows and position."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from headrace.serve.sql.column_types import arrow_schema
from headrace.serve.sql.planning import Need
from headrace.serve.sql.reading import Read
from headrace.serve.sql.sqlite_reading import no_index
from headrace.views.delta.asking import ruled_out
from headrace.views.delta.reading import DeltaReader
from headrace.views.delta.table import LakeTable
from headrace.views.file_troubles import told_as
from headrace.views.position import Standing
from headrace.views.store import Part

__all__ = ["DeltaReading"]


class DeltaReading:
    def __init__(self, path: Path, left: Callable[[], float]) -> None:
        self._reader = DeltaReader(path)
        self._left = left
        self._tables: dict[str, LakeTable] = {}

    def standing(self, view: str) -> Standing | None:
        if view not in self._tables:
            table = self._reader.table(view, Part.SERVING)
            if table is None:
                return None
            self._tables[view] = table
        told = self._tables[view].told
        return None if told is None else told.standing

    def read(self, view: str, need: Need, words: str) -> Read:
        if words:
            raise no_index(view, self._reader.where)
        standing = self.standing(view)
        assert standing is not None, view
        return Read(standing, self._batches(self._tables[view], standing, need))

    def _batches(self, table: LakeTable, standing: Standing, need: Need) -> Iterator[pa.RecordBatch]:
        columns = table.columns()
        schema = arrow_schema([standing.shape.fields[at] for at in need.columns])
        with told_as(table.folder):
            scanner = table.delta.to_pyarrow_dataset().scanner(
                columns=[columns.names[at] for at in need.columns],
                filter=ruled_out(standing.shape, columns, need.where),
            )
            for batch in scanner.to_reader():
                self._left()
                yield pa.record_batch(
                    [one.cast(to.type) for one, to in zip(batch.columns, schema, strict=True)], schema=schema
                )
