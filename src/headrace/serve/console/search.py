"""A search through ranges of a topic: all of them, however long they are, in either direction.

Oldest first, ranges are read as they come. Newest first they are read in windows from their ends back, which begin
small, so that something is there soon, and grow, so that little is read that is not used. Of what was read together,
what was found is told in the order of time, as far as that is also the order of each partition. So where it ends before
all is read, it can be said from where to go on, and nothing is missed or told again.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from confluent_kafka import Consumer

from headrace.client.cluster import Cluster
from headrace.clock import Clock
from headrace.serve.console.record_json import record_json
from headrace.serve.console.window_reading import WindowReading

__all__ = ["Ask", "search"]

_BEAT_S = 0.25
_WINDOW_FIRST = 10_000
_WINDOW_MAX = 500_000
_WHOLE_MAX = 20_000
_SLICE = 200
_SETTINGS: dict[str, Any] = {
    "group.id": "headrace-search",
    "fetch.wait.max.ms": 10,
    "fetch.max.bytes": 16 << 20,
    "max.partition.fetch.bytes": 1 << 20,
    "queued.min.messages": 20_000,
    "queued.max.messages.kbytes": 64 << 10,
}
_FEW = 5_000
"""So many records are not worth reading ahead."""


class Ask(msgspec.Struct, frozen=True):
    topic: str
    ranges: dict[int, tuple[int, int]]
    """By partition: from (inclusive) to (exclusive)."""
    newest_first: bool
    limit: int
    """Records that are told."""
    bytes_max: int
    """Of what is told."""
    part_bytes_max: int
    """Of a key, a value or a header; more is cut."""
    time_s: float
    where: str = ""


class _Found:
    """What a window has of a partition, by offset: what is told first comes first, or, newest first, last."""

    __slots__ = ("cut", "lines")

    def __init__(self) -> None:
        self.lines: deque[tuple[int, int, bytes]] = deque()
        """Time, offset, and what is told."""
        self.cut: int | None = None
        """The first offset of those that were left out, in the order of telling; they are found again."""


def search(
    cluster: Cluster,
    ask: Ask,
    clock: Clock,
    sieve: Callable[[Any], bool] | None = None,
    matches: Callable[[Any], bool | None] | None = None,
) -> Iterator[bytes]:
    """Lines of JSON: records, now and then progress, and the end. ``sieve`` is asked before ``matches``."""
    return _Search(cluster, ask, clock, sieve, matches).lines()


class _Search:
    def __init__(
        self,
        cluster: Cluster,
        ask: Ask,
        clock: Clock,
        sieve: Callable[[Any], bool] | None,
        matches: Callable[[Any], bool | None] | None,
    ) -> None:
        self._cluster = cluster
        self._ask = ask
        self._clock = clock
        self._sieve = sieve
        self._matches = matches
        self._left = {number: (lo, hi) for number, (lo, hi) in ask.ranges.items() if lo < hi}
        self._of = sum(hi - lo for lo, hi in self._left.values())
        self._done = 0
        self._told = 0
        self._told_bytes = 0
        self._failed = 0
        self._held = 0
        """Bytes of what was found in this window."""
        self._full = False
        """Whether something was found that is not told."""
        self._began = self._beat_at = clock.steady()

    def lines(self) -> Iterator[bytes]:
        yield self._progress()
        if not self._left:
            yield self._end("all")
            return
        few = {"queued.min.messages": 1_000} if self._of <= _FEW or self._matches is None else {}
        consumer = self._cluster.consumer(_SETTINGS | few)
        try:
            yield from self._read(consumer)
        finally:
            consumer.close()

    def _read(self, consumer: Consumer) -> Iterator[bytes]:
        size = self._ask.limit if self._matches is None else _WINDOW_FIRST
        read = WindowReading(self._ask.topic, consumer, self._clock)
        before = 0
        while self._left:
            if self._ask.newest_first or not read.open:
                before = self._done
                read.begin(self._windows(size))
            windows: dict[int, tuple[int, int]] = {}
            self._held = 0
            found = {number: _Found() for number in self._left}
            while read.open:
                messages = read.batch()
                for begin in range(0, len(messages), _SLICE):
                    self._take(messages[begin : begin + _SLICE], read.windows, found)
                    # Whoever hears nothing takes it for stuck.
                    if self._is_due():
                        yield self._progress()
                windows = read.passed()
                self._done = before + sum(hi - lo for lo, hi in windows.values())
                if not self._ask.newest_first:
                    break
                if self._matches is not None and self._is_late():
                    # Nothing of the window was told: it is all left.
                    self._done = before
                    yield self._end("time")
                    return
            yield from self._tell(windows, found)
            why = self._why()
            if why and self._left:
                yield self._end(why)
                return
            if self._is_due():
                yield self._progress()
            size = min(size * 4, _WINDOW_MAX)
        yield self._end("all")

    def _is_due(self) -> bool:
        now = self._clock.steady()
        if now - self._beat_at < _BEAT_S:
            return False
        self._beat_at = now
        return True

    def _why(self) -> str:
        """It ends here, if it does."""
        ask = self._ask
        if self._told >= ask.limit:
            return "limit"
        if self._full:
            return "bytes"
        return "time" if self._is_late() else ""

    def _is_late(self) -> bool:
        return self._clock.steady() - self._began > self._ask.time_s

    def _windows(self, size: int) -> dict[int, tuple[int, int]]:
        if not self._ask.newest_first:
            return dict(self._left)
        share = max(1, size // len(self._left))
        if self._matches is None and size * len(self._left) <= _WHOLE_MAX:
            # As many of each partition as are told of all: then what is told is the newest of all.
            share = size
        return {number: (max(lo, hi - share), hi) for number, (lo, hi) in self._left.items()}

    def _take(
        self, messages: list[Any], windows: dict[int, tuple[int, int]], found: dict[int, _Found]
    ) -> None:
        matches = self._matches
        for message in filter(self._sieve, messages) if self._sieve is not None else messages:
            number, offset = message.partition(), message.offset()
            if message.error() is not None or number not in windows or offset >= windows[number][1]:
                continue
            if matches is not None:
                true = matches(message)
                if not true:
                    self._failed += true is None
                    continue
            self._keep(found[number], message, offset)

    def _keep(self, found: _Found, message: Any, offset: int) -> None:
        """As many as can be told at most: of the newest, or of the first."""
        ask = self._ask
        room = ask.bytes_max - self._told_bytes
        if not ask.newest_first and (
            found.cut is not None or len(found.lines) >= ask.limit or self._held > room
        ):
            found.cut = offset if found.cut is None else found.cut
            return
        line = msgspec.json.encode({"record": record_json(message, ask.part_bytes_max)})
        found.lines.append((message.timestamp()[1], offset, line))
        self._held += len(line)
        if ask.newest_first:
            while len(found.lines) > ask.limit or (self._held > room and len(found.lines) > 1):
                _, found.cut, gone = found.lines.popleft()
                self._held -= len(gone)

    # Telling it

    def _tell(self, windows: dict[int, tuple[int, int]], found: dict[int, _Found]) -> Iterator[bytes]:
        newest = self._ask.newest_first
        sign = -1 if newest else 1
        waiting = {number: _in_order(one.lines, newest) for number, one in found.items()}
        heads: list[tuple[int, int]] = []
        following: dict[int, tuple[int, int, bytes]] = {}
        for number, lines in waiting.items():
            self._next(number, lines, sign, heads, following)
        unused: dict[int, int] = {number: one.cut for number, one in found.items() if one.cut is not None}
        while heads:
            _, number = heapq.heappop(heads)
            _, offset, line = following.pop(number)
            self._full = self._full or (self._told > 0 and self._told_bytes + len(line) > self._ask.bytes_max)
            if self._told >= self._ask.limit or self._full:
                unused[number] = offset
                continue
            self._told += 1
            self._told_bytes += len(line)
            yield line + b"\n"
            self._next(number, waiting[number], sign, heads, following)
        self._full = self._full or bool(unused)
        self._go_on(windows, unused)

    @staticmethod
    def _next(
        number: int,
        lines: Iterator[tuple[int, int, bytes]],
        sign: int,
        heads: list[tuple[int, int]],
        following: dict[int, tuple[int, int, bytes]],
    ) -> None:
        one = next(lines, None)
        if one is not None:
            following[number] = one
            heapq.heappush(heads, (sign * one[0], number))

    def _go_on(self, windows: dict[int, tuple[int, int]], unused: dict[int, int]) -> None:
        """What is left: behind the window, and what of it was found and not told."""
        left = {}
        for number, (lo, hi) in self._left.items():
            begin, end = windows.get(number, (lo, lo))
            if self._ask.newest_first:
                hi = unused[number] + 1 if number in unused else begin
            else:
                lo = unused.get(number, end)
            if lo < hi:
                left[number] = (lo, hi)
        self._left = left

    def _progress(self) -> bytes:
        return msgspec.json.encode({"progress": self._counts()}) + b"\n"

    def _end(self, why: str) -> bytes:
        left = sorted(self._left.items())
        told = {
            **self._counts(),
            "why": why,
            "took_s": round(self._clock.steady() - self._began, 3),
            "next": {
                "partitions": [number for number, _ in left],
                "from": {"offsets": {str(number): lo for number, (lo, _) in left}},
                "to": {"offsets": {str(number): hi for number, (_, hi) in left}},
            }
            if left
            else None,
        }
        return msgspec.json.encode({"end": told}) + b"\n"

    def _counts(self) -> dict[str, Any]:
        took_s = self._clock.steady() - self._began
        return {
            "done": self._done,
            "of": self._of,
            "found": self._told,
            "failed": self._failed,
            "per_s": round(self._done / took_s) if took_s > 0 else 0,
        }


def _in_order(lines: deque[tuple[int, int, bytes]], newest_first: bool) -> Iterator[tuple[int, int, bytes]]:
    return reversed(lines) if newest_first else iter(lines)
