"""One batch of a flow: rows, side records and progress, committed together.

    rows come over as Arrow, and are sent            nobody sees them yet
    late and dead records are read again, and sent   only where the counts say that there are some
    the progress record is sent                      with the offsets that the rows have got
    commit                                           everybody sees all of it

A batch whose progress record is there already is not written again. Its plan still runs, since Spark's state comes
from it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.client.cluster import Cluster
from headrace.flow.dead_letter_spool import DeadLetterSpool
from headrace.flow.errors import FlowError
from headrace.flow.left_out import LeftOut, dead_letter, late_note
from headrace.flow.opening import Opened
from headrace.flow.watermark import next_watermark
from headrace.flow.writer import Side, Writer
from headrace.model.flow import Flow
from headrace.model.progress import Batch, Generation, Ranges, Totals, encode

__all__ = ["BatchResult", "Counts", "Miscounted", "commit_batch", "ranges_of"]

_ERRORS = "__headrace.errors."


class Miscounted(FlowError):
    """The plan has counted other records than are there: a task ran twice. The batch has to be counted again."""

    code = "HR-FLOW-MISCOUNTED"
    retriable = True


@dataclass(frozen=True, slots=True)
class Counts:
    """What one input brought."""

    rows: int = 0
    late: int = 0
    dead: int = 0
    bytes: int = 0
    seen_us: int | None = None

    @classmethod
    def of(cls, tallies: Mapping[str, Any]) -> Counts:
        return cls(
            rows=tallies["rows"],
            late=tallies["late"],
            dead=tallies["dead"],
            bytes=tallies.get("bytes") or 0,
            seen_us=tallies.get("seen_us"),
        )

    @classmethod
    def if_right(cls, tallies: Mapping[str, Any], offsets: int) -> Counts | None:
        """What a plan has counted on its way over so many offsets; None where that cannot be.

        A plan need not read what can leave no rows, such as the other side of a join with nothing, and counts twice
        what a lost executor makes it read again.
        """
        if not tallies or not 0 < tallies["rows"] <= offsets:
            return None
        return cls.of(tallies)

    @property
    def left_out(self) -> int:
        return self.late + self.dead

    @property
    def average_bytes(self) -> int:
        return self.bytes // self.rows if self.rows else 0


@dataclass(frozen=True, slots=True)
class BatchResult:
    """A batch as Spark has computed it."""

    number: int
    pieces: Callable[[], Iterable[pa.Table]]
    """The rows, in the order in which they are written; columns ``key`` and ``value``."""
    inputs: Ranges
    watermark_us: int | None
    counts: Mapping[str, Counts] = field(default_factory=dict)
    """By input topic, as the app names it."""
    left_out: Callable[[], Iterable[LeftOut]] = tuple
    """As many late and dead records as ``counts`` says."""
    tables: dict[str, dict[str, int]] = field(default_factory=dict)
    table_dead: Sequence[DeadLetterSpool] = ()
    """Values of tables that do not fit."""
    state_rows: int = 0
    state_bytes: int = 0
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


def commit_batch(cluster: Cluster, writer: Writer, flow: Flow, opened: Opened, result: BatchResult) -> Batch:
    """Raises ``Miscounted``, with nothing written, where the counts of the result are not those of its records."""
    generation = opened.generation
    seen = dict(opened.last.seen_us) if opened.last else {}
    for topic, counts in result.counts.items():
        if counts.seen_us is not None:
            seen[topic] = max(seen.get(topic, counts.seen_us), counts.seen_us)
    begin = opened.last.outputs.get(generation.output, {}) if opened.last else {}
    starts = {number: to for number, (_, to) in begin.items()} or generation.output_starts
    writer.begin()
    try:
        sent, keyless = _send_rows(writer, flow, generation, result)
        writer.sides(_side_records(flow, result, generation.generation))
        writer.flush()
        ends = (
            cluster.ends(generation.output, committed=False)
            if sent
            else {int(n): at for n, at in starts.items()}
        )
        outputs = {str(number): (starts.get(str(number), 0), end) for number, end in ends.items()}
        batch = Batch(
            flow=flow.name,
            generation=generation.generation,
            batch=result.number,
            inputs=result.inputs,
            tables=result.tables,
            outputs={generation.output: outputs},
            watermark_us=result.watermark_us,
            next_watermark_us=_later(result.watermark_us, next_watermark(flow.streams, seen)),
            seen_us=seen,
            rows_in=sum(one.rows for one in result.counts.values()),
            rows_out=sent,
            late=sum(one.late for one in result.counts.values()),
            dead=sum(one.dead for one in result.counts.values()),
            fingerprint=generation.fingerprint,
            keyless=keyless,
            table_dead=sum(map(len, result.table_dead)),
            totals=_totals(opened, result, sent, keyless),
            generation_offset=opened.generation_offset,
            owner_offset=opened.owner_offset,
            state_rows=result.state_rows,
            state_bytes=result.state_bytes,
            committed_ms=time.time_ns() // 1_000_000,
        )
        key, value = encode(batch)
        writer.sides([Side(flow.progress_topic, key, value)])
        writer.commit()
    except BaseException:
        writer.abort()
        raise
    return batch


def _send_rows(writer: Writer, flow: Flow, generation: Generation, result: BatchResult) -> tuple[int, int]:
    """How many rows were sent to the topic, and how many have no key, and were sent to the dead letters."""
    sent, keyless = result.sent, 0
    reason = f"batch {result.number} of generation {generation.generation}: the row has no key".encode()
    headers = ((f"{_ERRORS}exception", b"RowWithoutKey"), (f"{_ERRORS}message", reason))
    for piece in result.pieces():
        rows = piece
        if piece.column("key").null_count:
            is_keyless = pc.is_null(piece.column("key"))
            rows = piece.filter(pc.invert(is_keyless))
            values = piece.filter(is_keyless).column("value").to_pylist()
            writer.sides(
                Side(flow.dead_topic, None, None if value is None else value.encode(), headers)
                for value in values
            )
            keyless += len(values)
        writer.rows(generation.output, rows.column("key").to_pylist(), rows.column("value").to_pylist())
        sent += rows.num_rows
    return sent, keyless


def _totals(opened: Opened, result: BatchResult, sent: int, keyless: int) -> Totals:
    before = opened.last.totals if opened.last else Totals()
    return Totals(
        rows_in=before.rows_in + sum(one.rows for one in result.counts.values()),
        rows_out=before.rows_out + sent,
        late=before.late + sum(one.late for one in result.counts.values()),
        dead=before.dead + sum(one.dead for one in result.counts.values()),
        keyless=before.keyless + keyless,
        table_dead=before.table_dead + sum(map(len, result.table_dead)),
    )


def _later(before: int | None, after: int | None) -> int | None:
    """A watermark never goes back."""
    known = [one for one in (before, after) if one is not None]
    return max(known, default=None)


def _side_records(flow: Flow, result: BatchResult, generation: int) -> Iterator[Side]:
    kinds: Counter[str] = Counter()
    for record in result.left_out():
        kinds["late" if record.reason is None else "dead"] += 1
        if record.reason is None:
            yield late_note(flow, record, generation, result.number, result.watermark_us)
        else:
            yield dead_letter(flow, record)
    counted = (
        sum(one.late for one in result.counts.values()),
        sum(one.dead for one in result.counts.values()),
    )
    if (kinds["late"], kinds["dead"]) != counted:
        raise Miscounted(
            f"flow {flow.name}: batch {result.number} counted {counted[0]} late and {counted[1]} dead records, and"
            f" {kinds['late']} and {kinds['dead']} are there",
            hint="the batch is counted again",
        )
    yield from (dead_letter(flow, record) for letters in result.table_dead for record in letters)
