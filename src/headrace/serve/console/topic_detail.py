"""Collects the details of a topic: its configs, partitions, retention, writers and readers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import ConfigResource, ConfigSource, ResourceType  # type: ignore[attr-defined]

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.errors import MissingTopic, from_kafka
from headrace.client.generations import is_progress_topic
from headrace.client.offset_spec import Bounds, Partition
from headrace.model.declarations import Flow
from headrace.ops.outlook import WINDOW_MS, outlook, sizes_of
from headrace.serve.console.documents import LogPartition, TopicConfig, TopicUser
from headrace.serve.console.topics import LogTopic, first_since

__all__ = ["exclusive_writer", "topic_detail", "topic_users"]

_SOURCES = {
    ConfigSource.DYNAMIC_TOPIC_CONFIG.value: "topic",
    ConfigSource.DEFAULT_CONFIG.value: "default",
}


_SUFFIXES = {
    "progress": "flow {name}",
    "late": "flow {name}",
    "dead": "flow or view {name}",
    "alerts": "app {name}",
}
_OWNED_TOPIC = re.compile(rf"(?P<name>.+)\.(?P<suffix>{'|'.join(_SUFFIXES)})")
_GENERATION = re.compile(r"(?P<name>.+)\.g[0-9]+")


def exclusive_writer(topic: str) -> str:
    """Return the only component that may write the topic, or an empty text if anyone may write it.

    The component would mistake a record of another writer for its own. Several apps can share a log, and a server knows
    only the names of its own app. So this function recognizes the topics of all apps by their suffixes.
    """
    if topic.startswith("__"):
        return "the log"
    if topic.startswith("headrace."):
        return "Headrace"
    if match := _OWNED_TOPIC.fullmatch(topic):
        return _SUFFIXES[match["suffix"]].format(name=match["name"])
    if match := _GENERATION.fullmatch(topic):
        return f"the flow that writes {match['name']}"
    return ""


def topic_users(app: App, topic: str, groups: Sequence[str]) -> dict[str, Any]:
    """Return the writers and readers that the app declares. ``groups`` are further readers: consumer groups."""
    writers = [TopicUser("flow", flow.name) for flow in app.flows if _writes(app, flow, topic)]
    readers = [
        TopicUser("flow", flow.name)
        for flow in app.flows
        if any(source.name == topic for source in (*flow.streams, *flow.tables))
    ]
    readers += [TopicUser("view", view.name) for view in app.views if view.topic.name == topic]
    readers += [TopicUser("group", name) for name in groups]
    return {"written_by": writers, "read_by": readers}


def _writes(app: App, flow: Flow, topic: str) -> bool:
    if topic in (flow.late_topic, flow.dead_topic) or is_progress_topic(flow, topic):
        return True
    return any(declared.name == topic and app.writer_of(declared) is flow for declared in app.topics)


def topic_detail(cluster: Cluster, topic: LogTopic, now_ms: int) -> dict[str, Any]:
    """Return those fields of ``LogTopicDetail`` that come from the log."""
    configs = _configs(cluster, topic.name)
    bounds = {(topic.name, number): bounds for number, bounds in topic.bounds.items()}
    window_starts = _window_starts(cluster, bounds, now_ms)
    forecast = outlook(bounds, window_starts, sizes_of(cluster, bounds), configs)
    leaders = _leaders(cluster, topic.name)
    return {
        **topic.summary(),
        **forecast.row(),
        "configs": [TopicConfig(**config) for config in configs],
        "partition_list": [
            LogPartition(
                partition=number,
                start=bounds.start,
                end=bounds.end,
                records=bounds.end - bounds.start,
                bytes=topic.sizes.get(number),
                **leaders.get(number, {}),
            )
            for number, bounds in sorted(topic.bounds.items())
        ],
    }


def _window_starts(cluster: Cluster, bounds: Mapping[Partition, Bounds], now_ms: int) -> dict[Partition, int]:
    """Return, by partition, the first offset in the forecast's time window, or the end if the window has no record."""
    offsets = first_since(cluster, bounds, now_ms - WINDOW_MS)
    return {
        partition: offsets[partition] if offsets.get(partition, -1) >= 0 else limits.end
        for partition, limits in bounds.items()
    }


def _configs(cluster: Cluster, topic: str) -> list[dict[str, Any]]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    try:
        futures = cluster.admin().describe_configs([resource], request_timeout=cluster.timeout_s)
        entries = cluster.wait_for(next(iter(futures.values())))
    except KafkaException as error:
        raise from_kafka(error, f"describing the configs of topic {topic!r}", topic=topic) from error
    return [
        {
            "config": entry.name,
            "value": "(hidden)" if entry.is_sensitive else entry.value,
            "source": _SOURCES.get(int(entry.source), "broker"),
        }
        for entry in sorted(entries.values(), key=lambda entry: str(entry.name))
    ]


def _leaders(cluster: Cluster, topic: str) -> dict[int, dict[str, Any]]:
    futures = cluster.admin().describe_topics(TopicCollection([topic]), request_timeout=cluster.timeout_s)
    try:
        described = cluster.wait_for(futures[topic])
    except KafkaException as error:
        raise from_kafka(error, f"describing topic {topic!r}", topic=topic) from error
    if not described.partitions:
        raise MissingTopic(topic)
    return {
        partition.id: {
            "leader": None if partition.leader is None else partition.leader.id,
            "replicas": [node.id for node in partition.replicas],
            "in_sync": [node.id for node in partition.isr],
        }
        for partition in described.partitions
    }
