"""Finds mistakes in the topics, flows, views and alerts of an app.

A flow with ``latency="realtime"`` writes each row alone and, after a crash, some rows again. A row is identified by the
partition and offset of its input record; one record produces at most one row. A view uses partition and offset to
recognize repeated rows. No other part of an app can recognize them, so only views may read such a topic.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from headrace.model.code_digest import HiddenState, upcast_digest
from headrace.model.codec.strict_decode import expected
from headrace.model.declarations import Alert, Declared, Flow, Topic, View, is_declared, writer_of
from headrace.model.errors import AppError, SourceLocation
from headrace.model.kinds import Digits, Enum, Scalar
from headrace.model.rule import InvalidRule, Rule, Subject, parse_rule
from headrace.model.schema import Schema
from headrace.model.store import Delta, OnRead, Search, SQLite

__all__ = [
    "alert_mistakes",
    "flow_mistakes",
    "realtime_mistakes",
    "subject_fault",
    "topic_mistakes",
    "view_mistakes",
]

# A float is not allowed, because one number can have several texts, and NaN is not equal to itself. Bytes are
# not allowed, because the key would be their base64 text and not the bytes.
_NOT_A_KEY = (Scalar("float"), Scalar("bytes"))
_FILE_NAME_BYTES_MAX = 255
_BATCH_HINT = 'remove latency="realtime"'


def topic_mistakes(app: Declared, topic: Topic) -> Iterator[AppError]:
    flow = writer_of(app, topic)
    if not topic.key and (flow or topic.kind == "table"):
        reason = (
            f"flow {flow.name!r} writes it"
            if flow
            else "it is a table, where the last row of each key counts"
        )
        yield AppError(
            f"topic {topic.name!r} has no key, and {reason}",
            location=topic.location,
            code="HR-APP-NO-KEY",
            hint='name the fields that identify a row: key="..." or key=["...", "..."]',
        )
    if topic.schema is None and flow is None:
        yield AppError(
            f"topic {topic.name!r} has no schema, and no flow writes it",
            location=topic.location,
            code="HR-APP-NO-SCHEMA",
            hint=f"declare the dataclass of its values: app.{_declaring_method(topic)}({topic.name!r}, ...)",
        )
    yield from _key_mistakes(f"topic {topic.name!r}", topic.key, topic.schema, topic.location)
    yield from _time_mistakes(topic)
    yield from _upcast_mistakes(topic, flow)
    if topic.partitions is not None and (type(topic.partitions) is not int or topic.partitions < 1):
        yield AppError(
            f"topic {topic.name!r} cannot have {topic.partitions!r} partitions",
            location=topic.location,
            code="HR-APP-PARTITIONS",
            hint="set at least 1, or remove it to use the setting topics.partitions",
        )


def _upcast_mistakes(topic: Topic, flow: Flow | None) -> Iterator[AppError]:
    if topic.upcast is None:
        return
    if flow is not None:
        yield _upcast_mistake(
            topic,
            f"flow {flow.name!r} writes it",
            "remove the upcasters: a rebuild of the flow derives all rows with the current schema",
        )
    elif topic.schema is None:
        yield _upcast_mistake(topic, "it has no schema", "declare the dataclass that the upcasters return")
    try:
        upcast_digest(topic.upcast)
    except HiddenState as hidden:
        yield _upcast_mistake(
            topic,
            f"they read {hidden.variable}, a {hidden.kind}, whose changes Headrace cannot detect",
            "use a constant instead",
        )


def _upcast_mistake(topic: Topic, problem: str, hint: str) -> AppError:
    return AppError(
        f"topic {topic.name!r} cannot have these upcasters: {problem}",
        location=topic.location,
        code="HR-APP-UPCAST",
        hint=hint,
    )


def flow_mistakes(app: Declared, flow: Flow) -> Iterator[AppError]:
    for verb, topic in [*(("reads", topic) for topic in flow.reads), ("writes", flow.writes)]:
        if not is_declared(app, topic):
            yield _undeclared_topic(app, f"flow {flow.name!r} {verb}", topic, flow.location)
    if any(topic is flow.writes for topic in flow.reads):
        yield AppError(
            f"flow {flow.name!r} reads topic {flow.writes.name!r}, which it writes itself",
            location=flow.location,
            code="HR-APP-OWN-OUTPUT",
            hint="write to another topic",
        )
    for topic in {
        id(topic): topic for topic in flow.reads if sum(declared is topic for declared in flow.reads) > 1
    }.values():
        yield AppError(
            f"flow {flow.name!r} reads topic {topic.name!r} more than once",
            location=flow.location,
            code="HR-APP-READ-TWICE",
            hint="read it once: the function can use its DataFrame several times",
        )
    other_writer = writer_of(app, flow.writes)
    if other_writer is not None and other_writer is not flow:
        yield AppError(
            f"flow {flow.name!r} writes topic {flow.writes.name!r}, and so does flow {other_writer.name!r} at"
            f" {other_writer.location}",
            location=flow.location,
            code="HR-APP-TWO-WRITERS",
            hint="write a separate topic in each flow, and combine the topics in a third flow",
        )
    if not flow.streams:
        described_inputs = (
            "only tables: " + ", ".join(topic.name for topic in flow.reads) if flow.reads else "nothing"
        )
        yield AppError(
            f"flow {flow.name!r} reads {described_inputs}",
            location=flow.location,
            code="HR-APP-NO-STREAM",
            hint="a flow runs when events arrive: read at least one app.topic(...)",
        )
    yield from _parameter_mistakes(flow)


def view_mistakes(app: Declared, view: View) -> Iterator[AppError]:
    declared = is_declared(app, view.topic)
    if not declared:
        yield _undeclared_topic(app, f"view {view.name!r} follows", view.topic, view.location)
    uses_topic_key = declared and view.key == view.topic.key
    if not view.key:
        if not (uses_topic_key and (writer_of(app, view.topic) or view.topic.kind == "table")):
            yield AppError(
                f"view {view.name!r} has no key, and topic {view.topic.name!r} has no key either",
                location=view.location,
                code="HR-APP-NO-KEY",
                hint='name the fields that identify a row: key="..." or key=["...", "..."]',
            )
    elif not uses_topic_key:
        yield from _key_mistakes(f"view {view.name!r}", view.key, view.topic.schema, view.location)
    flow = writer_of(app, view.topic)
    if isinstance(view.store, OnRead) and flow is not None:
        yield AppError(
            f"view {view.name!r} is computed on read, but topic {view.topic.name!r} is written by flow {flow.name!r}",
            location=view.location,
            code="HR-APP-ON-READ",
            hint="use a store, which applies whole batches; OnRead() is only for topics that no flow writes",
        )
    if isinstance(view.store, OnRead) and (
        type(view.store.records_max) is not int or view.store.records_max < 1
    ):
        yield AppError(
            f"view {view.name!r} cannot be computed from {view.store.records_max!r} records",
            location=view.location,
            code="HR-APP-ON-READ",
            hint="records_max is the number of records that a query may read, at least 1",
        )
    path = view.store.path if isinstance(view.store, SQLite | Search | Delta) else ""
    problem = _path_problem(path)
    if problem:
        yield AppError(
            f"view {view.name!r}: the store's path {path!r} {problem}",
            location=view.location,
            code="HR-APP-STORE-PATH",
            hint="set the name of a file in the data directory, for example 'sales.db', or an absolute path",
        )


def _key_mistakes(
    owner: str, key: tuple[str, ...], schema: Schema | None, location: SourceLocation | None
) -> Iterator[AppError]:
    def mistake(message: str, hint: str) -> AppError:
        return AppError(f"{owner}: {message}", location=location, code="HR-APP-KEY", hint=hint)

    for name in sorted({name for name in key if key.count(name) > 1}):
        yield mistake(f"its key has the field {name!r} twice", "name each field once")
    if schema is None:
        return  # Only Spark knows the schema of a flow's output. The flow compiler checks the key.
    for name in dict.fromkeys(key):
        field = schema.field(name)
        if field is None:
            yield mistake(f"its key field {name!r} is not in {schema.name}", _spelling_hint(name, schema))
        elif field.kind in _NOT_A_KEY or not isinstance(field.kind, (Scalar, Digits, Enum)):
            yield mistake(
                f"its key field {name!r} is {expected(field.kind)}, which cannot be a key",
                "a key field must be text, a whole or exact number, a time, a date, a boolean or an enum",
            )
        elif field.optional:
            yield mistake(
                f"its key field {name!r} is optional",
                "every row needs its key: remove the default or None",
            )


def _time_mistakes(topic: Topic) -> Iterator[AppError]:
    field = topic.schema.field(topic.time) if topic.schema and topic.time is not None else None
    if topic.schema is not None and topic.time is not None:
        problem, hint = "", ""
        if field is None:
            problem, hint = f"is not in {topic.schema.name}", _spelling_hint(topic.time, topic.schema)
        elif field.kind != Scalar("time"):
            problem, hint = f"is {expected(field.kind)}, not a time", "change its type to datetime"
        elif field.optional:
            problem, hint = "is optional", "every event needs its time: remove the default or None"
        if problem:
            yield AppError(
                f"topic {topic.name!r}: its time field {topic.time!r} {problem}",
                location=topic.location,
                code="HR-APP-TIME",
                hint=hint,
            )
    if not isinstance(topic.late, timedelta) or topic.late < timedelta(0):
        yield _lateness_mistake(
            topic, f"cannot be {topic.late!r}", "set how late an event may arrive: late=timedelta(seconds=30)"
        )
    elif topic.late and topic.time is None:
        yield _lateness_mistake(
            topic, "is set, but the topic has no event time", 'set the field of the event time: time="..."'
        )


def _lateness_mistake(topic: Topic, problem: str, hint: str) -> AppError:
    return AppError(
        f"topic {topic.name!r}: late {problem}", location=topic.location, code="HR-APP-LATE", hint=hint
    )


def _parameter_mistakes(flow: Flow) -> Iterator[AppError]:
    signature = inspect.signature(flow.function)
    try:
        signature.bind(*flow.reads)
    except TypeError:
        names = ", ".join(topic.name for topic in flow.reads)
        yield AppError(
            f"flow {flow.name!r} reads {len(flow.reads)} topics ({names}), but the parameters of its function are"
            f" {signature}",
            location=flow.location,
            code="HR-APP-PARAMETERS",
            hint="the function needs one parameter for each topic in reads, in the same order",
        )


def _undeclared_topic(app: Declared, reader: str, topic: Topic, location: SourceLocation | None) -> AppError:
    return AppError(
        f"{reader} topic {topic.name!r}, which is not declared in app {app.name!r} but at {topic.location}",
        location=location,
        code="HR-APP-UNKNOWN-TOPIC",
        hint=f"declare it in this app too: app.{_declaring_method(topic)}({topic.name!r}, ...)",
    )


def _declaring_method(topic: Topic) -> str:
    return "table" if topic.kind == "table" else "topic"


def _spelling_hint(name: str, schema: Schema) -> str:
    similar_names = difflib.get_close_matches(name, schema.names, n=1)
    return f"did you mean {similar_names[0]!r}?" if similar_names else f"it has: {', '.join(schema.names)}"


def _path_problem(path: Any) -> str | None:
    """Return why the path is invalid; None if it is valid. An empty path means the app's default file."""
    if not isinstance(path, str):
        return "is not text"
    if not path:
        return None
    if "\0" in path:
        return "contains a NUL character"
    if path.startswith((":", "file:")):
        return "has a prefix that SQLite does not treat as a file name"
    for part in path.removeprefix("/").split("/"):
        if part in ("", ".", ".."):
            return f"has the part {part!r}, which is not the name of a file or directory"
        if len(part.encode(errors="surrogatepass")) > _FILE_NAME_BYTES_MAX:
            return f"has a part of more than {_FILE_NAME_BYTES_MAX} bytes"
    return None


