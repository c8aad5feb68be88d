"""``headrace view describe``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli.session import Session
from headrace.cli.verb import verb
from headrace.cli.view.options import AppName, Data, Views

if TYPE_CHECKING:
    from headrace.app import App
    from headrace.model.view import View
    from headrace.views.reader import Known

__all__ = ["describe"]


@verb(
    "describe",
    examples="""
    headrace view describe examples.shop:app
    headrace view describe examples.shop:app revenue --json
    """,
)
def describe(session: Session, app: AppName, views: Views = None, data: Data = None) -> None:
    """Describe views: columns, rows, position, and how far behind the log they are.

    Where no broker answers, all but the last is told. Of a topic that is written in real time, reaches has the offsets
    of the flow's input, per partition, up to which its rows are in the view.
    """
    from headrace.cli.view.options import checked_app, data_dir, views_of

    loaded, where = checked_app(app), data_dir(session, data)
    for index, view in enumerate(views_of(loaded, views)):
        told = _description(session, loaded, view, where)
        if session.out.as_json:
            session.out.json_line(told)
            continue
        if index:
            session.out.text("")
        columns = told.pop("columns")
        for name, value in told.items():
            shown = ", ".join(map(str, value)) if isinstance(value, list) else value
            session.out.text(f"{name:<12}{'-' if shown is None else shown}")
        if columns:
            session.out.text("")
            session.out.table(columns)
    session.out.flush()


def _description(session: Session, app: App, view: View, data: Path) -> dict[str, Any]:
    from headrace.cli.view.stored import known_parts, state_of
    from headrace.model.source import reaches
    from headrace.model.store_place import where_is

    parts = known_parts(app, view, data)
    serving = parts.get("serving")
    building = parts.get("building")
    told: dict[str, Any] = {
        "view": view.name,
        "topic": view.topic.name,
        "key": list(view.key),
        "store": where_is(view, app.name, data),
        "state": state_of(parts),
        "why": building.reason if building else None,
        "log_topic": serving.topic if serving else None,
        "generation": serving.generation if serving and serving.generation else None,
        "batch": serving.batch if serving and serving.generation else None,
        "offsets": _places(serving.offsets) if serving else None,
        "delivery": _delivery(app, view),
        "reaches": _places(reaches(serving.sources)) if serving and serving.sources else None,
        "rows": _count(app, view, data) if serving else None,
        "dead": serving.dead if serving else None,
        "behind": _behind(session, app, view, serving) if serving else None,
    }
    told["columns"] = _columns(serving or building)
    return told


def _places(offsets: Mapping[int, int]) -> list[str]:
    return [f"{number}:{at}" for number, at in sorted(offsets.items())]


def _delivery(app: App, view: View) -> str | None:
    """How often a row is in the topic that the view follows, and here; None for one that no flow of the app writes."""
    from headrace.model.flow import DELIVERIES

    flow = app.writer_of(view.topic)
    if flow is None:
        return None
    return DELIVERIES[flow.latency] + (" in its topic, each row once here" if flow.is_realtime else "")


def _count(app: App, view: View, data: Path) -> int | None:
    import contextlib

    from headrace.views.opening import open_reader

    reader = open_reader(view, app.name, data)
    if reader is None:
        return None
    with contextlib.closing(reader):
        return reader.count(view.name)


def _columns(known: Known | None) -> list[dict[str, object]]:
    from headrace.model.schema_json import fields_to_json

    if known is None:
        return []
    return [
        {
            "column": one["name"],
            "kind": one["kind"] if isinstance(one["kind"], str) else next(iter(one["kind"])),
            "optional": one["optional"],
            "key": one["name"] in known.shape.key,
        }
        for one in fields_to_json(known.shape.fields)
    ]


def _behind(session: Session, app: App, view: View, serving: Known) -> int | None:
    """Offsets that are not in the view yet; None if that cannot be asked."""
    from headrace.cli.errors import BrokerUnreachable
    from headrace.cli.reach import check_reachable
    from headrace.cli.settings import cluster_of
    from headrace.client.errors import LogError, TopicMissing
    from headrace.client.progress_log import current

    try:
        check_reachable(session.bootstrap)
        cluster = cluster_of(session)
        if serving.generation:
            flow = next((one for one in app.flows if one.writes.name == view.topic.name), None)
            found = current(cluster, flow.progress_topic) if flow else None
            at = (found.generation.generation, found.last.batch) if found and found.last else None
            # In real time rows are in the topic before their batch is noted.
            is_noted_first = found is not None and found.generation.latency != "realtime"
            if is_noted_first and at == (serving.generation, serving.batch):
                return 0
        ends = cluster.ends(serving.topic)
    except TopicMissing:
        session.out.note(f"topic {serving.topic!r} is not in the log")
        return None
    except (BrokerUnreachable, LogError) as error:
        session.out.note(f"how far behind it is cannot be said: {error.message}")
        return None
    return sum(max(0, end - serving.offsets.get(number, 0)) for number, end in ends.items())
