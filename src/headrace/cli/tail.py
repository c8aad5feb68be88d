"""The last N records of some topics, whatever partition they are in.

Offsets have gaps (transaction markers, compaction, a filter), so the last N offsets may hold fewer than N
records. Then the window is widened fourfold and read again, until there are enough or it has reached the
start.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from confluent_kafka import IsolationLevel

from headrace.cli.filters import Filter
from headrace.cli.lookup import Bounds, Partition
from headrace.cli.reading import Plan, read
from headrace.cli.record import Record
from headrace.cli.session import Session

__all__ = ["last_records"]

_WIDEN = 4


def last_records(
    session: Session,
    bounds: dict[Partition, Bounds],
    count: int,
    *,
    isolation: IsolationLevel,
    passes: Filter,
) -> list[Record]:
    """Oldest first, by timestamp; of one partition always in the order of its offsets."""
    kept: dict[Partition, deque[Record]] = {}
    window = count
    todo = {where for where, limits in bounds.items() if limits.start < limits.end}
    while todo:
        starts = {where: max(bounds[where].start, bounds[where].end - window) for where in todo}
        for where in todo:
            kept[where] = deque(maxlen=count)
        take = _taker(kept, passes)
        ends = {where: bounds[where].end for where in todo}
        read(session, Plan(starts, ends), isolation=isolation, take=take, batch_done=lambda: None)
        todo = {where for where in todo if len(kept[where]) < count and starts[where] > bounds[where].start}
        window *= _WIDEN
    return _by_time(kept.values())[-count:]


def _taker(kept: dict[Partition, deque[Record]], passes: Filter) -> Callable[[Record], bool]:
    def take(record: Record) -> bool:
        if passes(record):
            kept[record.topic, record.partition].append(record)
        return True

    return take


def _by_time(partitions: Iterable[Iterable[Record]]) -> list[Record]:
    """Within a partition a record counts as no older than the one before it, whatever its timestamp says."""
    timed: list[tuple[int, str, int, int, Record]] = []
    for records in partitions:
        latest = -1
        for record in records:
            latest = max(latest, record.timestamp)
            timed.append((latest, record.topic, record.partition, record.offset, record))
    return [record for *_, record in sorted(timed, key=lambda one: one[:4])]
