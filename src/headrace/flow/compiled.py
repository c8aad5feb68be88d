"""A flow, looked at before it runs: what its function makes of its inputs, and whether Spark can run that as a stream.

The function is called on empty inputs: twice as history, for the schema of its rows and the fingerprint, and once as
a live stream, for what only Spark can tell. Mistakes come with the user's file and line.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.flow.aggregates import expect_any_order
from headrace.flow.determinism import (
    expect_deterministic,
    expect_no_collation,
    expect_no_watermark,
    expect_same_plan,
)
from headrace.flow.encoding import DELETED
from headrace.flow.fingerprint import fingerprint
from headrace.flow.group_keys import expect_keys_of_groups
from headrace.flow.lineage import coordinates, trace_output, without_lineage
from headrace.flow.mistakes import FlowMistake, first_line
from headrace.flow.plan_digest import plan_digest
from headrace.flow.plan_nodes import expr_id
from headrace.flow.plan_tree import analyzed, children, class_name, each, nodes
from headrace.flow.realtime_limits import expect_realtime
from headrace.flow.state_bounds import expect_bounded, keeps_state
from headrace.flow.static_rows import expect_deterministic_tables
from headrace.flow.types import schema_of_output, struct_of
from headrace.flow.updates import expect_replaceable
from headrace.flow.watermark import spark_delay
from headrace.model.flow import Flow
from headrace.model.kinds import Choice, Kind, Many, Named, Plain, Record
from headrace.model.place import Place
from headrace.model.schema import Schema
from headrace.model.topic import Topic

__all__ = ["Compiled", "compile_flow"]

_NOT_AS_A_STREAM = re.compile(r"(Sort|GlobalLimit|LocalLimit|Offset|Tail|Window\w*)$")
_BATCH_BY_BATCH = re.compile(
    r"(FlatMapGroupsIn(?:Pandas|Arrow)|FlatMapCoGroups\w*|CoGroup|MapGroups|Distinct|Except|Intersect)$"
)
"""What Spark would run over each batch alone, or as an aggregation that nobody asked for."""
_RESERVED = "_headrace_"
_JVM_NOISE = re.compile(r"\s*(;\n.*|SQLSTATE: \w+.*|\nJVM stacktrace:.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Compiled:
    flow: Flow
    schema: Schema
    """Of the rows that it writes."""
    fingerprint: str
    stateful: bool
    mode: str
    """Spark's output mode: ``update`` where rows of a key replace each other, else ``append``."""
    fixed: frozenset[str] | None = None
    """Where they do: the columns that stay as they are, which can be keys."""
    groups: frozenset[frozenset[str]] = frozenset()
    """For each thing that it groups by, the columns that determine it: a key must have one of each."""
    ties: bool = False
    """Whether one record can give several rows that only their values tell apart."""


def compile_flow(spark: SparkSession, flow: Flow, schemas: dict[str, Schema]) -> Compiled:
    """``schemas`` has the input topics' by name, those of derived topics too."""
    for topic in flow.reads:
        _expect_unreserved(
            flow, [field.name for field in schemas[topic.name].fields], f"topic {topic.name} has"
        )
    inputs = [_empty(spark, schemas[topic.name]) for topic in flow.reads]
    output = _call(flow, inputs)
    schema = _output_schema(flow, output)
    plan = plan_digest(output, inputs)
    expect_deterministic(flow, plan, output)
    expect_same_plan(flow, output, _call(flow, inputs), inputs)
    live_inputs = [
        _live(spark, number, schemas[topic.name], topic) for number, topic in enumerate(flow.reads)
    ]
    live = _call(flow, without_lineage(live_inputs))
    expect_no_watermark(flow, live, live_inputs)
    expect_no_collation(flow, live)
    _expect_all_streams(flow, live, live_inputs)
    stateful = _expect_streamable(flow, live)
    mode = "update" if stateful and _aggregates(live) else "append"
    plan_of_streams = analyzed(live)
    expect_any_order(flow, plan_of_streams)
    expect_deterministic_tables(flow, plan_of_streams)
    fixed = expect_replaceable(flow, plan_of_streams) if mode == "update" else None
    if flow.is_realtime:
        expect_realtime(flow, output, stateful=stateful, runs_python=plan.runs_python)
    groups = expect_keys_of_groups(flow, plan_of_streams) if mode == "update" else frozenset()
    ties = trace_output(flow, live)[1]
    made_by = fingerprint(flow, plan, output, schema)
    return Compiled(flow, schema, made_by, stateful, mode, fixed, groups, ties)


