"""``headrace view list`` and ``describe``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli.options import AppName, Data, Views
from headrace.cli.session import Session
from headrace.cli.verb import verb

if TYPE_CHECKING:
    from headrace.app import App
    from headrace.model.declarations import View
    from headrace.stores.position import Position, ViewState

__all__ = ["describe", "list_views"]


@verb(
    "list",
    examples="""
    headrace view list examples.shop:app
    headrace view list examples.shop:app --json
    """,
    shared=("as_json", "quiet", "verbose"),
)
def list_views(session: Session, app: AppName, data: Data = None) -> None:
    """List an app's views, their topics, and the state in their stores.

    It needs no broker. To see how far behind the log a view is, use describe. If a store does not respond, the command
    prints a note.
    """
    from headrace.cli.app_loader import load_checked_app
    from headrace.cli.app_state import state_of, view_states
    from headrace.model.store import describe_location
    from headrace.stores.errors import StoreError

    loaded, folder = load_checked_app(app), session.data_dir(data)
    rows = []
    for view in loaded.views:
        try:
            parts, state = view_states(loaded, view, folder), ""
        except StoreError as error:
            session.out.note(f"view {view.name}: {error.message}")
            parts, state = {}, "unknown"
        position = parts["serving"].position if "serving" in parts else None
        rows.append(
            {
                "view": view.name,
                "topic": view.topic.name,
                "key": list(view.key),
                "state": state or state_of(parts),
                "generation": position.generation if position and position.generation else None,
                "batch": position.batch if position and position.generation else None,
                "dead": position.dead if position else None,
                "store": describe_location(view, loaded.name, folder),
            }
        )
    for view in loaded.computed:
        rows.append(
            {
                "view": view.name,
                "topic": view.topic.name,
                "key": list(view.key),
                "state": "on read",
                "generation": None,
                "batch": None,
                "dead": None,
                "store": describe_location(view, loaded.name, folder),
            }
        )
    session.out.table(rows, empty="the app has no views")


@verb(
    "describe",
    examples="""
    headrace view describe examples.shop:app
    headrace view describe examples.shop:app revenue --json
    """,
)
def describe(session: Session, app: AppName, views: Views = None, data: Data = None) -> None:
    """Describe views: columns, rows, position, and how far behind the log they are.

    Without a broker, the field behind is empty. The field reaches has a value only if a real-time flow writes the
    topic: an offset for each partition of the flow's input. The view contains the rows of all input before these
    offsets.
    """
    from headrace.cli.app_loader import load_checked_app, views_of

    loaded, folder = load_checked_app(app), session.data_dir(data)
    for index, view in enumerate(views_of(loaded, views)):
        description = _description(session, loaded, view, folder)
        if session.out.as_json:
            session.out.json_line(description)
            continue
        if index:
            session.out.text("")
        columns = description.pop("columns")
        for name, value in description.items():
            printed = ", ".join(map(str, value)) if isinstance(value, list) else value
            session.out.text(f"{name:<12}{'-' if printed is None else printed}")
        if columns:
            session.out.text("")
            session.out.table(columns)
    session.out.flush()


def _description(session: Session, app: App, view: View, data: Path) -> dict[str, Any]:
    from headrace.cli.app_state import state_of, view_states
    from headrace.model.progress import source_ends
    from headrace.model.store import describe_location

    parts = view_states(app, view, data)
    serving = parts.get("serving")
    building = parts.get("building")
    position = serving.position if serving else None
    description: dict[str, Any] = {
        "view": view.name,
        "topic": view.topic.name,
        "key": list(view.key),
        "store": describe_location(view, app.name, data),
        "state": state_of(parts),
        "why": building.reason if building else None,
        "log_topic": position.topic if position else None,
        "generation": position.generation if position and position.generation else None,
        "batch": position.batch if position and position.generation else None,
        "offsets": _offsets(position.offsets) if position else None,
        "delivery": _delivery(app, view),
        "reaches": _offsets(source_ends(position.sources)) if position and position.sources else None,
        "rows": _count(app, view, data) if serving else None,
        "dead": position.dead if position else None,
        "behind": _behind(session, app, view, position) if position else None,
    }
    description["columns"] = _columns(serving or building)
    return description


def _offsets(offsets: Mapping[int, int]) -> list[str]:
    return [f"{number}:{at}" for number, at in sorted(offsets.items())]


def _delivery(app: App, view: View) -> str | None:
    """Return the delivery guarantee of the view and its topic; None if no flow of the app writes the topic."""
    from headrace.model.declarations import DELIVERIES

    flow = app.writer_of(view.topic)
    if flow is None:
        return None
    return DELIVERIES[flow.latency] + (" in its topic, each row once in the view" if flow.is_realtime else "")


def _count(app: App, view: View, data: Path) -> int | None:
    import contextlib

    from headrace.stores.registry import open_reader

    reader = open_reader(view, app.name, data)
    if reader is None:
        return None
    with contextlib.closing(reader):
        return reader.count(view.name)


def _columns(state: ViewState | None) -> list[dict[str, object]]:
    from headrace.model.schema import fields_to_json

    if state is None:
        return []
    return [
        {
            "column": column["name"],
            "kind": column["kind"] if isinstance(column["kind"], str) else next(iter(column["kind"])),
            "optional": column["optional"],
            "key": column["name"] in state.schema.key,
        }
        for column in fields_to_json(state.schema.fields)
    ]


def _behind(session: Session, app: App, view: View, serving: Position) -> int | None:
    """Count the offsets that the view has not applied yet; None if the log does not respond."""
    from headrace.cli.errors import BrokerUnreachable
    from headrace.client.errors import LogError, MissingTopic
    from headrace.client.generations import progress_of

    try:
        cluster = session.cluster_of(app)
        if serving.generation:
            flow = next((flow for flow in app.flows if flow.writes.name == view.topic.name), None)
            progress = progress_of(cluster, flow, serving.generation) if flow else None
            last = (
                (progress.generation.generation, progress.last.batch) if progress and progress.last else None
            )
            # A real-time flow writes rows before the progress record of their batch.
            is_batch = progress is not None and progress.generation.latency != "realtime"
            if is_batch and last == (serving.generation, serving.batch):
                return 0
        ends = cluster.ends(serving.topic)
    except MissingTopic:
        session.out.note(f"topic {serving.topic!r} does not exist in the log")
        return None
    except (BrokerUnreachable, LogError) as error:
        session.out.note(f"cannot measure how far behind the view is: {error.message}")
        return None
    return sum(max(0, end - serving.offsets.get(number, 0)) for number, end in ends.items())