def realtime_mistakes(app: Declared) -> Iterator[AppError]:
    for flow in app.flows:
        if flow.is_realtime:
            yield from _realtime_flow_mistakes(flow)
        for topic in flow.reads:
            other_writer = writer_of(app, topic)
            if other_writer is not None and other_writer is not flow and other_writer.is_realtime:
                yield _realtime_mistake(
                    f"flow {flow.name!r} reads topic {topic.name!r}, which flow {other_writer.name!r} writes"
                    " in real time",
                    flow.location,
                    "a real-time flow writes rows at least once, so a repeated row would count twice",
                    f'read the inputs of {other_writer.name!r}, or remove its latency="realtime"',
                )
    for view in app.views:
        yield from _realtime_view_mistakes(app, view)


def _realtime_flow_mistakes(flow: Flow) -> Iterator[AppError]:
    if upcast_names := ", ".join(topic.name for topic in flow.streams if topic.upcast):
        yield _realtime_mistake(
            f"flow {flow.name!r} cannot run in real time: topic {upcast_names} has upcasters",
            flow.location,
            "Spark cannot call Python functions in real time",
            f"remove the upcasters, or {_BATCH_HINT}",
        )
    if flow.tables:
        names = ", ".join(topic.name for topic in flow.tables)
        yield _realtime_mistake(
            f"flow {flow.name!r} cannot run in real time: it reads the table {names}",
            flow.location,
            "the log would not record which table rows each row was joined with",
            f"join in a separate flow, or {_BATCH_HINT}",
        )
    if len(flow.streams) > 1:
        yield _realtime_mistake(
            f"flow {flow.name!r} cannot run in real time: it reads {len(flow.streams)} streams",
            flow.location,
            "a row is identified by the one input record that it was derived from",
            f"write a separate flow and topic for each stream, or {_BATCH_HINT}",
        )
    if flow.writes.kind == "table":
        yield _realtime_mistake(
            f"flow {flow.name!r} cannot run in real time: it writes the table {flow.writes.name!r}",
            flow.location,
            "compaction could retain a repeated older row instead of the newest",
            f"write an app.topic(...), which a view folds by its key, or {_BATCH_HINT}",
        )


