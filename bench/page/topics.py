"""Topics on the page: the time to draw the list of a large log, and the speed of a search of a whole topic, against a
bare consumer that only reads the topic.
"""

from __future__ import annotations

import http.client
import json
import time

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

from bench.page.app import SEARCHED, SMALL
from bench.page.context import PageContext

__all__ = ["measure_list", "measure_search"]

_LIMIT_MS = 2_000.0
_TOPICS_PER_REQUEST = 200


def measure_list(context: PageContext) -> None:
    admin = context.cluster.admin()
    names = [f"listed-{number:05d}" for number in range(context.plan.topics)]
    for begin in range(0, len(names), _TOPICS_PER_REQUEST):
        created = admin.create_topics(
            [NewTopic(name, 1, 1) for name in names[begin : begin + _TOPICS_PER_REQUEST]]
        )
        for future in created.values():
            future.result(60)
    peer = f"a limit of {_LIMIT_MS:g} ms"
    with context.serving(SMALL) as served:
        for _ in range(context.plan.rounds):
            with context.screen(served.port) as screen:
                began = time.monotonic()
                screen.page.goto(f"{screen.address}/#/topics")
                screen.page.wait_for_selector('tr[data-key^="listed-"]')
                took_ms = (time.monotonic() - began) * 1_000
            context.figures.add_comparison(
                f"until a list of {len(names):,} topics is drawn", peer, took_ms, _LIMIT_MS, "ms"
            )


_EXPRESSIONS = {
    "text": ('text.contains("nowhere to be found")', 0.5),
    "an expression": ("value.amount + value.number < 0", None),
}
_PEER = "a bare consumer that reads the same topic"
_CATEGORIES = ("books", "garden", "kitchen")
_RECORDS_PER_POLL = 10_000
_TIMEOUT_S = 3_600.0


def measure_search(context: PageContext) -> None:
    _fill(context)
    count = context.plan.messages
    with context.serving(SMALL) as served:
        for _ in range(context.plan.rounds):
            for title, (where, goal) in _EXPRESSIONS.items():
                name = f"{count:,} messages searched by {title}"
                context.figures.note("them", name, _PEER, _read(context), "messages/s", goal)
                context.figures.note("us", name, _PEER, _search(served.port, where), "messages/s", goal)


def _fill(context: PageContext) -> None:
    context.cluster.ensure_topic(SEARCHED, 1)
    producer = context.cluster.producer({"linger.ms": 20})
    for number in range(context.plan.messages):
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
        if number % _RECORDS_PER_POLL == 0:
            producer.poll(0)
    producer.flush(_TIMEOUT_S)


def _read(context: PageContext) -> float:
    consumer = Consumer(
        {"bootstrap.servers": context.cluster.bootstrap, "group.id": "bare", "enable.auto.commit": False}
    )
    began, read = time.monotonic(), 0
    try:
        consumer.assign([TopicPartition(SEARCHED, 0, 0)])
        while read < context.plan.messages:
            read += len(consumer.consume(min(_RECORDS_PER_POLL, context.plan.messages - read), 10))
    finally:
        consumer.close()
    return read / (time.monotonic() - began)


def _search(port: int, where: str) -> float:
    """Search the whole topic. If the server's limits end a search before the end of the topic, continue with another
    search.
    """
    began, searched = time.monotonic(), 0
    cursor: dict[str, object] = {}
    while True:
        body = {"where": where, "newest_first": False, "limit": 10, **cursor}
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
        connection.request(
            "POST",
            f"/v1/log/topics/{SEARCHED}/search",
            json.dumps(body),
            {"Content-Type": "application/json"},
        )
        response = connection.getresponse()
        assert response.status == 200, response.read()
        end = json.loads(response.read().splitlines()[-1])["end"]
        connection.close()
        searched += int(end["done"])
        if end["next"] is None:
            return searched / (time.monotonic() - began)
        cursor = end["next"]
