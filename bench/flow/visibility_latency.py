"""Visibility latency: the time from when an event is due until a reader of the view's file finds its row.

Events are due at fixed times, whatever happens to earlier events, so a stall counts for every event that it delays. The
reader is a separate connection, which polls SQLite every millisecond for commits.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from bench.flow.context import FlowContext
from bench.flow.orders import event, key_of, product_of, quantity_of
from headrace.client.cluster import Cluster
from headrace.settings import FlowSettings

__all__ = ["measure", "spans"]

_TICK_S = 0.001
_FIRST_ROW_TIMEOUT_S = 180.0
_LAST_ROW_TIMEOUT_S = 60.0
_QUERIES = {
    "large_orders": ("map and filter", 1_000.0),
    "large_orders_now": ("map and filter in real time (at least once)", 100.0),
    "per_minute": ("window aggregation", 2_000.0),
}
"""For each query, its title and its latency limit in milliseconds."""

Due = tuple[float, float]
"""When an event is due, on the monotonic clock and in Unix seconds."""


class _Expected(Protocol):
    """The events that are not visible yet."""

    def add(self, number: int, due: Due) -> None: ...

    def take_visible(self, view: sqlite3.Connection) -> Iterator[Due]:
        """Remove the events that are visible now, and yield when they were due."""

    def __len__(self) -> int: ...


class _Rows:
    """Each event has its own row, unless the query filters it out. Rows become visible in the order of the events."""

    def __init__(self) -> None:
        self._due: dict[str, Due] = {}
        self._last = ""

    def add(self, number: int, due: Due) -> None:
        if quantity_of(number) > 1:
            self._due[key_of(number)] = due

    def take_visible(self, view: sqlite3.Connection) -> Iterator[Due]:
        for (key,) in view.execute(
            "SELECT order_id FROM seen WHERE order_id > ? ORDER BY order_id", (self._last,)
        ):
            self._last = key
            yield self._due.pop(key)

    def __len__(self) -> int:
        return len(self._due)


class _Counts:
    """An event is visible when the count of its product and minute includes it."""

    def __init__(self) -> None:
        self._due: dict[tuple[str, str], deque[Due]] = defaultdict(deque)
        self._visible_counts: dict[tuple[str, str], int] = defaultdict(int)

    def add(self, number: int, due: Due) -> None:
        minute = datetime.fromtimestamp(due[1] // 60 * 60, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        self._due[product_of(number), minute].append(due)

    def take_visible(self, view: sqlite3.Connection) -> Iterator[Due]:
        for product, minute, orders in view.execute("SELECT product_id, minute, orders FROM seen"):
            waiting = self._due[product, minute]
            for _ in range(orders - self._visible_counts[product, minute]):
                yield waiting.popleft()
            self._visible_counts[product, minute] = orders

    def __len__(self) -> int:
        return sum(map(len, self._due.values()))


_EXPECTED: dict[str, Callable[[], _Expected]] = {
    "large_orders": _Rows,
    "large_orders_now": _Rows,
    "per_minute": _Counts,
}


def measure(context: FlowContext) -> None:
    plan = context.plan
    for query, (title, limit_ms) in _QUERIES.items():
        topic = f"{query}-seen-orders"
        context.cluster.ensure_topic(topic, 1)
        task = context.task("flow+view", query, f"{query}-seen", topic, partitions=1)
        with context.host.run(task) as running:
            latencies_s = spans(
                context.cluster,
                query,
                topic,
                task.view_file,
                running.check,
                rate=plan.rate,
                warm_s=plan.warm_s,
                seconds=_seconds(context, query),
            )
        for part, at in (("p50", 0.5), ("p99", 0.99)):
            row = f"event to row in SQLite at {plan.rate}/s, {title}, {part}"
            peer = f"a limit of {limit_ms / 1000:g} s"
            context.figures.add_comparison(
                row, peer, latencies_s[int(len(latencies_s) * at)] * 1000, limit_ms, "ms"
            )


def _seconds(context: FlowContext, query: str) -> float:
    """Return how long to measure: for a real-time flow, at least one whole batch including the wait at its end."""
    if query != "large_orders_now" or context.plan.is_quick:
        return context.plan.seconds
    return max(context.plan.seconds, FlowSettings().realtime_ms / 1_000)


def spans(
    cluster: Cluster,
    query: str,
    topic: str,
    view_file: Path,
    check: Callable[[], None],
    *,
    rate: int,
    warm_s: float,
    seconds: float,
) -> list[float]:
    """Return the latencies in seconds, sorted. The first row can take longer. Events that are due within ``warm_s``
    after the first row are not counted.

    The topic must have one partition, so that events become visible in the order in which they were sent.
    """
    producer = cluster.producer({"linger.ms": 0})
    expected = _EXPECTED[query]()
    latencies: list[float] = []
    began: float | None = None
    number = 0
    due = time.monotonic()
    deadline = due + _FIRST_ROW_TIMEOUT_S
    with contextlib.closing(_open_view(view_file, check, deadline)) as view:
        version = -1
        while True:
            now = time.monotonic()
            while due <= now and (began is None or due < began + warm_s + seconds):
                wall = time.time() - (now - due)
                key, value = event(number, datetime.fromtimestamp(wall, UTC))
                producer.produce(topic, value, key)
                expected.add(number, (due, wall))
                number += 1
                due += 1 / rate
            producer.poll(0)
            before, version = version, view.execute("PRAGMA data_version").fetchone()[0]
            if version != before and _has_view(view):
                seen_at = time.monotonic()
                for was_due, _ in expected.take_visible(view):
                    began = seen_at if began is None else began
                    if was_due >= began + warm_s:
                        latencies.append(seen_at - was_due)
            if began is not None:
                deadline = began + warm_s + seconds + _LAST_ROW_TIMEOUT_S
                if now > began + warm_s + seconds and not expected:
                    return sorted(latencies)
            if now > deadline:
                raise SystemExit(f"{len(expected)} of {number} events never became visible in {view_file}")
            check()
            time.sleep(_TICK_S)


def _open_view(view_file: Path, check: Callable[[], None], deadline: float) -> sqlite3.Connection:
    while not view_file.is_file() and time.monotonic() < deadline:
        check()
        time.sleep(0.05)
    return sqlite3.connect(f"{view_file.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)


def _has_view(view: sqlite3.Connection) -> bool:
    return view.execute("SELECT 1 FROM sqlite_master WHERE name = 'seen'").fetchone() is not None
