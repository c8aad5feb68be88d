"""The fingerprint of a flow's function: two functions with the same fingerprint derive the same rows.

The fingerprint is computed from Spark's plan of the function over empty inputs, so moving code or renaming variables
does not change it. The plan does not show everything if rows pass through Python functions, or if the function creates
rows (``createDataFrame``). Then the fingerprint includes the code of the function and everything that the code
references. A function that uses a value which cannot be written as text (such as an open file) is rejected, unless the
user declares a version of the flow.

A fingerprint begins with the number of the rule that computed it (``2:``). Fingerprints of different rules cannot be
compared.
"""

from __future__ import annotations

import hashlib
from typing import Any

from pyspark.serializers import CPickleSerializer
from pyspark.sql import DataFrame

from headrace.flow.compile.mistakes import FlowMistake, first_line, line_of, line_using
from headrace.flow.compile.plan_digest import PlanDigest
from headrace.model.code_digest import HiddenState, code_digest, upcast_digest
from headrace.model.declarations import Flow, Topic
from headrace.model.kinds import Digits, Enum, Field, Kind, List, Map, Record, Scalar
from headrace.model.schema import Schema

__all__ = ["fingerprint", "is_comparable"]

_RULE = "2:"
_VERSION = 'declare @app.flow(..., version="2"), and change the version after each change'


def is_comparable(recorded: str) -> bool:
    """Whether a recorded fingerprint was computed by the rule of this release."""
    return recorded.startswith(_RULE)


def fingerprint(flow: Flow, plan: PlanDigest, output: DataFrame, schema: Schema) -> str:
    """``plan`` is the digest of ``output``, the result of the function for empty inputs."""
    if plan.hidden and not flow.version:
        trail = plan.hidden[0]
        raise FlowMistake(
            f"flow {flow.name} calls JVM code that cannot be fingerprinted: {first_line(trail[0].toString())}",
            location=line_of(flow, *trail),
            detail="Headrace could not detect a change of that code",
            hint=f"use Spark's own functions or a Python function, or {_VERSION}",
        )
    if plan.files and not flow.version:
        read = first_line(plan.files[0].toString())
        raise FlowMistake(
            f"flow {flow.name} reads files or tables that can change: {read}",
            location=line_using(flow, "read", "table"),
            detail="the fingerprint cannot include their content, so Headrace could not detect a change",
            hint=f"write the data to a topic and declare it with app.table(...), or {_VERSION}",
        )
    parts = [
        plan.text,
        _fields_text(schema.fields),
        repr(flow.writes.key),
        f"[{', '.join(map(_input_text, flow.reads))}]",
    ]
    parts += [flow.latency, flow.version]
    if plan.runs_python or plan.has_foreign_rows:
        parts.append(_code(flow, flow.function))
    parts += [_code(flow, function) for function in _registered(flow, plan, output)]
    return _RULE + hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _code(flow: Flow, function: Any) -> str:
    try:
        return code_digest(function, skip_hidden=bool(flow.version))
    except HiddenState as hidden:
        raise FlowMistake(
            f"flow {flow.name} reads {hidden.variable}, a {hidden.kind}, which cannot be fingerprinted",
            location=hidden.location,
            detail="Headrace could not detect a change of its value",
            hint=f"use a constant instead, or {_VERSION}",
        ) from None


def _registered(flow: Flow, plan: PlanDigest, output: DataFrame) -> list[Any]:
    """Return the Python functions that the plan uses by an SQL name. The flow's code does not reference them."""
    catalog = output.sparkSession.catalog
    named = {name: function for name, function in plan.python if name.isidentifier()}
    functions = []
    for name in sorted(filter(catalog.functionExists, named)):
        try:
            functions.append(_unpickled(output, named[name]))
        except Exception as error:  # Spark encodes a large function in a form that only its workers can read.
            if not flow.version:
                raise FlowMistake(
                    f"flow {flow.name} calls {name}, whose code cannot be fingerprinted",
                    location=line_using(flow, name),
                    hint=f"reduce the data that the function references, or {_VERSION}",
                ) from error
    return functions


def _unpickled(output: DataFrame, function: Any) -> Any:
    jvm: Any = output.sparkSession._jvm
    pickled = bytes(function.command().toArray(jvm.scala.reflect.ClassTag.Byte()))
    serializer: Any = CPickleSerializer()
    return serializer.loads(pickled)[0]


def _input_text(topic: Topic) -> str:
    fields = _fields_text(topic.schema.fields) if topic.schema else None
    # Without upcasters, the text is that of earlier releases, so that their fingerprints remain valid.
    upcast = f", {upcast_digest(topic.upcast)}" if topic.upcast else ""
    return (
        f"({topic.name!r}, {fields}, {topic.key!r}, {topic.time!r}, {topic.late!r}, {topic.kind!r}{upcast})"
    )


def _fields_text(fields: tuple[Field, ...]) -> str:
    texts = [
        f"Field(name={field.name!r}, kind={_kind_text(field.kind)}, optional={field.optional!r},"
        f" default={field.default!r})"
        for field in fields
    ]
    return f"({', '.join(texts)}{',' * (len(texts) == 1)})"


def _kind_text(kind: Kind) -> str:
    """Return the text of a kind. It contains old names of kinds: with the current names, all fingerprints of rule 2
    would change.
    """
    match kind:
        case Scalar(name):
            return f"Plain(name={name!r})"
        case Digits():
            return repr(kind)
        case Enum(values):
            return f"Choice(values={values!r})"
        case List(of, optional):
            return f"Many(of={_kind_text(of)}, optional={optional!r})"
        case Map(of, optional):
            return f"Named(of={_kind_text(of)}, optional={optional!r})"
        case Record(fields):
            return f"Record(fields={_fields_text(fields)})"
