"""Names of an app that cannot be, or that cannot be side by side.

A flow has topics of its own beside the one it writes (``.progress``, ``.late``, ``.dead``), a view has one
(``.dead``), the app has one (``.alerts``), and a topic that a flow writes gets another with each rebuild (``.g2``,
``.g3`` …). None of them may be in the way of a topic that was declared.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from headrace.model.alert import Alert, alerts_topic
from headrace.model.declared import Declared, writer_of
from headrace.model.errors import AppError
from headrace.model.flow import Flow
from headrace.model.names import name_fault, table_fault, twin_key
from headrace.model.place import Place
from headrace.model.topic import Topic
from headrace.model.view import View

__all__ = ["name_mistakes"]

_Part = Topic | Flow | View | Alert

_Some = TypeVar("_Some", Topic, Flow, View, Alert, _Part)

_RULE = "1 to 249 of: ASCII letters, digits, '.', '_', '-'"
_LATER_GENERATION = ".g1000"


@dataclass(frozen=True, slots=True)
class _InLog:
    """A topic of the log, and what it is there for."""

    name: str
    noun: str
    what: str
    place: Place | None


def name_mistakes(app: Declared) -> Iterator[AppError]:
    fault = name_fault(app.name)
    if not fault and name_fault(alerts_topic(app.name)):
        fault = f"{app.name[:20]}… is too long: {len(alerts_topic(app.name))} characters with '.alerts'"
    if fault:
        yield AppError(f"the app's name: {fault}", place=app.place, code="HR-APP-NAME", hint=_RULE)
    nouns: list[tuple[str, Sequence[_Part]]] = [
        ("topic", app.topics),
        ("flow", app.flows),
        ("view", [*app.views, *app.computed]),
        ("alert", app.alerts),
    ]
    for noun, parts in nouns:
        yield from _faults(app, noun, parts)
        yield from _twins(noun, parts)
    yield from _collisions(app)


def _faults(app: Declared, noun: str, parts: Sequence[_Part]) -> Iterator[AppError]:
    for part in parts:
        fault = name_fault(part.name)
        if not fault and isinstance(part, View):
            fault = table_fault(part.name)
        if not fault:
            longest = max(_side_names(app, part), key=len, default="")
            if longest and name_fault(longest):
                fault = f"{part.name[:20]}… is too long: {len(longest)} characters with {longest[len(part.name) :]!r}"
        if fault:
            yield AppError(
                f"{'an' if noun[0] == 'a' else 'a'} {noun}'s name: {fault}",
                place=part.place,
                code="HR-APP-NAME",
                hint=_RULE,
            )


def _twins(noun: str, parts: Sequence[_Part]) -> Iterator[AppError]:
    first: dict[str, _Part] = {}
    for part in _named(parts):
        held = first.setdefault(twin_key(part.name), part)
        if held is part:
            continue
        if held.name == part.name:
            what = f"{noun} {part.name!r} is declared twice, first at {held.place}"
        else:
            both = f"{noun} {part.name!r} and {noun} {held.name!r} at {held.place}"
            what = f"{both} differ by case, dot or underscore only"
        yield AppError(what, place=part.place, code="HR-APP-TWIN-NAMES", hint="give one of them another name")


def _collisions(app: Declared) -> Iterator[AppError]:
    first: dict[str, _InLog] = {}
    for one in _in_log(app):
        held = first.setdefault(twin_key(one.name), one)
        # Only twins can have the like of one noun, and those are told already.
        if held.noun != one.noun:
            yield _taken(one, held.what, held.place)
    for topic in _named(app.topics):
        flow = writer_of(app, topic)
        if flow is None:
            continue
        generation = re.compile(re.escape(twin_key(topic.name)) + "_g[0-9]+")
        for key, one in first.items():
            if generation.fullmatch(key):
                yield _taken(one, f"a rebuild of topic {topic.name!r} by flow {flow.name!r}", flow.place)


def _taken(one: _InLog, by: str, at: Place | None) -> AppError:
    return AppError(
        f"{one.what} is in the way of {by}, declared at {at}",
        place=one.place,
        code="HR-APP-NAME-TAKEN",
        hint="give one of them another name",
    )


def _in_log(app: Declared) -> Iterator[_InLog]:
    if name_fault(app.name) is None:
        alerts = alerts_topic(app.name)
        yield _InLog(alerts, "app", f"topic {alerts!r} of app {app.name!r}", app.place)
    for topic in _named(app.topics):
        yield _InLog(topic.name, "topic", f"topic {topic.name!r}", topic.place)
    nouns: list[tuple[str, Sequence[_Part]]] = [("flow", app.flows), ("view", app.views)]
    for noun, parts in nouns:
        for part in _named(parts):
            for name in _side_names(app, part):
                yield _InLog(name, noun, f"topic {name!r} of {noun} {part.name!r}", part.place)


def _side_names(app: Declared, part: _Part) -> tuple[str, ...]:
    match part:
        case Flow():
            return (part.progress_topic, part.late_topic, part.dead_topic)
        case View():
            return (part.dead_topic,)
        case Topic():
            return (f"{part.name}{_LATER_GENERATION}",) if writer_of(app, part) else ()
        case Alert():
            return ()


def _named(parts: Sequence[_Some]) -> Iterator[_Some]:
    """Those with a name that can be one; the others are told already."""
    return (part for part in parts if name_fault(part.name) is None)
