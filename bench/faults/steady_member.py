"""The only member of a group, which must keep its session through a whole run and get every row once."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer

from bench.faults.consuming import stock_consumer
from tests.support.waiting import until

__all__ = ["SteadyMember"]

_SESSION_MS = 10_000
_ROWS_S_MAX = 30.0


class SteadyMember(threading.Thread):
    """Alone in a group, on librdkafka, with a session of ten seconds."""

    def __init__(self, port: int, topic: str) -> None:
        super().__init__(name=f"member of {topic}", daemon=True)
        self._topic = topic
        self._consumer: Consumer = stock_consumer(
            port,
            f"readers of {topic}",
            {
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "session.timeout.ms": _SESSION_MS,
                "heartbeat.interval.ms": 200,
            },
        )
        self._changes: list[str] = []
        self._problems: list[str] = []
        self._rows: list[tuple[Any, ...]] = []
        self._finish = threading.Event()

    def run(self) -> None:
        def note(change: str) -> Callable[[Any, Any], None]:
            return lambda consumer, partitions: self._changes.append(change)

        self._consumer.subscribe(
            [self._topic], on_assign=note("assigned"), on_revoke=note("revoked"), on_lost=note("lost")
        )
        while not self._finish.is_set():
            for message in self._consumer.consume(100, 0.05):
                if message.error() is not None:
                    self._problems.append(f"a member of a group got {message.error()}")
                else:
                    self._rows.append(_record(message))

    def wait_until_assigned(self) -> None:
        until(lambda: self._changes, f"a member of a group is assigned {self._topic}")

    def finish(self, rows: list[Any]) -> list[str]:
        """What it objects to, once it was given as many rows as these."""
        with contextlib.suppress(AssertionError):
            until(lambda: len(self._rows) >= len(rows), "the member reads all rows", timeout_s=_ROWS_S_MAX)
        self._finish.set()
        if self.is_alive():
            self.join()
        if rows and sorted(self._rows) != sorted(map(_record, rows)):
            self._problems.append(f"a member of a group got {len(self._rows)} rows of {len(rows)}")
        if rows and self._changes != ["assigned"]:
            self._problems.append(f"a member of a group was {', '.join(self._changes)}")
        self._consumer.close()
        return self._problems


def _record(message: Any) -> tuple[Any, ...]:
    return message.partition(), message.offset(), message.key(), message.value()
