"""What a start reads of a flow's progress: the same few records, however long the flow has run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bench.faults.flow_by_hand import FlowByHand
from headrace.client import reading
from headrace.client.cluster import Cluster
from headrace.client.progress_log import current, wait_until_decided

MOST = 16


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Everything that clients have read, their news of ends as well."""
    found: list[Any] = []
    take = reading.take

    def noted(*where: Any) -> list[Any]:
        some = take(*where)
        found.extend(some)
        return some

    monkeypatch.setattr(reading, "take", noted)
    return found


def test_a_start_reads_a_bounded_number_of_progress_records(
    cluster: Cluster, fresh: Callable[[str], str], taken: list[Any]
) -> None:
    flow = FlowByHand(cluster, fresh("long"), partitions=1)
    flow.begin()
    flow.batch([])
    flow.begin()
    for _ in range(100):
        flow.batch([])
    wait_until_decided(cluster, flow.flow.progress_topic)
    taken.clear()
    found = current(cluster, flow.flow.progress_topic)
    assert found is not None
    assert found.last is not None
    assert (found.generation.generation, found.last.batch) == (2, 99)
    assert 0 < len(taken) <= MOST
    # Also after a driver has opened the flow and written nothing yet.
    taken.clear()
    flow.restart()
    wait_until_decided(cluster, flow.flow.progress_topic)
    assert current(cluster, flow.flow.progress_topic) == found
    assert len(taken) <= 2 * MOST
    # Also behind transactions that came to nothing, which have no records that anybody may see.
    taken.clear()
    for _ in range(20):
        flow.abort([])
    after = current(cluster, flow.flow.progress_topic)
    assert after is not None
    assert after.last == found.last
    assert len(taken) <= 8 * MOST
