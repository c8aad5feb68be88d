"""A start reads the same few progress records, however long the flow has run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from faults.views.scripted_flow import ScriptedFlow
from headrace.client import records as reading
from headrace.client.cluster import Cluster
from headrace.client.progress import current, wait_until_decided

READS_MAX = 16


@pytest.fixture
def read_records(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Everything that clients have read, including events of partition ends."""
    found: list[Any] = []
    take = reading.take

    def recording_take(*where: Any) -> list[Any]:
        messages = take(*where)
        found.extend(messages)
        return messages

    monkeypatch.setattr(reading, "take", recording_take)
    return found


def test_a_start_reads_a_bounded_number_of_progress_records(
    cluster: Cluster, fresh: Callable[[str], str], read_records: list[Any]
) -> None:
    flow = ScriptedFlow(cluster, fresh("long"), partitions=1)
    flow.begin()
    flow.batch([])
    flow.begin()
    for _ in range(100):
        flow.batch([])
    wait_until_decided(cluster, flow.flow.progress_topic)
    read_records.clear()
    found = current(cluster, flow.flow.progress_topic)
    assert found is not None
    assert found.last is not None
    assert (found.generation.generation, found.last.batch) == (2, 99)
    assert 0 < len(read_records) <= READS_MAX
    # Also after a driver has opened the flow and written nothing yet.
    read_records.clear()
    flow.restart()
    wait_until_decided(cluster, flow.flow.progress_topic)
    assert current(cluster, flow.flow.progress_topic) == found
    assert len(read_records) <= 2 * READS_MAX
    # Also after aborted transactions, which have no visible records.
    read_records.clear()
    for _ in range(20):
        flow.abort([])
    after = current(cluster, flow.flow.progress_topic)
    assert after is not None
    assert after.last == found.last
    assert len(read_records) <= 8 * READS_MAX
