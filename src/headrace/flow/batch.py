"""One batch of a flow: rows, side records and progress, committed together.

    rows come over as Arrow, and are sent            nobody sees them yet
    late and dead ones are looked up, and sent       only where the counts say that there are some
    the progress record is sent                      with the offsets that the rows have got
    commit                                           everybody sees all of it

A batch whose progress record is there already is not written again. Its plan still runs, since Spark's state comes
from it.
"""

from __future__ import annotations

import time
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.client.cluster import Cluster
from headrace.flow.opening import Opened
from headrace.flow.watermark import next_watermark
from headrace.flow.writer import Side, Writer
from headrace.model.flow import Flow
from headrace.model.progress import Batch, Ranges, Totals, encode

__all__ = ["Counts", "Made", "SideRow", "commit_batch", "ranges_of"]

_ERRORS = "__headrace.errors."


@dataclass(frozen=True, slots=True)
class SideRow:
    """A record of an input that was late or dead."""

    log: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    reason: str | None
    event_us: int | None

    @classmethod
    def of(cls, log: str, told: str) -> SideRow:
        row = msgspec.json.decode(told)
        key, value = (None if row.get(name) is None else b64decode(row[name]) for name in ("key", "value"))
        place = (row["partition"], row["offset"])
        return cls(log, *place, key, value, row.get("reason"), row.get("event_us"))


@dataclass(frozen=True, slots=True)
class Counts:
    """What one input brought."""

    rows: int = 0
    late: int = 0
    dead: int = 0
    bytes: int = 0
    seen_us: int | None = None
    aside: Sequence[str] = ()
    """The late and the dead ones, as ``headrace.flow.inputs`` lays them aside."""

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Counts:
        return cls(
            rows=told["rows"],
            late=told["late"],
            dead=told["dead"],
            bytes=told.get("bytes") or 0,
            seen_us=told.get("seen_us"),
            aside=told["aside"],
        )

    @classmethod
    def if_right(cls, told: Mapping[str, Any], offsets: int) -> Counts | None:
        """What a plan has counted on its way over so many offsets; None where that cannot be.

        A plan need not read what can leave no rows, such as the other side of a join with nothing, and counts twice
        what a lost executor makes it read again.
        """
        if not told or not 0 < told["rows"] <= offsets or len(set(told["aside"])) < len(told["aside"]):
            return None
        return cls.of(told)


@dataclass(frozen=True, slots=True)
class Made:
    """A batch as Spark has computed it."""

    number: int
    keys: Sequence[str | None]
    values: Sequence[str | None]
    counts: Mapping[str, Counts]
    """By input topic, as the app names it."""
    inputs: Ranges
    tables: dict[str, dict[str, int]]
    sides: Sequence[SideRow]
    watermark_us: int | None
    state_rows: int = 0
    state_bytes: int = 0
    table_dead: int = 0
    sent: int = 0
    """Rows that Spark has written by itself, and that are not among these."""


def ranges_of(opened: Opened, planned: Mapping[str, Mapping[str, int]]) -> Ranges:
    """Each input from where the last batch ended to where Spark has planned this one to end."""
    last = opened.last.inputs if opened.last else {}
    starts = {one.log: one.starts for one in opened.generation.inputs}
    found: Ranges = {}
    for log, ends in planned.items():
        before = {number: to for number, (_, to) in last.get(log, {}).items()}
        # A partition that was added since is read from its beginning.
        found[log] = {
            number: (before.get(number, starts.get(log, {}).get(number, 0)), to)
            for number, to in ends.items()
        }
    for log, ranges in last.items():
        # An input of which Spark has planned nothing stays where it is.
        found.setdefault(log, {number: (to, to) for number, (_, to) in ranges.items()})
    return found


