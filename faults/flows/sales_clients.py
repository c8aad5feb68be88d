"""Clients that run beside a driver of ``faults.flows.sales_app``: a producer, a consumer, HTTP readers and subscribers.
Each client collects its problems in ``problems``. No client may fail because the broker is unreachable.
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, Producer, TopicPartition
from websockets.exceptions import WebSocketException

from faults.flows.scene import COLUMNS, Sales
from faults.log.consumers import stock_consumer
from faults.serve.http import Http
from faults.serve.subscriber_copy import Copy, Ended, Rows, events, socket

__all__ = ["Client", "RowReader", "SaleProducer", "SaleReader", "Subscribers", "SumReader"]

_PARTITIONS = 2
_PATIENCE_S = 480.0
_READ_S_MAX = 60.0
_PAGE_SHARE = 0.2
_TRANSIENT = frozenset(
    {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, KafkaError._RESOLVE}
)


class Client(threading.Thread):
    """A thread that runs ``work`` until ``finish``. An exception of ``work`` is a problem."""

    def __init__(self) -> None:
        super().__init__(name=type(self).__name__, daemon=True)
        self.problems: list[str] = []
        self.done = 0
        """The number of successful operations."""
        self._finish = threading.Event()

    def run(self) -> None:
        try:
            self.work()
        except Exception as error:
            self.problems.append(f"{self.name} has ended: {error!r}")

    def work(self) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        self._finish.set()
        if self.is_alive():
            self.join(_PATIENCE_S)
        if self.is_alive():
            self.problems.append(f"{self.name} does not stop")


class SaleProducer(Client):
    """An idempotent librdkafka producer that retries every sale until it is acknowledged. ``done`` counts the
    acknowledgements.
    """

    def __init__(self, bootstrap: str, sales: Sales, pause_s: float) -> None:
        super().__init__()
        self._sales = sales
        self._pause_s = pause_s
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "message.timeout.ms": int(_PATIENCE_S * 1_000),
                "linger.ms": 5,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )

    def work(self) -> None:
        while not self._finish.wait(self._pause_s):
            key, value = self._sales.draw_sale()
            self._producer.produce("sales", value, key, on_delivery=self._on_delivery)
            self._producer.poll(0)
        unacknowledged = self._producer.flush(_PATIENCE_S)
        if unacknowledged:
            self.problems.append(f"{unacknowledged} sales were not acknowledged")

    def _on_delivery(self, error: Any, message: Any) -> None:
        if error is None:
            self.done += 1
        else:
            self.problems.append(f"the log refused sale {message.key()}: {error}")


class SaleReader(Client):
    """A read-committed stock consumer of ``kept``. It must receive each row once, in the order of the log."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._consumer = stock_consumer(
            port, "reader of kept", {"isolation.level": "read_committed", "reconnect.backoff.max.ms": 500}
        )
        self._delivered: Counter[str] = Counter()
        self._last: dict[int, int] = {}

    def work(self) -> None:
        self._consumer.assign([TopicPartition("kept", number, 0) for number in range(_PARTITIONS)])
        try:
            while not self._finish.is_set():
                for message in self._consumer.consume(500, 0.1):
                    self._take(message)
        finally:
            self._consumer.close()

    def _take(self, message: Any) -> None:
        error = message.error()
        if error is not None:
            if error.code() not in _TRANSIENT:
                self.problems.append(f"the consumer received the error {error.name()}: {error.str()}")
            return
        partition, offset = message.partition(), message.offset()
        if offset <= self._last.get(partition, -1):
            self.problems.append(
                f"the consumer received offset {offset} of {partition} after {self._last[partition]}"
            )
        self._last[partition] = offset
        self._delivered[json.loads(message.value())["sale_id"]] += 1
        self.done += 1

    def wait_for(self, sales: Sales) -> None:
        """Wait until the consumer has a row for every sent sale. Missing and duplicate rows are problems."""
        expected = Counter(row[0] for row in sales.expected()["kept_rows"])
        deadline = time.monotonic() + _PATIENCE_S
        while self.done < expected.total() and self.is_alive() and time.monotonic() < deadline:
            time.sleep(0.05)
        self.finish()
        if self._delivered != expected:
            extra, missing = self._delivered - expected, expected - self._delivered
            self.problems.append(
                f"the consumer received {extra.total()} rows too many and {missing.total()} too few:"
                f" {[*(extra | missing)][:5]}"
            )


