"""``headrace alert list``."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.session import Session
from headrace.cli.verb import verb
from headrace.cli.view.options import AppName

if TYPE_CHECKING:
    from headrace.ops.alerts.record import AlertRecord

__all__ = ["list_alerts"]


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
    history: Annotated[bool, typer.Option("--history", help="Also what is over.")] = False,
    number: Annotated[
        int, typer.Option("--number", "-n", metavar="N", min=1, help="How many of the history, at most.")
    ] = 100,
) -> None:
    """List the alerts of an app that fire now, or what has fired and when it was over.

    It reads the topic APP.alerts, whoever watches. What is over stays there for a week.
    """
    from headrace.cli.reach import check_reachable
    from headrace.cli.settings import cluster_of
    from headrace.cli.view.options import checked_app
    from headrace.ops.alerts.alert_log import history as all_of
    from headrace.ops.alerts.alert_log import last_records

    name = checked_app(app).name
    check_reachable(session.bootstrap)
    cluster = cluster_of(session)
    if history:
        rows = [_row(session, one) for one in all_of(cluster, name, number)]
        session.out.table(rows, empty=f"no alert of app {name} has fired")
        return
    last = last_records(cluster, name)
    firing = sorted((one for one in last.values() if one.state == "firing"), key=lambda one: one.since_ms)
    session.out.table([_row(session, one) for one in firing], empty=f"no alert of app {name} fires")


def _row(session: Session, one: AlertRecord) -> dict[str, Any]:
    if session.out.as_json:
        return one.row()
    return {
        "at": _time(one.at_ms),
        "state": one.state,
        "alert": one.alert,
        "since": _time(one.since_ms),
        "what": one.text,
        "rule": one.when,
    }


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms // 1_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
