"""How the app fares, in words: what is wrong, and what to do next; the worst first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace.serve.live import Failure

__all__ = ["Facts", "Health", "Line", "health_of"]

State = Literal["good", "warning", "bad"]
_WORST: tuple[State, ...] = ("bad", "warning", "good")
_LINES_MAX = 50
_SOON_S = 3_600.0


@dataclass(frozen=True, slots=True)
class Line:
    state: State
    text: str
    next: str
    """What to do, or what will happen by itself."""
    path: tuple[str, ...] = ()
    """Where the page tells more: a section, and what in it."""

    def told(self) -> dict[str, object]:
        return {"state": self.state, "text": self.text, "next": self.next, "path": self.path}


@dataclass(frozen=True, slots=True)
class Health:
    state: State
    lines: Sequence[Line]

    def told(self) -> dict[str, object]:
        return {"state": self.state, "lines": [one.told() for one in self.lines]}


@dataclass(frozen=True, slots=True)
class Facts:
    app: str
    live: bool
    """Whether whoever runs the parts is asked, and not the log alone."""
    flows: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By name, as ``/v1/app/now`` tells of them."""
    views: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    failures: Mapping[str, Failure] = field(default_factory=dict)
    """By ``flow NAME``, ``view NAME``, or the name of another part."""
    alerts: Sequence[Mapping[str, Any]] = ()
    log_trouble: str = ""
    log_silent_s: float = 0.0
    phase: str = ""
    """What it waits for while it starts."""


def health_of(facts: Facts) -> Health:
    lines = sorted(_lines(facts), key=lambda one: _WORST.index(one.state))[:_LINES_MAX]
    if all(one.state == "good" for one in lines):
        lines.insert(0, _all_good(facts))
    return Health(lines[0].state, lines)


def _lines(facts: Facts) -> Iterator[Line]:
    if facts.log_trouble:
        ago = f"; numbers are those of {_duration(facts.log_silent_s)} ago" if facts.log_silent_s >= 1 else ""
        yield Line(
            "bad",
            f"the log does not answer: {facts.log_trouble}",
            f"look whether its broker runs, and can be reached from here{ago}. Everything goes on by itself once"
            " it answers",
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
        yield Line("warning", f"starting: {facts.phase}", "wait: it is usually done within half a minute")
    if not facts.live:
        yield Line(
            "good",
            "this server is told what the log and the stores have, and not whether the parts run",
            f"headrace run MODULE:{facts.app} --serve HOST:PORT serves from where they run, and tells that too",
        )


def _part(facts: Facts, kind: str, name: str, node: Mapping[str, Any]) -> Iterator[Line]:
    path, what = (f"{kind}s", name), f"{kind} {name}"
    failure = facts.failures.get(what)
    if node["state"] == "failed":
        text = failure.text if failure else node["why"]
        place = f" ({failure.file}:{failure.line})" if failure and failure.file else ""
        told = text if text.startswith(what) else f"{what} has stopped: {text}"
        hint = failure.hint if failure and failure.hint else "mend it, and start the app again"
        yield Line("bad", told + place, hint, path)
    elif node["state"] in ("not begun", "not built"):
        yield Line("warning", f"{what} is {node['state']}", node["why"], path)
    elif node["state"] == "unknown" and kind == "view" and not facts.log_trouble:
        yield Line("warning", f"how far {what} is, is not known: {node['why']}", "look at its store", path)
    elif node["state"] == "waiting" and not facts.log_trouble:
        yield Line("warning", f"{what} waits: {node['why']}", "it goes on by itself once that is over", path)
    if node.get("differs"):
        yield Line(
            "bad",
            f"{what} is not as derived: {node.get('verified') or 'a proof has found rows that differ'}",
            f"headrace verify MODULE:{facts.app} --last shows how; headrace view rebuild MODULE:{facts.app} {name}"
            " builds it again",
            path,
        )
    yield from _lag(facts, what, path, node)


def _lag(facts: Facts, what: str, path: tuple[str, ...], node: Mapping[str, Any]) -> Iterator[Line]:
    lag, loss_s = node["lag"], node["time_to_loss_s"]
    if facts.log_trouble or not lag["records"]:
        return
    loses = loss_s is not None and loss_s < _SOON_S
    if not loses and (not node["cause"] or node["state"] == "failed"):
        return
    behind = f"is {_duration(lag['seconds'])} behind, with" if lag["seconds"] is not None else "has"
    told = f"{what} {behind} {lag['records']:,} record{'s' * (lag['records'] != 1)} to read"
    if node["growing"]:
        told += ", and more every second"
    if loses:
        told += ": retention takes " + (
            "them now" if loss_s == 0 else f"the first of them in {_duration(loss_s)}"
        )
        following = (
            "keep records longer: headrace topic alter TOPIC --set retention.ms=...; and see why it is behind"
        )
    elif node["growing"]:
        following = (
            "it is the slowest part: see what it does with a batch, and give it more cores or less to do"
        )
    else:
        following = "it is catching up by itself; nothing is lost"
    yield Line("bad" if loses else "warning", told, following, path)


def _alert(alert: Mapping[str, Any]) -> Line:
    return Line(
        "warning",
        f"alert {alert['alert']}: {alert['text']}",
        f"its rule is {alert['when']}; it is over when that no longer holds",
        ("alerts",),
    )


def _all_good(facts: Facts) -> Line:
    counts = [
        f"{len(parts)} {what}{'s' * (len(parts) != 1)}"
        for what, parts in (("flow", facts.flows), ("view", facts.views))
        if parts
    ]
    told = " and ".join(counts) or "there are no flows and no views"
    return Line("good", f"all is well: {told}, and nothing is behind", "nothing is to be done")


def _duration(seconds: float) -> str:
    """As the page writes it: the two largest units."""
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
