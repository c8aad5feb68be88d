"""Checks the names of an app and its parts: each name must be allowed, and no two may collide.

The names become topic names, so Kafka's rules apply: 1 to 249 ASCII letters, digits, dots, underscores and hyphens,
and neither ``.`` nor ``..``. The names also become names of files and SQLite tables, which can be case-insensitive.
The log rejects two topics that differ only by dot and underscore. Two names are twins if they differ only by case, dot
or underscore.

Headrace creates further topics: for a flow ``<app>.<flow>.progress``, ``.late`` and ``.dead``, for a view
``<app>.<view>.dead``, for the app ``<app>.alerts`` and ``headrace.schemas.<app>``. Each rebuild adds a topic for the
flow's output (``<topic>.g2``, ``.g3`` …) and one for its progress (``<app>.<flow>.g2.progress``). None of these topics
may collide with a declared topic.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from headrace.model.declarations import (
    SCHEMAS_PREFIX,
    Alert,
    Declared,
    Flow,
    Topic,
    View,
    alerts_topic,
    schemas_topic,
    writer_of,
)
from headrace.model.errors import AppError, SourceLocation

__all__ = ["NAME_CHARS_MAX", "name_fault", "name_mistakes", "table_fault", "twin_key"]

NAME_CHARS_MAX = 249

_ALLOWED = re.compile(r"[a-zA-Z0-9._-]+")
_KAFKAS_OWN = frozenset(
    {"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"}
)


def name_fault(name: Any) -> str | None:
    """Return why ``name`` is not allowed; None if it is allowed."""
    if not isinstance(name, str):
        return f"a name must be text, and {name!r} is not"
    if not name:
        return "a name cannot be empty"
    if len(name) > NAME_CHARS_MAX:
        return f"{name[:20]}… has {len(name)} characters (limit {NAME_CHARS_MAX})"
    if name in (".", ".."):
        return f"{name!r} is a directory in a file system, not a name"
    if _ALLOWED.fullmatch(name) is None:
        return f"{name!r} has characters other than ASCII letters, digits, '.', '_' and '-'"
    if name in _KAFKAS_OWN:
        return f"{name!r} is reserved for Kafka's own state"
    return None


def table_fault(name: str) -> str | None:
    """Return why a store's table cannot have an otherwise allowed name; None if it can."""
    if name.lower().startswith("sqlite_"):
        return f"names like {name!r} are reserved for SQLite's own tables"
    if name.lower().startswith("_headrace"):
        return f"names like {name!r} are reserved for Headrace's own tables"
    return None


def twin_key(name: str) -> str:
    """Return a key that is equal for names that cannot coexist as topics, files or tables."""
    return name.lower().replace(".", "_")


_Part = Topic | Flow | View | Alert

_PartType = TypeVar("_PartType", Topic, Flow, View, Alert, _Part)

_RULE = "use 1 to 249 ASCII letters, digits, '.', '_' or '-'"
_LATER_GENERATION = "g1000"


@dataclass(frozen=True, slots=True)
class _LogTopic:
    """A topic of the log, and its purpose."""

    name: str
    noun: str
    description: str
    location: SourceLocation | None


def name_mistakes(app: Declared) -> Iterator[AppError]:
    fault = name_fault(app.name)
    if not fault and name_fault(schemas_topic(app.name)):
        fault = (
            f"{app.name[:20]}… is too long: {len(schemas_topic(app.name))} characters with {SCHEMAS_PREFIX!r}"
        )
    if fault:
        yield AppError(f"the app's name: {fault}", location=app.location, code="HR-APP-NAME", hint=_RULE)
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
    yield from _owners(app)


def _faults(app: Declared, noun: str, parts: Sequence[_Part]) -> Iterator[AppError]:
    for part in parts:
        fault = name_fault(part.name)
        if not fault and isinstance(part, View):
            fault = table_fault(part.name)
        if not fault:
            longest_name = max(_own_topic_names(app, part), key=len, default="")
            if longest_name and name_fault(longest_name):
                length = len(longest_name)
                fault = (
                    f"{part.name[:20]}… is too long: the topic {longest_name[:40]}… has {length} characters"
                )
        if fault:
            yield AppError(
                f"{'an' if noun[0] == 'a' else 'a'} {noun}'s name: {fault}",
                location=part.location,
                code="HR-APP-NAME",
                hint=_RULE,
            )


