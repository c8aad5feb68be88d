"""The recorded parts of a flow's fingerprint, and the description of a change between two recordings.

The fingerprint shows only whether a flow changed. The parts show what changed: the code of a function or a value that
it reads, an input schema, the output, the version of Spark. They decide nothing: a part may change without the
fingerprint, because the code of a flow that runs on Spark's own functions is not part of its fingerprint.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any

import pyspark
from pyspark.sql import SparkSession

from headrace.model.code_digest import CodePart, code_parts, upcast_digest
from headrace.model.codec.strict_decode import expected
from headrace.model.declarations import Flow, Topic
from headrace.model.kinds import Field
from headrace.model.progress import Digest, Generation, InputDigest
from headrace.model.schema import Schema, fields_from_json, fields_to_json

__all__ = ["changes_since", "describe_changes", "flow_digest"]

_SHOWN_MAX = 8
_NAMES_MAX = 500
_NAME_CHARS_MAX = 200
_SETTINGS = ("spark.sql.ansi.enabled", "spark.sql.caseSensitive", "spark.sql.session.timeZone")


def flow_digest(spark: SparkSession, flow: Flow, plan_text: str, schemas: Mapping[str, Schema]) -> Digest:
    """``schemas`` has the schemas of all input topics, including derived topics."""
    code = {name: _hash(part.text) for name, part in _code_parts(flow.function).items()}
    settings = {name: str(spark.conf.get(name)) for name in _SETTINGS}
    return Digest(
        plan=_hash(plan_text),
        version=flow.version,
        code=code,
        inputs={topic.name: _input_digest(topic, schemas[topic.name]) for topic in flow.reads},
        runtime={
            "Python": platform.python_version().rpartition(".")[0],
            "PySpark": pyspark.__version__,
            **settings,
        },
    )


def _input_digest(topic: Topic, schema: Schema) -> InputDigest:
    return InputDigest(
        schema=fields_to_json(schema.fields),
        key=list(topic.key),
        time=topic.time,
        late_us=topic.late // timedelta(microseconds=1),
        kind=topic.kind,
        upcast=upcast_digest(topic.upcast),
    )


def _code_parts(function: Callable[..., Any]) -> dict[str, CodePart]:
    """Return the parts, within limits. Objects that the function references run their own code when they are pickled;
    an error of that code must not stop a flow whose fingerprint does not include its code.
    """
    try:
        parts = code_parts(function)
    except Exception:
        return {}
    return {name[:_NAME_CHARS_MAX]: part for name, part in list(parts.items())[:_NAMES_MAX]}


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def describe_changes(recorded: Generation, flow: Flow, digest: Digest | None, output: Schema) -> str:
    """Return what changed since the generation, for a message."""
    if recorded.digest is None or digest is None:
        return "an earlier release began it and recorded only the fingerprint"
    changes = changes_since(recorded, flow, digest, output)
    more = f"; and {len(changes) - _SHOWN_MAX} more changes" if len(changes) > _SHOWN_MAX else ""
    return "; ".join(changes[:_SHOWN_MAX]) + more or "the recorded parts are equal"


def changes_since(recorded: Generation, flow: Flow, digest: Digest, output: Schema) -> list[str]:
    """Return what changed since the generation, most specific first; empty if its record has no parts."""
    old = recorded.digest
    if old is None:
        return []
    changes = [*_code_changes(flow, old.code, digest.code), *_input_changes(old.inputs, digest.inputs)]
    changes += _field_changes("output column", recorded.schema, fields_to_json(output.fields))
    changes += _value_change("the output's key", ", ".join(recorded.key), ", ".join(flow.writes.key))
    changes += _value_change("version", repr(old.version), repr(digest.version))
    if old.plan != digest.plan or old.code != digest.code:
        for name in digest.runtime:
            changes += _value_change(name, old.runtime.get(name, ""), digest.runtime[name])
    if not changes and old.plan != digest.plan:
        changes.append("Spark's plan of the function")
    return changes


def _code_changes(flow: Flow, old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    parts = _code_parts(flow.function)
    for name, text_hash in new.items():
        if old.get(name) != text_hash:
            where = f" ({parts[name].location})" if name in parts else ""
            yield f"{_describe(name, where)} {'changed' if name in old else 'is new'}"
    for name in old:
        if name not in new:
            yield f"{_describe(name, '')} is no longer used"


def _describe(name: str, where: str) -> str:
    function, _, variable = name.partition(": ")
    if variable:
        return f"the value of {variable}, which {function} reads{where},"
    return f"the code of {function}{where}"


def _input_changes(old: Mapping[str, InputDigest], new: Mapping[str, InputDigest]) -> Iterator[str]:
    for name in new.keys() - old.keys():
        yield f"the flow reads topic {name}, which is new"
    for name in old.keys() - new.keys():
        yield f"the flow no longer reads topic {name}"
    shared = [name for name in new if name in old]
    if shared != [name for name in old if name in new]:
        yield f"the order of the topics that it reads is now {', '.join(new)}"
    for name in shared:
        before, after = old[name], new[name]
        yield from _field_changes(f"topic {name}: field", before.schema, after.schema)
        yield from _value_change(f"topic {name}: the key", ", ".join(before.key), ", ".join(after.key))
        yield from _value_change(f"topic {name}: the time field", str(before.time), str(after.time))
        yield from _value_change(f"topic {name}: late", _duration(before.late_us), _duration(after.late_us))
        yield from _value_change(f"topic {name}: the kind", before.kind, after.kind)
        if before.upcast != after.upcast:
            yield f"topic {name}: the code of its upcasters changed"


def _field_changes(what: str, old: list[dict[str, Any]], new: list[dict[str, Any]]) -> Iterator[str]:
    before = {field.name: field for field in fields_from_json(old)}
    after = {field.name: field for field in fields_from_json(new)}
    for name, field in after.items():
        if name not in before:
            yield f"{what} {name} is new"
        elif before[name] != field:
            old_text, new_text = _describe_field(before[name]), _describe_field(field)
            # The descriptions of nested kinds do not differ.
            yield from _value_change(f"{what} {name}", old_text, new_text) or [f"{what} {name} changed"]
    yield from (f"{what} {name} was removed" for name in before if name not in after)
    if not before.keys() ^ after.keys() and list(before) != list(after):
        yield f"{what}s are in another order"


def _describe_field(field: Field) -> str:
    default = f" with the default {field.default!r}" if field.default is not None else ""
    return f"{'optional, ' if field.optional else ''}{expected(field.kind)}{default}"


def _value_change(what: str, before: str, after: str) -> list[str]:
    return [] if before == after else [f"{what} was {before} and is now {after}"]


def _duration(microseconds: int) -> str:
    return str(timedelta(microseconds=microseconds))