def commit_batch(cluster: Cluster, writer: Writer, flow: Flow, opened: Opened, made: Made) -> Batch:
    generation = opened.generation
    seen = dict(opened.last.seen_us) if opened.last else {}
    for topic, counts in made.counts.items():
        if counts.seen_us is not None:
            seen[topic] = max(seen.get(topic, counts.seen_us), counts.seen_us)
    keyless = [value for key, value in zip(made.keys, made.values, strict=True) if key is None]
    begin = opened.last.outputs.get(generation.output, {}) if opened.last else {}
    starts = {number: to for number, (_, to) in begin.items()} or generation.output_starts
    writer.begin()
    try:
        if keyless:
            kept = [pair for pair in zip(made.keys, made.values, strict=True) if pair[0] is not None]
            writer.rows(generation.output, [key for key, _ in kept], [value for _, value in kept])
        else:
            writer.rows(generation.output, made.keys, made.values)
        writer.sides(_side_records(flow, made, keyless, generation.generation))
        writer.flush()
        sent = len(made.keys) - len(keyless) + made.sent
        ends = (
            cluster.ends(generation.output, committed=False)
            if sent
            else {int(n): at for n, at in starts.items()}
        )
        outputs = {str(number): (starts.get(str(number), 0), end) for number, end in ends.items()}
        batch = Batch(
            flow=flow.name,
            generation=generation.generation,
            batch=made.number,
            inputs=made.inputs,
            tables=made.tables,
            outputs={generation.output: outputs},
            watermark_us=made.watermark_us,
            next_watermark_us=_later(made.watermark_us, next_watermark(flow.streams, seen)),
            seen_us=seen,
            rows_in=sum(one.rows for one in made.counts.values()),
            rows_out=sent,
            late=sum(one.late for one in made.counts.values()),
            dead=sum(one.dead for one in made.counts.values()),
            fingerprint=generation.fingerprint,
            keyless=len(keyless),
            table_dead=made.table_dead,
            totals=_totals(opened, made, sent, len(keyless)),
            generation_offset=opened.generation_offset,
            owner_offset=opened.owner_offset,
            state_rows=made.state_rows,
            state_bytes=made.state_bytes,
            committed_ms=time.time_ns() // 1_000_000,
        )
        key, value = encode(batch)
        writer.sides([Side(flow.progress_topic, key, value)])
        writer.commit()
    except BaseException:
        writer.abort()
        raise
    return batch


def _totals(opened: Opened, made: Made, sent: int, keyless: int) -> Totals:
    before = opened.last.totals if opened.last else Totals()
    return Totals(
        rows_in=before.rows_in + sum(one.rows for one in made.counts.values()),
        rows_out=before.rows_out + sent,
        late=before.late + sum(one.late for one in made.counts.values()),
        dead=before.dead + sum(one.dead for one in made.counts.values()),
        keyless=before.keyless + keyless,
        table_dead=before.table_dead + made.table_dead,
    )


def _later(before: int | None, after: int | None) -> int | None:
    """A watermark never goes back."""
    known = [one for one in (before, after) if one is not None]
    return max(known, default=None)


def _side_records(flow: Flow, made: Made, keyless: Sequence[str | None], generation: int) -> list[Side]:
    sides = [_late(flow, made, row, generation) for row in made.sides if row.reason is None]
    sides += [_dead(flow, row) for row in made.sides if row.reason is not None]
    told = f"batch {made.number} of generation {generation}: the row has no key".encode()
    headers = ((f"{_ERRORS}exception", b"RowWithoutKey"), (f"{_ERRORS}message", told))
    sides += [
        Side(flow.dead_topic, None, None if value is None else value.encode(), headers) for value in keyless
    ]
    return sides


def _late(flow: Flow, made: Made, row: SideRow, generation: int) -> Side:
    told = {
        "topic": row.log,
        "partition": row.partition,
        "offset": row.offset,
        "event_us": row.event_us,
        "watermark_us": made.watermark_us,
        "generation": generation,
        "batch": made.number,
    }
    return Side(
        flow.late_topic, f"{row.log}/{row.partition}/{row.offset}".encode(), msgspec.json.encode(told)
    )


def _dead(flow: Flow, row: SideRow) -> Side:
    headers = (
        (f"{_ERRORS}exception", b"ValueDoesNotFit"),
        (f"{_ERRORS}message", (row.reason or "").encode()),
        (f"{_ERRORS}topic", row.log.encode()),
        (f"{_ERRORS}partition", str(row.partition).encode()),
        (f"{_ERRORS}offset", str(row.offset).encode()),
    )
    return Side(flow.dead_topic, row.key, row.value, headers)
