"""Collects the rows of one batch, in the order of their coordinates (``headrace.flow.compile.lineage``).

The coordinates of a row are the input record from which it was derived, and its number among the rows of that record.
If an event is joined with several rows of a table, the joined rows have the same coordinates, and are ordered by the
text of their values. So the rows of every key have a defined order that does not depend on Spark's shuffle.

Most batches are small: the driver fetches all rows at once, as Arrow, and this module sorts them. The number of rows is
not known before the function runs: ``explode`` can return a hundred rows for one row, and a join one row per match. Too
many rows at once would crash the JVM and with it all other flows. So the plan counts the bytes of each task's rows, and
a task that exceeds its share fails. Then the batch runs again: Spark sorts its rows on disk, and the driver fetches
them in pieces.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JJavaError
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.flow.compile.lineage import lineage_columns
from headrace.flow.spark.internals import JvmCell, arrow_tables

__all__ = [
    "BatchRows",
    "OutputGuard",
    "RowCollector",
    "average_row_bytes",
    "count_rows_and_bytes",
    "sort_rows",
]

_PIECE_BYTES = 16 * 1024 * 1024
_EXCEEDED = "HEADRACE_BATCH_EXCEEDS_MEMORY"
_UNLIMITED = 2**62
_ROW_BYTES = 64
"""Estimated memory of a row in addition to its key and value: offsets, coordinates, objects."""
_ROW_BYTES_ESTIMATE = 1024


class BatchRows:
    """The rows of one batch, in memory or on disk. Close it after use."""

    def __init__(
        self, pieces: Callable[[], Iterator[pa.Table]], count: int, persisted: DataFrame | None = None
    ) -> None:
        self.pieces = pieces
        """Returns Arrow tables with the columns ``key`` and ``value``."""
        self.count = count
        self._persisted = persisted

    @property
    def is_spilled(self) -> bool:
        return self._persisted is not None

    def close(self) -> None:
        if self._persisted is not None:
            self._persisted.unpersist()


class RowCollector:
    """Collects the rows of a flow's batches. ``bytes_max`` limits the memory of all tasks of a batch together. ``ties``
    says whether several rows can have the same coordinates.
    """

    def __init__(self, guard: OutputGuard, bytes_max: int, *, ties: bool) -> None:
        self._guard = guard
        self._ties = ties
        self._bytes_max = bytes_max
        self._is_large = False
        """Whether the last batch that was written to disk exceeded half of ``bytes_max``. If so, the next batch is
        written to disk without trying memory first.
        """

    def collect(self, rows: DataFrame, tasks: int) -> BatchRows:
        """``rows`` has the encoded keys and values, and the coordinates. Its column ``value`` is an
        ``OutputGuard.column``. If the rows exceed the limit, the plan runs a second time.
        """
        if not self._is_large:
            self._guard.allow(max(1, self._bytes_max // max(1, tasks)))
            try:
                table = sort_rows(rows.toArrow(), ties=self._ties)
                return BatchRows(lambda: iter([table]), table.num_rows)
            except (PySparkException, Py4JJavaError) as error:
                if not self._guard.is_exceeded(error):
                    raise
            finally:
                self._guard.turn_off()
        return self._spill(rows)

    def _spill(self, rows: DataFrame) -> BatchRows:
        persisted = rows.persist(StorageLevel.DISK_ONLY)
        try:
            count, size = count_rows_and_bytes(persisted)
            self._is_large = size > self._bytes_max // 2
            pieces = max(1, math.ceil(size / _PIECE_BYTES))
            return BatchRows(lambda: self._pieces(persisted, pieces), count, persisted)
        except BaseException:
            persisted.unpersist()
            raise

    def _pieces(self, rows: DataFrame, count: int) -> Iterator[pa.Table]:
        if count == 1:
            yield sort_rows(rows.toArrow(), ties=self._ties)
            return
        order = [*lineage_columns(rows), *(["value"] if self._ties else [])]
        if order:
            parts = rows.repartitionByRange(count, *order).sortWithinPartitions(*order)
        else:
            # Without coordinates each key has only one row, so the order does not matter.
            parts = rows.repartition(count, "key")
        yield from arrow_tables(parts.select("key", "value"))


def sort_rows(rows: pa.Table, *, ties: bool) -> pa.Table:
    """Sort by coordinates, then by value if ``ties``. Returns ``key`` and ``value``."""
    coordinates = [name for name in rows.column_names if name not in ("key", "value")]
    result = rows.select(["key", "value"])
    columns = [rows.column(name).to_numpy() for name in coordinates]
    if (
        rows.num_rows < 2
        or not (coordinates or ties)
        or (coordinates and _is_ascending(columns, strictly=ties))
    ):
        return result
    # Sort null values first: no encoded value is empty, so the empty text can represent null.
    values = pc.fill_null(rows.column("value"), "")
    sort_columns = pa.table(
        [*(rows.column(name) for name in coordinates), values], names=[*coordinates, "value"]
    )
    order = [(name, "ascending") for name in ([*coordinates, "value"] if ties else coordinates)]
    return result.take(pc.sort_indices(sort_columns, sort_keys=order))


def _is_ascending(columns: Sequence[np.ndarray[Any, Any]], *, strictly: bool) -> bool:
    is_ascending: Any = not strictly
    for column in reversed(columns):
        is_ascending = (column[1:] > column[:-1]) | ((column[1:] == column[:-1]) & is_ascending)
    return bool(np.all(is_ascending))


class OutputGuard:
    """Limits the bytes of each task's rows. The limit is a counter in the JVM; each task decrements its own copy."""

    def __init__(self, spark: SparkSession) -> None:
        self._cell = JvmCell(spark, _UNLIMITED)

    def allow(self, bytes_per_task: int) -> None:
        """Set the limit. Tasks that start after this call fail if their rows exceed it."""
        self._cell.set(bytes_per_task)

    def turn_off(self) -> None:
        self._cell.set(_UNLIMITED)

    def column(self, key: Column, value: Column) -> Column:
        """Return the value as a column that also counts the bytes of key and value."""
        size = F.coalesce(F.octet_length(key), F.lit(0)) + F.coalesce(F.octet_length(value), F.lit(0))
        change = (F.lit(0) - size - _ROW_BYTES).cast("long")
        # Declared as not deterministic, so that Spark computes it exactly once for each row.
        bytes_left = self._cell.call("addAndGet", F.lit(0), change, deterministic=False)
        return F.when(bytes_left < 0, F.raise_error(F.lit(_EXCEEDED))).otherwise(value)

    @staticmethod
    def is_exceeded(error: BaseException) -> bool:
        return _EXCEEDED in str(error)


def count_rows_and_bytes(rows: DataFrame) -> tuple[int, int]:
    """Return the number of rows and the bytes of their columns ``key`` and ``value``."""
    sizes = [F.coalesce(F.octet_length(name), F.lit(0)).cast("long") for name in ("key", "value")]
    (totals,) = rows.agg(F.count(F.lit(1)), F.sum(sizes[0] + sizes[1])).collect()
    return int(totals[0]), int(totals[1] or 0)


def average_row_bytes(count: int, size: int) -> int:
    """Return the average size of a row, or a constant estimate for a batch without rows."""
    return size // count if count else _ROW_BYTES_ESTIMATE
