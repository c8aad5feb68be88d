"""``headrace view follow``."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.session import Session
from headrace.cli.verb import verb
from headrace.cli.view.options import AppName, Data, Views

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.app import App
    from headrace.model.view import View
    from headrace.runtime.part import Part
    from headrace.views.follower import Follower

__all__ = ["follow"]

_STOP_S = 60.0
_LINE_S = 5.0
_POLL_S = 0.05


@verb(
    "follow",
    examples="""
    headrace view follow examples.shop:app
    headrace view follow examples.shop:app revenue -b kafka:9092
    headrace view follow examples.shop:app --exit           stop when all of them are up to date
    """,
)
def follow(
    session: Session,
    app: AppName,
    views: Views = None,
    data: Data = None,
    leave: Annotated[bool, typer.Option("--exit", help="Stop when the views are up to date.")] = False,
) -> int:
    """Keep views up to date with the log, until interrupted.

    Whoever else follows one of them is replaced, and told so. Where no broker answers, it is waited for.
    """
    from headrace.cli.stopping import Stopping
    from headrace.cli.view.options import checked_app, data_dir, views_of

    loaded = checked_app(app)
    stop = threading.Event()
    followers = _followers(session, loaded, views_of(loaded, views), data_dir(session, data))
    parts = _started(followers, stop)
    try:
        with Stopping() as stopping:
            _watch(session, followers, parts, lambda: stopping.asked, leave=leave)
    finally:
        stop.set()
        for part in parts:
            part.join(_STOP_S)
        session.out.table([_row(one) for one in followers])
    failed = [part for part in parts if part.error is not None]
    if failed:
        assert failed[0].error is not None
        raise failed[0].error
    return 0


def _followers(session: Session, app: App, views: Sequence[View], data: Path) -> list[Follower]:
    from headrace.cli.settings import cluster_of
    from headrace.views.follower import Follower
    from headrace.views.opening import open_store

    cluster = cluster_of(session)
    return [
        Follower(
            view,
            app.flows,
            cluster,
            lambda view=view: open_store(view, app.name, data),  # type: ignore[misc]
            tell=session.out.note,
            max_rows=session.loaded.settings.views.max_rows,
        )
        for view in views
    ]


def _started(followers: Sequence[Follower], stop: threading.Event) -> list[Part]:
    from headrace.runtime.part import Part

    parts = [Part(f"view {one.view.name}", one.run, stop) for one in followers]
    for part in parts:
        part.start()
    return parts


def _watch(
    session: Session,
    followers: Sequence[Follower],
    parts: Sequence[Part],
    asked: Callable[[], bool],
    *,
    leave: bool,
) -> None:
    """Until all have failed, or someone asks, or there is nothing left to do."""
    told: set[str] = set()
    lined = time.monotonic()
    while not asked() and any(part.is_running for part in parts):
        time.sleep(_POLL_S)
        for part in parts:
            if part.error is not None and part.name not in told:
                told.add(part.name)
                session.out.warn(f"{part.name} has stopped: {part.error}")
        running = [one for one, part in zip(followers, parts, strict=True) if part.is_running]
        if leave and all(one.status.state == "following" and not one.status.lag for one in running):
            return
        if time.monotonic() - lined >= _LINE_S:
            lined = time.monotonic()
            for one in running:
                session.out.note(_line(one))


def _row(follower: Follower) -> dict[str, object]:
    status = follower.status
    position = status.position
    return {
        "view": status.view,
        "generation": position.generation if position and position.generation else None,
        "batch": position.batch if position and position.generation else None,
        "applied": status.applied,
        "dead": status.dead,
        "lag": status.lag,
    }


def _line(follower: Follower) -> str:
    status = follower.status
    why = f" ({status.reason})" if status.reason else ""
    return f"{status.view}: {status.state}{why}, {status.applied} applied, {status.lag} behind, {status.dead} dead"
