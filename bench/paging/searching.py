"""Searching a whole topic for what is not in it, beside a bare consumer that reads it and looks at nothing."""

from __future__ import annotations

import http.client
import json
import time

from confluent_kafka import Consumer, TopicPartition

from bench.paging.app import SEARCHED, SMALL
from bench.paging.stand import PageStand

__all__ = ["measure"]

_WHERES = {
    "a text": ('text.contains("nowhere to be found")', 0.5),
    "an expression that each record is evaluated for": ("value.amount + value.number < 0", None),
}
_PEER = "a bare consumer that reads the same topic"
_CATEGORIES = ("books", "garden", "kitchen")
_AT_ONCE = 10_000
_TIMEOUT_S = 3_600.0


def measure(stand: PageStand) -> None:
    _fill(stand)
    count = stand.plan.messages
    with stand.serving(SMALL) as served:
        for _ in range(stand.plan.rounds):
            for title, (where, goal) in _WHERES.items():
                name = f"{count:,} messages searched for {title}"
                stand.measured.note("them", name, _PEER, _read(stand), "messages/s", goal)
                stand.measured.note("us", name, _PEER, _search(served.port, where), "messages/s", goal)


def _fill(stand: PageStand) -> None:
    stand.cluster.ensure_topic(SEARCHED, 1)
    producer = stand.cluster.producer({"linger.ms": 20})
    for number in range(stand.plan.messages):
        sale = {
            "sale_id": f"s-{number}",
            "number": number,
            "amount": number * 37 % 9_973,
            "category": _CATEGORIES[number % 3],
        }
        while True:
            try:
                producer.produce(SEARCHED, json.dumps(sale).encode(), f"s-{number}".encode())
                break
            except BufferError:
                producer.poll(0.1)
        if number % _AT_ONCE == 0:
            producer.poll(0)
    producer.flush(_TIMEOUT_S)


def _read(stand: PageStand) -> float:
    consumer = Consumer(
        {"bootstrap.servers": stand.cluster.bootstrap, "group.id": "bare", "enable.auto.commit": False}
    )
    began, read = time.monotonic(), 0
    try:
        consumer.assign([TopicPartition(SEARCHED, 0, 0)])
        while read < stand.plan.messages:
            read += len(consumer.consume(min(_AT_ONCE, stand.plan.messages - read), 10))
    finally:
        consumer.close()
    return read / (time.monotonic() - began)


def _search(port: int, where: str) -> float:
    """As often as the server ends it before the end of the topic, by its own limits, it is gone on with."""
    began, done = time.monotonic(), 0
    rest: dict[str, object] = {}
    while True:
        body = {"where": where, "newest_first": False, "limit": 10, **rest}
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
        connection.request(
            "POST",
            f"/v1/log/topics/{SEARCHED}/search",
            json.dumps(body),
            {"Content-Type": "application/json"},
        )
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        end = json.loads(answer.read().splitlines()[-1])["end"]
        connection.close()
        done += end["done"]
        if end["next"] is None:
            return done / (time.monotonic() - began)
        rest = end["next"]
