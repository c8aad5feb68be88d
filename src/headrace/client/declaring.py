"""Topics that an app declares, made where they are not there yet."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.client.cluster import Cluster
from headrace.model.topic import Topic

__all__ = ["APPEND_TIME", "KEEP", "ensure_declared", "ensure_derived", "ensure_letters"]

_ROW_BYTES_MAX = 8 * 1024 * 1024
_ROOM_BYTES = 65_536

KEEP = {"retention.ms": "-1", "retention.bytes": "-1"}
"""Facts are kept until somebody says otherwise."""
APPEND_TIME = {"message.timestamp.type": "LogAppendTime"}
"""Records have the time at which the log took them."""


def ensure_declared(cluster: Cluster, topic: Topic, log_name: str, partitions: int) -> str:
    """Makes the topic if it is not there; one that is there is left as it is. Gives its id."""
    return cluster.ensure_topic(log_name, topic.partitions or partitions, _configs(topic)).id


def ensure_derived(cluster: Cluster, topic: Topic, log_name: str, partitions: int) -> str:
    """The topic that a flow writes: a row may be larger than what it was derived from."""
    configs = {**_configs(topic), "max.message.bytes": str(_ROW_BYTES_MAX)}
    return cluster.ensure_topic(log_name, topic.partitions or partitions, configs).id


def ensure_letters(cluster: Cluster, name: str, sources: Iterable[str]) -> None:
    """The topic of dead letters takes whatever the sources take, and the headers beside it."""
    if cluster.topic(name) is None:
        told = (cluster.configs(source).get("max.message.bytes") for source in sources)
        largest = max((int(one or 0) for one in told), default=0)
        size = max(largest, _ROW_BYTES_MAX) + _ROOM_BYTES
        cluster.ensure_topic(name, 1, {**KEEP, "max.message.bytes": str(size)})


def _configs(topic: Topic) -> dict[str, str]:
    """Of rows of one key in several partitions, which is what added partitions leave behind, the time that they were
    appended tells which is newer: the log's own time, since clocks of producers differ.
    """
    return KEEP if topic.kind == "events" else {"cleanup.policy": "compact", **APPEND_TIME}
