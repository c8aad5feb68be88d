"""The topics of an app: those it declares, and the late and dead-letter topics of its flows and views."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from headrace.app import App
from headrace.client.cluster import Cluster, TopicInfo
from headrace.client.errors import MissingTopic
from headrace.model.declarations import Topic
from headrace.model.schema import fields_to_json
from headrace.serve.errors import NotFound, TopicNotWritable
from headrace.serve.query.causality import Causality

__all__ = ["AppTopic", "TopicDetail", "TopicSummary", "Topics"]


class TopicSummary(msgspec.Struct, frozen=True):
    topic: str
    kind: str
    key: list[str]
    written_by: Annotated[str | None, Meta(description="The flow that writes the topic.")]


class PartitionRange(msgspec.Struct, frozen=True):
    partition: int
    start: int
    end: int


class TopicDetail(TopicSummary, frozen=True, kw_only=True):
    fields: list[dict[str, Any]] | None
    log_topic: Annotated[
        str | None, Meta(description="The topic's name in the log; null if it does not exist there.")
    ]
    partitions: list[PartitionRange]


@dataclass(frozen=True, slots=True)
class AppTopic:
    name: str
    kind: Literal["events", "table", "late", "dead"]
    declared: Topic | None = None
    """None for a late or dead-letter topic."""
    flow: str = ""
    """The flow that writes the topic; empty if no flow does."""

    @property
    def is_writable(self) -> bool:
        """True if callers may write to the topic: the app declares it, and no flow writes it."""
        return self.declared is not None and not self.flow

    def summary(self) -> TopicSummary:
        key = list(self.declared.key) if self.declared else []
        return TopicSummary(self.name, self.kind, key, self.flow or None)


class Topics:
    """Thread-safe. A method that queries the log blocks its thread."""

    def __init__(self, app: App, cluster: Cluster, causality: Causality) -> None:
        self._app = app
        self._cluster = cluster
        self._causality = causality
        self._topics: dict[str, AppTopic] = {}
        for topic in app.topics:
            flow = app.writer_of(topic)
            self._topics[topic.name] = AppTopic(topic.name, topic.kind, topic, flow.name if flow else "")
        for flow in app.flows:
            self._topics.setdefault(flow.late_topic, AppTopic(flow.late_topic, "late", None, flow.name))
            self._topics.setdefault(flow.dead_topic, AppTopic(flow.dead_topic, "dead", None, flow.name))
        for view in app.views:
            self._topics.setdefault(view.dead_topic, AppTopic(view.dead_topic, "dead"))

    @property
    def all(self) -> list[AppTopic]:
        return [*self._topics.values()]

    def get(self, name: str) -> AppTopic:
        topic = self._topics.get(name)
        if topic is None:
            raise NotFound(f"the app has no topic {name[:100]!r}", hint="list the topics: GET /v1/topics")
        return topic

    def get_writable(self, name: str) -> Topic:
        topic = self.get(name)
        if topic.declared is None or not topic.is_writable:
            writer = f"flow {topic.flow!r}" if topic.flow else "the follower of its view"
            raise TopicNotWritable(
                f"only {writer} may write to topic {name!r}", hint="write to an input topic of the flow"
            )
        if topic.declared.schema is None:
            raise TopicNotWritable(
                f"topic {name!r} has no schema, so values cannot be encoded",
                hint="declare a schema in the app",
            )
        return topic.declared

    def find_in_log(self, topic: AppTopic) -> TopicInfo | None:
        """Return None if the topic does not exist in the log. For a flow's output, return the newest generation's
        topic.
        """
        name = topic.name
        if topic.flow and topic.declared is not None:
            flow = next(flow for flow in self._app.flows if flow.name == topic.flow)
            name = self._causality.newest_output(flow) or name
        return self._cluster.topic(name)

    def get_in_log(self, topic: AppTopic) -> TopicInfo:
        info = self.find_in_log(topic)
        if info is None:
            raise MissingTopic(topic.name)
        return info

    def describe(self, topic: AppTopic) -> TopicDetail:
        info = self.find_in_log(topic)
        schema = topic.declared.schema if topic.declared else None
        partitions = []
        if info is not None:
            starts, ends = self._cluster.starts(info.name), self._cluster.ends(info.name)
            partitions = [PartitionRange(number, starts[number], ends[number]) for number in sorted(ends)]
        return TopicDetail(
            *msgspec.structs.astuple(topic.summary()),
            fields=fields_to_json(schema.fields) if schema else None,
            log_topic=info.name if info else None,
            partitions=partitions,
        )
