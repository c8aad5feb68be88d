"""Clients that are at work all the time beside a driver of ``bench.faults.sales_app``: a producer, a consumer, readers
over HTTP and subscribers. Each has what it objects to in ``problems``; none may fail because the log is gone.
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

from bench.faults.consuming import stock_consumer
from bench.faults.flow_scene import COLUMNS, Sales
from tests.serve.copying import Copy, Ended, Rows, events, socket
from tests.serve.http import Http

__all__ = ["Client", "RowReader", "SaleProducer", "SaleReader", "Subscribers", "SumReader"]

_PARTITIONS = 2
_PATIENCE_S = 480.0
_READ_S_MAX = 60.0
_PAGE_SHARE = 0.2
_PASSING = frozenset(
    {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, KafkaError._RESOLVE}
)


class Client(threading.Thread):
    """``work`` goes on until ``finish``; what it raises is a finding."""

    def __init__(self) -> None:
        super().__init__(name=type(self).__name__, daemon=True)
        self.problems: list[str] = []
        self.done = 0
        """How often it got what it wants."""
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
            self.problems.append(f"{self.name} does not come to its end")


class SaleProducer(Client):
    """An idempotent producer on librdkafka, which gives no sale up. ``done`` counts acknowledgements."""

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
            key, value = self._sales.draw()
            self._producer.produce("sales", value, key, on_delivery=self._note)
            self._producer.poll(0)
        left = self._producer.flush(_PATIENCE_S)
        if left:
            self.problems.append(f"{left} sales were not acknowledged")

    def _note(self, error: Any, message: Any) -> None:
        if error is None:
            self.done += 1
        else:
            self.problems.append(f"the log refused sale {message.key()}: {error}")


class SaleReader(Client):
    """A stock consumer of committed records of ``kept``; it must be given each row once, in the order of the log."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._consumer = stock_consumer(
            port, "reader of kept", {"isolation.level": "read_committed", "reconnect.backoff.max.ms": 500}
        )
        self._given: Counter[str] = Counter()
        self._last: dict[int, int] = {}

    def work(self) -> None:
        self._consumer.assign([TopicPartition("kept", one, 0) for one in range(_PARTITIONS)])
        try:
            while not self._finish.is_set():
                for message in self._consumer.consume(500, 0.1):
                    self._take(message)
        finally:
            self._consumer.close()

    def _take(self, message: Any) -> None:
        error = message.error()
        if error is not None:
            if error.code() not in _PASSING:
                self.problems.append(f"the consumer got {error.name()}: {error.str()}")
            return
        partition, offset = message.partition(), message.offset()
        if offset <= self._last.get(partition, -1):
            self.problems.append(
                f"the consumer got offset {offset} of {partition} behind {self._last[partition]}"
            )
        self._last[partition] = offset
        self._given[json.loads(message.value())["sale_id"]] += 1
        self.done += 1

    def wait_for(self, sales: Sales) -> None:
        """Until it has a row of everything that was sent; what it lacks, or has twice, is a finding."""
        wanted = Counter(row[0] for row in sales.expected()["kept_rows"])
        deadline = time.monotonic() + _PATIENCE_S
        while self.done < wanted.total() and self.is_alive() and time.monotonic() < deadline:
            time.sleep(0.05)
        self.finish()
        if self._given != wanted:
            more, less = self._given - wanted, wanted - self._given
            self.problems.append(
                f"the consumer got {more.total()} rows too many and {less.total()} too few: {[*(more | less)][:5]}"
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

    def _answer(self, http: Http, path: str) -> Any:
        reply = http.get(path, timeout_s=_READ_S_MAX)
        if reply.status != 200:
            self.problems.append(f"GET {path} was answered with {reply.status}: {reply.body[:300]!r}")
            return None
        return reply.json


class SumReader(_HttpReader):
    """All sums, again and again: none may ever be smaller than it was."""

    def __init__(self, port: Callable[[], int], pause_s: float) -> None:
        super().__init__(port, pause_s)
        self._known: dict[tuple[str, str], int] = {}

    def read(self, http: Http) -> None:
        answer = self._answer(http, "/v1/views/sum_rows/rows?limit=1000")
        if answer is None:
            return
        found = {(row["product_id"], row["minute"]): row["sales"] for row in answer["rows"]}
        for key, count in self._known.items():
            if found.get(key, 0) < count:
                self.problems.append(f"{key} has {found.get(key)} sales, and had {count} before")
        self._known = found


class RowReader(_HttpReader):
    """A page of ``kept_rows``, then rows of it by their keys: a sale never changes, and is never gone."""

    def __init__(self, port: Callable[[], int], pause_s: float) -> None:
        super().__init__(port, pause_s)
        self._rows: dict[str, Any] = {}
        self._rng = random.Random(0)

    def read(self, http: Http) -> None:
        if self._rng.random() < _PAGE_SHARE or not self._rows:
            page = self._answer(http, "/v1/views/kept_rows/rows?limit=100")
            found = {row["sale_id"]: row for row in page["rows"]} if page else {}
            self._rows |= found
            return
        key = self._rng.choice([*self._rows])
        answer = self._answer(http, f"/v1/views/kept_rows/rows/{key}")
        if answer is not None and answer["row"] != self._rows[key]:
            self.problems.append(f"row {key} is {answer['row']}, and was {self._rows[key]}")


class Subscribers(Client):
    """Of both views, by WebSocket and by server-sent events. Whoever is disconnected objects, and comes again with its
    last cursor. ``bench.faults`` has another fault in which servers end: here none does.
    """

    def __init__(self, port: Callable[[], int]) -> None:
        super().__init__()
        self._port = port
        self.copies = [(view, carrier, Copy()) for view in COLUMNS for carrier in (socket, events)]

    def work(self) -> None:
        asyncio.run(self._follow_all())

    async def _follow_all(self) -> None:
        following = [asyncio.create_task(self._follow(*one)) for one in self.copies]
        while not self._finish.is_set() and not any(one.done() for one in following):
            await asyncio.sleep(0.05)
        for task in following:
            task.cancel()
        for ended in await asyncio.gather(*following, return_exceptions=True):
            if isinstance(ended, Exception):
                self.problems.append(f"the steps of a subscriber are not complete: {ended!r}")

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
        """Until every copy has the rows that follow from what was sent; one that never has is a finding."""
        deadline = time.monotonic() + _PATIENCE_S
        expected = sales.expected()
        for view, carrier, copy in self.copies:
            while (found := _as_rows(view, copy.rows)) != expected[view]:
                if time.monotonic() > deadline or not self.is_alive():
                    apart = sorted(found ^ expected[view])
                    told = f"{len(apart)} rows of {view} differ from what was sent: {apart[:4]}"
                    self.problems.append(f"a subscriber by {carrier.__name__}: {told}")
                    break
                time.sleep(0.05)
            kinds = Counter(kind for kind, _ in copy.seen)
            if kinds["hello"] != 1 + copy.resumed or kinds["reset"]:
                self.problems.append(f"a subscriber of {view} had to begin anew: {dict(kinds)}")


def _as_rows(view: str, rows: Rows) -> set[tuple[Any, ...]]:
    return {tuple(row[name] for name in COLUMNS[view]) for row in rows.values()}
