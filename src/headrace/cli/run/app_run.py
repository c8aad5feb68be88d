"""Runs an app with a display, and verifies its views at the end if requested."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headrace.app import App
from headrace.cli.app_loader import load_app, load_object
from headrace.cli.interrupt import Interrupt
from headrace.cli.run.display import Display, choose_display, run_query
from headrace.cli.session import Session
from headrace.errors import ConfigError, HeadraceError
from headrace.runtime.run import Run
from headrace.settings import SERVE_OFF

__all__ = ["RunOptions", "run_app"]

_CATCH_UP_TIMEOUT_S = 120.0
_CATCH_UP_POLL_S = 0.5
_CAUGHT_UP_POLLS = 3
_FEED_STOP_S = 10.0


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of the command line."""

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
    """The flows to run; empty for all."""
    with_views: bool = True
    verify_every: int | None = None
    metrics: str | None = None
    backup: Path | None = None
    serve: str | None = None
    pg_listen: str | None = None
    alert_exec: str | None = None


def run_app(session: Session, options: RunOptions) -> int:
    app = load_app(options.app)
    feed = load_object(options.feed) if options.feed else None
    settings = session.settings(
        data=options.data,
        listen=options.listen,
        master=options.master,
        verify_every=options.verify_every,
        metrics=options.metrics,
        backup=options.backup,
        serve=options.serve,
        pg_listen=options.pg_listen,
        alert_exec=options.alert_exec,
    )
    if options.pg_listen and settings.serve.listen == SERVE_OFF:
        raise ConfigError(
            "--pg-listen needs the HTTP server, which is off",
            hint="remove `--serve off` and `serve.listen`, or set an address",
        )
    display = choose_display(session, app)
    run = Run(
        app,
        settings,
        note=display.note,
        warn=display.warn,
        rebuild_changed=options.rebuild_changed,
        only=options.only,
        with_views=options.with_views,
        page=True,
        feed=options.feed or "",
    )
    try:
        with Interrupt() as interrupt:
            try:
                run.start()
                with display:
                    _show_until_stopped(run, app, display, options, feed, lambda: interrupt.requested)
                proven = _verify(run, display) if options.verify and not interrupt.requested else True
            finally:
                run.close()
    except (KeyboardInterrupt, SystemExit):
        # Ctrl-C is the usual way to end a run. Failures before Ctrl-C must still be reported.
        if _report_failures(run, display):
            return 1
        raise
    return 1 if _report_failures(run, display) or not proven else 0


def _report_failures(run: Run, display: Display) -> bool:
    for part in run.failed:
        display.note(f"{part.name} had stopped: {part.error}")
    for view in run.differing:
        display.warn(f"view {view} was NOT AS DERIVED; headrace verify MODULE:APP --last shows how")
    return bool(run.failed or run.differing)


def _show_until_stopped(
    run: Run,
    app: App,
    display: Display,
    options: RunOptions,
    feed: Callable[..., None] | None,
    stop_requested: Callable[[], bool],
) -> None:
    feed_stop = threading.Event()
    feeder = threading.Thread(target=feed, args=(run.cluster, feed_stop), daemon=True) if feed else None
    if feeder is not None:
        feeder.start()
    started_s = time.monotonic()
    try:
        while not stop_requested() and (
            options.seconds is None or time.monotonic() - started_s < options.seconds
        ):
            _show(run, app, display, options)
            time.sleep(display.every_s)
    finally:
        feed_stop.set()
        if feeder is not None:
            feeder.join(_FEED_STOP_S)
    if options.seconds is not None and not stop_requested():
        _wait_until_caught_up(run, stop_requested)
        _show(run, app, display, options)


def _show(run: Run, app: App, display: Display, options: RunOptions) -> None:
    run.check_parts()
    database = run.settings.data / f"{app.name}.db"
    display.show(run.summarize(), [run_query(database, sql) for sql in options.watch])


def _wait_until_caught_up(run: Run, stop_requested: Callable[[], bool]) -> None:
    """Wait until flows and views have processed all records, so that the verification covers all records."""
    deadline = time.monotonic() + _CATCH_UP_TIMEOUT_S
    polls_without_lag = 0
    while polls_without_lag < _CAUGHT_UP_POLLS and not stop_requested() and time.monotonic() < deadline:
        summary = run.summarize()
        lag = sum(flow.lag for flow in summary.flows) + sum(view.lag for view in summary.views)
        polls_without_lag = polls_without_lag + 1 if lag == 0 else 0
        run.check_parts()
        time.sleep(_CATCH_UP_POLL_S)


def _verify(run: Run, display: Display) -> bool:
    from headrace.ops.verify.verifier import verify_view

    proven = True
    for view in run.app.views:
        try:
            report = verify_view(
                run.spark, run.cluster, run.app, view, run.settings, run.compiled, run.schemas
            )
        except HeadraceError as error:
            display.note(f"view {view.name} could not be verified: {error}")
            proven = False
            continue
        display.note(report.line())
        proven = proven and report.proven
    return proven
