"""The topics of an app in the log, as they are now: those whose readers an app is answerable for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.app import App
from headrace.client.progress_log import Progress
from headrace.model.flow import Flow
from headrace.model.topic import Topic

__all__ = ["log_name", "topics_of", "unbegun_flow"]


def log_name(app: App, topic: Topic, progress: Mapping[str, Progress | None]) -> str:
    """Of a topic that a flow writes, its newest generation; ``progress`` is by flow."""
    writer = app.writer_of(topic)
    found = progress.get(writer.name) if writer else None
    return found.generation.output if found else topic.name


def topics_of(app: App, progress: Mapping[str, Progress | None]) -> set[str]:
    """What is declared, what has been rebuilt, and what lies beside it."""
    names = {topic.name for topic in app.topics}
    names |= {log_name(app, topic, progress) for topic in app.topics}
    for flow in app.flows:
        names |= {flow.progress_topic, flow.late_topic, flow.dead_topic}
    return names | {view.dead_topic for view in app.views}


def unbegun_flow(app: App, flow: Flow, progress: Mapping[str, Progress | None]) -> Iterable[str]:
    """What it will read from its start, once it is begun."""
    return [log_name(app, topic, progress) for topic in flow.streams]
