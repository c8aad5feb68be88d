"""Calls to Spark's private JVM classes that have no public Python counterpart.

Only this package and ``headrace.flow.compile``, which reads plans, use these classes. A new release of Spark can change
them without notice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.serializers import NoOpSerializer
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.util import _local_iterator_from_socket

__all__ = [
    "NONE_US",
    "JvmCell",
    "WatermarkCell",
    "arrow_tables",
    "execution_of",
    "has_counts",
    "kafka_hash",
    "last_batch",
    "last_execution",
    "observed_metrics",
    "plan_text",
    "task_slots",
]

_TRUNCATED = "\n... (truncated: the plan is longer)"


class JvmCell:
    """One or more 64-bit numbers in the JVM that expressions of a plan read or change. Each task gets its own copy,
    with the values that the cell had when the batch started.
    """

    def __init__(self, spark: SparkSession, value: int, size: int = 1) -> None:
        jvm: Any = spark._jvm
        self._jvm = jvm
        # An array even for one element, because Py4J would pass a number object by value, as a copy.
        self._cell = jvm.java.util.concurrent.atomic.AtomicLongArray(_long_array(spark, size, value))

    def get(self, index: int = 0) -> int:
        return int(self._cell.get(index))

    def set(self, value: int, index: int = 0) -> None:
        self._cell.set(index, value)

    def call(self, method: str, *arguments: Column, deterministic: bool) -> Column:
        """Return a column that calls a method of the array for each row. The first argument is the index."""
        expressions = self._jvm.org.apache.spark.sql.catalyst.expressions
        invoke = expressions.objects.Invoke(
            expressions.Literal.fromObject(self._cell),
            method,
            self._jvm.org.apache.spark.sql.types.DataTypes.LongType,
            _sequence(self._jvm, arguments),
            _sequence(self._jvm, ()),
            False,
            False,
            deterministic,
        )
        return _column(self._jvm, invoke)


def _long_array(spark: SparkSession, size: int, value: int) -> Any:
    gateway: Any = spark.sparkContext._gateway
    jvm: Any = spark._jvm
    array = gateway.new_array(jvm.long, size)
    jvm.java.util.Arrays.fill(array, value)
    return array


NONE_US = -(2**63)
"""The value for no watermark: no row is late."""


class WatermarkCell:
    """The watermark of the next batch. Spark has dropped its state before this time.

    Spark does not report which rows it drops. So the flow rejects rows before the watermark before Spark can drop them.
    The progress record of the previous batch has the watermark, so a repeated batch rejects the same rows.

    The watermark changes from batch to batch, but the plan of the query does not. So the plan reads the watermark from
    the cell.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._cell = JvmCell(spark, NONE_US)
        # The index is always 0, but is computed from a column. Otherwise Spark would inline the watermark as a constant
        # into the generated code, and compile the code again whenever the watermark changes.
        index = F.col("partition").bitwiseAND(0)
        self.column = self._cell.call("get", index, deterministic=True)

    def set(self, watermark_us: int | None) -> None:
        self._cell.set(NONE_US if watermark_us is None else watermark_us)

    def get(self) -> int | None:
        watermark_us = self._cell.get()
        return None if watermark_us == NONE_US else watermark_us


def kafka_hash(spark: SparkSession, key: Column) -> Column:
    """Return the hash with which Kafka's clients choose the partition of a key."""
    jvm: Any = spark._jvm
    utilities = jvm.java.lang.Class.forName(
        "org.apache.kafka.common.utils.Utils",
        True,
        jvm.java.lang.Thread.currentThread().getContextClassLoader(),
    )
    hashed = jvm.org.apache.spark.sql.catalyst.expressions.objects.StaticInvoke(
        utilities,
        jvm.org.apache.spark.sql.types.DataTypes.IntegerType,
        "murmur2",
        _sequence(jvm, [F.encode(key, "UTF-8")]),
        _sequence(jvm, ()),
        True,
        True,
        True,
        jvm.scala.Option.empty(),
    )
    return _column(jvm, hashed)


def _sequence(jvm: Any, columns: Sequence[Column]) -> Any:
    utilities, listed = jvm.org.apache.spark.sql.classic.ExpressionUtils, jvm.java.util.ArrayList()
    for column in columns:
        listed.add(utilities.expression(column._jc))
    return jvm.org.apache.spark.api.python.PythonUtils.toSeq(listed)


def _column(jvm: Any, expression: Any) -> Column:
    return Column(jvm.org.apache.spark.sql.classic.ExpressionUtils.column(expression))


def execution_of(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution()


def last_execution(query: StreamingQuery) -> Any:
    """Return the execution of the last batch; None before the first batch."""
    streaming: Any = query._jsq
    return streaming.streamingQuery().lastExecution()


def plan_text(spark: SparkSession, execution: Any, chars_max: int) -> str | None:
    """Return the physical plan, with the details of each step."""
    if execution is None:
        return None
    jvm: Any = spark._jvm
    mode = jvm.org.apache.spark.sql.execution.ExplainMode.fromString("formatted")
    text = str(execution.explainString(mode))
    return text if len(text) <= chars_max else text[: chars_max - len(_TRUNCATED)] + _TRUNCATED


def observed_metrics(query: StreamingQuery, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the observed metrics of the last batch, even before Spark reports the batch as finished."""
    metrics = last_execution(query).observedMetrics()
    return {name: msgspec.json.decode(metrics.apply(name).json()) for name in names}


def has_counts(observation: Observation) -> bool:
    """Return False if Spark returned the rows without running the observed part of the plan."""
    row: Any = observation._jo.getRow()  # type: ignore[union-attr]
    return bool(row.length())


def last_batch(query: StreamingQuery) -> int | None:
    """Return the number of the last batch that this query has finished."""
    progress: Any = query._jsq.lastProgress()
    return None if progress is None else int(progress.batchId())


def task_slots(spark: SparkSession) -> tuple[int, bool]:
    """Return how many tasks can run at the same time, and whether Spark runs only on this machine."""
    context: Any = spark.sparkContext._jsc.sc()
    total = context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile())
    return int(total), bool(context.isLocal())


def arrow_tables(frame: DataFrame) -> Iterator[pa.Table]:
    """Yield the rows partition by partition. Spark computes each partition when the previous one is consumed."""
    schema = to_arrow_schema(frame.schema, timezone="UTC")
    jvm: Any = frame.sparkSession._jvm
    batches = frame._jdf.toArrowBatchRdd()
    socket = jvm.org.apache.spark.api.python.PythonRDD.toLocalIteratorAndServe(batches, False)
    for encoded_batch in _local_iterator_from_socket(socket, NoOpSerializer()):
        batch = pa.ipc.read_record_batch(pa.py_buffer(encoded_batch), schema)
        yield pa.Table.from_batches([batch])
