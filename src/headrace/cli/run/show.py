"""An app from its start to its last proof, with a display all the while."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headrace.app import App
from headrace.cli.app_loading import load_app, load_object
from headrace.cli.run.display import Display, choose_display
from headrace.cli.run.watching import Watched, watched
from headrace.cli.session import Session
from headrace.cli.settings import settings_for
from headrace.cli.stopping import Stopping
from headrace.errors import ConfigError, HeadraceError
from headrace.runtime.run import Run
from headrace.settings.page_place import NOT_SERVED

__all__ = ["Asked", "run_app"]

_SETTLE_S = 120.0


@dataclass(frozen=True, slots=True)
class Asked:
    """The command line."""

    app: str
    data: Path | None = None
    listen: str | None = None
    master: str | None = None
    seconds: float | None = None
    verify: bool = False
    feed: str | None = None
    watch: tuple[str, ...] = ()
    rebuild_changed: bool = False
    only: tuple[str, ...] = ()
    """The flows to run, where not all of them."""
    with_views: bool = True
    verify_every: int | None = None
    metrics: str | None = None
    backup: Path | None = None
    serve: str | None = None
    pg_listen: str | None = None


def run_app(session: Session, asked: Asked) -> int:
    app = load_app(asked.app)
    feed = load_object(asked.feed) if asked.feed else None
    settings = settings_for(
        session,
        data=asked.data,
        listen=asked.listen,
        master=asked.master,
        verify_every=asked.verify_every,
        metrics=asked.metrics,
        backup=asked.backup,
        serve=asked.serve,
        pg_listen=asked.pg_listen,
    )
    if asked.pg_listen and settings.serve.listen == NOT_SERVED:
        raise ConfigError(
            "--pg-listen is answered by the server, and that is off",
            hint="leave --serve off and serve.listen away, or name an address there",
        )
    display = choose_display(session, app)
    run = Run(
        app,
        settings,
        tell=display.tell,
        warn=display.warn,
        rebuild_changed=asked.rebuild_changed,
        only=asked.only,
        with_views=asked.with_views,
        page=True,
        feed=asked.feed or "",
    )
    try:
        with Stopping() as stopping:
            try:
                run.start()
                with display:
                    _keep_showing(run, app, display, asked, feed, lambda: stopping.asked)
                proven = _prove(run, display) if asked.verify and not stopping.asked else True
            finally:
                run.close()
    except (KeyboardInterrupt, SystemExit):
        # Ctrl-C is how it usually ends; what went wrong before must not be lost over it.
        if _troubles(run, display):
            return 1
        raise
    return 1 if _troubles(run, display) or not proven else 0


def _troubles(run: Run, display: Display) -> bool:
    for part in run.failed:
        display.tell(f"{part.name} had stopped: {part.error}")
    for view in run.differing:
        display.warn(f"view {view} was NOT AS DERIVED; headrace verify MODULE:APP --last shows how")
    return bool(run.failed or run.differing)


def _keep_showing(
    run: Run,
    app: App,
    display: Display,
    asked: Asked,
    feed: Callable[..., None] | None,
    asked_to_stop: Callable[[], bool],
) -> None:
    fed = threading.Event()
    feeder = threading.Thread(target=feed, args=(run.cluster, fed), daemon=True) if feed else None
    if feeder is not None:
        feeder.start()
    began = time.monotonic()
    try:
        while not asked_to_stop() and (asked.seconds is None or time.monotonic() - began < asked.seconds):
            _show(run, app, display, asked)
            time.sleep(display.every_s)
    finally:
        fed.set()
        if feeder is not None:
            feeder.join(10.0)
    if asked.seconds is not None and not asked_to_stop():
        _settle(run, app, display, asked, asked_to_stop)


def _show(run: Run, app: App, display: Display, asked: Asked) -> None:
    run.check_parts()
    display.show(run.look(), [_watched(run, app, sql) for sql in asked.watch])


def _watched(run: Run, app: App, sql: str) -> Watched:
    return watched(run.settings.data / f"{app.name}.db", sql)


def _settle(run: Run, app: App, display: Display, asked: Asked, asked_to_stop: Callable[[], bool]) -> None:
    """What was written is derived and followed before it ends, so that a proof covers all of it."""
    deadline = time.monotonic() + _SETTLE_S
    quiet = 0
    while quiet < 3 and not asked_to_stop() and time.monotonic() < deadline:
        look = run.look()
        behind = sum(one.lag for one in look.flows) + sum(one.lag for one in look.views)
        quiet = quiet + 1 if behind == 0 else 0
        run.check_parts()
        time.sleep(0.5)
    _show(run, app, display, asked)


def _prove(run: Run, display: Display) -> bool:
    from headrace.ops.verify import verify_view

    proven = True
    for view in run.app.views:
        try:
            report = verify_view(
                run.spark, run.cluster, run.app, view, run.settings, run.compiled, run.schemas
            )
        except HeadraceError as error:
            display.tell(f"view {view.name} could not be verified: {error}")
            proven = False
            continue
        display.tell(report.line())
        proven = proven and report.proven
    return proven
