"""``headrace lag``: show the lag of consumer groups, or of an app's flows, views and groups."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.errors import GroupUnknown, LagAbove, UsageError
from headrace.cli.options import Data, complete_groups
from headrace.cli.output import columns
from headrace.cli.session import Session
from headrace.cli.verb import Command, build, verb
from headrace.clock import SystemClock

if TYPE_CHECKING:
    from headrace.cli.group_lag import GroupLag

__all__ = ["command", "lag"]

NO_OFFSETS = "no group has committed an offset"


@verb(
    "lag",
    examples="""
    headrace lag
    headrace lag billing shipping
    headrace lag --watch
    headrace lag billing --fail-above 10000 --quiet || alert
    headrace lag --json | jq 'select(.lag > 0)'
    headrace lag --app examples.shop:app --watch
    """,
    reference=[
        (
            "Columns",
            """
            COMMITTED  the next offset that the group will read
            END        the offset of the next record that will be written
            LAG        records that the group has yet to read
            GONE       records deleted before the group read them; only shown if not 0
            AGE-S      with --age: seconds since the next record to read was written
            """,
        ),
        (
            "Columns with --app",
            """
            BATCH      the last batch that the flow committed or the view applied
            BATCHES    batches that the flow committed and the view has yet to apply
            LAG        records that the flow, view or group has yet to read
            EST-BYTES  estimated size of these records, from the average record size of each partition
            AGE-S      seconds since the oldest of these records was written
            GONE       records deleted before they were read
            DEAD       open dead letters of the flow or view
            ARRIVING-PER-S, TAKEN-PER-S   records written per second, and records read per second
            TIME-TO-LOSS-S                seconds until retention can delete an unread record, at these rates
            LOST-BY                       the config that deletes it first: retention.ms, retention.bytes, never, or
                                          not known
            """,
        ),
    ],
)
def lag(
    session: Session,
    groups: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="GROUP", help="Names of groups (default: all groups).", autocompletion=complete_groups
        ),
    ] = None,
    app: Annotated[
        str | None,
        typer.Option("--app", metavar="MODULE:APP", help="Show the flows, views and groups of this app."),
    ] = None,
    data: Data = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Repeat until Ctrl-C.")] = False,
    every_s: Annotated[
        float,
        typer.Option("--every", metavar="SECONDS", help="Seconds between two updates of --watch.", min=0.1),
    ] = 2.0,
    age: Annotated[
        bool,
        typer.Option("--age", help="Show the age of the next record; this reads one record per partition."),
    ] = False,
    rate_window_s: Annotated[
        float,
        typer.Option(
            "--over",
            metavar="SECONDS",
            min=0,
            help="With --app: seconds over which to measure rates; 0 for no rates.",
        ),
    ] = 1.0,
    fail_above: Annotated[
        int | None,
        typer.Option("--fail-above", metavar="N", help="Exit with 5 if a lag is above N.", min=0),
    ] = None,
) -> None:
    """Show the lag of groups, or of an app's flows and views.

    For groups, it shows each partition and the total of each group. With --app, it shows one line per flow, view and
    group, with the time left before retention deletes unread records.
    """
    if watch and fail_above is not None:
        raise UsageError("--watch and --fail-above cannot be combined", hint="use one of them")
    if app is not None:
        if groups:
            raise UsageError("--app and group names cannot be combined", hint="use one of them")
        _show_app(session, app, data, rate_window_s, every_s if watch else None, fail_above)
    else:
        _show_groups(session, groups or [], every_s if watch else None, fail_above, age=age)


def _show_groups(
    session: Session, names: list[str], every_s: float | None, fail_above: int | None, *, age: bool
) -> None:
    from headrace.cli.group_lag import GroupLagReader

    with closing(GroupLagReader(session)) as groups:

        def measure() -> list[GroupLag]:
            lags = groups.lags(names or list(groups.list_groups()))
            for name in names:
                if not any(lag.group == name for lag in lags):
                    raise GroupUnknown(name)
            return lags

        def repeat() -> Iterator[list[str]]:
            while True:
                lags = measure()
                yield _lines(_rows(session, lags, age=age), _totals(lags))

        if every_s is not None and not session.out.as_json:
            _watch(session, repeat(), every_s)
        while True:
            lags = measure()
            rows = _rows(session, lags, age=age)
            if session.out.as_json or not rows:
                session.out.table(rows, empty=NO_OFFSETS)
            else:
                _print(session, _lines(rows, _totals(lags)))
            if every_s is None:
                break
            _pause(every_s)
    if fail_above is not None:
        _check_limit(_totals(lags), fail_above)


def _show_app(
    session: Session,
    name: str,
    data: Path | None,
    rate_window_s: float,
    every_s: float | None,
    fail_above: int | None,
) -> None:
    from headrace.cli.app_loader import load_checked_app
    from headrace.cli.app_state import app_lags

    app, data_dir = load_checked_app(name), session.data_dir(data)
    rows = (
        [lag.row() for lag in lags]
        for lags in app_lags(session.cluster_of(app), app, data_dir, rate_window_s)
    )
    if every_s is not None and not session.out.as_json:
        _watch(session, map(columns, rows), every_s)
    for app_rows in rows:
        session.out.table(app_rows, empty="the app has no flows and no views, and no group reads its topics")
        if every_s is None:
            break
        _pause(every_s)
    if fail_above is not None:
        totals = {f"{row['what']} {row['name']}": _number(row["lag"]) for row in app_rows}
        _check_limit(totals, fail_above)


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _rows(session: Session, lags: Sequence[GroupLag], *, age: bool) -> list[dict[str, Any]]:
    rows = [lag.row() for lag in lags]
    if age:
        from headrace.cli.group_lag import next_record_ages

        ages = next_record_ages(session, lags, SystemClock().now_ms())
        for lag, row in zip(lags, rows, strict=True):
            row["age_s"] = ages[lag]
    if not session.out.as_json and not any(row["gone"] for row in rows):
        for row in rows:
            del row["gone"]
    return rows


def _totals(lags: Sequence[GroupLag]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for lag in lags:
        totals[lag.group] = totals.get(lag.group, 0) + (lag.lag or 0)
    return totals


def _lines(rows: Sequence[dict[str, Any]], totals: dict[str, int]) -> list[str]:
    if not rows:
        return [NO_OFFSETS]
    summary = columns([{"group": group, "total_lag": total} for group, total in totals.items()])
    return [*columns(rows), "", *summary]


def _print(session: Session, lines: Sequence[str]) -> None:
    for line in lines:
        session.out.text(line)
    session.out.flush()


def _pause(seconds: float) -> None:
    import time

    time.sleep(seconds)


def _watch(session: Session, tables: Iterator[list[str]], every_s: float) -> None:
    """Redraw the table on a terminal. Otherwise print one table after the other. Repeat until Ctrl-C."""
    if not sys.stdout.isatty():
        for lines in tables:
            _print(session, [*lines, ""])
            _pause(every_s)
    from rich.live import Live
    from rich.text import Text

    with Live(auto_refresh=False, screen=True) as live:
        for lines in tables:
            live.update(Text("\n".join(lines), no_wrap=True), refresh=True)
            _pause(every_s)


def _check_limit(totals: dict[str, int], limit: int) -> None:
    above = {name: total for name, total in totals.items() if total > limit}
    if above:
        named = ", ".join(f"{name} has {total}" for name, total in sorted(above.items()))
        raise LagAbove(f"lag is above {limit}: {named}")


def command() -> Command:
    return build(lag)
