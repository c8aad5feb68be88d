"""The display of a running app: redrawn in place on a terminal, otherwise lines of text or JSON."""

from __future__ import annotations

import sys
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from headrace.app import App
from headrace.cli.session import Session
from headrace.cli.sql import QueryRows
from headrace.model.declarations import DELIVERIES
from headrace.runtime.summary import FlowSummary, RunSummary, ViewSummary

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

__all__ = ["Display", "choose_display"]

_FLOW_HEADINGS = (
    "flow",
    "state",
    "gen",
    "batch",
    "rows/s",
    "in",
    "out",
    "lag",
    "watermark",
    "state rows",
    "late",
    "dead",
)


class Display:
    """Prints plain lines. Base class of the other two displays."""

    every_s = 5.0

    def __init__(self, session: Session, app: App) -> None:
        self.session = session
        self.app = app

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def note(self, line: str) -> None:
        self.session.out.note(line)

    def warn(self, line: str) -> None:
        self.session.out.warn(line)

    def show(self, summary: RunSummary, queries: list[QueryRows]) -> None:
        write = self.session.out.text
        elapsed = f"{summary.at_s:6.1f} s"
        for flow in summary.flows:
            write(f"{elapsed}  flow {_flow_line(flow)}")
        for view in summary.views:
            write(f"{elapsed}  view {_view_line(view)}")
        for alert in summary.alerts:
            write(f"{elapsed}  alert {alert.alert}: {alert.text}, since {_time(1_000 * alert.since_ms)}")
        for query in queries:
            for row in query.rows:
                write(f"{elapsed}  {' | '.join(map(_cell, row))}")
            if query.error:
                write(f"{elapsed}  --watch {query.sql!r}: {query.error}")
        self.session.out.flush()


class JsonDisplay(Display):
    every_s = 2.0

    def note(self, line: str) -> None:
        self._line("note", line)

    def warn(self, line: str) -> None:
        self._line("warning", line)

    def _line(self, kind: str, line: str) -> None:
        self.session.out.json_line({"kind": kind, "text": line})
        self.session.out.flush()

    def show(self, summary: RunSummary, queries: list[QueryRows]) -> None:
        self.session.out.json_line(
            {"kind": "summary", **asdict(summary), "watched": [asdict(query) for query in queries]}
        )
        self.session.out.flush()


class LiveDisplay(Display):
    every_s = 0.5

    def __enter__(self) -> Display:
        from rich.console import Console
        from rich.live import Live

        self._live = Live(console=Console(), auto_refresh=False)
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, summary: RunSummary, queries: list[QueryRows]) -> None:
        self._live.update(_panel(self.app, summary, queries), refresh=True)


def choose_display(session: Session, app: App) -> Display:
    if session.out.as_json:
        return JsonDisplay(session, app)
    return (LiveDisplay if sys.stdout.isatty() else Display)(session, app)


def _flow_line(flow: FlowSummary) -> str:
    return (
        f"{flow.name}: {flow.state}{f' ({flow.why})' if flow.why else ''}{_latency(flow)}, batch {_cell(flow.batch)},"
        f" {flow.rows_per_s:.0f}/s, in {flow.rows_in}, out {flow.rows_out}, lag {flow.lag},"
        f" watermark {_time(flow.watermark_us)}, state {flow.state_rows}, late {flow.late}, dead {flow.dead}"
    )


def _latency(flow: FlowSummary) -> str:
    """Show at-least-once delivery, because readers of the topic must handle repeated records."""
    return f", realtime ({DELIVERIES['realtime']})" if flow.latency == "realtime" else ""


def _view_line(view: ViewSummary) -> str:
    return (
        f"{view.name}: {view.state}{f' ({view.why})' if view.why else ''}, {view.per_s:.0f}/s,"
        f" applied {view.applied}, lag {view.lag}, dead {view.dead}"
        f"{f', foreign {view.foreign}' if view.foreign else ''}{f', repeats {view.repeats}' if view.repeats else ''}"
        f"{f', {view.verified}' if view.verified else ''}"
    )


def _cell(value: object) -> str:
    return "-" if value is None else str(value)


def _time(micros: int | None) -> str:
    return "-" if micros is None else datetime.fromtimestamp(micros / 1e6, UTC).strftime("%H:%M:%S")


def _panel(app: App, summary: RunSummary, queries: list[QueryRows]) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(f"{app.name}   {summary.at_s:.0f} s", style="bold")]
    flows = _table("flows", _FLOW_HEADINGS)
    for flow in summary.flows:
        flows.add_row(
            flow.name + _latency(flow),
            _state(flow.state),
            str(flow.generation),
            _cell(flow.batch),
            f"{flow.rows_per_s:,.0f}",
            f"{flow.rows_in:,}",
            f"{flow.rows_out:,}",
            f"{flow.lag:,}",
            _time(flow.watermark_us),
            f"{flow.state_rows:,}",
            f"{flow.late:,}",
            f"{flow.dead:,}",
        )
    parts.append(flows)
    proofs = ("proof",) if any(view.verified for view in summary.views) else ()
    repeats = ("repeats",) if any(view.repeats for view in summary.views) else ()
    views = _table("views", ("view", "state", "events/s", "applied", "lag", "dead", *repeats, *proofs))
    for view in summary.views:
        views.add_row(
            view.name,
            _state(view.state),
            f"{view.per_s:,.0f}",
            f"{view.applied:,}",
            f"{view.lag:,}",
            f"{view.dead:,}",
            *([f"{view.repeats:,}"] if repeats else []),
            *([_proof(view)] if proofs else []),
        )
    parts.append(views)
    parts += [
        Text(f"alert {alert.alert}: {alert.text}, since {_time(1_000 * alert.since_ms)}", style="bold red")
        for alert in summary.alerts
    ]
    for query in queries:
        if query.rows:
            table = _table(query.sql, tuple(query.columns), left=True)
            for row in query.rows:
                table.add_row(*map(_cell, row))
            parts.append(table)
        if query.error:
            parts.append(Text(f"--watch {query.sql!r}: {query.error}", style="yellow"))
    reasons = {flow.name: flow.why for flow in summary.flows}
    reasons |= {view.name: view.why for view in summary.views}
    parts += [Text(f"{name}: {why}", style="yellow") for name, why in reasons.items() if why]
    parts += [
        Text(f"{view.name}: {view.foreign:,} records of its topic were not written by its flow", style="red")
        for view in summary.views
        if view.foreign
    ]
    parts.append(Text("Ctrl-C stops the app; the next start continues where it stopped", style="dim"))
    return Group(*parts)


def _table(title: str, headings: tuple[str, ...], *, left: bool = False) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left", expand=False)
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="left" if left or index < 2 else "right")
    return table


def _proof(view: ViewSummary) -> str:
    return f"[bold red]{view.verified}[/]" if view.differs else view.verified


def _state(state: str) -> str:
    colours = {
        "running": "green",
        "following": "green",
        "failed": "red",
        "waiting": "yellow",
        "rebuilding": "yellow",
    }
    colour = colours.get(state)
    return f"[{colour}]{state}[/]" if colour else state
