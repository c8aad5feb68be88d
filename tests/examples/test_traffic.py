"""The traffic of ``examples/shop`` waits when the producer's queue is full."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from examples.shop import orders
from examples.shop.traffic import Traffic
from headrace.client.cluster import Cluster
from headrace.client.declared_topics import ensure_declared
from tests.views.conftest import cluster, log

__all__ = ["cluster", "log"]

_QUEUED_MAX = 100


class _ShortQueues:
    """A cluster whose producers have a short queue."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def producer(self, extra: Mapping[str, Any]) -> Any:
        return self._cluster.producer({**extra, "queue.buffering.max.messages": _QUEUED_MAX})


def test_produce_handles_more_records_than_the_queue_holds(cluster: Cluster) -> None:
    ensure_declared(cluster, orders, orders.name, 1)
    traffic, now = Traffic(_ShortQueues(cluster)), datetime.now(UTC)
    for _ in range(5 * _QUEUED_MAX):
        traffic.order(now)
    traffic.nonsense()
    traffic.flush()
    assert cluster.ends(orders.name) == {0: 5 * _QUEUED_MAX + 1}
