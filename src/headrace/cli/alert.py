"""``headrace alert``: list an app's alerts and rules, and watch for new alerts."""

from __future__ import annotations

import contextlib
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.options import AlertExec, AppName, Data
from headrace.cli.session import Session
from headrace.cli.verb import CommandGroup, command_group, verb

if TYPE_CHECKING:
    from headrace.ops.alerts.alert_log import AlertRecord
    from headrace.ops.alerts.watch import AlertWatch

__all__ = ["command"]

_TIMEOUT_S = 10.0
_CLOSE_S = 5.0


@verb(
    "list",
    examples="""
    headrace alert list examples.shop:app
    headrace alert list examples.shop:app --history
    headrace alert list examples.shop:app --json | jq .text
    """,
)
def list_alerts(
    session: Session,
    app: AppName,
    history: Annotated[bool, typer.Option("--history", help="Include alerts that have ended.")] = False,
    number: Annotated[
        int,
        typer.Option(
            "--number",
            "-n",
            metavar="N",
            min=1,
            help="With --history: maximum number of alerts.",
        ),
    ] = 100,
) -> None:
    """List the alerts of an app that fire now, or the history of alerts.

    The alerts come from the topic APP.alerts, whichever process watches the app. An ended alert remains in the topic
    for a week.
    """
    from headrace.cli.app_loader import load_checked_app
    from headrace.ops.alerts.alert_log import history as read_history
    from headrace.ops.alerts.alert_log import last_records

    name = load_checked_app(app).name
    cluster = session.cluster()
    if history:
        rows = [_row(session, record) for record in read_history(cluster, name, number)]
        session.out.table(rows, empty=f"no alert of app {name} has fired")
        return
    last = last_records(cluster, name)
    firing = sorted(
        (record for record in last.values() if record.state == "firing"), key=lambda record: record.since_ms
    )
    session.out.table([_row(session, record) for record in firing], empty=f"no alert of app {name} is firing")


def _row(session: Session, record: AlertRecord) -> dict[str, Any]:
    if session.out.as_json:
        return record.row()
    return {
        "at": _time(record.at_ms),
        "state": record.state,
        "alert": record.alert,
        "since": _time(record.since_ms),
        "what": record.text,
        "rule": record.when,
    }


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms // 1_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@verb(
    "rules",
    examples="""
    headrace alert rules examples.shop:app
    headrace alert rules examples.shop:app --settings production.toml --json
    """,
)
def rules(session: Session, app: AppName) -> None:
    """List the active rules of the app and of the settings, and the built-in rules."""
    from headrace.cli.app_loader import load_checked_app
    from headrace.ops.alerts.rules import DEFAULTS, rules_of

    loaded, settings = load_checked_app(app), session.loaded.settings.alerts
    declared = {alert.name for alert in loaded.alerts}
    rows = []
    for name, rule in rules_of(loaded, settings).items():
        origin = "app" if name in declared else "default" if name in DEFAULTS else "settings"
        rows.append(
            {"alert": name, "rule": rule.text, "origin": "settings" if name in settings.rules else origin}
        )
    session.out.table(rows, empty="no active rules")


@verb(
    "watch",
    examples="""
    headrace alert watch examples.shop:app -b kafka:9092
    headrace alert watch examples.shop:app --every 10
    headrace alert watch examples.shop:app --once            for a scheduler such as cron
    headrace alert watch examples.shop:app --alert-exec "notify-send 'shop'"
    """,
)
def watch(
    session: Session,
    app: AppName,
    data: Data = None,
    every: Annotated[
        float | None,
        typer.Option(
            "--every",
            metavar="SECONDS",
            min=0.1,
            help="Seconds between two checks (default: the setting alerts.every_s).",
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Check once, then exit.")] = False,
    alert_exec: AlertExec = None,
) -> int:
    """Watch an app that runs elsewhere, as headrace run watches its own app.

    Only one process at a time watches an app: the process that started last. Views are included if this machine can
    read their stores.
    """
    from headrace.cli.app_loader import load_checked_app
    from headrace.cli.app_state import lag_monitor
    from headrace.ops.alerts.command import AlertCommand, parse_command
    from headrace.ops.alerts.rules import rules_of
    from headrace.ops.alerts.watch import AlertWatch

    settings = session.settings(alert_exec=alert_exec).alerts
    loaded = load_checked_app(app)
    active = rules_of(loaded, settings)
    cluster = session.cluster_of(loaded)
    every_s = every or settings.every_s or 5.0
    with contextlib.ExitStack() as stack:
        monitor = stack.enter_context(
            contextlib.closing(lag_monitor(cluster, loaded, session.data_dir(data), _TIMEOUT_S))
        )
        command = None
        if settings.exec is not None:
            command = AlertCommand(parse_command(settings.exec), settings.exec_timeout_s, session.out.warn)
            # With --once, wait for the commands as long as they may take.
            stack.callback(command.close, settings.exec_timeout_s if once else _CLOSE_S)
        watcher = AlertWatch(
            cluster, monitor, active, every_s, note=session.out.note, warn=session.out.warn, command=command
        )
        if once:
            watcher.evaluate_once()
        else:
            _watch_until_interrupted(watcher)
    return 0


def _watch_until_interrupted(watcher: AlertWatch) -> None:
    from headrace.cli.interrupt import Interrupt
    from headrace.runtime.part import Part

    stop = threading.Event()
    part = Part("alerts", watcher.run, stop)
    part.start()
    try:
        with Interrupt() as interrupt:
            while not interrupt.requested and part.is_running:
                part.join(0.1)
    finally:
        stop.set()
        part.join(60.0)
    if part.error is not None:
        raise part.error


def command() -> CommandGroup:
    return command_group(
        "alert", "List an app's alerts, and watch for new alerts.", [list_alerts, rules, watch]
    )