class _HttpReader(Client):
    def __init__(self, port: Callable[[], int], pause_s: float) -> None:
        super().__init__()
        self._port = port
        self._pause_s = pause_s

    def work(self) -> None:
        while not self._finish.wait(self._pause_s):
            self.read(Http(self._port()))
            self.done += 1

    def read(self, http: Http) -> None:
        raise NotImplementedError

    def _get_json(self, http: Http, path: str) -> Any:
        response = http.get(path, timeout_s=_READ_S_MAX)
        if response.status != 200:
            self.problems.append(f"GET {path} returned status {response.status}: {response.body[:300]!r}")
            return None
        return response.json


class SumReader(_HttpReader):
    """Reads all sums repeatedly. A sum must never decrease."""

    def __init__(self, port: Callable[[], int], pause_s: float) -> None:
        super().__init__(port, pause_s)
        self._previous: dict[tuple[str, str], int] = {}

    def read(self, http: Http) -> None:
        answer = self._get_json(http, "/v1/views/sum_rows/rows?limit=1000")
        if answer is None:
            return
        sums = {(row["product_id"], row["minute"]): row["sales"] for row in answer["rows"]}
        for key, count in self._previous.items():
            if sums.get(key, 0) < count:
                self.problems.append(f"{key} has {sums.get(key)} sales, but had {count} before")
        self._previous = sums


class RowReader(_HttpReader):
    """Reads a page of ``kept_rows``, then some of its rows by key. A sale must never change or disappear."""

    def __init__(self, port: Callable[[], int], pause_s: float) -> None:
        super().__init__(port, pause_s)
        self._rows: dict[str, Any] = {}
        self._rng = random.Random(0)

    def read(self, http: Http) -> None:
        if self._rng.random() < _PAGE_SHARE or not self._rows:
            page = self._get_json(http, "/v1/views/kept_rows/rows?limit=100")
            page_rows = {row["sale_id"]: row for row in page["rows"]} if page else {}
            self._rows |= page_rows
            return
        key = self._rng.choice([*self._rows])
        answer = self._get_json(http, f"/v1/views/kept_rows/rows/{key}")
        if answer is not None and answer["row"] != self._rows[key]:
            self.problems.append(f"row {key} is {answer['row']}, but was {self._rows[key]}")


class Subscribers(Client):
    """Subscribers of both views, by WebSocket and by server-sent events. A disconnect is a problem, because the server
    keeps running during this fault. A disconnected subscriber resumes with its last cursor.
    """

    def __init__(self, port: Callable[[], int]) -> None:
        super().__init__()
        self._port = port
        self.copies = [(view, carrier, Copy()) for view in COLUMNS for carrier in (socket, events)]

    def work(self) -> None:
        asyncio.run(self._follow_all())

    async def _follow_all(self) -> None:
        tasks = [asyncio.create_task(self._follow(*copy)) for copy in self.copies]
        while not self._finish.is_set() and not any(task.done() for task in tasks):
            await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                self.problems.append(f"a subscriber missed steps: {result!r}")

    async def _follow(self, view: str, carrier: Any, copy: Copy) -> None:
        while True:
            copy.connected()
            try:
                async with carrier(self._port(), view, copy.cursor) as (first, messages):
                    if isinstance(first, int) and first != 200:
                        raise Ended(first)
                    async for message in messages:
                        copy.take(message)
                        self.done += 1
            except (Ended, OSError, WebSocketException, EOFError, IndexError) as error:
                self.problems.append(f"the connection of a subscriber of {view} ended: {error!r}"[:500])
                await asyncio.sleep(0.5)

    def wait_for(self, sales: Sales) -> None:
        """Wait until every copy has the rows that derive from the sent sales. Report each copy that never has them."""
        deadline = time.monotonic() + _PATIENCE_S
        expected = sales.expected()
        for view, carrier, copy in self.copies:
            while (rows := _as_rows(view, copy.rows)) != expected[view]:
                if time.monotonic() > deadline or not self.is_alive():
                    differing = sorted(rows ^ expected[view])
                    problem = f"{len(differing)} rows of {view} differ from what was sent: {differing[:4]}"
                    self.problems.append(f"a subscriber by {carrier.__name__}: {problem}")
                    break
                time.sleep(0.05)
            kinds = Counter(kind for kind, _ in copy.seen)
            if kinds["hello"] != 1 + copy.resumed or kinds["reset"]:
                self.problems.append(f"a subscriber of {view} had to start over: {dict(kinds)}")


def _as_rows(view: str, rows: Rows) -> set[tuple[Any, ...]]:
    return {tuple(row[name] for name in COLUMNS[view]) for row in rows.values()}
