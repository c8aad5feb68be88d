"""An app whose log is full of script: in keys, values, headers, names of groups and clients, errors and alerts."""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path

from confluent_kafka import TopicPartition

from bench.faults.browser_payloads import PAYLOADS, payload
from bench.faults.flow_by_hand import FlowByHand
from bench.faults.process import BrokerProcess
from bench.faults.serve_process import ServeProcess
from headrace.client.cluster import Cluster
from headrace.client.declaring import ensure_letters
from headrace.model.alert import alerts_topic
from headrace.ops.alerts.record import AlertRecord, encode

__all__ = ["BrowserScene", "browser_scene"]

_NAME = "derived"
_APP = "tests.serve.derived:app"
_WAIT_S = 60.0


class BrowserScene:
    """What was written where: each text is a payload of its own."""

    view = _NAME

    def __init__(self, server: ServeProcess, cluster: Cluster, rng: random.Random) -> None:
        self.server = server
        self.cluster = cluster
        self.flow = FlowByHand(cluster, _NAME, partitions=1)
        self.topic = self.flow.flow.reads[0].name
        self.dead_topic = self.flow.view.dead_topic
        self.key, self.field, self.value, self.raw = (payload(rng) for _ in range(4))
        self.header, self.header_value, self.row_key = (payload(rng) for _ in range(3))
        self.reason, self.exception, self.letter, self.alert = (payload(rng) for _ in range(4))
        self.group, self.client = f"{payload(rng)}/../?a=b#c", payload(rng)
        # One that every browser runs is in every run.
        self.note = f"x27-note {PAYLOADS[0]}"

    def fill(self, home: Path) -> None:
        from tests.views.seeing import following

        self.cluster.ensure_topic(self.topic, 1)
        ensure_letters(self.cluster, self.dead_topic, [self.topic])
        self.cluster.ensure_topic(alerts_topic("shop"), 1)
        self.flow.begin()
        self.flow.batch([(self.row_key, {"product": self.row_key, "amount": 1, "note": self.note})])
        self._produce()
        with following(self.cluster, self.flow.view, [self.flow.flow], home) as followed:
            followed.expect(self.flow.derived.rows)

    def _produce(self) -> None:
        producer = self.cluster.producer({"linger.ms": 0})
        value = json.dumps({self.field: self.value}, ensure_ascii=False)
        headers = [(self.header, self.header_value.encode())]
        producer.produce(self.topic, key=self.key.encode(), value=value, headers=headers)
        producer.produce(self.topic, key=self.key.encode(), value=self.raw.encode())
        told = {"message": self.reason, "exception": self.exception, "topic": self.topic}
        letter = {**told, "partition": "0", "offset": "0"}
        producer.produce(
            self.dead_topic,
            key=self.key.encode(),
            value=self.letter.encode(),
            headers=[(f"__headrace.errors.{name}", text.encode()) for name, text in letter.items()],
        )
        now_ms = int(time.time() * 1_000)
        alert = AlertRecord(
            "shop", self.alert, "group", self.group, "firing", now_ms, now_ms, self.reason, self.exception
        )
        key, encoded = encode(alert)
        producer.produce(alerts_topic("shop"), key=key, value=encoded)
        assert producer.flush(30) == 0

    @contextlib.contextmanager
    def member(self) -> Iterator[None]:
        """A client of the group at work, whose name is script as well."""
        consumer = self.cluster.consumer({"group.id": self.group, "client.id": self.client})
        consumer.subscribe([self.topic])
        try:
            deadline = time.monotonic() + _WAIT_S
            while not consumer.assignment() and time.monotonic() < deadline:
                consumer.poll(0.05)
            consumer.commit(offsets=[TopicPartition(self.topic, 0, 1)], asynchronous=False)
            yield
        finally:
            consumer.close()


@contextlib.contextmanager
def browser_scene(home: Path, rng: random.Random, without: str) -> Iterator[BrowserScene]:
    with BrokerProcess(home / "log", forked=True) as broker:
        broker.start()
        cluster = Cluster(broker.bootstrap)
        data = home / "app"
        server = ServeProcess(data, _APP, broker.bootstrap, {}, without=without)
        scene = BrowserScene(server, cluster, rng)
        scene.fill(data)
        try:
            server.start()
            with scene.member():
                yield scene
        finally:
            server.kill()
