"""The rows of one batch, in the order in which they are written: by their coordinates (``headrace.flow.lineage``).

Rows with the same coordinates, of an event that is joined with several rows of a table, are in the order of their
values as text. So every key has its rows in one order, however Spark has shuffled them.

Most batches are small: their rows come over at once, as Arrow, and are sorted here. One that is too large for that
(``headrace.flow.output_guard``) goes to disk in Spark, is sorted there, and comes over in pieces.
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
from pyspark.serializers import NoOpSerializer
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.util import _local_iterator_from_socket

from headrace.flow.lineage import lineage_columns
from headrace.flow.output_guard import OutputGuard
from headrace.flow.row_sizes import measured

__all__ = ["BatchRows", "RowCollector", "in_order"]

_PIECE_BYTES = 16 * 1024 * 1024


class BatchRows:
    """To be closed."""

    def __init__(
        self, pieces: Callable[[], Iterator[pa.Table]], count: int, held: DataFrame | None = None
    ) -> None:
        self.pieces = pieces
        """Tables with the columns ``key`` and ``value``."""
        self.count = count
        self._held = held

    @property
    def is_spilled(self) -> bool:
        return self._held is not None

    def close(self) -> None:
        if self._held is not None:
            self._held.unpersist()


class RowCollector:
    """Gets the rows of one flow's batches. ``bytes_max`` is what all tasks of a batch may hold; ``ties`` whether rows
    may have the same coordinates.
    """

    def __init__(self, guard: OutputGuard, bytes_max: int, *, ties: bool) -> None:
        self._guard = guard
        self._ties = ties
        self._bytes_max = bytes_max
        self._is_large = False
        """Whether the last batch was too large to come over at once; the next one is taken to be as well."""

    def collect(self, rows: DataFrame, tasks: int) -> BatchRows:
        """``rows`` are as ``encode`` gives them, with their coordinates, and counted by the guard. A plan that was
        given up has run in part.
        """
        if not self._is_large:
            self._guard.allow(max(1, self._bytes_max // max(1, tasks)))
            try:
                table = in_order(rows.toArrow(), ties=self._ties)
                return BatchRows(lambda: iter([table]), table.num_rows)
            except (PySparkException, Py4JJavaError) as error:
                if not self._guard.is_exceeded(error):
                    raise
            finally:
                self._guard.turn_off()
        return self._spill(rows)

    def _spill(self, rows: DataFrame) -> BatchRows:
        held = rows.persist(StorageLevel.DISK_ONLY)
        try:
            count, size = measured(held)
            self._is_large = size > self._bytes_max // 2
            pieces = max(1, math.ceil(size / _PIECE_BYTES))
            return BatchRows(lambda: self._pieces(held, pieces), count, held)
        except BaseException:
            held.unpersist()
            raise

    def _pieces(self, rows: DataFrame, count: int) -> Iterator[pa.Table]:
        if count == 1:
            yield in_order(rows.toArrow(), ties=self._ties)
            return
        order = [*lineage_columns(rows), *(["value"] if self._ties else [])]
        if order:
            parts = rows.repartitionByRange(count, *order).sortWithinPartitions(*order)
        else:
            # Without coordinates a key has one row: then any order will do.
            parts = rows.repartition(count, "key")
        yield from _arrow_tables(parts.select("key", "value"))


def in_order(rows: pa.Table, *, ties: bool) -> pa.Table:
    """Sorted by coordinates, then by value if there can be ties; ``key`` and ``value`` only."""
    at = [name for name in rows.column_names if name not in ("key", "value")]
    kept = rows.select(["key", "value"])
    columns = [rows.column(name).to_numpy() for name in at]
    if rows.num_rows < 2 or not (at or ties) or (at and _is_ascending(columns, strictly=ties)):
        return kept
    # Values are JSON, so none is empty: a null comes first.
    values = pc.fill_null(rows.column("value"), "")
    by = pa.table([*(rows.column(name) for name in at), values], names=[*at, "value"])
    order = [(name, "ascending") for name in ([*at, "value"] if ties else at)]
    return kept.take(pc.sort_indices(by, sort_keys=order))


def _is_ascending(columns: Sequence[np.ndarray[Any, Any]], *, strictly: bool) -> bool:
    above: Any = not strictly
    for column in reversed(columns):
        above = (column[1:] > column[:-1]) | ((column[1:] == column[:-1]) & above)
    return bool(np.all(above))


def _arrow_tables(frame: DataFrame) -> Iterator[pa.Table]:
    """Partition by partition: none is computed before the one before it was taken."""
    schema = to_arrow_schema(frame.schema, timezone="UTC")
    jvm: Any = frame.sparkSession._jvm
    batches = frame._jdf.toArrowBatchRdd()
    served = jvm.org.apache.spark.api.python.PythonRDD.toLocalIteratorAndServe(batches, False)
    for written in _local_iterator_from_socket(served, NoOpSerializer()):
        batch = pa.ipc.read_record_batch(pa.py_buffer(written), schema)
        yield pa.Table.from_batches([batch])
