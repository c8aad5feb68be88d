"""How the demo shows itself: in place on a terminal, a plain line now and then elsewhere, JSON lines for programs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli.demo.look import Look
from headrace.cli.session import Session

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["Display", "choose_display"]


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} ms" if value < 100 else f"{value:.0f} ms"


def _mb(value: int | None) -> str:
    return "-" if value is None else f"{value / 1e6:.0f} MB"


class Display:
    """Plain lines; the base of the others."""

    every_s = 2.0

    def __init__(self, session: Session, address: str, data: Path | None) -> None:
        self.session = session
        self.address = address
        self.data = data

    def __enter__(self) -> Display:
        kept = "thrown away at the end" if self.data is None else f"kept in {self.data}"
        self.session.out.note(f"broker at {self.address}, data {kept}")
        self.session.out.note(f"look at it from another terminal: headrace topic list -b {self.address}")
        self.session.out.note(f"                                  headrace lag --watch -b {self.address}")
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def show(self, look: Look) -> None:
        topics = "  ".join(f"{t.name} {sum(t.end_offsets)} (+{t.records_per_s:.0f}/s)" for t in look.topics)
        groups = "  ".join(f"{g.name} {g.lag}" for g in look.groups)
        rate = sum(t.records_per_s for t in look.topics)
        size = sum(t.bytes_per_s for t in look.topics) / 1e6
        self.session.out.text(
            f"{look.at_s:6.1f} s  {rate:6.0f} msg/s {size:5.2f} MB/s  {topics}  |  lag: {groups}  |  "
            f"p50 {_ms(look.latency_p50_ms)} p99 {_ms(look.latency_p99_ms)}  broker {_mb(look.rss_bytes)}"
        )
        self.session.out.flush()

    def finish(self) -> None:
        """Back to plain output."""

    def summarise(self, summary: dict[str, Any]) -> None:
        say = self.session.out.text
        say("")
        say(
            f"in {summary['seconds']} s: produced {summary['produced']}, "
            f"acknowledged {summary['acknowledged']}, refused {summary['refused']}"
        )
        for name, counts in summary["groups"].items():
            say(
                f"group {name:<10} read {counts['read']}, lost {counts['lost']}, doubled {counts['doubled']}, "
                f"largest lag {counts['lag_max']}"
            )
        rss = summary["broker_rss_mb"]
        say(
            f"end to end: p50 {_ms(summary['latency_p50_ms'])}, p99 {_ms(summary['latency_p99_ms'])}; "
            f"broker memory {'-' if rss is None else f'{rss:.0f} MB'}"
        )
        self.session.out.flush()


class JsonDisplay(Display):
    def show(self, look: Look) -> None:
        self.session.out.json_line({"kind": "look", **_as_dict(look)})
        self.session.out.flush()

    def summarise(self, summary: dict[str, Any]) -> None:
        self.session.out.json_line({"kind": "summary", **summary})
        self.session.out.flush()


class LiveDisplay(Display):
    every_s = 0.5

    def __enter__(self) -> Display:
        from rich.console import Console
        from rich.live import Live

        super().__enter__()
        self._live = Live(console=Console(), auto_refresh=False)
        self._live.start()
        return self

    def show(self, look: Look) -> None:
        self._live.update(_panel(look, self.address), refresh=True)

    def finish(self) -> None:
        self._live.stop()


def _as_dict(look: Look) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(look)


def _panel(look: Look, address: str) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    topics = Table(title="topics", title_justify="left", expand=False)
    for heading in ("topic", "end offsets", "records", "msg/s", "MB/s"):
        topics.add_column(heading, justify="left" if heading in ("topic", "end offsets") else "right")
    for topic in look.topics:
        topics.add_row(
            topic.name,
            " ".join(map(str, topic.end_offsets)),
            f"{topic.records:,}",
            f"{topic.records_per_s:,.0f}",
            f"{topic.bytes_per_s / 1e6:.2f}",
        )
    groups = Table(title="groups", title_justify="left", expand=False)
    for heading in ("group", "members", "reads", "msg/s", "lag"):
        groups.add_column(heading, justify="left" if heading in ("group", "reads") else "right")
    for group in look.groups:
        colour = "green" if group.lag < max(1_000, group.records_per_s) else "yellow"
        groups.add_row(
            group.name,
            str(group.members),
            ", ".join(group.topics),
            f"{group.records_per_s:,.0f}",
            Text(f"{group.lag:,}", style=colour),
        )
    head = (
        f"headrace broker at {address}   {look.at_s:.0f} s   {look.acknowledged:,} acknowledged   "
        f"p50 {_ms(look.latency_p50_ms)}   p99 {_ms(look.latency_p99_ms)}   memory {_mb(look.rss_bytes)}"
    )
    return Group(Text(head, style="bold"), topics, groups, Text("Ctrl-C ends it", style="dim"))


def choose_display(session: Session, address: str, data: Path | None) -> Display:
    if session.out.as_json:
        return JsonDisplay(session, address, data)
    return (LiveDisplay if sys.stdout.isatty() else Display)(session, address, data)
