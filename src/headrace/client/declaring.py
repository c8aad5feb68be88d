"""Topics that an app declares, made where they are not there yet."""

from __future__ import annotations

from headrace.client.cluster import Cluster
from headrace.model.topic import Topic

__all__ = ["KEEP", "ensure_declared"]

KEEP = {"retention.ms": "-1", "retention.bytes": "-1"}
"""Facts are kept until somebody says otherwise."""


def ensure_declared(cluster: Cluster, topic: Topic, log_name: str, partitions: int) -> str:
    """Makes the topic if it is not there; one that is there is left as it is. Gives its id."""
    configs = KEEP if topic.kind == "events" else {"cleanup.policy": "compact"}
    return cluster.ensure_topic(log_name, topic.partitions or partitions, configs).id
