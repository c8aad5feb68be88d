"""The watermark that decides which rows are late, once for each batch.

Spark moves its own watermark at the end of a batch, and tells nobody which rows it then drops. So the flow decides
before Spark can: a row is late if its event time is before the watermark that this batch began with. That watermark is
in the progress record of the batch before, so that a batch that runs again decides as it did the first time. Spark's
own watermark is given a millisecond more, and so never drops a row that was not late.

In a running query the watermark changes from batch to batch while the plan stays: the plan has an expression that
reads a cell in the JVM. Tasks are sent with what the cell holds when their batch begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from headrace.model.topic import Topic

__all__ = ["NONE_US", "WatermarkCell", "next_watermark", "spark_delay"]

NONE_US = -(2**63)


class WatermarkCell:
    """Holds what the next batch is planned with."""

    def __init__(self, spark: SparkSession) -> None:
        jvm: Any = spark._jvm
        # An array of one, and not a number that can change: Py4J would hand over a copy of a number.
        self._cell = jvm.java.util.concurrent.atomic.AtomicLongArray(1)
        expressions = jvm.org.apache.spark.sql.catalyst.expressions
        literal = expressions.Literal
        to_seq = jvm.org.apache.spark.api.python.PythonUtils.toSeq
        # The place is asked for by a column, though it is always the first: Spark would put the value of what has no
        # column into the code that it makes for the batch, and compile that anew whenever the watermark has moved.
        first = F.col("partition").bitwiseAND(0)
        arguments = jvm.java.util.ArrayList()
        arguments.add(jvm.org.apache.spark.sql.classic.ExpressionUtils.expression(first._jc))
        long_type = jvm.org.apache.spark.sql.types.DataTypes.LongType
        read = expressions.objects.Invoke(
            literal.fromObject(self._cell),
            "get",
            long_type,
            to_seq(arguments),
            to_seq(jvm.java.util.ArrayList()),
            False,
            False,
            True,
        )
        self.column = Column(jvm.org.apache.spark.sql.classic.ExpressionUtils.column(read))
        self.set(None)

    def set(self, watermark_us: int | None) -> None:
        self._cell.set(0, NONE_US if watermark_us is None else watermark_us)

    def get(self) -> int | None:
        found = int(self._cell.get(0))
        return None if found == NONE_US else found


def next_watermark(streams: tuple[Topic, ...], seen_us: Mapping[str, int]) -> int | None:
    """The least promise of all inputs that have a time; none until each of them has shown one."""
    timed = [topic for topic in streams if topic.time is not None]
    if not timed or any(topic.name not in seen_us for topic in timed):
        return None
    return min(seen_us[topic.name] - _microseconds(topic.late) for topic in timed)


def spark_delay(topic: Topic) -> str:
    """Spark drops what is at its watermark or before; a millisecond more, and that is never a row that we keep."""
    return f"{-(-_microseconds(topic.late) // 1000) + 1} milliseconds"


def _microseconds(duration: timedelta) -> int:
    return duration // timedelta(microseconds=1)
