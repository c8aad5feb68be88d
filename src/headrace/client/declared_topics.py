"""Creates the topics that an app declares, unless they exist."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.client.cluster import Cluster
from headrace.model.declarations import Topic

__all__ = ["APPEND_TIME", "KEEP", "ensure_dead_letter_topic", "ensure_declared", "ensure_derived"]

_ROW_BYTES_MAX = 8 * 1024 * 1024
_ROOM_BYTES = 65_536

KEEP = {"retention.ms": "-1", "retention.bytes": "-1"}
"""The settings of new event topics: records are retained forever."""
APPEND_TIME = {"message.timestamp.type": "LogAppendTime"}
"""The broker sets the timestamp of each record when it appends the record."""


def ensure_declared(cluster: Cluster, topic: Topic, log_name: str, partitions: int) -> str:
    """Create the topic unless it exists; never alter an existing one. Returns its id."""
    return cluster.ensure_topic(log_name, topic.partitions or partitions, _configs(topic)).id


def ensure_derived(cluster: Cluster, topic: Topic, log_name: str, partitions: int) -> str:
    """Like ``ensure_declared``, for the output of a flow. Larger records are allowed, because a row can be larger than
    its input records.
    """
    configs = {**_configs(topic), "max.message.bytes": str(_ROW_BYTES_MAX)}
    return cluster.ensure_topic(log_name, topic.partitions or partitions, configs).id


def ensure_dead_letter_topic(cluster: Cluster, name: str, sources: Iterable[str]) -> None:
    """Create the dead-letter topic unless it exists. Its size limit allows any record of the sources plus headers."""
    if cluster.topic(name) is None:
        limits = (cluster.configs(source).get("max.message.bytes") for source in sources)
        largest = max((int(limit or 0) for limit in limits), default=0)
        size = max(largest, _ROW_BYTES_MAX) + _ROOM_BYTES
        cluster.ensure_topic(name, 1, {**KEEP, "max.message.bytes": str(size)})


def _configs(topic: Topic) -> dict[str, str]:
    """Return the topic settings. A table topic uses append time: after partitions are added, rows of one key can be in
    several partitions, and the broker's time shows which row is newer. Clocks of producers may differ.
    """
    return KEEP if topic.kind == "events" else {"cleanup.policy": "compact", **APPEND_TIME}
