"""The only member of a group. It must keep its session during a whole run and receive every row once."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer

from faults.log.consumers import stock_consumer
from faults.wait import until

__all__ = ["SteadyMember"]

_SESSION_MS = 10_000
_ROWS_S_MAX = 30.0


class SteadyMember(threading.Thread):
    """A librdkafka consumer, alone in its group, with a session timeout of ten seconds."""

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
        def record_change(change: str) -> Callable[[Any, Any], None]:
            return lambda consumer, partitions: self._changes.append(change)

        self._consumer.subscribe(
            [self._topic],
            on_assign=record_change("assigned"),
            on_revoke=record_change("revoked"),
            on_lost=record_change("lost"),
        )
        while not self._finish.is_set():
            for message in self._consumer.consume(100, 0.05):
                if message.error() is not None:
                    self._problems.append(f"a group member received the error {message.error()}")
                else:
                    self._rows.append(_record(message))

    def wait_until_assigned(self) -> None:
        until(lambda: self._changes, f"the group member is assigned {self._topic}")

    def finish(self, rows: list[Any]) -> list[str]:
        """Wait until the member has received as many rows as in ``rows``, and return its problems."""
        with contextlib.suppress(AssertionError):
            until(lambda: len(self._rows) >= len(rows), "the member reads all rows", timeout_s=_ROWS_S_MAX)
        self._finish.set()
        if self.is_alive():
            self.join()
        if rows and sorted(self._rows) != sorted(map(_record, rows)):
            self._problems.append(f"a group member received {len(self._rows)} of {len(rows)} rows")
        if rows and self._changes != ["assigned"]:
            self._problems.append(f"a group member was {', '.join(self._changes)}")
        self._consumer.close()
        return self._problems


def _record(message: Any) -> tuple[Any, ...]:
    return message.partition(), message.offset(), message.key(), message.value()
