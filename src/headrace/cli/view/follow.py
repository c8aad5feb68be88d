"""``headrace view follow``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.errors import UsageError
from headrace.cli.session import Session
from headrace.cli.verb import verb
from headrace.cli.view.options import AppName, Data, Views

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.app import App
    from headrace.model.view import View
    from headrace.runtime.followed import Followed
    from headrace.views.follower import Follower

__all__ = ["follow"]

_LINE_S = 5.0
_POLL_S = 0.05
_AGAIN_S = 10.0


@verb(
    "follow",
    examples="""
    headrace view follow examples.shop:app
    headrace view follow examples.shop:app revenue -b kafka:9092
    headrace view follow examples.shop:app --exit           stop when all of them are up to date
    headrace view follow examples.shop:app --group views    in several places: they share the views
    """,
)
def follow(
    session: Session,
    app: AppName,
    views: Views = None,
    data: Data = None,
    leave: Annotated[bool, typer.Option("--exit", help="Stop when the views are up to date.")] = False,
    group: Annotated[
        str | None,
        typer.Option("--group", "-g", metavar="NAME", help="Share the views with all who name this group."),
    ] = None,
) -> int:
    """Keep views up to date with the log, until interrupted.

    Whoever else follows one of them is replaced, and told so. Where no broker answers, it is waited for. Processes of
    one group share the views out among them, and take over what one of them leaves; their stores must be reachable
    from each.
    """
    from headrace.cli.stopping import Stopping
    from headrace.cli.view.options import checked_app, data_dir, views_of
    from headrace.runtime.followed import Followed

    if group is not None and (leave or views):
        raise UsageError(
            "--group goes with neither --exit nor names of views",
            hint="all processes of a group share all views, until they are interrupted",
        )
    loaded = checked_app(app)
    wanted = views_of(loaded, views)
    make = _maker(session, loaded, wanted, data_dir(session, data))
    followed = Followed(make)
    try:
        with Stopping() as stopping:
            if group is not None:
                _share(session, loaded, group, followed, lambda: stopping.asked)
            else:
                followed.begin(range(len(wanted)))
                _watch(session, followed, lambda: stopping.asked, leave=leave)
    finally:
        followed.end_all()
        session.out.table([_row(one) for one in followed.followers], empty="no views")
    if followed.failed:
        assert followed.failed[0].error is not None
        raise followed.failed[0].error
    return 0


def _maker(session: Session, app: App, views: Sequence[View], data: Path) -> Callable[[int], Follower]:
    from headrace.cli.settings import cluster_of
    from headrace.views.follower import Follower
    from headrace.views.opening import open_store

    cluster = cluster_of(session)

    def make(place: int) -> Follower:
        view = views[place]
        return Follower(
            view,
            app.flows,
            cluster,
            lambda: open_store(view, app.name, data),
            tell=session.out.note,
            max_rows=session.loaded.settings.views.max_rows,
        )

    return make


def _watch(session: Session, followed: Followed, asked: Callable[[], bool], *, leave: bool) -> None:
    """Until all have failed, or someone asks, or there is nothing left to do."""
    telling = _Telling(session, followed)
    while not asked() and followed.running:
        time.sleep(_POLL_S)
        telling.tell()
        if leave and all(one.status.state == "following" and not one.status.lag for one in followed.running):
            return


def _share(session: Session, app: App, group: str, followed: Followed, asked: Callable[[], bool]) -> None:
    from headrace.cli.reach import check_reachable
    from headrace.cli.settings import cluster_of
    from headrace.runtime.sharing import Sharing

    def begin(places: list[int]) -> None:
        followed.begin(places)
        _say("follows", places)

    def end(places: list[int]) -> None:
        followed.end(places)
        _say("gives up", places)

    def _say(what: str, places: list[int]) -> None:
        if places:
            session.out.note(f"{what} {', '.join(app.views[place].name for place in places)}")

    check_reachable(session.bootstrap)
    telling = _Telling(session, followed)
    looked = time.monotonic()
    with Sharing(cluster_of(session), app.name, group, len(app.views), begin, end) as sharing:
        while not asked():
            sharing.look(_POLL_S)
            telling.tell()
            if time.monotonic() - looked >= _AGAIN_S:
                looked = time.monotonic()
                followed.begin_replaced()
        followed.end_all()


class _Telling:
    """Lines for a person: what fails, once, and now and then how far each view is."""

    def __init__(self, session: Session, followed: Followed) -> None:
        self._session = session
        self._followed = followed
        self._told: set[int] = set()
        self._lined = time.monotonic()

    def tell(self) -> None:
        for part in self._followed.failed:
            if id(part.error) not in self._told:
                self._told.add(id(part.error))
                self._session.out.warn(f"{part.name} has stopped: {part.error}")
        if time.monotonic() - self._lined >= _LINE_S:
            self._lined = time.monotonic()
            for one in self._followed.running:
                self._session.out.note(_line(one))


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
