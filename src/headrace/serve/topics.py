"""The topics of an app, as the log has them: what is declared, and what lies beside flows and views."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from headrace.app import App
from headrace.client.cluster import Cluster, TopicInfo
from headrace.client.errors import TopicMissing
from headrace.model.schema_json import fields_to_json
from headrace.model.topic import Topic
from headrace.serve.coverage import Coverage
from headrace.serve.errors import NotThere, TopicDerived

__all__ = ["ServedTopic", "Topics"]


@dataclass(frozen=True, slots=True)
class ServedTopic:
    name: str
    kind: Literal["events", "table", "late", "dead"]
    declared: Topic | None = None
    """None for what lies beside."""
    flow: str = ""
    """That writes it."""

    @property
    def is_ours(self) -> bool:
        """Whether anybody may write it."""
        return self.declared is not None and not self.flow

    def told(self) -> dict[str, Any]:
        key = list(self.declared.key) if self.declared else []
        return {"topic": self.name, "kind": self.kind, "key": key, "written_by": self.flow or None}


class Topics:
    """For any thread; what asks the log blocks."""

    def __init__(self, app: App, cluster: Cluster, coverage: Coverage) -> None:
        self._app = app
        self._cluster = cluster
        self._coverage = coverage
        self._known: dict[str, ServedTopic] = {}
        for topic in app.topics:
            flow = app.writer_of(topic)
            self._known[topic.name] = ServedTopic(topic.name, topic.kind, topic, flow.name if flow else "")
        for flow in app.flows:
            self._known.setdefault(flow.late_topic, ServedTopic(flow.late_topic, "late", None, flow.name))
            self._known.setdefault(flow.dead_topic, ServedTopic(flow.dead_topic, "dead", None, flow.name))
        for view in app.views:
            self._known.setdefault(view.dead_topic, ServedTopic(view.dead_topic, "dead"))

    @property
    def all(self) -> list[ServedTopic]:
        return [*self._known.values()]

    def named(self, name: str) -> ServedTopic:
        found = self._known.get(name)
        if found is None:
            raise NotThere(f"the app has no topic {name[:100]!r}", hint="see what there is: GET /v1/topics")
        return found

    def writable(self, name: str) -> Topic:
        found = self.named(name)
        if found.declared is None or not found.is_ours:
            who = f"flow {found.flow!r}" if found.flow else "its follower"
            raise TopicDerived(
                f"topic {name!r} is written by {who}, and by nobody else",
                hint="write what it derives from",
            )
        if found.declared.schema is None:
            raise TopicDerived(
                f"topic {name!r} has no schema, so no value fits it", hint="declare one in the app"
            )
        return found.declared

    def in_log(self, topic: ServedTopic) -> TopicInfo | None:
        """None if the log does not have it yet."""
        name = topic.name
        if topic.flow and topic.declared is not None:
            flow = next(one for one in self._app.flows if one.name == topic.flow)
            name = self._coverage.newest_output(flow) or name
        return self._cluster.topic(name)

    def expect_in_log(self, topic: ServedTopic) -> TopicInfo:
        found = self.in_log(topic)
        if found is None:
            raise TopicMissing(topic.name)
        return found

    def described(self, topic: ServedTopic) -> dict[str, Any]:
        info = self.in_log(topic)
        schema = topic.declared.schema if topic.declared else None
        told = {**topic.told(), "fields": fields_to_json(schema.fields) if schema else None}
        if info is None:
            return {**told, "log_topic": None, "partitions": []}
        starts, ends = self._cluster.starts(info.name), self._cluster.ends(info.name)
        return {
            **told,
            "log_topic": info.name,
            "partitions": [
                {"partition": number, "start": starts[number], "end": ends[number]} for number in sorted(ends)
            ],
        }
