"""Counters of the broker since its start.

Every request updates the counters, so an update must be fast. Values that the log has, such as offsets and sizes, are
not counted here.
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
    """The durations of one API's requests, including waits that the client requested (such as ``max_wait_ms``)."""

    __slots__ = ("buckets", "count", "total_s")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BUCKETS_S) + 1)
        self.count = 0
        self.total_s = 0.0

    def add(self, took_s: float) -> None:
        self.count += 1
        self.total_s += took_s
        self.buckets[bisect_left(BUCKETS_S, took_s)] += 1


@dataclass(slots=True)
class CompactionCounts:
    """Counters of compaction. ``failures`` counts by reason, ``disk`` or ``damage``. The bytes include failed runs."""

    runs: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    bytes_read: int = 0
    bytes_written: int = 0
    records_removed: int = 0
    last_run_took_s: float = 0.0
    last_recopied_share: float = 0.0

    def ended(self, report: CompactionReport) -> None:
        """Count the bytes and records of a run that ended, with or without success."""
        self.bytes_read += report.bytes_read
        self.bytes_written += report.bytes_written
        self.records_removed += report.records_removed

    def succeeded(self, report: CompactionReport, took_s: float) -> None:
        self.runs += 1
        self.last_run_took_s = took_s
        self.last_recopied_share = report.bytes_after / max(report.bytes_before, 1)


class Stats:
    def __init__(self) -> None:
        self.timings: dict[Api, Timings] = {}
        self.bytes_in: Counter[str] = Counter()
        self.bytes_out: Counter[str] = Counter()
        self.errors: Counter[tuple[Api, int]] = Counter()
        self.damaged_batches = 0

    def responded(self, api: Api, took_s: float) -> None:
        timings = self.timings.get(api)
        if timings is None:
            timings = self.timings[api] = Timings()
        timings.add(took_s)

    def responses(self) -> int:
        return sum(timings.count for timings in self.timings.values())

    def produced(self, message: Any, response: Any) -> None:
        for topic, topic_response in zip(message.topic_data, response.responses, strict=True):
            for data, result in zip(topic.partition_data, topic_response.partition_responses, strict=True):
                if result.error_code:
                    self.errors[Api.PRODUCE, result.error_code] += 1
                else:
                    self.bytes_in[topic_response.name] += len(data.records)

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
        """Drop the counters of a deleted topic, because a new topic can get the same name."""
        self.bytes_in.pop(topic, None)
        self.bytes_out.pop(topic, None)


def error_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)
