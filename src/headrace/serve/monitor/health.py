"""Describes the app's health in sentences: what is wrong and what to do, the worst first. All functions are pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace.serve.monitor.runtime_probe import Failure

__all__ = ["Facts", "Health", "Line", "health_of"]

State = Literal["good", "warning", "bad"]
_WORST_FIRST: tuple[State, ...] = ("bad", "warning", "good")
_LINES_MAX = 50
_SOON_S = 3_600.0


@dataclass(frozen=True, slots=True)
class Line:
    state: State
    text: str
    next: str
    """What to do, or what happens without action."""
    path: tuple[str, ...] = ()
    """The section of the web page with the details, and the item in that section."""


@dataclass(frozen=True, slots=True)
class Health:
    state: State
    lines: Sequence[Line]

    def document(self) -> dict[str, object]:
        return {"state": self.state, "lines": [dataclasses.asdict(line) for line in self.lines]}


@dataclass(frozen=True, slots=True)
class Facts:
    app: str
    live: bool
    """True if the running parts report their status. False if only the log and the stores are known."""
    flows: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Nodes of ``/v1/app/now`` by name."""
    views: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    failures: Mapping[str, Failure] = field(default_factory=dict)
    """Failures by ``flow NAME``, ``view NAME``, or the name of another part."""
    alerts: Sequence[Mapping[str, Any]] = ()
    log_error: str = ""
    log_silent_s: float = 0.0
    phase: str = ""
    """What start-up waits for. Empty once all parts have started."""


def health_of(facts: Facts) -> Health:
    lines = sorted(_lines(facts), key=lambda line: _WORST_FIRST.index(line.state))[:_LINES_MAX]
    if all(line.state == "good" for line in lines):
        lines.insert(0, _all_good(facts))
    return Health(lines[0].state, lines)


def _lines(facts: Facts) -> Iterator[Line]:
    if facts.log_error:
        age_hint = f". The numbers are {_duration(facts.log_silent_s)} old" if facts.log_silent_s >= 1 else ""
        yield Line(
            "bad",
            f"the log does not respond: {facts.log_error}",
            f"check that the broker runs and is reachable from here{age_hint}. All parts continue when the broker"
            " responds",
            ("topics",),
        )
    for kind, parts in (("flow", facts.flows), ("view", facts.views)):
        for name, node in parts.items():
            yield from _part(facts, kind, name, node)
    for name, failure in facts.failures.items():
        if not name.startswith(("flow ", "view ")):
            yield Line("bad", f"{name} has stopped: {failure.text}", failure.hint or "start the app again")
    for alert in facts.alerts:
        yield _alert(alert)
    if facts.phase:
        yield Line(
            "warning", f"starting: {facts.phase}", "wait: start-up usually takes less than half a minute"
        )
    if not facts.live:
        yield Line(
            "good",
            "this server reads the log and the stores, but does not see the running parts",
            f"to see the running parts, start the app with headrace run MODULE:{facts.app} --serve HOST:PORT",
        )


def _part(facts: Facts, kind: str, name: str, node: Mapping[str, Any]) -> Iterator[Line]:
    path, what = (f"{kind}s", name), f"{kind} {name}"
    failure = facts.failures.get(what)
    if node["state"] == "failed":
        text = failure.text if failure else node["why"]
        location = f" ({failure.file}:{failure.line})" if failure and failure.file else ""
        sentence = text if text.startswith(what) else f"{what} has stopped: {text}"
        hint = failure.hint if failure and failure.hint else "fix the error and start the app again"
        yield Line("bad", sentence + location, hint, path)
    elif node["state"] in ("not begun", "not built"):
        yield Line("warning", f"{what} is {node['state']}", node["why"], path)
    elif node["state"] == "unknown" and kind == "view" and not facts.log_error:
        yield Line(
            "warning", f"the position of {what} is unknown: {node['why']}", "check the view's store", path
        )
    elif node["state"] == "waiting" and not facts.log_error:
        yield Line("warning", f"{what} waits: {node['why']}", "it continues when the cause is fixed", path)
    if node.get("differs"):
        yield Line(
            "bad",
            f"{what} differs from the log: {node.get('verified') or 'a proof found different rows'}",
            f"see the differences: headrace verify MODULE:{facts.app} --last; rebuild the view:"
            f" headrace view rebuild MODULE:{facts.app} {name}",
            path,
        )
    yield from _lag(facts, what, path, node)


def _lag(facts: Facts, what: str, path: tuple[str, ...], node: Mapping[str, Any]) -> Iterator[Line]:
    lag, loss_s = node["lag"], node["time_to_loss_s"]
    if facts.log_error or not lag["records"]:
        return
    loses_records = loss_s is not None and loss_s < _SOON_S
    if not loses_records and (not node["cause"] or node["state"] == "failed"):
        return
    behind = f"is {_duration(lag['seconds'])} behind, with" if lag["seconds"] is not None else "has"
    sentence = f"{what} {behind} {lag['records']:,} record{'s' * (lag['records'] != 1)} to read"
    if node["growing"]:
        sentence += ", and the number is growing"
    if loses_records:
        sentence += ": retention deletes " + (
            "them now" if loss_s == 0 else f"the first of them in {_duration(loss_s)}"
        )
        next_step = (
            "retain records longer: headrace topic alter TOPIC --set retention.ms=...;"
            " then find out why the part is behind"
        )
    elif node["growing"]:
        next_step = "it is the slowest part: find out where its batches spend time, or give it more cores or less work"
    else:
        next_step = "it is catching up; no records are lost"
    yield Line("bad" if loses_records else "warning", sentence, next_step, path)


def _alert(alert: Mapping[str, Any]) -> Line:
    return Line(
        "warning",
        f"alert {alert['alert']}: {alert['text']}",
        f"the alert ends when its rule no longer holds: {alert['when']}",
        ("alerts",),
    )


def _all_good(facts: Facts) -> Line:
    counts = [
        f"{len(parts)} {what}{'s' * (len(parts) != 1)}"
        for what, parts in (("flow", facts.flows), ("view", facts.views))
        if parts
    ]
    parts = " and ".join(counts) or "no flows and no views"
    return Line("good", f"all is well: {parts}, and none is behind", "nothing to do")


def _duration(seconds: float) -> str:
    """Format a duration in its two largest units, as the web page does."""
    whole = round(seconds)
    for unit, length, small, part in (
        ("d", 86_400, "h", 3_600),
        ("h", 3_600, "min", 60),
        ("min", 60, "s", 1),
    ):
        if whole >= length:
            rest = whole % length // part
            return f"{whole // length} {unit}" + (f" {rest} {small}" if rest else "")
    return f"{whole} s" if seconds >= 9.5 else f"{seconds:.2g} s"