def _realtime_view_mistakes(app: Declared, view: View) -> Iterator[AppError]:
    flow = writer_of(app, view.topic)
    if flow is not None and flow.is_realtime and set(view.key) != set(view.topic.key):
        yield _realtime_mistake(
            f"view {view.name!r} has the key {', '.join(view.key)}, which is not the key of its topic, and flow"
            f" {flow.name!r} writes the topic in real time",
            view.location,
            "rows with the same key must be in one partition: without batches, partitions have no common order",
            f'declare the topic with this key, or remove latency="realtime" from flow {flow.name!r}',
        )


def _realtime_mistake(message: str, location: SourceLocation | None, reason: str, hint: str) -> AppError:
    return AppError(message, location=location, code="HR-APP-REALTIME", detail=reason, hint=hint)


def alert_mistakes(app: Declared, alert: Alert) -> Iterator[AppError]:
    def mistake(message: str, hint: str) -> AppError:
        return AppError(
            f"alert {alert.name!r}: {message}", location=alert.location, code="HR-APP-ALERT", hint=hint
        )

    when: Any = alert.when
    if not isinstance(when, str):
        yield mistake(f"a rule must be text, and {when!r} is not", 'for example "lag > 10_000 for 30s"')
        return
    try:
        rule = parse_rule(alert.when)
        if alert.on and rule.subject != Subject():
            yield mistake(
                f"{alert.when!r} names a subject, and on= names one too", "remove one of the subjects"
            )
            return
        rule = parse_rule(alert.text)
    except InvalidRule as error:
        yield mistake(error.message, error.hint)
        return
    problem = subject_fault(app, rule)
    if problem is not None:
        yield mistake(*problem)


def subject_fault(app: Declared, rule: Rule) -> tuple[str, str] | None:
    """Return why the subject of a rule is invalid, and a hint; None if it is valid. Any group name is valid, because an
    app does not declare groups.
    """
    kind, name = rule.subject.what, rule.subject.name
    if not name or kind == "group":
        return None
    declared_names = [part.name for part in (app.flows if kind == "flow" else app.views)]
    if name in declared_names:
        return None
    similar_names = difflib.get_close_matches(name, declared_names, n=1)
    hint = (
        f"did you mean {similar_names[0]!r}?"
        if similar_names
        else f"it has: {', '.join(declared_names) or 'none'}"
    )
    return f"app {app.name!r} has no {kind} {name!r}", hint
