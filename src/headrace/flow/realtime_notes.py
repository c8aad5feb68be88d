"""What a flow in real time has done, noted in its progress as every flow does, some time after it was done.

Spark's own checkpoint says how far the input is done. A note takes everything from the last one up to there: one
transaction with the counts, the dead letters, and the offsets. Spark counts while rows pass by; where that tells of
nothing dead, it is all that a note needs. Where it does, or where nobody knows (the driver was killed between Spark's
checkpoint and the note), the records are read again, and each dead letter is noted once all the same.

In real time Spark comes to the offset behind the last record, and no further. What lies there up to the next record or
to the end, ends of transactions above all, is done as well, and noted so: else an input that somebody writes in
transactions, another flow for example, would never be done.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from headrace.client.cluster import Cluster
from headrace.client.reading import next_records
from headrace.flow.batch import BatchResult, Counts, commit_batch, ranges_of
from headrace.flow.compiled import Compiled
from headrace.flow.decoding import Decoder
from headrace.flow.inputs import history, tallied
from headrace.flow.left_out import LeftOut, read_left_out
from headrace.flow.opening import Opened
from headrace.flow.options import FlowOptions
from headrace.flow.ownership import expect_driver
from headrace.flow.sourced import sourced
from headrace.flow.watermark import NONE_US
from headrace.flow.writer import Writer
from headrace.model.progress import Ranges
from headrace.model.topic import Topic

_ROWS = pa.schema([("key", pa.string()), ("value", pa.string())])

__all__ = ["Passed", "RealtimeNotes", "rows_at_once"]


@dataclass(frozen=True, slots=True)
class Passed:
    """What Spark has counted on the way."""

    rows_in: int = 0
    bytes: int = 0
    dead: int = 0
    rows_out: int = 0
    keyless: int = 0

    def __add__(self, other: Passed) -> Passed:
        return Passed(
            self.rows_in + other.rows_in,
            self.bytes + other.bytes,
            self.dead + other.dead,
            self.rows_out + other.rows_out,
            self.keyless + other.keyless,
        )


class RealtimeNotes:
    def __init__(
        self,
        spark: SparkSession,
        cluster: Cluster,
        compiled: Compiled,
        topic: Topic,
        decoder: Decoder,
        writer: Writer,
        opened: Opened,
        settings: FlowOptions,
        rows: int,
    ) -> None:
        """``rows`` are how many of the records that come next fit the bytes that may be held."""
        self._spark = spark
        self._cluster = cluster
        self._compiled = compiled
        self._flow = compiled.flow
        self._topic = topic
        self._decoder = decoder
        self._writer = writer
        self._opened = opened
        self._settings = settings
        self._rows = rows
        (self._input,) = opened.generation.inputs

    def note(self, reached: dict[str, dict[str, int]], passed: Passed | None, stop: threading.Event) -> bool:
        """The input is done up to ``reached``; ``passed`` is what was counted since the last note, if that is known.
        Whether all of it is noted: what is left when it is told to stop is noted at the next start.
        """
        inputs = ranges_of(self._opened, self._to_next_records(reached))
        if not _offsets(inputs):
            self._expect_ours()
        elif passed is not None and not passed.dead and not passed.keyless:
            self._commit(inputs, Counts(passed.rows_in, bytes=passed.bytes), sent=passed.rows_out)
        else:
            for some in _shares(inputs, rows_at_once(passed, self._settings, self._rows)):
                if stop.is_set():
                    return False
                self._read_again(some)
        return True

    def _to_next_records(self, reached: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
        log = self._input.log
        noted = self._opened.last.inputs.get(log, {}) if self._opened.last else {}
        places = {int(n): max(to, noted[n][1] if n in noted else 0) for n, to in reached[log].items()}
        return {log: {str(n): to for n, to in next_records(self._cluster, log, places).items()}}

    def _expect_ours(self) -> None:
        """There is nothing to write, by which the log would tell that another one writes the flow now: it is asked."""
        expect_driver(self._cluster, self._flow, self._opened.driver_id)

    def _read_again(self, inputs: Ranges) -> None:
        log = self._input.log
        some = {number: bounds for number, bounds in inputs[log].items() if bounds[0] < bounds[1]}
        decoded = self._decoder.decode(history(self._spark, self._cluster, log, some))
        told = tallied(decoded, F.lit(NONE_US))
        rows = sourced(decoded, self._compiled)
        (count,) = rows.agg(F.count(F.lit(1)), F.count_if(F.col("key").isNull())).collect()
        keyless = [one["value"] for one in rows.where(F.col("key").isNull()).collect()] if count[1] else []
        counts = Counts(told["rows"], dead=told["dead"], bytes=told["bytes"] or 0)
        self._commit(inputs, counts, sent=count[0] - len(keyless), keyless=keyless)

    def _left_out(self, counts: Counts, inputs: Ranges) -> Iterator[LeftOut]:
        if counts.left_out:
            place = (self._decoder, self._input.log, inputs[self._input.log])
            yield from read_left_out(self._spark, self._cluster, *place, F.lit(NONE_US), counts.average_bytes)

    def _commit(
        self, inputs: Ranges, counts: Counts, *, sent: int, keyless: Sequence[str | None] = ()
    ) -> None:
        last = self._opened.last
        rows = pa.table([[None] * len(keyless), list(keyless)], schema=_ROWS)
        result = BatchResult(
            number=last.batch + 1 if last else 0,
            pieces=lambda: [rows],
            inputs=inputs,
            watermark_us=None,
            counts={self._topic.name: counts},
            left_out=lambda: self._left_out(counts, inputs),
            sent=sent,
        )
        self._opened.last = commit_batch(self._cluster, self._writer, self._flow, self._opened, result)


def rows_at_once(passed: Passed | None, settings: FlowOptions, otherwise: int) -> int:
    """How many records fit the bytes that may be held, going by those that have passed, where that is known."""
    if passed is None or not passed.rows_in:
        return otherwise
    average = max(1, passed.bytes // passed.rows_in)
    return max(1, min(settings.max_rows, settings.max_bytes // average))


def _offsets(inputs: Ranges) -> int:
    return sum(high - low for parts in inputs.values() for low, high in parts.values())


def _shares(inputs: Ranges, rows_max: int) -> Iterator[Ranges]:
    """One after the other, none with more offsets than that; each names all partitions."""
    at = {log: {number: low for number, (low, _) in parts.items()} for log, parts in inputs.items()}
    while any(at[log][number] < high for log, parts in inputs.items() for number, (_, high) in parts.items()):
        left, share = rows_max, Ranges()
        for log, parts in inputs.items():
            share[log] = {}
            for number, (_, high) in parts.items():
                low = at[log][number]
                to = min(high, low + left)
                left -= to - low
                share[log][number] = (low, to)
                at[log][number] = to
        yield share
