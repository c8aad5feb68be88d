"""Compiles flows: calls each function with empty inputs, before anything starts, and checks the result.

Each function is called twice with empty DataFrames, to get the schema of its rows and the fingerprint. It is called
once with empty streams, for the checks that need Spark's streaming plan. Mistakes are reported with the user's file and
line.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.app import App
from headrace.flow.codec.codec import DELETED
from headrace.flow.compile.aggregates import expect_order_ignored
from headrace.flow.compile.determinism import (
    expect_deterministic,
    expect_no_collation,
    expect_no_watermark,
    expect_same_plan,
)
from headrace.flow.compile.fingerprint import fingerprint
from headrace.flow.compile.flow_digest import flow_digest
from headrace.flow.compile.group_keys import expect_keys_of_groups, missing_from_key
from headrace.flow.compile.lineage import coordinates, trace_output, without_lineage
from headrace.flow.compile.mistakes import FlowMistake
from headrace.flow.compile.plan import analyzed
from headrace.flow.compile.plan_digest import plan_digest
from headrace.flow.compile.state_bounds import steps_with_state_by_time
from headrace.flow.compile.static_rows import expect_deterministic_tables
from headrace.flow.compile.stream_checks import expect_all_streams, expect_realtime, expect_streamable
from headrace.flow.compile.updates import changing_key, expect_replaceable
from headrace.flow.inputs import with_watermark
from headrace.flow.spark_types import schema_of_output, struct_of, type_of
from headrace.model.declarations import Flow, LateMode, Topic
from headrace.model.errors import AppError, AppMistakes, SourceLocation
from headrace.model.kinds import Enum, Kind, List, Map, Record, Scalar
from headrace.model.progress import Digest
from headrace.model.schema import Schema

__all__ = ["Compiled", "compile_app", "compile_flow"]

_RESERVED = "_headrace_"
_JVM_NOISE = re.compile(r"\s*(;\n.*|SQLSTATE: \w+.*|\nJVM stacktrace:.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Compiled:
    flow: Flow
    schema: Schema
    """The schema of the derived rows."""
    fingerprint: str
    stateful: bool
    mode: str
    """Spark's output mode: ``update`` if rows of a key replace each other, else ``append``."""
    fixed: frozenset[str] | None = None
    """In mode ``update``: the columns that never change for a group. Only these can be keys."""
    groups: frozenset[frozenset[str]] = frozenset()
    """For each grouping expression, the columns that determine it. A key must have at least one column of each."""
    ties: bool = False
    """Whether one record can produce several rows with the same coordinates."""
    digest: Digest | None = None
    """The parts of the fingerprint."""
    late: LateMode | Literal[""] = ""
    """What the flow does with late events. Empty if no input has an event time, and in real time."""
    has_watermark: bool = False
    """Whether Spark drops state of the flow by event time. Such a flow must not get events before its watermark."""


def compile_flow(spark: SparkSession, flow: Flow, schemas: dict[str, Schema]) -> Compiled:
    """``schemas`` has the schemas of all input topics by name, including derived topics."""
    for topic in flow.reads:
        _expect_no_reserved_names(
            flow, [field.name for field in schemas[topic.name].fields], f"topic {topic.name} has"
        )
    inputs = [_empty(spark, schemas[topic.name]) for topic in flow.reads]
    output = _call(flow, inputs)
    schema = _output_schema(flow, output)
    plan = plan_digest(output, inputs)
    expect_deterministic(flow, plan, output)
    expect_same_plan(flow, output, _call(flow, inputs), inputs)
    stream_inputs = [
        _stream_of(spark, number, schemas[topic.name], topic) for number, topic in enumerate(flow.reads)
    ]
    stream_output = _call(flow, without_lineage(stream_inputs))
    expect_no_watermark(flow, stream_output, stream_inputs)
    expect_no_collation(flow, stream_output)
    expect_all_streams(flow, stream_output, stream_inputs)
    stateful, mode = expect_streamable(flow, stream_output, stream_inputs)
    stream_plan = analyzed(stream_output)
    expect_order_ignored(flow, stream_plan)
    expect_deterministic_tables(flow, stream_plan)
    fixed = expect_replaceable(flow, stream_plan) if mode == "update" else None
    if flow.is_realtime:
        expect_realtime(flow, output, stateful=stateful, runs_python=plan.runs_python)
    groups = expect_keys_of_groups(flow, stream_plan) if mode == "update" else frozenset()
    ties = trace_output(flow, stream_output)[1]
    flow_fingerprint = fingerprint(flow, plan, output, schema)
    digest = flow_digest(spark, flow, plan.text, schemas)
    steps = steps_with_state_by_time(stream_output) if stateful else set()
    late = _late_mode(flow, steps) if flow.late_policies else ""
    has_watermark = bool(steps) and late in ("drop", "side")
    return Compiled(
        flow,
        schema,
        flow_fingerprint,
        stateful,
        mode,
        fixed,
        groups,
        ties,
        digest,
        late=late,
        has_watermark=has_watermark,
    )


