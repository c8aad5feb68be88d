"""``headrace view follow``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.errors import UsageError
from headrace.cli.options import AppName, Data, Views
from headrace.cli.session import Session
from headrace.cli.verb import verb
from headrace.service_manager import ServiceManager

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.app import App
    from headrace.errors import HeadraceError
    from headrace.follow.follower import Follower
    from headrace.model.declarations import View
    from headrace.runtime.followers import Followers

__all__ = ["follow"]

_LINE_S = 5.0
_POLL_S = 0.05
_RESTART_S = 10.0


@verb(
    "follow",
    examples="""
    headrace view follow examples.shop:app
    headrace view follow examples.shop:app revenue -b kafka:9092
    headrace view follow examples.shop:app --exit           stop when all views are up to date
    headrace view follow examples.shop:app --group views    several processes share the views
    """,
)
def follow(
    session: Session,
    app: AppName,
    views: Views = None,
    data: Data = None,
    exit_: Annotated[
        bool, typer.Option("--exit", help="Stop when the views are up to date (default: run until Ctrl-C).")
    ] = False,
    group: Annotated[
        str | None,
        typer.Option(
            "--group", "-g", metavar="NAME", help="Share the views with all processes of this group."
        ),
    ] = None,
) -> int:
    """Keep views up to date with the log, until interrupted.

    It replaces another follower of the same view, which stops with an error. If no broker responds, the command waits
    for a broker. If records of the log do not fit the schema of a view's topic, the command changes nothing, and
    fails. Processes of one group share the views, and take over the views of a process that ends. Each process
    of a group must be able to connect to the stores.
    """
    from headrace.cli.app_loader import load_checked_app, views_of
    from headrace.cli.interrupt import Interrupt
    from headrace.cli.reach import check_reachable
    from headrace.cli.view.history import wait_for_history
    from headrace.runtime.followers import Followers
    from headrace.runtime.generation_notices import noting_generations

    if group is not None and (exit_ or views):
        raise UsageError(
            "--group cannot be combined with --exit or names of views",
            hint="the processes of a group share all views, until they are interrupted",
        )
    loaded = load_checked_app(app)
    wanted = views_of(loaded, views)
    if group is not None:
        check_reachable(session.bootstrap)
    with Interrupt() as interrupt:
        if not wait_for_history(session, loaded, wanted, lambda: interrupt.requested):
            return 0
    followers = Followers(_follower_factory(session, loaded, wanted, session.data_dir(data)))
    try:
        with (
            Interrupt() as interrupt,
            noting_generations(session.cluster(check=False), loaded, session.out.note),
        ):
            if group is not None:
                _share(session, loaded, group, followers, lambda: interrupt.requested)
            else:
                followers.start(range(len(wanted)))
                _follow_all(session, followers, lambda: interrupt.requested, stop_at_end=exit_)
    finally:
        followers.stop_all()
        session.out.table([_row(follower) for follower in followers.all], empty="no views")
    if followers.failed:
        assert followers.failed[0].error is not None
        raise followers.failed[0].error
    return 0


def _follower_factory(
    session: Session, app: App, views: Sequence[View], data: Path
) -> Callable[[int], Follower]:
    from headrace.follow.follower import Follower
    from headrace.stores.registry import open_writer

    cluster = session.cluster(check=False)

    def create(index: int) -> Follower:
        view = views[index]
        return Follower(
            view,
            app.flows,
            cluster,
            lambda: open_writer(view, app.name, data),
            print_line=session.out.note,
            max_rows=session.loaded.settings.views.max_rows,
        )

    return create


def _follow_all(
    session: Session, followers: Followers, stop_requested: Callable[[], bool], *, stop_at_end: bool
) -> None:
    """Return when all followers have failed or a stop is requested. With ``stop_at_end``, also return when all views
    are up to date.
    """
    reporter = _Reporter(session, followers)
    while not stop_requested() and followers.running:
        time.sleep(_POLL_S)
        reporter.report()
        if stop_at_end and all(
            follower.status.state == "following" and not follower.status.lag for follower in followers.running
        ):
            return


def _share(
    session: Session, app: App, group: str, followers: Followers, stop_requested: Callable[[], bool]
) -> None:
    from headrace.runtime.followers import SharedViews

    def start(indexes: list[int]) -> None:
        followers.start(indexes)
        note("following", indexes)

    def stop(indexes: list[int]) -> None:
        followers.stop(indexes)
        note("no longer following", indexes)

    def note(verb: str, indexes: list[int]) -> None:
        if indexes:
            session.out.note(f"{verb} {', '.join(app.views[index].name for index in indexes)}")

    reporter = _Reporter(session, followers)
    restarted = time.monotonic()
    with SharedViews(session.cluster_of(app), app.name, group, len(app.views), start, stop) as shared:
        while not stop_requested():
            shared.poll(_POLL_S)
            reporter.report()
            if time.monotonic() - restarted >= _RESTART_S:
                restarted = time.monotonic()
                followers.restart_replaced()
        followers.stop_all()


class _Reporter:
    """Prints each failure once, and a line per view every five seconds. Reports to systemd when every view is built."""

    def __init__(self, session: Session, followers: Followers) -> None:
        self._session = session
        self._followers = followers
        self._reported: list[HeadraceError] = []
        self._printed = time.monotonic()
        self._manager = ServiceManager.from_environment()

    def report(self) -> None:
        building = [
            follower.view.name for follower in self._followers.running if follower.status.state != "following"
        ]
        if building:
            self._manager.starting(f"building {', '.join(building)}")
        else:
            self._manager.ready()
        self._manager.alive()
        for part in self._followers.failed:
            if part.error is not None and not any(error is part.error for error in self._reported):
                self._reported.append(part.error)
                self._session.out.warn(f"{part.name} has stopped: {part.error}")
        if time.monotonic() - self._printed >= _LINE_S:
            self._printed = time.monotonic()
            for follower in self._followers.running:
                self._session.out.note(_line(follower))


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
    reason = f" ({status.reason})" if status.reason else ""
    return f"{status.view}: {status.state}{reason}, {status.applied} applied, {status.lag} behind, {status.dead} dead"
