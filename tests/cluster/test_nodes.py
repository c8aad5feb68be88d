"""A Kafka of three nodes, one of which is killed under load: a shorter test than ``make cluster``, which uses the
shop and a Spark cluster.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer

from faults.servers.kafka_cluster import KafkaCluster
from faults.views.follower_thread import following
from faults.wait import until
from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.records import read

RECORDS_TO_WAIT_FOR = 200


@dataclass(frozen=True)
class Item:
    item: str
    pieces: int


class RecordWriter:
    """Writes records one by one, and remembers which were acknowledged."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self.acknowledged: list[int] = []
        self.failed: list[str] = []
        self._producer = producer
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        for number in count():
            if self._stop.wait(0.005):
                break
            value = json.dumps({"item": f"i{number % 20}", "pieces": number}).encode()
            self._producer.produce(self._topic, value, f"i{number % 20}", on_delivery=self._delivered)
            self._producer.poll(0)
        self._producer.flush(60)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.acknowledged.append(json.loads(message.value() or b"")["pieces"])
        else:
            self.failed.append(str(error))

    def wait_for_acknowledgements(self) -> None:
        before = len(self.acknowledged)
        until(
            lambda: len(self.acknowledged) >= before + RECORDS_TO_WAIT_FOR,
            "acknowledged records",
            timeout_s=800,
        )

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[KafkaCluster]:
    with contextlib.closing(KafkaCluster(tmp_path / "kafka")) as cluster:
        yield cluster


@pytest.mark.soak
def test_a_killed_node_loses_no_acknowledged_record_and_the_view_continues(
    kafka: KafkaCluster, tmp_path: Path
) -> None:
    cluster = Cluster(kafka.bootstrap, replication=3)
    app = App("shop")
    items = app.table("items", Item, key="item")
    view = app.view("items", items)
    cluster.ensure_topic("items", 1, {"cleanup.policy": "compact"})
    # Kill the leader of the controllers, so that clients must find the new leader.
    leader = cluster.wait_for(cluster.admin().describe_cluster(request_timeout=60)).controller.id
    with following(cluster, view, [], tmp_path) as followed:
        writer = RecordWriter(cluster.producer({"linger.ms": 5, "acks": "all"}), "items")
        try:
            writer.wait_for_acknowledgements()
            kafka.kill(leader)
            writer.wait_for_acknowledgements()
        finally:
            writer.stop()
        assert writer.failed == []
        (end,) = cluster.ends("items").values()
        newest: dict[str, tuple[object, ...]] = {}
        pieces = set()
        for message in read(cluster, "items", {0: (0, end)}):
            row = json.loads(message.value() or b"")
            newest[row["item"]] = (row["item"], row["pieces"])
            pieces.add(row["pieces"])
        assert set(writer.acknowledged) <= pieces
        followed.expect(newest)