def _empty(spark: SparkSession, schema: Schema) -> DataFrame:
    return spark.createDataFrame([], struct_of(schema.fields))


def _live(spark: SparkSession, number: int, schema: Schema, topic: Topic) -> DataFrame:
    """A stream of the topic's shape that is never started; a table is what it is at a moment."""
    if topic.kind == "table":
        return _empty(spark, schema)
    source = spark.readStream.format("rate").load()
    shape = struct_of(schema.fields)
    shaped = source.select(
        *(
            F.lit(None).cast(field.dataType).alias(field.name)
            for field in shape.fields
            if field.name != topic.time
        ),
        *([F.col("timestamp").alias(topic.time)] if topic.time else []),
        F.lit(0).alias("partition"),
        F.col("value").alias("offset"),
    ).select(*(f"`{field.name}`" for field in shape.fields), *coordinates(number))
    return shaped.withWatermark(topic.time, spark_delay(topic)) if topic.time else shaped


def _call(flow: Flow, frames: list[DataFrame]) -> DataFrame:
    try:
        output = flow.function(*frames)
    except PySparkException as error:
        raise FlowMistake(
            f"flow {flow.name}: {_in_words(error)}", place=_line_in(flow, error), detail=_error_class(error)
        ) from error
    except Exception as error:
        raise FlowMistake(
            f"flow {flow.name} raised {type(error).__name__}: {error}",
            place=_line_in(flow, error),
            hint="it is called before anything starts, with empty inputs",
        ) from error
    if not isinstance(output, DataFrame):
        raise FlowMistake(
            f"flow {flow.name} returned {type(output).__name__}, not a DataFrame",
            place=flow.place,
            hint="a flow returns the rows of the topic that it writes",
        )
    return output


def _expect_all_streams(flow: Flow, live: DataFrame, inputs: list[DataFrame]) -> None:
    """Spark does not read a stream that the plan lacks, so the flow would have no position in it."""
    read = set(map(expr_id, _leaf_columns(analyzed(live))))
    for topic, frame in zip(flow.reads, inputs, strict=True):
        plan: Any = frame._jdf.queryExecution().analyzed()
        if topic.kind != "table" and read.isdisjoint(map(expr_id, _leaf_columns(plan))):
            raise FlowMistake(
                f"flow {flow.name} reads topic {topic.name}, but its function does not use it",
                place=flow.place,
                hint="take the topic out of reads=[...], and its parameter out of the function",
            )


def _leaf_columns(plan: Any) -> Iterator[Any]:
    for node in nodes(plan):
        if not children(node):
            yield from each(node.output())


def _output_schema(flow: Flow, output: DataFrame) -> Schema:
    columns = [field for field in output.schema.fields if field.name != DELETED]
    names = [field.name for field in columns]
    _expect_unreserved(flow, names, f"flow {flow.name} returns")
    spelled = [name.lower() for name in names]
    if twins := {name for name in names if spelled.count(name.lower()) > 1}:
        raise FlowMistake(
            f"flow {flow.name} returns {', '.join(sorted(twins))} more than once",
            place=flow.place,
            detail="Spark compares column names without case" if len(twins) > 1 else "",
            hint="drop or rename one of them, for example with .drop(...) after a join",
        )
    missing = [name for name in (*flow.writes.key, *filter(None, [flow.writes.time])) if name not in names]
    if missing:
        raise FlowMistake(
            f"flow {flow.name} returns no {', '.join(missing)}, which topic {flow.writes.name} declares as key or time",
            place=flow.place,
            hint=f"it returns {', '.join(names)}",
        )
    found = schema_of_output(T.StructType(columns), name=flow.name, key=flow.writes.key, place=flow.place)
    declared = flow.writes.schema
    if declared is None:
        return found
    for field in declared.fields:
        made = found.field(field.name)
        if made is None or not _can_be(made.kind, field.kind):
            raise FlowMistake(
                f"flow {flow.name} returns {field.name} as {made.kind if made else 'nothing'},"
                f" and topic {flow.writes.name} declares {field.kind}",
                place=flow.place,
                hint=f"cast it, for example .withColumn({field.name!r}, ...)",
            )
    return declared


