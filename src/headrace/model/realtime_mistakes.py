"""What cannot be around a flow of ``latency="realtime"``, as far as that is known without Spark.

Such a flow writes each row by itself and, after a crash, some rows again. A row is known by the source record that it
was made of: partition and offset, one topic, at most one row for each record. By that a view tells a repeat from a
new row. Nothing else in an app does, and so nothing but views may follow.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace.model.declared import Declared, writer_of
from headrace.model.errors import AppError
from headrace.model.flow import Flow
from headrace.model.place import Place
from headrace.model.view import View

__all__ = ["realtime_mistakes"]

_BATCH = 'leave latency="realtime" away'


def realtime_mistakes(app: Declared) -> Iterator[AppError]:
    for flow in app.flows:
        if flow.is_realtime:
            yield from _flow_mistakes(flow)
        for topic in flow.reads:
            first = writer_of(app, topic)
            if first is not None and first is not flow and first.is_realtime:
                yield _mistake(
                    f"flow {flow.name!r} reads topic {topic.name!r}, which flow {first.name!r} writes in real time",
                    flow.place,
                    "it is written at least once: a row that comes again would count twice",
                    f'read what {first.name!r} reads, or take latency="realtime" from it',
                )
    for view in app.views:
        yield from _view_mistakes(app, view)


def _flow_mistakes(flow: Flow) -> Iterator[AppError]:
    if flow.tables:
        names = ", ".join(topic.name for topic in flow.tables)
        yield _mistake(
            f"flow {flow.name!r} cannot run in real time: it reads the table {names}",
            flow.place,
            "which rows of the table a row was joined with could not be told afterwards",
            f"join in a flow of its own, or {_BATCH}",
        )
    if len(flow.streams) > 1:
        yield _mistake(
            f"flow {flow.name!r} cannot run in real time: it reads {len(flow.streams)} streams",
            flow.place,
            "a row is known by the one record that it was made of",
            f"make it a flow for each, with a topic for each, or {_BATCH}",
        )
    if flow.writes.kind == "table":
        yield _mistake(
            f"flow {flow.name!r} cannot run in real time: it writes the table {flow.writes.name!r}",
            flow.place,
            "compaction would keep a row that came again, an older one, in the place of the newest",
            f"write an app.topic(...), which a view folds by its key, or {_BATCH}",
        )


def _view_mistakes(app: Declared, view: View) -> Iterator[AppError]:
    flow = writer_of(app, view.topic)
    if flow is not None and flow.is_realtime and set(view.key) != set(view.topic.key):
        yield _mistake(
            f"view {view.name!r} has the key {', '.join(view.key)}, which is not its topic's, and flow {flow.name!r}"
            " writes that in real time",
            view.place,
            "rows of one key must be in one partition: those of several come in any order, without batches to tell it",
            f'give the topic this key, or take latency="realtime" from flow {flow.name!r}',
        )


def _mistake(message: str, place: Place | None, why: str, hint: str) -> AppError:
    return AppError(message, place=place, code="HR-APP-REALTIME", detail=why, hint=hint)
