"""How a running app shows itself: in place on a terminal, plain lines elsewhere, JSON lines for programs."""

from __future__ import annotations

import sys
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from headrace.app import App
from headrace.cli.run.watching import Watched
from headrace.cli.session import Session
from headrace.model.flow import DELIVERIES
from headrace.runtime.look import FlowLook, Look, ViewLook

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
    """Plain lines; the base of the others."""

    every_s = 5.0

    def __init__(self, session: Session, app: App) -> None:
        self.session = session
        self.app = app

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def tell(self, line: str) -> None:
        self.session.out.note(line)

    def warn(self, line: str) -> None:
        """What must not be missed."""
        self.session.out.warn(line)

    def show(self, look: Look, watched: list[Watched]) -> None:
        say = self.session.out.text
        for flow in look.flows:
            say(f"{look.at_s:6.1f} s  flow {_flow_line(flow)}")
        for view in look.views:
            say(f"{look.at_s:6.1f} s  view {_view_line(view)}")
        for alert in look.alerts:
            say(
                f"{look.at_s:6.1f} s  alert {alert.alert}: {alert.text}, since {_time(1_000 * alert.since_ms)}"
            )
        for one in watched:
            for row in one.rows:
                say(f"{look.at_s:6.1f} s  {' | '.join(map(_cell, row))}")
        self.session.out.flush()


class JsonDisplay(Display):
    every_s = 2.0

    def tell(self, line: str) -> None:
        self._line("note", line)

    def warn(self, line: str) -> None:
        self._line("warning", line)

    def _line(self, kind: str, line: str) -> None:
        self.session.out.json_line({"kind": kind, "text": line})
        self.session.out.flush()

    def show(self, look: Look, watched: list[Watched]) -> None:
        self.session.out.json_line(
            {"kind": "look", **asdict(look), "watched": [asdict(one) for one in watched]}
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

    def show(self, look: Look, watched: list[Watched]) -> None:
        self._live.update(_panel(self.app, look, watched), refresh=True)


def choose_display(session: Session, app: App) -> Display:
    if session.out.as_json:
        return JsonDisplay(session, app)
    return (LiveDisplay if sys.stdout.isatty() else Display)(session, app)


def _flow_line(flow: FlowLook) -> str:
    return (
        f"{flow.name}: {flow.state}{f' ({flow.why})' if flow.why else ''}{_latency(flow)}, batch {_dash(flow.batch)},"
        f" {flow.rows_per_s:.0f}/s, in {flow.rows_in}, out {flow.rows_out}, lag {flow.lag},"
        f" watermark {_time(flow.watermark_us)}, state {flow.state_rows}, late {flow.late}, dead {flow.dead}"
    )


def _latency(flow: FlowLook) -> str:
    """What a reader of its topic must know."""
    return f", realtime ({DELIVERIES['realtime']})" if flow.latency == "realtime" else ""


def _view_line(view: ViewLook) -> str:
    return (
        f"{view.name}: {view.state}{f' ({view.why})' if view.why else ''}, {view.per_s:.0f}/s,"
        f" applied {view.applied}, lag {view.lag}, dead {view.dead}"
        f"{f', foreign {view.foreign}' if view.foreign else ''}{f', repeats {view.repeats}' if view.repeats else ''}"
        f"{f', {view.verified}' if view.verified else ''}"
    )


def _dash(value: object) -> str:
    return "-" if value is None else str(value)


def _cell(value: object) -> str:
    return "-" if value is None else str(value)


def _time(micros: int | None) -> str:
    return "-" if micros is None else datetime.fromtimestamp(micros / 1e6, UTC).strftime("%H:%M:%S")


def _panel(app: App, look: Look, watched: list[Watched]) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(f"{app.name}   {look.at_s:.0f} s", style="bold")]
    flows = _table("flows", _FLOW_HEADINGS)
    for flow in look.flows:
        flows.add_row(
            flow.name + _latency(flow),
            _state(flow.state),
            str(flow.generation),
            _dash(flow.batch),
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
    proofs = ("proof",) if any(view.verified for view in look.views) else ()
    repeats = ("repeats",) if any(view.repeats for view in look.views) else ()
    views = _table("views", ("view", "state", "events/s", "applied", "lag", "dead", *repeats, *proofs))
    for view in look.views:
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
        Text(f"alert {one.alert}: {one.text}, since {_time(1_000 * one.since_ms)}", style="bold red")
        for one in look.alerts
    ]
    for one in watched:
        if one.rows:
            table = _table(one.sql, tuple(one.columns), left=True)
            for row in one.rows:
                table.add_row(*map(_cell, row))
            parts.append(table)
    troubles = {one.name: one.why for one in look.flows} | {one.name: one.why for one in look.views}
    parts += [Text(f"{name}: {why}", style="yellow") for name, why in troubles.items() if why]
    parts += [
        Text(f"{view.name}: {view.foreign:,} records in its topic are not of its flow", style="red")
        for view in look.views
        if view.foreign
    ]
    parts.append(Text("Ctrl-C ends it; starting again goes on where it stopped", style="dim"))
    return Group(*parts)


def _table(title: str, headings: tuple[str, ...], *, left: bool = False) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left", expand=False)
    for at, heading in enumerate(headings):
        table.add_column(heading, justify="left" if left or at < 2 else "right")
    return table


def _proof(view: ViewLook) -> str:
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
