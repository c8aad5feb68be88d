"""A topic with all that is known of it: configs, partitions, what becomes of its records, and who is at either end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import ConfigResource, ConfigSource, ResourceType  # type: ignore[attr-defined]

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.errors import TopicMissing, from_kafka
from headrace.client.places import Bounds, Partition
from headrace.ops.log_dirs import sizes_of
from headrace.ops.outlook import WINDOW_MS, outlook
from headrace.serve.console.log_topics import LogTopic, first_since

__all__ = ["ends_of", "topic_detail"]

_SOURCES = {
    ConfigSource.DYNAMIC_TOPIC_CONFIG.value: "topic",
    ConfigSource.DEFAULT_CONFIG.value: "default",
}


def topic_detail(cluster: Cluster, found: LogTopic, now_ms: int) -> dict[str, Any]:
    configs = _configs(cluster, found.name)
    places = {(found.name, number): one for number, one in found.bounds.items()}
    before = _before(cluster, places, now_ms)
    future = outlook(places, before, sizes_of(cluster, places), configs)
    leaders = _leaders(cluster, found.name)
    return {
        **found.told(),
        **future.row(),
        "configs": configs,
        "partition_list": [
            {
                "partition": number,
                "start": bounds.start,
                "end": bounds.end,
                "records": bounds.end - bounds.start,
                "bytes": found.sizes.get(number),
                **leaders.get(number, {}),
            }
            for number, bounds in sorted(found.bounds.items())
        ],
    }


def ends_of(app: App, topic: str, groups: Sequence[str]) -> dict[str, Any]:
    """Who writes it and who reads it, as far as the app says, and the groups that have committed there."""
    writers = [{"kind": "flow", "name": one.name} for one in app.flows if _writes(app, one, topic)]
    readers = [
        {"kind": "flow", "name": flow.name}
        for flow in app.flows
        if any(one.name == topic for one in (*flow.streams, *flow.tables))
    ]
    readers += [{"kind": "view", "name": view.name} for view in app.views if view.topic.name == topic]
    readers += [{"kind": "group", "name": name} for name in groups]
    return {"written_by": writers, "read_by": readers}


def _writes(app: App, flow: Any, topic: str) -> bool:
    beside = topic in (flow.progress_topic, flow.late_topic, flow.dead_topic)
    return beside or any(one.name == topic and app.writer_of(one) is flow for one in app.topics)


def _before(cluster: Cluster, places: Mapping[Partition, Bounds], now_ms: int) -> dict[Partition, int]:
    found = first_since(cluster, places, now_ms - WINDOW_MS)
    return {one: found[one] if found.get(one, -1) >= 0 else limits.end for one, limits in places.items()}


def _configs(cluster: Cluster, topic: str) -> list[dict[str, Any]]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    try:
        asked = cluster.admin().describe_configs([resource], request_timeout=cluster.timeout_s)
        entries = cluster.answer(next(iter(asked.values())))
    except KafkaException as error:
        raise from_kafka(error, f"asking for the configs of topic {topic!r}", topic=topic) from error
    return [
        {
            "config": entry.name,
            "value": "(hidden)" if entry.is_sensitive else entry.value,
            "source": _SOURCES.get(int(entry.source), "broker"),
        }
        for entry in sorted(entries.values(), key=lambda one: str(one.name))
    ]


def _leaders(cluster: Cluster, topic: str) -> dict[int, dict[str, Any]]:
    asked = cluster.admin().describe_topics(TopicCollection([topic]), request_timeout=cluster.timeout_s)
    try:
        described = cluster.answer(asked[topic])
    except KafkaException as error:
        raise from_kafka(error, f"asking for topic {topic!r}", topic=topic) from error
    if not described.partitions:
        raise TopicMissing(topic)
    return {
        one.id: {
            "leader": None if one.leader is None else one.leader.id,
            "replicas": [node.id for node in one.replicas],
            "in_sync": [node.id for node in one.isr],
        }
        for one in described.partitions
    }
