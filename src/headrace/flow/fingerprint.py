"""What a flow's function does, as a short text: two functions with the same one derive the same rows.

It is taken from Spark's plan of the function over empty inputs, so that moving code around or naming things anew
changes nothing. Where rows go through functions in Python, or come from the function itself (``createDataFrame``), the
plan does not say all: there the code of the function and of all that it reaches counts too. What has no text at all is
refused, unless the user declares the version of the flow.

A fingerprint begins with the number of the rule that computed it (``2:``). Those of another rule cannot be compared.
"""

from __future__ import annotations

import hashlib
from typing import Any

from pyspark.serializers import CPickleSerializer
from pyspark.sql import DataFrame

from headrace.flow.code_digest import HiddenState, code_digest
from headrace.flow.mistakes import FlowMistake, first_line, line_naming_in, line_of
from headrace.flow.plan_digest import PlanDigest
from headrace.model.flow import Flow
from headrace.model.schema import Schema
from headrace.model.topic import Topic

__all__ = ["fingerprint", "is_comparable"]

_RULE = "2:"
_VERSION = 'declare @app.flow(..., version="2"), and another version whenever it changes'


def is_comparable(recorded: str) -> bool:
    """Whether a recorded fingerprint was computed by the rule of this release."""
    return recorded.startswith(_RULE)


def fingerprint(flow: Flow, plan: PlanDigest, output: DataFrame, schema: Schema) -> str:
    """``plan`` is that of ``output``, which the function returns for empty inputs."""
    if plan.hidden and not flow.version:
        trail = plan.hidden[0]
        raise FlowMistake(
            f"flow {flow.name} calls code of the JVM that cannot be fingerprinted: {first_line(trail[0].toString())}",
            place=line_of(flow, *trail),
            detail="a change of it would go unnoticed",
            hint=f"use Spark's own functions or one in Python, or {_VERSION}",
        )
    if plan.files and not flow.version:
        read = first_line(plan.files[0].toString())
        raise FlowMistake(
            f"flow {flow.name} reads files or tables that may change: {read}",
            place=line_naming_in(flow, "read", "table"),
            detail="the fingerprint cannot include their content, so a change would go unnoticed",
            hint=f"write the data to a topic and declare it with app.table(...), or {_VERSION}",
        )
    parts = [
        plan.text,
        repr(schema.fields),
        repr(flow.writes.key),
        repr([_input(topic) for topic in flow.reads]),
    ]
    parts += [flow.latency, flow.version]
    if plan.runs_python or plan.has_foreign_rows:
        parts.append(_code(flow, flow.function))
    parts += [_code(flow, function) for function in _registered(flow, plan, output)]
    return _RULE + hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _code(flow: Flow, function: Any) -> str:
    try:
        return code_digest(function, leave_out_hidden=bool(flow.version))
    except HiddenState as hidden:
        raise FlowMistake(
            f"flow {flow.name} reads {hidden.variable}, a {hidden.kind}, which cannot be fingerprinted",
            place=hidden.place,
            detail="a change of what it holds would go unnoticed",
            hint=f"make it a constant, or {_VERSION}",
        ) from None


def _registered(flow: Flow, plan: PlanDigest, output: DataFrame) -> list[Any]:
    """Functions that the plan has by a name of SQL: the flow's code does not lead to them."""
    catalog = output.sparkSession.catalog
    named = {name: function for name, function in plan.python if name.isidentifier()}
    found = []
    for name in sorted(filter(catalog.functionExists, named)):
        try:
            found.append(_unpickled(output, named[name]))
        except Exception as error:  # Spark hands a large one over in a way that only its workers can read.
            if not flow.version:
                raise FlowMistake(
                    f"flow {flow.name} calls {name}, whose code cannot be fingerprinted",
                    place=line_naming_in(flow, name),
                    hint=f"let it hold less, or {_VERSION}",
                ) from error
    return found


def _unpickled(output: DataFrame, function: Any) -> Any:
    jvm: Any = output.sparkSession._jvm
    pickled = bytes(function.command().toArray(jvm.scala.reflect.ClassTag.Byte()))
    serializer: Any = CPickleSerializer()
    return serializer.loads(pickled)[0]


def _input(topic: Topic) -> tuple[Any, ...]:
    return (topic.name, topic.schema and topic.schema.fields, topic.key, topic.time, topic.late, topic.kind)
