"""Topics that an app reads but another app on the same log owns: ``app.topic(..., of="bikes")``."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.model.declarations import Declared, Topic, writer_of
from headrace.model.errors import AppError
from headrace.model.names import name_fault

__all__ = ["other_app_mistakes", "topics_of_others"]


def topics_of_others(app: Declared) -> list[Topic]:
    return [topic for topic in app.topics if topic.of]


def other_app_mistakes(app: Declared) -> Iterator[AppError]:
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
