"""An app as everything below it sees it: what was declared, in the order of declaration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headrace.model.alert import Alert
from headrace.model.flow import Flow
from headrace.model.place import Place
from headrace.model.topic import Topic
from headrace.model.view import View

__all__ = ["Declared", "is_declared", "writer_of"]


class Declared(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def place(self) -> Place: ...
    @property
    def topics(self) -> Sequence[Topic]: ...
    @property
    def flows(self) -> Sequence[Flow]: ...
    @property
    def views(self) -> Sequence[View]: ...
    @property
    def computed(self) -> Sequence[View]: ...
    @property
    def alerts(self) -> Sequence[Alert]: ...


def is_declared(app: Declared, topic: Topic) -> bool:
    """By identity: a topic of another app may look the same."""
    return any(one is topic for one in app.topics)


def writer_of(app: Declared, topic: Topic) -> Flow | None:
    """The flow that derives the topic; None for one that is filled from outside."""
    return next((flow for flow in app.flows if flow.writes is topic), None)
