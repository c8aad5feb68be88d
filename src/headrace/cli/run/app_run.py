"""Runs an app with a display, and verifies its views at the end if requested."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.cli.app_loader import load_app, load_object
from headrace.cli.interrupt import Interrupt
from headrace.cli.reach import check_reachable
from headrace.cli.run.display import Display, choose_display
from headrace.cli.session import Session
from headrace.cli.sql import SqlRunner, Watch, app_sources
from headrace.errors import ConfigError, HeadraceError
from headrace.runtime.run import Run
from headrace.service_manager import ServiceManager
from headrace.settings import SERVE_OFF

__all__ = ["RunOptions", "run_app"]

_CATCH_UP_TIMEOUT_S = 120.0
_CATCH_UP_POLL_S = 0.5
_START_POLL_S = 0.2
_CAUGHT_UP_POLLS = 3
_FEED_STOP_S = 10.0
_FEED_QUICK_STOP_S = 0.5


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
    changed_only: bool = False
    """Whether to run only flows that need a new generation, until another process takes them over."""
    embedded: bool = True
    """Whether to start the embedded broker if no setting has the addresses of brokers."""
    verify_every: int | None = None
    metrics: str | None = None
    backup: Path | None = None
    serve: str | None = None
    pg_listen: str | None = None
    alert_exec: str | None = None


def run_app(session: Session, options: RunOptions) -> int:
    manager = ServiceManager.from_environment()
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
    if not options.embedded and settings.log.bootstrap_servers is None:
        check_reachable(session.bootstrap)
        log = dataclasses.replace(settings.log, bootstrap_servers=session.bootstrap)
        settings = dataclasses.replace(settings, log=log)
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
        changed_only=options.changed_only,
    )
    proven = True
    try:
        with Interrupt(kill=run.kill) as interrupt, _watchdog(run, manager):
            try:
                manager.starting("starting the log, Spark and the flows")
                with interrupt.raising():
                    run.start()
                with display, contextlib.closing(_watch(run, options)) as watch:
                    _show_until_stopped(run, display, watch, options, feed, manager, interrupt)
                if options.verify and not interrupt.requested:
                    with interrupt.raising():
                        proven = _verify(run, display)
            finally:
                manager.stopping()
                run.close(quickly=interrupt.is_ctrl_c)
    except (KeyboardInterrupt, SystemExit):
        # Ctrl-C is the usual way to end a run. Failures before Ctrl-C must still be reported.
        if _report_failures(run, display, options):
            return 1
        raise
    return 1 if _report_failures(run, display, options) or not proven else 0


def _report_failures(run: Run, display: Display, options: RunOptions) -> bool:
    for part in run.failed:
        display.note(f"{part.name} had stopped: {part.error}")
    for view in run.differing:
        display.warn(f"view {view} was NOT AS DERIVED; headrace verify {options.app} --last shows how")
    return bool(run.failed or run.differing)


def _watch(run: Run, options: RunOptions) -> Watch:
    sources = app_sources(run.app, run.settings.data, lambda name: name)
    return Watch(lambda: SqlRunner(sources, run.settings.serve), options.watch)


def _show_until_stopped(
    run: Run,
    display: Display,
    watch: Watch,
    options: RunOptions,
    feed: Callable[..., None] | None,
    manager: ServiceManager,
    interrupt: Interrupt,
) -> None:
    feed_stop = threading.Event()
    feeder = threading.Thread(target=feed, args=(run.cluster, feed_stop), daemon=True) if feed else None
    if feeder is not None:
        feeder.start()
    started_s = time.monotonic()
    try:
        while not (interrupt.requested or run.is_taken_over) and (
            options.seconds is None or time.monotonic() - started_s < options.seconds
        ):
            # A query or a request to the log can take long.
            with interrupt.raising():
                _show(run, display, watch)
            _pause(run, manager, interrupt, display.every_s)
    finally:
        feed_stop.set()
        if interrupt.is_ctrl_c:
            run.announce_stop()
        if feeder is not None:
            feeder.join(_FEED_QUICK_STOP_S if interrupt.is_ctrl_c else _FEED_STOP_S)
    if options.seconds is not None and not interrupt.requested:
        _wait_until_caught_up(run, interrupt)
        watch.refresh()
        _show(run, display, watch)


def _show(run: Run, display: Display, watch: Watch) -> None:
    run.check_parts()
    display.show(run.summarize(), watch.rows())


def _pause(run: Run, manager: ServiceManager, interrupt: Interrupt, seconds: float) -> None:
    """Wait until the next display, or until the user interrupts the run. While the app starts, report to systemd what
    the start waits for.
    """
    end_s = time.monotonic() + seconds
    while not interrupt.requested and (left_s := end_s - time.monotonic()) > 0:
        if manager.is_listening and not manager.is_ready:
            _report_start(run, manager)
            left_s = min(left_s, _START_POLL_S)
        interrupt.wait(left_s)


def _report_start(run: Run, manager: ServiceManager) -> None:
    starting = run.starting_parts()
    if starting:
        manager.starting(f"starting {', '.join(starting)}")
    else:
        manager.ready("; ".join(f"{part.name} has stopped" for part in run.failed))


@contextlib.contextmanager
def _watchdog(run: Run, manager: ServiceManager) -> Iterator[None]:
    """Report to systemd that the process is alive, unless its server hangs. A failed part is no reason to restart the
    process, because the other parts would stop too. Not in the main thread, which can wait long for an unreachable log.
    """
    stopping = threading.Event()

    def report() -> None:
        while not stopping.wait(manager.watchdog_s):
            if run.server is None or run.server.responds():
                manager.alive()

    thread = threading.Thread(target=report, name="watchdog", daemon=True)
    if manager.watchdog_s is not None:
        thread.start()
    try:
        yield
    finally:
        stopping.set()


def _wait_until_caught_up(run: Run, interrupt: Interrupt) -> None:
    """Wait until flows and views have processed all records, so that the verification covers all records."""
    deadline = time.monotonic() + _CATCH_UP_TIMEOUT_S
    polls_without_lag = 0
    while polls_without_lag < _CAUGHT_UP_POLLS and not interrupt.requested and time.monotonic() < deadline:
        summary = run.summarize()
        lag = sum(flow.lag for flow in summary.flows) + sum(view.lag for view in summary.views)
        polls_without_lag = polls_without_lag + 1 if lag == 0 else 0
        run.check_parts()
        interrupt.wait(_CATCH_UP_POLL_S)


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
        for line in report.short_lines():
            display.note(line)
        proven = proven and report.proven
    return proven