def _late_mode(flow: Flow, steps: Collection[str]) -> LateMode:
    """``steps`` are the kinds of steps whose state Spark drops by event time."""
    # Without a watermark, Spark refuses or never completes all other steps.
    may_keep = not steps or (flow.unbounded and {"Aggregate", "Deduplicate"}.issuperset(steps))
    if flow.late == "keep" and not may_keep:
        raise FlowMistake(
            f'flow {flow.name} keeps late events (late="keep"), so it can never drop state of old event times',
            location=flow.location,
            hint='remove late="keep", or accept unbounded state: @app.flow(..., unbounded=True)',
        )
    return flow.late or ("drop" if steps else "keep")


def _empty(spark: SparkSession, schema: Schema) -> DataFrame:
    return spark.createDataFrame([], struct_of(schema.fields))


def _stream_of(spark: SparkSession, number: int, schema: Schema, topic: Topic) -> DataFrame:
    """Return a stream with the schema of the topic, which is never started. For a table, return an empty DataFrame."""
    if topic.kind == "table":
        return _empty(spark, schema)
    source = spark.readStream.format("rate").load()
    struct = struct_of(schema.fields)
    frame = source.select(
        *(
            F.lit(None).cast(field.dataType).alias(field.name)
            for field in struct.fields
            if field.name != topic.time
        ),
        *([F.col("timestamp").alias(topic.time)] if topic.time else []),
        F.lit(0).alias("partition"),
        F.col("value").alias("offset"),
    ).select(*(f"`{field.name}`" for field in struct.fields), *coordinates(number))
    return with_watermark(frame, topic)


def _call(flow: Flow, frames: list[DataFrame]) -> DataFrame:
    try:
        output = flow.function(*frames)
    except PySparkException as error:
        raise FlowMistake(
            f"flow {flow.name}: {_message(error)}",
            location=_user_line(flow, error),
            detail=_error_class(error),
        ) from error
    except Exception as error:
        raise FlowMistake(
            f"flow {flow.name} raised {type(error).__name__}: {error}",
            location=_user_line(flow, error),
            hint="Headrace calls the function with empty inputs before it starts anything",
        ) from error
    if not isinstance(output, DataFrame):
        raise FlowMistake(
            f"flow {flow.name} returned {type(output).__name__}, not a DataFrame",
            location=flow.location,
            hint="return the rows of the topic that the flow writes",
        )
    return output


def _output_schema(flow: Flow, output: DataFrame) -> Schema:
    columns = [field for field in output.schema.fields if field.name != DELETED]
    names = [field.name for field in columns]
    _expect_no_reserved_names(flow, names, f"flow {flow.name} returns")
    lower_names = [name.lower() for name in names]
    if duplicates := {name for name in names if lower_names.count(name.lower()) > 1}:
        raise FlowMistake(
            f"the result of flow {flow.name} has several columns named {' or '.join(sorted(duplicates))}",
            location=flow.location,
            detail="Spark ignores case in column names" if len(duplicates) > 1 else "",
            hint="drop or rename all but one of them, for example with .drop(...) after a join",
        )
    missing = [name for name in (*flow.writes.key, *filter(None, [flow.writes.time])) if name not in names]
    if missing:
        raise FlowMistake(
            f"flow {flow.name} returns no {', '.join(missing)}, which topic {flow.writes.name} declares as key or time",
            location=flow.location,
            hint=f"the function returns {', '.join(names)}",
        )
    derived = schema_of_output(
        T.StructType(columns), name=flow.name, key=flow.writes.key, location=flow.location
    )
    declared = flow.writes.schema
    if declared is None:
        return derived
    for field in declared.fields:
        returned = derived.field(field.name)
        if returned is None or not _can_be(returned.kind, field.kind):
            raise FlowMistake(
                f"topic {flow.writes.name} declares {field.name} as {type_of(field.kind).simpleString()}, but flow"
                f" {flow.name} returns {type_of(returned.kind).simpleString() if returned else 'no such column'}",
                location=flow.location,
                hint=f"return the declared type, for example with .withColumn({field.name!r}, ...)",
            )
    return declared