def _expect_unreserved(flow: Flow, names: list[str], whose: str) -> None:
    reserved = [name for name in names if name.startswith(_RESERVED)]
    if reserved:
        raise FlowMistake(
            f"{whose} a column {reserved[0]}, and names with {_RESERVED} in front are reserved",
            place=flow.place,
            hint="rename it",
        )


def _can_be(made: Kind, declared: Kind) -> bool:
    """Whether what the function returns is of the declared kind. Spark has no enums, and may not know that nothing is
    null.
    """
    match made, declared:
        case Plain("text"), Choice():
            return True
        case (Many(one, _), Many(other, _)) | (Named(one, _), Named(other, _)):
            return _can_be(one, other)
        case Record(ones), Record(others):
            return [one.name for one in ones] == [other.name for other in others] and all(
                _can_be(one.kind, other.kind) for one, other in zip(ones, others, strict=True)
            )
    return made == declared


def _expect_streamable(flow: Flow, live: DataFrame) -> bool:
    plan = analyzed(live)
    streaming = _streaming_nodes(plan)
    for node in streaming:
        if found := _NOT_AS_A_STREAM.match(class_name(node)):
            raise FlowMistake(
                f"flow {flow.name} needs the end of its input ({found[1]}), and a stream has none",
                place=flow.place,
                hint="leave sorting and limits to the query of a view",
            )
        if found := _BATCH_BY_BATCH.match(class_name(node)):
            raise FlowMistake(
                f"flow {flow.name} has a step ({found[1]}) that would see the rows of one batch only",
                place=flow.place,
                hint="use groupBy(...).agg(...), dropDuplicates(...), or a join",
            )
    stateful = any(keeps_state(node) for node in streaming)
    if flow.tables and (stateful or len(flow.streams) > 1):
        raise FlowMistake(
            f"flow {flow.name} reads a table and "
            + ("keeps state of its own" if stateful else f"{len(flow.streams)} streams"),
            place=flow.place,
            hint="make it two flows: one that enriches one stream from the table, and one behind it for the rest",
        )
    mode = "update" if stateful and _aggregates(live) else "append"
    jvm: Any = live.sparkSession._jvm
    try:
        checker: Any = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
        output_mode: Any = jvm.org.apache.spark.sql.streaming.OutputMode
        checker.checkForStreaming(plan, output_mode.Update() if mode == "update" else output_mode.Append())
    except Exception as error:
        reason = re.search(r"AnalysisException: (.*)", str(error))
        told = reason[1] if reason else first_line(str(error))
        raise FlowMistake(
            f"flow {flow.name} cannot run as a stream: {told.partition(';')[0]}", place=flow.place
        ) from error
    if stateful:
        expect_bounded(flow, live)
    return stateful


def _streaming_nodes(plan: Any) -> list[Any]:
    """Of the plan, those that work on the stream."""
    return [node for node in nodes(plan) if node.isStreaming()]


def _aggregates(live: DataFrame) -> bool:
    return any(class_name(node) == "Aggregate" for node in _streaming_nodes(analyzed(live)))


def _in_words(error: PySparkException) -> str:
    told = error.getMessage() if isinstance(error, AnalysisException) else str(error)
    return _JVM_NOISE.sub("", told).strip() or str(error)


def _error_class(error: PySparkException) -> str:
    return error.getCondition() or ""


def _line_in(flow: Flow, error: BaseException) -> Place | None:
    """The last line of the user's own file on the way to the error."""
    if flow.place is None:
        return None
    lines = [one for one in traceback.extract_tb(error.__traceback__) if one.filename == flow.place.file]
    return Place(flow.place.file, lines[-1].lineno or flow.place.line) if lines else flow.place
