"""A Kafka of three nodes, one of which is killed under load: a quick share of what ``make cluster`` does with the shop
and a Spark cluster.
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

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.reading import read
from tests.support.kafka_cluster import KafkaCluster
from tests.support.waiting import until
from tests.views.seeing import following

ENOUGH = 200


@dataclass(frozen=True)
class Item:
    item: str
    pieces: int


class Writing:
    """Records one after the other, and which of them were acknowledged."""

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

    def more(self) -> None:
        before = len(self.acknowledged)
        until(lambda: len(self.acknowledged) >= before + ENOUGH, "acknowledged records", timeout_s=800)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[KafkaCluster]:
    with contextlib.closing(KafkaCluster(tmp_path / "kafka")) as made:
        yield made


def test_a_node_is_killed_and_nothing_acknowledged_is_lost_and_the_view_goes_on(
    kafka: KafkaCluster, tmp_path: Path
) -> None:
    cluster = Cluster(kafka.bootstrap, replication=3)
    app = App("shop")
    items = app.table("items", Item, key="item")
    view = app.view("items", items)
    cluster.ensure_topic("items", 1, {"cleanup.policy": "compact"})
    # The one that leads the cluster: clients have to notice that another does now.
    leader = cluster.answer(cluster.admin().describe_cluster(request_timeout=60)).controller.id
    with following(cluster, view, [], tmp_path) as followed:
        writing = Writing(cluster.producer({"linger.ms": 5, "acks": "all"}), "items")
        try:
            writing.more()
            kafka.kill(leader)
            writing.more()
        finally:
            writing.stop()
        assert writing.failed == []
        (end,) = cluster.ends("items").values()
        newest: dict[str, tuple[object, ...]] = {}
        found = set()
        for message in read(cluster, "items", {0: (0, end)}):
            row = json.loads(message.value() or b"")
            newest[row["item"]] = (row["item"], row["pieces"])
            found.add(row["pieces"])
        assert set(writing.acknowledged) <= found
        followed.expect(newest)
