"""Where topics end, asked while the broker is killed: the answer is true, or an error, never an offset that is none."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

from bench.faults.process import BrokerProcess
from headrace.client.cluster import Cluster
from headrace.client.errors import LogError
from headrace.ops.lag.log_look import offsets_at

_KILLS = 16
_TOPIC = "asked"


def test_an_end_that_was_asked_for_while_the_broker_was_killed_is_the_end_or_an_error(tmp_path: Path) -> None:
    """Flows write such ends into their progress, and views take whole batches by them."""
    answers: set[tuple[int, ...]] = set()
    times: set[int | None] = set()
    stop = threading.Event()
    with BrokerProcess(tmp_path / "broker", forked=True) as broker:
        broker.start()
        cluster = Cluster(broker.bootstrap, timeout_s=20.0)
        cluster.ensure_topic(_TOPIC, 3)
        producer = cluster.producer()
        for number in range(9):
            producer.produce(_TOPIC, b"a row", timestamp=1_000, partition=number % 3)
        assert producer.flush(20) == 0

        def ask() -> None:
            while not stop.is_set():
                try:
                    answers.add(tuple(sorted(cluster.ends(_TOPIC, committed=False).values())))
                    times.update(offsets_at(cluster, [(_TOPIC, 0)], 500).values())
                except LogError:
                    time.sleep(0.005)

        asking = [threading.Thread(target=ask) for _ in range(2)]
        for one in asking:
            one.start()
        try:
            rng = random.Random(1)
            for _ in range(_KILLS):
                time.sleep(rng.uniform(0.05, 0.3))
                broker.kill()
                broker.start()
        finally:
            stop.set()
            for one in asking:
                one.join()
    assert answers == {(3, 3, 3)}
    assert times == {0}
