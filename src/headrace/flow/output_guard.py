"""A limit in bytes for the rows that a batch may hold in memory, checked while they are made.

How many rows a function makes of a batch is not known before it runs: ``explode`` makes a hundred of one, a join as
many as there are partners. Rows that come over to the driver at once would end the JVM, with all other flows in it. So
the plan counts the bytes of each task's rows, and a task that has more than its share fails. Then the batch runs again,
its rows go to disk, and come over in pieces (``headrace.flow.batch_rows``).

The share is a cell in the JVM, sent along with each task. A task counts its own copy down.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

__all__ = ["OutputGuard"]

_EXCEEDED = "HEADRACE_BATCH_EXCEEDS_MEMORY"
_OFF = 2**62
_ROW_BYTES = 64
"""What a row takes besides its key and value: offsets, coordinates, objects."""


class OutputGuard:
    def __init__(self, spark: SparkSession) -> None:
        jvm: Any = spark._jvm
        self._jvm = jvm
        self._cell = jvm.java.util.concurrent.atomic.AtomicLongArray(1)
        self.turn_off()

    def allow(self, bytes_per_task: int) -> None:
        """Tasks that start from now on fail when their rows have more."""
        self._cell.set(0, bytes_per_task)

    def turn_off(self) -> None:
        self._cell.set(0, _OFF)

    def column(self, key: Column, value: Column) -> Column:
        """The value, counted."""
        size = F.coalesce(F.octet_length(key), F.lit(0)) + F.coalesce(F.octet_length(value), F.lit(0))
        left = self._count_down((F.lit(0) - size - _ROW_BYTES).cast("long"))
        return F.when(left < 0, F.raise_error(F.lit(_EXCEEDED))).otherwise(value)

    @staticmethod
    def is_exceeded(error: BaseException) -> bool:
        return _EXCEEDED in str(error)

    def _count_down(self, change: Column) -> Column:
        expressions = self._jvm.org.apache.spark.sql.catalyst.expressions
        utilities = self._jvm.org.apache.spark.sql.classic.ExpressionUtils
        to_seq = self._jvm.org.apache.spark.api.python.PythonUtils.toSeq
        arguments = self._jvm.java.util.ArrayList()
        arguments.add(utilities.expression(F.lit(0)._jc))
        arguments.add(utilities.expression(change._jc))
        # Not deterministic, so that Spark computes it once for each row, and where it stands.
        invoke = expressions.objects.Invoke(
            expressions.Literal.fromObject(self._cell),
            "addAndGet",
            self._jvm.org.apache.spark.sql.types.DataTypes.LongType,
            to_seq(arguments),
            to_seq(self._jvm.java.util.ArrayList()),
            False,
            False,
            False,
        )
        return Column(utilities.column(invoke))
