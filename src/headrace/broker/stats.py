"""What a broker has done since its start, counted where it happens and read when somebody asks.

Counting is on the path of every request, so it is a few additions: what the log knows anyway (offsets, sizes) is not
counted again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.log.compaction import CompactionReport
from headrace.wire.api import Api
from headrace.wire.codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["BUCKETS_S", "CompactionCounts", "Stats"]

BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Timings:
    """Requests of one API by how long they took, waits that they asked for included."""

    __slots__ = ("buckets", "count", "total_s")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BUCKETS_S) + 1)
        self.count = 0
        self.total_s = 0.0

    def note(self, took_s: float) -> None:
        self.count += 1
        self.total_s += took_s
        self.buckets[bisect_left(BUCKETS_S, took_s)] += 1


@dataclass(slots=True)
class CompactionCounts:
    """``failures`` are by reason: ``disk`` or ``damage``. What a run read and wrote counts also where it failed."""

    runs: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    bytes_read: int = 0
    bytes_written: int = 0
    records_removed: int = 0
    last_took_s: float = 0.0
    last_recopied_share: float = 0.0

    def ended(self, report: CompactionReport) -> None:
        """A run came to an end, good or bad."""
        self.bytes_read += report.bytes_read
        self.bytes_written += report.bytes_written
        self.records_removed += report.records_removed

    def finished(self, report: CompactionReport, took_s: float) -> None:
        self.runs += 1
        self.last_took_s = took_s
        self.last_recopied_share = report.bytes_after / max(report.bytes_before, 1)


class Stats:
    def __init__(self) -> None:
        self.timings: dict[Api, Timings] = {}
        self.bytes_in: Counter[str] = Counter()
        self.bytes_out: Counter[str] = Counter()
        self.errors: Counter[tuple[Api, int]] = Counter()
        self.damaged = 0

    def answered(self, api: Api, took_s: float) -> None:
        timings = self.timings.get(api)
        if timings is None:
            timings = self.timings[api] = Timings()
        timings.note(took_s)

    def produced(self, message: Any, response: Any) -> None:
        for topic, answer in zip(message.topic_data, response.responses, strict=True):
            for data, result in zip(topic.partition_data, answer.partition_responses, strict=True):
                if result.error_code:
                    self.errors[Api.PRODUCE, result.error_code] += 1
                else:
                    self.bytes_in[answer.name] += len(data.records)

    def fetched(self, response: Any, name_of: Callable[[bytes], str | None]) -> None:
        for topic in response.responses:
            size = 0
            for data in topic.partitions:
                if data.error_code:
                    self.errors[Api.FETCH, data.error_code] += 1
                elif data.records:
                    size += len(data.records)
            if size:
                self.bytes_out[topic.topic or name_of(topic.topic_id) or ""] += size

    def forget(self, topic: str) -> None:
        """The topic is gone, and its name may be taken by another."""
        self.bytes_in.pop(topic, None)
        self.bytes_out.pop(topic, None)


def error_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)
