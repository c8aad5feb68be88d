"""``headrace lag``: how far behind groups are, or all that reads an app's topics, once or again and again."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.completion import complete_groups
from headrace.cli.errors import GroupUnknown, LagAbove, UsageError
from headrace.cli.output import columns
from headrace.cli.session import Session
from headrace.cli.verb import Command, build, verb
from headrace.cli.view.options import Data
from headrace.clock import SystemClock

if TYPE_CHECKING:
    from headrace.cli.standing import Standing

__all__ = ["command", "lag"]

NOTHING = "no group has committed an offset"


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
            END        the offset that the next record will get
            LAG        records that the group has yet to read
            GONE       records that were deleted before the group read them; shown if there are any
            AGE        how long ago the next record to read was written, with --age
            """,
        ),
        (
            "Columns with --app",
            """
            BATCH      the last batch that the flow has committed, or that the view has
            BATCHES    those that the flow has committed and the view does not have yet
            LAG        records that the flow, view or group has yet to read
            EST-BYTES  of those, by the average record of each partition: an estimate
            AGE-S      how many seconds ago the oldest of them was written
            GONE       records that were deleted before they were read
            DEAD       dead letters of the flow's generation, or of the view
            ARRIVING-PER-S, TAKEN-PER-S   records that come, and that are read
            TIME-TO-LOSS-S                until retention may remove one that is not read yet, at these rates
            LOST-BY                       retention.ms, retention.bytes, never, or not known
            """,
        ),
    ],
)
def lag(
    session: Session,
    groups: Annotated[
        list[str] | None,
        typer.Argument(metavar="GROUP", help="Only these groups.", autocompletion=complete_groups),
    ] = None,
    app: Annotated[
        str | None,
        typer.Option("--app", metavar="MODULE:APP", help="The flows, views and groups of this app."),
    ] = None,
    data: Data = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Again and again, until Ctrl-C.")] = False,
    every: Annotated[
        float, typer.Option("--every", metavar="SECONDS", help="How often to look with --watch.", min=0.1)
    ] = 2.0,
    age: Annotated[
        bool, typer.Option("--age", help="Also how old the next record to read is; reads one per partition.")
    ] = False,
    over: Annotated[
        float,
        typer.Option(
            "--over", metavar="SECONDS", min=0, help="With --app: how long to look for rates; 0 does not."
        ),
    ] = 1.0,
    fail_above: Annotated[
        int | None,
        typer.Option("--fail-above", metavar="N", help="Exit with 5 if a lag is above N.", min=0),
    ] = None,
) -> None:
    """Show how far behind groups are, or what reads an app's topics.

    Groups per partition, and in total per group; what belongs to an app in one line each, with the time that is left
    before retention removes what was not read.
    """
    from headrace.cli.client import open_admin
    from headrace.cli.standing import list_groups, standings

    if watch and fail_above is not None:
        raise UsageError("--watch has no end, and --fail-above looks at it", hint="use one of them")
    if app is not None:
        if groups:
            raise UsageError(
                "--app shows all groups of the app, and groups are named", hint="use one of them"
            )
        _of_app(session, app, data, over, every if watch else None, fail_above)
        return
    admin = open_admin(session)

    def look() -> list[Standing]:
        wanted = list(groups or [str(one.group_id) for one in list_groups(session, admin)])
        found = standings(session, admin, wanted)
        for group in groups or ():
            if not any(one.group == group for one in found):
                raise GroupUnknown(group)
        return found

    def looks() -> Iterator[list[str]]:
        while True:
            found = look()
            yield _lines(_rows(session, found, age=age), _totals(found))

    if watch and not session.out.as_json:
        _watch(session, looks(), every)
    while True:
        found = look()
        rows = _rows(session, found, age=age)
        if session.out.as_json or not rows:
            session.out.table(rows, empty=NOTHING)
        else:
            _print(session, _lines(rows, _totals(found)))
        if not watch:
            break
        _pause(every)
    if fail_above is not None:
        _judge(_totals(found), fail_above)


def _of_app(
    session: Session, name: str, data: Path | None, over: float, every: float | None, fail_above: int | None
) -> None:
    from headrace.cli.app_lag import app_lags
    from headrace.cli.reach import check_reachable
    from headrace.cli.settings import cluster_of
    from headrace.cli.view.options import checked_app, data_dir

    loaded, where = checked_app(name), data_dir(session, data)
    check_reachable(session.bootstrap)
    rows = ([one.row() for one in lags] for lags in app_lags(cluster_of(session), loaded, where, over))
    if every is not None and not session.out.as_json:
        _watch(session, map(columns, rows), every)
    for found in rows:
        session.out.table(found, empty="the app has no flows and no views, and no group reads its topics")
        if every is None:
            break
        _pause(every)
    if fail_above is not None:
        _judge({f"{one['what']} {one['name']}": _number(one["lag"]) for one in found}, fail_above)


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _rows(session: Session, found: Sequence[Standing], *, age: bool) -> list[dict[str, Any]]:
    rows = [one.row() for one in found]
    if age:
        from headrace.cli.standing import age_of_next

        ages = age_of_next(session, found, SystemClock().now_ms())
        for one, row in zip(found, rows, strict=True):
            row["age_s"] = ages[one]
    if not session.out.as_json and not any(row["gone"] for row in rows):
        for row in rows:
            del row["gone"]
    return rows


def _totals(found: Sequence[Standing]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for one in found:
        totals[one.group] = totals.get(one.group, 0) + (one.lag or 0)
    return totals


def _lines(rows: Sequence[dict[str, Any]], totals: dict[str, int]) -> list[str]:
    if not rows:
        return [NOTHING]
    summary = columns([{"group": group, "total_lag": total} for group, total in totals.items()])
    return [*columns(rows), "", *summary]


def _print(session: Session, lines: Sequence[str]) -> None:
    for line in lines:
        session.out.text(line)
    session.out.flush()


def _pause(seconds: float) -> None:
    import time

    time.sleep(seconds)


def _watch(session: Session, looks: Iterator[list[str]], every: float) -> None:
    """In place on a terminal; otherwise one table after the other. Ends with Ctrl-C."""
    if not sys.stdout.isatty():
        for lines in looks:
            _print(session, [*lines, ""])
            _pause(every)
    from rich.live import Live
    from rich.text import Text

    with Live(auto_refresh=False, screen=True) as live:
        for lines in looks:
            live.update(Text("\n".join(lines), no_wrap=True), refresh=True)
            _pause(every)


def _judge(totals: dict[str, int], limit: int) -> None:
    above = {name: total for name, total in totals.items() if total > limit}
    if above:
        named = ", ".join(f"{name} by {total}" for name, total in sorted(above.items()))
        raise LagAbove(f"lag is above {limit}: {named}")


def command() -> Command:
    return build(lag)
