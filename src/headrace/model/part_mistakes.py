"""Mistakes in one topic, flow or view, given the app that it is in."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from headrace.model.declared import Declared, is_declared, writer_of
from headrace.model.errors import AppError
from headrace.model.fitting import expected
from headrace.model.flow import Flow
from headrace.model.kinds import Choice, Digits, Plain
from headrace.model.place import Place
from headrace.model.schema import Schema
from headrace.model.store import Delta, OnRead, Search, SQLite
from headrace.model.topic import Topic
from headrace.model.view import View

__all__ = ["flow_mistakes", "topic_mistakes", "view_mistakes"]

# A float has several texts for one number and no equality; of bytes, base64 would be the key.
_NO_KEY = (Plain("float"), Plain("bytes"))
_FILE_NAME_BYTES_MAX = 255


def topic_mistakes(app: Declared, topic: Topic) -> Iterator[AppError]:
    flow = writer_of(app, topic)
    if not topic.key and (flow or topic.kind == "table"):
        why = (
            f"flow {flow.name!r} writes it"
            if flow
            else "it is a table, of which the last row of each key counts"
        )
        yield AppError(
            f"topic {topic.name!r} has no key, and {why}",
            place=topic.place,
            code="HR-APP-NO-KEY",
            hint='name the fields that tell its rows apart: key="..." or key=["...", "..."]',
        )
    if topic.schema is None and flow is None:
        yield AppError(
            f"topic {topic.name!r} has no schema, and no flow writes it",
            place=topic.place,
            code="HR-APP-NO-SCHEMA",
            hint=f"give it the dataclass of its values: app.{_verb(topic)}({topic.name!r}, ...)",
        )
    yield from _key_mistakes(f"topic {topic.name!r}", topic.key, topic.schema, topic.place)
    yield from _time_mistakes(topic)
    if topic.partitions is not None and (type(topic.partitions) is not int or topic.partitions < 1):
        yield AppError(
            f"topic {topic.name!r} cannot have {topic.partitions!r} partitions",
            place=topic.place,
            code="HR-APP-PARTITIONS",
            hint="at least 1, or leave it to the setting topics.partitions",
        )


def flow_mistakes(app: Declared, flow: Flow) -> Iterator[AppError]:
    for verb, topic in [*(("reads", topic) for topic in flow.reads), ("writes", flow.writes)]:
        if not is_declared(app, topic):
            yield _foreign(app, f"flow {flow.name!r} {verb}", topic, flow.place)
    if any(topic is flow.writes for topic in flow.reads):
        yield AppError(
            f"flow {flow.name!r} reads topic {flow.writes.name!r}, which it writes itself",
            place=flow.place,
            code="HR-APP-OWN-OUTPUT",
            hint="what a flow derives cannot be what it derives from: write to another topic",
        )
    for topic in {
        id(topic): topic for topic in flow.reads if sum(one is topic for one in flow.reads) > 1
    }.values():
        yield AppError(
            f"flow {flow.name!r} reads topic {topic.name!r} more than once",
            place=flow.place,
            code="HR-APP-READ-TWICE",
            hint="read it once: the function may use its DataFrame as often as it likes",
        )
    first = writer_of(app, flow.writes)
    if first is not None and first is not flow:
        yield AppError(
            f"flow {flow.name!r} writes topic {flow.writes.name!r}, as flow {first.name!r} at {first.place} does",
            place=flow.place,
            code="HR-APP-TWO-WRITERS",
            hint="give each its own topic, and join them in a third flow",
        )
    if not flow.streams:
        what = "only tables: " + ", ".join(topic.name for topic in flow.reads) if flow.reads else "nothing"
        yield AppError(
            f"flow {flow.name!r} reads {what}",
            place=flow.place,
            code="HR-APP-NO-STREAM",
            hint="a flow is driven by events: let it read at least one app.topic(...)",
        )
    yield from _parameter_mistakes(flow)


def view_mistakes(app: Declared, view: View) -> Iterator[AppError]:
    declared = is_declared(app, view.topic)
    if not declared:
        yield _foreign(app, f"view {view.name!r} follows", view.topic, view.place)
    told_at_the_topic = declared and view.key == view.topic.key
    if not view.key:
        if not (told_at_the_topic and (writer_of(app, view.topic) or view.topic.kind == "table")):
            yield AppError(
                f"view {view.name!r} has no key, and topic {view.topic.name!r} has none either",
                place=view.place,
                code="HR-APP-NO-KEY",
                hint='name the fields that tell its rows apart: key="..." or key=["...", "..."]',
            )
    elif not told_at_the_topic:
        yield from _key_mistakes(f"view {view.name!r}", view.key, view.topic.schema, view.place)
    flow = writer_of(app, view.topic)
    if isinstance(view.store, OnRead) and flow is not None:
        yield AppError(
            f"view {view.name!r} is computed on read, and topic {view.topic.name!r} is written by flow {flow.name!r}",
            place=view.place,
            code="HR-APP-ON-READ",
            hint="what a flow derives is for a store, which shows whole batches; compute on read what no flow writes",
        )
    if isinstance(view.store, OnRead) and (
        type(view.store.records_max) is not int or view.store.records_max < 1
    ):
        yield AppError(
            f"view {view.name!r} cannot be computed from {view.store.records_max!r} records",
            place=view.place,
            code="HR-APP-ON-READ",
            hint="records_max is how many a question may read: at least 1",
        )
    path = view.store.path if isinstance(view.store, SQLite | Search | Delta) else ""
    fault = _path_fault(path)
    if fault:
        yield AppError(
            f"view {view.name!r}: the store's path {path!r} {fault}",
            place=view.place,
            code="HR-APP-STORE-PATH",
            hint="a file in the data directory, as 'sales.db', or the absolute path of one",
        )


def _key_mistakes(
    what: str, key: tuple[str, ...], schema: Schema | None, place: Place | None
) -> Iterator[AppError]:
    def mistake(message: str, hint: str) -> AppError:
        return AppError(f"{what}: {message}", place=place, code="HR-APP-KEY", hint=hint)

    for name in sorted({name for name in key if key.count(name) > 1}):
        yield mistake(f"its key has the field {name!r} twice", "name each field once")
    if schema is None:
        return  # Only Spark knows what a flow puts out; the flow checks it then.
    for name in dict.fromkeys(key):
        field = schema.field(name)
        if field is None:
            yield mistake(f"its key field {name!r} is not in {schema.name}", _meant(name, schema))
        elif field.kind in _NO_KEY or not isinstance(field.kind, (Plain, Digits, Choice)):
            yield mistake(
                f"its key field {name!r} is {expected(field.kind)}, which cannot be a key",
                "a key is of text, whole or exact numbers, times, dates, truth values or enums",
            )
        elif field.optional:
            yield mistake(
                f"its key field {name!r} is optional",
                "every row needs its key: take the default or None away",
            )


def _time_mistakes(topic: Topic) -> Iterator[AppError]:
    field = topic.schema.field(topic.time) if topic.schema and topic.time is not None else None
    if topic.schema is not None and topic.time is not None:
        fault, hint = "", ""
        if field is None:
            fault, hint = f"is not in {topic.schema.name}", _meant(topic.time, topic.schema)
        elif field.kind != Plain("time"):
            fault, hint = f"is {expected(field.kind)}, not a time", "make its type datetime"
        elif field.optional:
            fault, hint = "is optional", "every event has its time: take the default or None away"
        if fault:
            yield AppError(
                f"topic {topic.name!r}: its time field {topic.time!r} {fault}",
                place=topic.place,
                code="HR-APP-TIME",
                hint=hint,
            )
    if not isinstance(topic.late, timedelta) or topic.late < timedelta(0):
        yield _late(
            topic, f"cannot be {topic.late!r}", "how late an event may come, as timedelta(seconds=30)"
        )
    elif topic.late and topic.time is None:
        yield _late(topic, "is given, and no field for the time", 'say what it is measured by: time="..."')


def _late(topic: Topic, fault: str, hint: str) -> AppError:
    return AppError(f"topic {topic.name!r}: late {fault}", place=topic.place, code="HR-APP-LATE", hint=hint)


def _parameter_mistakes(flow: Flow) -> Iterator[AppError]:
    signature = inspect.signature(flow.function)
    try:
        signature.bind(*flow.reads)
    except TypeError:
        names = ", ".join(topic.name for topic in flow.reads)
        yield AppError(
            f"flow {flow.name!r} reads {len(flow.reads)} topics ({names}), and its function takes {signature}",
            place=flow.place,
            code="HR-APP-PARAMETERS",
            hint="it gets one DataFrame for each topic in reads, in their order",
        )


def _foreign(app: Declared, who: str, topic: Topic, place: Place | None) -> AppError:
    return AppError(
        f"{who} topic {topic.name!r}, which app {app.name!r} does not have; it was declared at {topic.place}",
        place=place,
        code="HR-APP-UNKNOWN-TOPIC",
        hint=f"declare it in this app too: app.{_verb(topic)}({topic.name!r}, ...)",
    )


def _verb(topic: Topic) -> str:
    return "table" if topic.kind == "table" else "topic"


def _meant(name: str, schema: Schema) -> str:
    close = difflib.get_close_matches(name, schema.names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"it has: {', '.join(schema.names)}"


def _path_fault(path: Any) -> str | None:
    """Why it is no plain path; the empty one stands for the app's own file."""
    if not isinstance(path, str):
        return "is not text"
    if not path:
        return None
    if "\0" in path:
        return "has a NUL in it"
    if path.startswith((":", "file:")):
        return "means something else than a file to SQLite"
    for part in path.removeprefix("/").split("/"):
        if part in ("", ".", ".."):
            return f"has the part {part!r}, which names no file or folder"
        if len(part.encode(errors="surrogatepass")) > _FILE_NAME_BYTES_MAX:
            return f"has a part of more than {_FILE_NAME_BYTES_MAX} bytes"
    return None
