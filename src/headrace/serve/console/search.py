"""Searches offset ranges of a topic, oldest or newest record first.

Oldest first, the consumer reads each range from start to end. Newest first, it reads windows of offsets backwards from
the end of each range. The first windows are small, so that results arrive soon; later windows are larger.

The matches of a window are merged by timestamp, but each partition keeps its offset order. So a search that ends early
can report where to continue, and no match is missed or emitted twice.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, TopicPartition

from headrace.client.cluster import Cluster
from headrace.client.errors import LogError, from_kafka
from headrace.clock import Clock
from headrace.serve.console.record_json import record_json

__all__ = ["SearchJob", "WindowReader", "search"]

_PROGRESS_S = 0.25
_WINDOW_FIRST = 10_000
_WINDOW_MAX = 500_000
_FULL_WINDOW_MAX = 20_000
_SLICE = 200
_SETTINGS: dict[str, Any] = {
    "group.id": "headrace-search",
    "fetch.wait.max.ms": 10,
    "fetch.max.bytes": 16 << 20,
    "max.partition.fetch.bytes": 1 << 20,
    "queued.min.messages": 20_000,
    "queued.max.messages.kbytes": 64 << 10,
}
_SMALL_SEARCH = 5_000
"""For up to this many records, the consumer prefetches less."""


class SearchJob(msgspec.Struct, frozen=True):
    topic: str
    ranges: dict[int, tuple[int, int]]
    """By partition: start (inclusive) and end (exclusive)."""
    newest_first: bool
    limit: int
    """Maximum records in the response."""
    bytes_max: int
    """Maximum bytes of the response."""
    part_bytes_max: int
    """Maximum bytes of a key, a value or a header. The rest is cut off."""
    time_s: float
    where: str = ""


class _Matches:
    """The matches of one partition in a window, in offset order."""

    __slots__ = ("cut", "lines")

    def __init__(self) -> None:
        self.lines: deque[tuple[int, int, bytes]] = deque()
        """Timestamp, offset and encoded line."""
        self.cut: int | None = None
        """The first match, in output order, that was dropped. A search that continues from here finds it again."""


def search(
    cluster: Cluster,
    job: SearchJob,
    clock: Clock,
    sieve: Callable[[Any], bool] | None = None,
    matches: Callable[[Any], bool | None] | None = None,
) -> Iterator[bytes]:
    """Yield lines of JSON: records, progress from time to time, and the end.

    ``sieve`` is a cheap test that runs before ``matches``. It can pass records that do not match, but never drops a
    record that matches.
    """
    return _Search(cluster, job, clock, sieve, matches).lines()


class _Search:
    def __init__(
        self,
        cluster: Cluster,
        job: SearchJob,
        clock: Clock,
        sieve: Callable[[Any], bool] | None,
        matches: Callable[[Any], bool | None] | None,
    ) -> None:
        self._cluster = cluster
        self._job = job
        self._clock = clock
        self._sieve = sieve
        self._matches = matches
        self._remaining = {number: (lo, hi) for number, (lo, hi) in job.ranges.items() if lo < hi}
        self._total = sum(hi - lo for lo, hi in self._remaining.values())
        self._searched = 0
        self._emitted = 0
        self._emitted_bytes = 0
        self._failed_evaluations = 0
        self._window_bytes = 0
        """Bytes of the matches in the current window."""
        self._reached_limit = False
        """True if a match was not emitted, because the response has reached its maximum of records or bytes."""
        self._started_s = self._progress_s = clock.steady()

    def lines(self) -> Iterator[bytes]:
        yield self._progress()
        if not self._remaining:
            yield self._end("all")
            return
        prefetch = (
            {"queued.min.messages": 1_000} if self._total <= _SMALL_SEARCH or self._matches is None else {}
        )
        consumer = self._cluster.consumer(_SETTINGS | prefetch)
        try:
            yield from self._read(consumer)
        finally:
            consumer.close()

    def _read(self, consumer: Consumer) -> Iterator[bytes]:
        size = self._job.limit if self._matches is None else _WINDOW_FIRST
        reader = WindowReader(self._job.topic, consumer, self._clock)
        searched_before = 0
        while self._remaining:
            if self._job.newest_first or not reader.open:
                searched_before = self._searched
                reader.begin(self._windows(size))
            windows: dict[int, tuple[int, int]] = {}
            self._window_bytes = 0
            partition_matches = {number: _Matches() for number in self._remaining}
            while reader.open:
                messages = reader.batch()
                for begin in range(0, len(messages), _SLICE):
                    self._match_batch(messages[begin : begin + _SLICE], reader.windows, partition_matches)
                    # The server kills a process that sends nothing for too long.
                    if self._is_due():
                        yield self._progress()
                windows = reader.read_so_far()
                self._searched = searched_before + sum(hi - lo for lo, hi in windows.values())
                if not self._job.newest_first:
                    break
                if self._matches is not None and self._is_time_up():
                    # No match of this window was emitted, so the whole window remains to be searched.
                    self._searched = searched_before
                    yield self._end("time")
                    return
            yield from self._emit(windows, partition_matches)
            why = self._end_reason()
            if why and self._remaining:
                yield self._end(why)
                return
            if self._is_due():
                yield self._progress()
            size = min(size * 4, _WINDOW_MAX)
        yield self._end("all")

    def _is_due(self) -> bool:
        now = self._clock.steady()
        if now - self._progress_s < _PROGRESS_S:
            return False
        self._progress_s = now
        return True

    def _end_reason(self) -> str:
        """Return why the search must end now. Empty if it continues."""
        if self._emitted >= self._job.limit:
            return "limit"
        if self._reached_limit:
            return "bytes"
        return "time" if self._is_time_up() else ""

    def _is_time_up(self) -> bool:
        return self._clock.steady() - self._started_s > self._job.time_s

    def _windows(self, size: int) -> dict[int, tuple[int, int]]:
        if not self._job.newest_first:
            return dict(self._remaining)
        share = max(1, size // len(self._remaining))
        if self._matches is None and size * len(self._remaining) <= _FULL_WINDOW_MAX:
            # Read the full size from each partition. Then the emitted records are the newest of the whole topic.
            share = size
        return {number: (max(lo, hi - share), hi) for number, (lo, hi) in self._remaining.items()}

    def _match_batch(
        self, messages: list[Any], windows: dict[int, tuple[int, int]], partition_matches: dict[int, _Matches]
    ) -> None:
        matches = self._matches
        for message in filter(self._sieve, messages) if self._sieve is not None else messages:
            number, offset = message.partition(), message.offset()
            if message.error() is not None or number not in windows or offset >= windows[number][1]:
                continue
            if matches is not None:
                result = matches(message)
                if not result:
                    self._failed_evaluations += result is None
                    continue
            self._store_match(partition_matches[number], message, offset)

    def _store_match(self, stored: _Matches, message: Any, offset: int) -> None:
        """Store a match. Drop matches beyond the limits, because they cannot be emitted."""
        job = self._job
        room_bytes = job.bytes_max - self._emitted_bytes
        if not job.newest_first and (
            stored.cut is not None or len(stored.lines) >= job.limit or self._window_bytes > room_bytes
        ):
            stored.cut = offset if stored.cut is None else stored.cut
            return
        line = msgspec.json.encode({"record": record_json(message, job.part_bytes_max)})
        stored.lines.append((message.timestamp()[1], offset, line))
        self._window_bytes += len(line)
        if job.newest_first:
            while len(stored.lines) > job.limit or (
                self._window_bytes > room_bytes and len(stored.lines) > 1
            ):
                _, stored.cut, dropped = stored.lines.popleft()
                self._window_bytes -= len(dropped)

    # Output

    def _emit(
        self, windows: dict[int, tuple[int, int]], partition_matches: dict[int, _Matches]
    ) -> Iterator[bytes]:
        newest = self._job.newest_first
        sign = -1 if newest else 1
        lines_by_partition = {
            number: _in_order(matches.lines, newest) for number, matches in partition_matches.items()
        }
        heads: list[tuple[int, int]] = []
        next_lines: dict[int, tuple[int, int, bytes]] = {}
        for number, lines in lines_by_partition.items():
            self._next(number, lines, sign, heads, next_lines)
        first_unused: dict[int, int] = {
            number: matches.cut for number, matches in partition_matches.items() if matches.cut is not None
        }
        while heads:
            _, number = heapq.heappop(heads)
            _, offset, line = next_lines.pop(number)
            self._reached_limit = self._reached_limit or (
                self._emitted > 0 and self._emitted_bytes + len(line) > self._job.bytes_max
            )
            if self._emitted >= self._job.limit or self._reached_limit:
                first_unused[number] = offset
                continue
            self._emitted += 1
            self._emitted_bytes += len(line)
            yield line + b"\n"
            self._next(number, lines_by_partition[number], sign, heads, next_lines)
        self._reached_limit = self._reached_limit or bool(first_unused)
        self._advance(windows, first_unused)

    @staticmethod
    def _next(
        number: int,
        lines: Iterator[tuple[int, int, bytes]],
        sign: int,
        heads: list[tuple[int, int]],
        next_lines: dict[int, tuple[int, int, bytes]],
    ) -> None:
        line = next(lines, None)
        if line is not None:
            next_lines[number] = line
            heapq.heappush(heads, (sign * line[0], number))

    def _advance(self, windows: dict[int, tuple[int, int]], first_unused: dict[int, int]) -> None:
        """Compute the remaining ranges: the offsets beyond the window, and those from the first match not emitted."""
        remaining = {}
        for number, (lo, hi) in self._remaining.items():
            begin, end = windows.get(number, (lo, lo))
            if self._job.newest_first:
                hi = first_unused[number] + 1 if number in first_unused else begin
            else:
                lo = first_unused.get(number, end)
            if lo < hi:
                remaining[number] = (lo, hi)
        self._remaining = remaining

    def _progress(self) -> bytes:
        return msgspec.json.encode({"progress": self._counts()}) + b"\n"

    def _end(self, why: str) -> bytes:
        remaining = sorted(self._remaining.items())
        end = {
            **self._counts(),
            "why": why,
            "took_s": round(self._clock.steady() - self._started_s, 3),
            "next": {
                "partitions": [number for number, _ in remaining],
                "from": {"offsets": {str(number): lo for number, (lo, _) in remaining}},
                "to": {"offsets": {str(number): hi for number, (_, hi) in remaining}},
            }
            if remaining
            else None,
        }
        return msgspec.json.encode({"end": end}) + b"\n"

    def _counts(self) -> dict[str, Any]:
        took_s = self._clock.steady() - self._started_s
        return {
            "done": self._searched,
            "of": self._total,
            "found": self._emitted,
            "failed": self._failed_evaluations,
            "per_s": round(self._searched / took_s) if took_s > 0 else 0,
        }


def _in_order(lines: deque[tuple[int, int, bytes]], newest_first: bool) -> Iterator[tuple[int, int, bytes]]:
    return reversed(lines) if newest_first else iter(lines)


_BATCH_MAX = 20_000
_POLL_S = 0.05
_SILENT_S = 20.0


class WindowReader:
    """Reads a window of offsets from each partition, in large batches. A batch can contain records past the end of a
    window, which the caller must skip.
    """

    def __init__(self, topic: str, consumer: Consumer, clock: Clock) -> None:
        self._topic = topic
        self._consumer = consumer
        self._clock = clock
        self.windows: dict[int, tuple[int, int]] = {}
        self.open: dict[int, int] = {}
        """The next offset of each partition whose window is not yet read to the end."""
        self._received_s = 0.0

    def begin(self, windows: dict[int, tuple[int, int]]) -> None:
        self._consumer.assign([self._partition(number, lo) for number, (lo, _) in windows.items()])
        self.windows = windows
        self.open = {number: lo for number, (lo, _) in windows.items()}
        self._received_s = self._clock.steady()

    def read_so_far(self) -> dict[int, tuple[int, int]]:
        """Return the part of each partition's window that was read so far."""
        return {number: (lo, self.open.get(number, hi)) for number, (lo, hi) in self.windows.items()}

    def batch(self) -> list[Any]:
        messages = self._consumer.consume(_BATCH_MAX, _POLL_S)
        now = self._clock.steady()
        if not messages:
            if now - self._received_s > _SILENT_S:
                detail = f"topic {self._topic!r} did not respond for {_SILENT_S:.0f} s"
                raise LogError(detail, name="TIMED_OUT", retriable=True)
            return []
        self._received_s = now
        for message in messages:
            error = message.error()
            if error is None:
                continue
            if error.code() != KafkaError._PARTITION_EOF:
                raise from_kafka(error, f"reading topic {self._topic!r}", topic=self._topic)
            # Transaction markers can follow the last record, but the consumer never returns them.
            number, at = message.partition() or 0, message.offset() or 0
            if number in self.open:
                self.open[number] = max(self.open[number], at)
        for partition in self._consumer.position([self._partition(number) for number in self.open]):
            self.open[partition.partition] = max(self.open[partition.partition], partition.offset)
        for number in [number for number, at in self.open.items() if at >= self.windows[number][1]]:
            del self.open[number]
            self._consumer.incremental_unassign([self._partition(number)])
        return messages

    def _partition(self, number: int, offset: int = OFFSET_INVALID) -> TopicPartition:
        return TopicPartition(self._topic, number, offset)