def _expect_no_reserved_names(flow: Flow, names: list[str], subject: str) -> None:
    reserved = [name for name in names if name.startswith(_RESERVED)]
    if reserved:
        raise FlowMistake(
            f"{subject} a column {reserved[0]}, but names that begin with {_RESERVED} are reserved",
            location=flow.location,
            hint="rename the column",
        )


def _can_be(returned: Kind, declared: Kind) -> bool:
    """Whether the returned kind matches the declared kind. Spark has no enums, so text matches an enum. Whether values
    can be null is ignored, because Spark might not know that they are never null.
    """
    match returned, declared:
        case Scalar("text"), Enum():
            return True
        case (List(element, _), List(declared_element, _)) | (Map(element, _), Map(declared_element, _)):
            return _can_be(element, declared_element)
        case Record(fields), Record(declared_fields):
            if [field.name for field in fields] != [field.name for field in declared_fields]:
                return False
            pairs = zip(fields, declared_fields, strict=True)
            return all(_can_be(field.kind, declared_field.kind) for field, declared_field in pairs)
    return returned == declared


def _message(error: PySparkException) -> str:
    text = error.getMessage() if isinstance(error, AnalysisException) else str(error)
    return _JVM_NOISE.sub("", text).strip() or str(error)


def _error_class(error: PySparkException) -> str:
    return error.getCondition() or ""


def _user_line(flow: Flow, error: BaseException) -> SourceLocation | None:
    """Return the innermost line of the user's file in the traceback."""
    if flow.location is None:
        return None
    lines = [
        frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == flow.location.file
    ]
    return (
        SourceLocation(flow.location.file, lines[-1].lineno or flow.location.line) if lines else flow.location
    )


def compile_app(spark: SparkSession, app: App) -> tuple[list[Compiled], dict[str, Schema]]:
    """Compile every flow of the app, each after the flows whose topics it reads. Returns the compiled flows in this
    order, and the schema of every topic by name. Raises all mistakes at once.
    """
    schemas = {topic.name: topic.schema for topic in app.topics if topic.schema is not None}
    compiled: list[Compiled] = []
    mistakes: list[AppError] = []
    remaining = list(app.flows)
    while remaining:
        ready = [flow for flow in remaining if all(topic.name in schemas for topic in flow.reads)]
        if not ready:
            break  # The remaining flows read topics without a known schema, because of earlier mistakes.
        for flow in ready:
            remaining.remove(flow)
            try:
                result = compile_flow(spark, flow, schemas)
            except AppError as mistake:
                mistakes.append(mistake)
                _assume_declared(flow, schemas)
                continue
            compiled.append(result)
            mistakes += _mistaken_keys(app, result)
            schemas[flow.writes.name] = result.schema
    if mistakes:
        raise AppMistakes(mistakes)
    return compiled, schemas


def _mistaken_keys(app: App, compiled: Compiled) -> list[AppError]:
    """Return the mistakes of views whose key differs from the key of their topic."""
    flow, mistakes = compiled.flow, list[AppError]()
    for view in app.views:
        if view.topic != flow.writes or compiled.fixed is None or not view.key:
            continue
        changing = [name for name in view.key if name not in compiled.fixed]
        mistakes += [changing_key(flow, name, f"view {view.name}", view.location) for name in changing]
        missing = [" or ".join(sorted(names)) for names in compiled.groups if not names & set(view.key)]
        if missing and not changing:
            groups = ", ".join(sorted(missing))
            mistakes.append(
                missing_from_key(flow, groups, tuple(view.key), f"view {view.name}", view.location)
            )
    return mistakes


def _assume_declared(flow: Flow, schemas: dict[str, Schema]) -> None:
    """Use the declared schema of a flow with a mistake, so that later flows can be checked."""
    if flow.writes.schema is not None:
        schemas[flow.writes.name] = flow.writes.schema
