"""An app with a view whose dead letters are served over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from faults.serve.http import Http
from faults.serve.local_server import served
from faults.wait import until
from headrace import App
from headrace.client.cluster import Cluster
from headrace.client.declared_topics import ensure_dead_letter_topic, ensure_declared
from headrace.client.records import read

__all__ = ["DeadLetterApp", "Headers", "Order", "dead_letters"]

Headers = Sequence[tuple[str, bytes]]


@dataclass(frozen=True)
class Order:
    order_id: str
    pieces: int


@dataclass(frozen=True)
class DeadLetterApp:
    http: Http
    cluster: Cluster
    app: App
    name: str

    @property
    def topic(self) -> str:
        return f"{self.name}-orders"

    @property
    def dead(self) -> str:
        return f"{self.name}.{self.name}-view.dead"

    def write(self, topic: str, value: bytes, headers: Headers = (), key: bytes | None = b"k") -> None:
        producer = self.cluster.producer({"linger.ms": 0, "message.max.bytes": 100_000_000})
        producer.produce(topic, key=key, value=value, headers=[*headers] or None)
        assert producer.flush(30) == 0

    def letter(
        self,
        value: bytes,
        origin: tuple[str, int, int],
        headers: Headers = (),
        key: bytes | None = b"k",
        dead: str = "",
    ) -> None:
        """Write a dead letter like a follower."""
        dead = dead or self.dead
        ensure_dead_letter_topic(self.cluster, dead, [self.topic])
        fields = zip(("topic", "partition", "offset"), map(str, origin), strict=True)
        origin_headers = [(f"__headrace.errors.{name}", text.encode()) for name, text in fields]
        reason = ("__headrace.errors.message", b"pieces: not a number")
        self.write(dead, value, [*headers, *origin_headers, reason], key)

    def records(self, topic: str = "") -> list[tuple[bytes | None, bytes | None, dict[str, bytes]]]:
        topic = topic or self.topic
        ranges = {partition: (0, end) for partition, end in self.cluster.ends(topic).items()}
        return [
            (message.key(), message.value(), dict(message.headers() or ()))  # type: ignore[arg-type]
            for message in read(self.cluster, topic, ranges)
        ]

    def letters(self, **request: Any) -> Any:
        return self.http.get(f"/v1/dead/{self.dead}/letters", **request).expect(200)

    def replay(self, letters: Any = "all", dead: str = "", **more: Any) -> Any:
        reply = self.http.post(f"/v1/dead/{dead or self.dead}/replay", {"letters": letters, **more})
        assert reply.status in (200, 202), reply.body
        return until(lambda: self.ended(dead), "the replay")

    def ended(self, dead: str = "") -> Any:
        document = self.http.get(f"/v1/dead/{dead or self.dead}/replay").expect(200)
        return document if document["state"] != "running" else None


@pytest.fixture
def dead_letters(
    cluster: Cluster, fresh: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DeadLetterApp]:
    name = fresh("dead")
    app = App(name)
    orders = app.topic(f"{name}-orders", Order, key="order_id")
    app.view(f"{name}-view", orders)
    ensure_declared(cluster, orders, orders.name, 2)
    newest = app.table(f"{name}-newest", Order, key="order_id")
    ensure_declared(cluster, newest, newest.name, 1)
    with served(app, cluster, tmp_path_factory.mktemp("dead")) as http:
        yield DeadLetterApp(http, cluster, app, name)
