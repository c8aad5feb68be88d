"""Queries for end offsets while the broker is killed: each returns correct offsets or an error, never wrong ones."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

from faults.servers.broker_process import BrokerProcess
from headrace.client.cluster import Cluster
from headrace.client.errors import LogError
from headrace.ops.lag.log_snapshot import offsets_at

_KILLS = 16
_TOPIC = "queried"


def test_an_offset_query_while_the_broker_is_killed_returns_a_correct_offset_or_an_error(
    tmp_path: Path,
) -> None:
    """Flows write end offsets into their progress, and views use them to apply whole batches."""
    end_offsets: set[tuple[int, ...]] = set()
    offsets_by_time: set[int | None] = set()
    stop = threading.Event()
    with BrokerProcess(tmp_path / "broker", forked=True) as broker:
        broker.start()
        cluster = Cluster(broker.bootstrap, timeout_s=20.0)
        cluster.ensure_topic(_TOPIC, 3)
        producer = cluster.producer()
        for number in range(9):
            producer.produce(_TOPIC, b"a row", timestamp=1_000, partition=number % 3)
        assert producer.flush(20) == 0

        def read_offsets() -> None:
            while not stop.is_set():
                try:
                    end_offsets.add(tuple(sorted(cluster.ends(_TOPIC, committed=False).values())))
                    offsets_by_time.update(offsets_at(cluster, [(_TOPIC, 0)], 500).values())
                except LogError:
                    time.sleep(0.005)

        threads = [threading.Thread(target=read_offsets) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            rng = random.Random(1)
            for _ in range(_KILLS):
                time.sleep(rng.uniform(0.05, 0.3))
                broker.kill()
                broker.start()
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    assert end_offsets == {(3, 3, 3)}
    assert offsets_by_time == {0}
