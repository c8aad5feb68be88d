"""The traffic of the shop goes on for as long as it is asked to."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from examples.shop import orders
from examples.shop.traffic import Traffic
from headrace.client.cluster import Cluster
from headrace.client.declaring import ensure_declared
from tests.views.conftest import cluster, log

__all__ = ["cluster", "log"]

_QUEUED_MAX = 100


class _Narrow:
    """The same log, by producers that have room for few records at once."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def producer(self, extra: Mapping[str, Any]) -> Any:
        return self._cluster.producer({**extra, "queue.buffering.max.messages": _QUEUED_MAX})


def test_more_is_written_than_a_producer_has_room_for(cluster: Cluster) -> None:
    ensure_declared(cluster, orders, orders.name, 1)
    traffic, now = Traffic(_Narrow(cluster)), datetime.now(UTC)
    for _ in range(5 * _QUEUED_MAX):
        traffic.order(now)
    traffic.nonsense()
    traffic.flush()
    assert cluster.ends(orders.name) == {0: 5 * _QUEUED_MAX + 1}