def _twins(noun: str, parts: Sequence[_Part]) -> Iterator[AppError]:
    first_by_key: dict[str, _Part] = {}
    for part in _with_valid_names(parts):
        earlier = first_by_key.setdefault(twin_key(part.name), part)
        if earlier is part:
            continue
        if earlier.name == part.name:
            description = f"{noun} {part.name!r} is declared twice, first at {earlier.location}"
        else:
            both = f"{noun} {part.name!r} and {noun} {earlier.name!r} at {earlier.location}"
            description = f"{both} differ only by case, dot or underscore"
        yield AppError(
            description, location=part.location, code="HR-APP-TWIN-NAMES", hint="rename one of the two"
        )


def _collisions(app: Declared) -> Iterator[AppError]:
    first_by_key: dict[str, _LogTopic] = {}
    for topic_in_log in _log_topics(app):
        earlier = first_by_key.setdefault(twin_key(topic_in_log.name), topic_in_log)
        # Two parts of the same kind collide only if their names are twins, which _twins reports.
        if earlier.noun != topic_in_log.noun:
            yield _collision(topic_in_log, earlier.description, earlier.location)
    for topic in _with_valid_names(app.topics):
        flow = writer_of(app, topic)
        if flow is None:
            continue
        generation = re.compile(re.escape(twin_key(topic.name)) + "_g[0-9]+")
        for key, earlier in first_by_key.items():
            if generation.fullmatch(key):
                yield _collision(
                    earlier, f"a rebuild of topic {topic.name!r} by flow {flow.name!r}", flow.location
                )


def _collision(topic: _LogTopic, other_description: str, other_location: SourceLocation | None) -> AppError:
    return AppError(
        f"{topic.description} collides with {other_description}, declared at {other_location}",
        location=topic.location,
        code="HR-APP-NAME-TAKEN",
        hint="rename one of the two",
    )


def _log_topics(app: Declared) -> Iterator[_LogTopic]:
    if name_fault(app.name) is None:
        for own in (alerts_topic(app.name), schemas_topic(app.name)):
            yield _LogTopic(own, "app", f"topic {own!r} of app {app.name!r}", app.location)
    for topic in _with_valid_names(app.topics):
        yield _LogTopic(topic.name, "topic", f"topic {topic.name!r}", topic.location)
    nouns: list[tuple[str, Sequence[_Part]]] = [("flow", app.flows), ("view", app.views)]
    for noun, parts in nouns:
        for part in _with_valid_names(parts):
            for name in _own_topic_names(app, part):
                yield _LogTopic(name, noun, f"topic {name!r} of {noun} {part.name!r}", part.location)


def _own_topic_names(app: Declared, part: _Part) -> tuple[str, ...]:
    match part:
        case Flow():
            later = part.own_names.topic(part.name, f"{_LATER_GENERATION}.progress")
            return (part.progress_topic, part.late_topic, part.dead_topic, later)
        case View():
            return (part.dead_topic,)
        case Topic():
            return (f"{part.name}.{_LATER_GENERATION}",) if writer_of(app, part) else ()
        case Alert():
            return ()


def _with_valid_names(parts: Sequence[_PartType]) -> Iterator[_PartType]:
    """Return the parts with a valid name. ``_faults`` reports parts with an invalid name."""
    return (part for part in parts if name_fault(part.name) is None)


def _owners(app: Declared) -> Iterator[AppError]:
    for topic in app.topics:
        problem, hint = "", 'name the app that owns the topic: of="bikes"'
        if topic.of is None:
            continue
        fault = name_fault(topic.of)
        flow = writer_of(app, topic)
        if fault:
            problem = fault
        elif topic.of == app.name:
            problem, hint = f"{topic.of!r} is this app", "remove of"
        elif flow is not None:
            problem, hint = f"flow {flow.name!r} of this app writes it", "remove of, or write another topic"
        elif topic.partitions is not None:
            problem, hint = "partitions is set, but the other app creates the topic", "remove partitions"
        if problem:
            yield AppError(
                f"topic {topic.name!r} cannot be a topic of another app: {problem}",
                location=topic.location,
                code="HR-APP-OF",
                hint=hint,
            )
