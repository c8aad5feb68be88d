"""Measures how far readers are behind, again and again; rates are those between looks.

What it remembers is bounded by the partitions that are read: a few counts for each, and the time of one record.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.client.cluster import Cluster
from headrace.clock import Clock, SystemClock
from headrace.ops.lag.lag import Lag
from headrace.ops.lag.log_look import LogLook, look_at, offsets_at
from headrace.ops.lag.loss import Loss, Unread, loss_of, soonest
from headrace.ops.lag.next_records import NOTHING, NextRecords
from headrace.ops.lag.rates import Rate, Rates
from headrace.ops.lag.reader import Partition, Reader

__all__ = ["LagMeter"]

_WINDOW_S = 60


class LagMeter:
    def __init__(self, cluster: Cluster, clock: Clock | None = None) -> None:
        self._cluster = cluster
        self._clock = clock or SystemClock()
        self._next = NextRecords(cluster)
        self._arriving = Rates()
        self._taking = Rates()

    def close(self) -> None:
        self._next.close()

    def look(self, readers: Sequence[Reader], log: LogLook | None = None) -> list[Lag]:
        """In their order. ``log`` is a look that has all of their topics, where one was taken."""
        if log is None:
            log = look_at(self._cluster, {one for reader in readers for one in reader.log_topics})
        at_s, now_ms = self._clock.steady(), self._clock.now_ms()
        arriving = self._arrivals(log, at_s, now_ms)
        places = [_places(reader, log) for reader in readers]
        unread = [
            {place: _unread(reader, log, place, at) for place, at in found.items()}
            for reader, found in zip(readers, places, strict=True)
        ]
        spots = {
            (place, max(found[place], log.starts[place]))
            for found, counts in zip(places, unread, strict=True)
            for place, count in counts.items()
            if count
        }
        written = self._next.written_ms(spots)
        lags = []
        for reader, found, counts in zip(readers, places, unread, strict=True):
            ages = {}
            for place, count in counts.items():
                stamp = written.get((place, max(found[place], log.starts[place]))) if count else NOTHING
                ages[place] = (
                    None if stamp is None else 0.0 if stamp == NOTHING else max(0, now_ms - stamp) / 1_000
                )
            taking = {
                place: self._taking.note((reader.what, reader.name, place), at_s, at)
                for place, at in found.items()
            }
            lags.append(_lag(reader, log, found, counts, ages, arriving, taking))
        self._arriving.keep(log.ends.keys())
        kept = {
            (reader.what, reader.name, place)
            for reader, found in zip(readers, places, strict=True)
            for place in found
        }
        self._taking.keep(kept)
        return lags

    def _arrivals(self, log: LogLook, at_s: float, now_ms: int) -> dict[Partition, Rate]:
        """At the first look by the records' own times, which any Kafka has; then by what was added since."""
        rates = {place: self._arriving.note(place, at_s, end) for place, end in log.ends.items()}
        new = [place for place, rate in rates.items() if rate is None]
        before = offsets_at(self._cluster, new, now_ms - _WINDOW_S * 1_000)
        found = {place: rate for place, rate in rates.items() if rate is not None}
        for place, offset in before.items():
            per_s = 0.0 if offset is None else max(0, log.ends[place] - offset) / _WINDOW_S
            found[place] = Rate(per_s, per_s)
        return found


def _places(reader: Reader, log: LogLook) -> dict[Partition, int]:
    """Every partition that it reads, and what it reads next."""
    if not reader.known:
        return {}
    found = {
        (topic, number): 0 if reader.begun else log.starts[topic, number]
        for topic in reader.topics
        for number in range(log.partitions.get(topic, 0))
    }
    return found | {place: at for place, at in reader.at.items() if place in log.ends}


def _unread(reader: Reader, log: LogLook, place: Partition, at: int) -> int:
    if reader.at_end:
        return 0
    return max(0, _end(reader, log, place) - max(at, log.starts[place]))


def _end(reader: Reader, log: LogLook, place: Partition) -> int:
    return (log.committed_ends if reader.committed else log.ends)[place]


def _lag(
    reader: Reader,
    log: LogLook,
    at: dict[Partition, int],
    unread: dict[Partition, int],
    ages: dict[Partition, float | None],
    arriving: dict[Partition, Rate],
    taking: dict[Partition, Rate | None],
) -> Lag:
    gone = sum(max(0, log.starts[place] - offset) for place, offset in at.items()) if reader.begun else 0
    missing = _missing(reader, log) if reader.known else ""
    if missing or not reader.known:
        why = f"topic {missing} is not there" if missing and reader.begun else ""
        return Lag(reader, gone=gone, why=why)
    sizes = {place: _bytes(log, place, count) for place, count in unread.items()}
    losses: list[Loss | None] = []
    for place, count in unread.items():
        took, came = taking[place], arriving[place]
        # The worse of both rates: a reader that has just stopped is one that stands still.
        taken = 0.0 if took is None else min(took.per_s, took.last_per_s)
        comes = max(came.per_s, came.last_per_s)
        losses.append(
            loss_of(log.retentions[place[0]], Unread(count, ages[place], sizes[place], comes, taken))
        )
    known_ages = [age for age in ages.values() if age is not None]
    known_sizes = [size for size in sizes.values() if size is not None]
    rates = [one for one in taking.values() if one is not None]
    return Lag(
        reader,
        sum(unread.values()),
        gone,
        int(sum(known_sizes)) if len(known_sizes) == len(sizes) else None,
        max(known_ages, default=0.0) if len(known_ages) == len(ages) else None,
        sum(arriving[place].per_s for place in unread),
        sum(one.per_s for one in rates) if len(rates) == len(taking) else None,
        soonest(losses),
        unread,
        ages,
        {place: _end(reader, log, place) for place in unread},
    )


def _bytes(log: LogLook, place: Partition, count: int) -> float | None:
    each = log.bytes_each(place)
    return 0.0 if not count else None if each is None else count * each


def _missing(reader: Reader, log: LogLook) -> str:
    return next((name for name in sorted(reader.log_topics) if name not in log.partitions), "")
