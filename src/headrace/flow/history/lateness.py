"""Computes from the events which of them were late, and compares the result with the flow's own records.

``verify`` must not rely on the flow for the events that the flow rejected. So this module implements the rules a second
time, without code of the running flow (``headrace.flow.spark.internals``, ``headrace.flow.commit``):

- The limit of an input is the greatest event time in its batches so far, including late events, minus the topic's
  ``late``. Inputs without an event time have no limit.
- The watermark of a batch is the lowest limit of all inputs after the previous batch. The first watermark
  exists when each input with an event time has had an event. The watermark never decreases.
- An event is late if its time is before the watermark of its batch.

The result is compared with the watermarks and counts in the progress records and with the notes in ``<flow>.late``,
where the flow writes one note for each late event.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from functools import reduce

import msgspec
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headrace.client.records import read
from headrace.flow.history.inputs import HistoryInputs, InputTally
from headrace.flow.history.progress_check import BatchIndex, BatchNote, ProgressCheck, Tally
from headrace.flow.inputs import history
from headrace.model.declarations import LatePolicy
from headrace.model.progress import Batch, Generation

__all__ = ["LateCheck", "Watermarks"]

_NOTE_TYPE = "topic string, partition int, offset long, event_us long, batch long, generation int"
_EVENT_COLUMNS = ["topic", "partition", "offset", "event_us", "batch"]
Records = Mapping[str, DataFrame | None]
"""Decoded records by input; None if the input has no records."""
_MICROSECOND = timedelta(microseconds=1)


class LateCheck:
    """Checks the late events of a generation's batches, in the order of the batches. Close it after use."""

    def __init__(
        self,
        inputs: HistoryInputs,
        generation: Generation,
        index: BatchIndex,
        through: Batch,
        last_broken_batch: Batch | None,
    ) -> None:
        """``last_broken_batch`` is the last batch with missing records. Up to that batch, the recorded watermarks are
        used.
        """
        self._inputs = inputs
        self._generation = generation
        self._index = index
        self._through = through
        self._last_trusted_batch = -1 if last_broken_batch is None else last_broken_batch.batch
        # A real-time flow has no late events.
        streams = inputs.flow.streams if generation.latency == "batch" else ()
        policies = {topic.name: policy for topic in streams if (policy := topic.late_policy) is not None}
        start = (
            ({}, None)
            if last_broken_batch is None
            else (last_broken_batch.seen_us, last_broken_batch.next_watermark_us)
        )
        self._watermarks = Watermarks(policies, *start)
        self._late_notes: DataFrame | None = None
        self._batches_with_notes: set[int] = set()
        self._notes_missing_through = self._last_trusted_batch
        """Notes of batches up to this batch might have been deleted."""
        self._read_notes()

    def close(self) -> None:
        if self._late_notes is not None:
            self._late_notes.unpersist()

    def without_late_events(self, records: Records, first: int, last: int, check: ProgressCheck) -> Records:
        """Return the records of the batches from ``first`` to ``last`` without late events. Adds differences to
        ``check``.
        """
        tallies = {name: self._inputs.tallies(frame) for name, frame in records.items() if frame is not None}
        notes = self._index.between(first, last)
        watermarks = {note.number: self._next_watermark(note, tallies) for note in notes}
        totals = {note.number: _total(note.number, tallies) for note in notes}
        remaining: dict[str, DataFrame | None] = {}
        late: list[DataFrame] = []
        for name, decoded in records.items():
            if decoded is None or not _may_be_late(tallies[name], watermarks):
                remaining[name] = decoded
                continue
            marked = self._inputs.mark_late(decoded, watermarks)
            remaining[name] = marked.where(~F.col("late"))
            late.append(self._events(name, marked.where("late")))
        for frame in late:
            for batch, count in frame.groupBy("batch").count().collect():
                totals[batch].late += count
        check.count(totals.values())
        check.compare([note for note in notes if note.number > self._last_trusted_batch], totals, watermarks)
        self._compare_notes(late, totals, check)
        return remaining

    def _next_watermark(self, note: BatchNote, tallies: Mapping[str, Mapping[int, InputTally]]) -> int | None:
        if note.number <= self._last_trusted_batch:
            return note.watermark_us
        watermark_us = self._watermarks.current_us
        self._watermarks.advance(
            {
                name: by_batch[note.number].newest_us
                for name, by_batch in tallies.items()
                if note.number in by_batch
            }
        )
        return watermark_us

    def _events(self, name: str, records: DataFrame) -> DataFrame:
        topic = next(declared for declared in self._inputs.flow.streams if declared.name == name)
        log = F.lit(self._inputs.input(topic).log).alias("topic")
        return records.select(log, *_EVENT_COLUMNS[1:])

    # Notes of the flow

    def _read_notes(self) -> None:
        cluster, log, generation = (
            self._inputs.cluster,
            self._inputs.flow.late_topic,
            self._generation.generation,
        )
        if cluster.topic(log) is None:
            return
        start, end = cluster.starts(log)[0], cluster.ends(log)[0]
        if start:
            self._notes_missing_through = max(
                self._last_trusted_batch, self._last_batch_without_notes(start, end)
            )
        if start == end:
            return
        records = history(self._inputs.spark, cluster, log, {"0": (start, end)})
        notes = records.select(F.from_json(F.col("value").cast("string"), _NOTE_TYPE).alias("note")).select(
            "note.*"
        )
        of_generation = (F.col("generation") == generation) & (F.col("batch") <= self._through.batch)
        self._late_notes = notes.where(of_generation).select(*_EVENT_COLUMNS).persist(StorageLevel.DISK_ONLY)
        self._batches_with_notes = {row[0] for row in self._late_notes.select("batch").distinct().collect()}

    def _last_batch_without_notes(self, start: int, end: int) -> int:
        """Return the last batch whose notes might have been deleted: the batch of the first note that still exists."""
        for message in read(self._inputs.cluster, self._inputs.flow.late_topic, {0: (start, end)}):
            first = msgspec.json.decode(message.value() or b"{}")
            if first["generation"] < self._generation.generation:
                return -1
            if first["generation"] == self._generation.generation:
                return int(first["batch"])
            break
        return self._through.batch

    def _compare_notes(
        self, late: list[DataFrame], totals: Mapping[int, Tally], check: ProgressCheck
    ) -> None:
        batches = [number for number in totals if number > self._notes_missing_through]
        if not any(totals[number].late or number in self._batches_with_notes for number in batches):
            return
        sides = [(frame, "late") for frame in late] + (
            [(self._late_notes, "noted")] if self._late_notes is not None else []
        )
        marked = reduce(
            DataFrame.unionByName, (frame.withColumn("side", F.lit(side)) for frame, side in sides)
        )
        in_batches = F.col("batch").between(min(batches), max(batches))
        by_side = [F.count_if(F.col("side") == side).alias(side) for side in ("late", "noted")]
        differences = marked.where(in_batches).groupBy(*_EVENT_COLUMNS).agg(*by_side).where("late <> noted")
        first = differences.orderBy("batch", "topic", "partition", "offset").limit(1).collect()
        if first:
            (row,) = first
            event = f"offset {row['offset']} of {row['topic']}/{row['partition']} in batch {row['batch']}"
            actual = "was late" if row["late"] else "was not late"
            recorded = "is noted" if row["noted"] else "is not noted"
            check.add(
                f"{self._inputs.flow.late_topic}: {event} {actual} and {recorded}; {differences.count()} events differ"
            )


def _total(batch: int, tallies: Mapping[str, Mapping[int, InputTally]]) -> Tally:
    batch_tallies = [by_batch[batch] for by_batch in tallies.values() if batch in by_batch]
    return Tally(sum(tally.records for tally in batch_tallies), sum(tally.dead for tally in batch_tallies))


def _may_be_late(tallies: Mapping[int, InputTally], watermarks: Mapping[int, int | None]) -> bool:
    for batch, tally in tallies.items():
        watermark_us = watermarks[batch]
        if watermark_us is not None and tally.oldest_us is not None and tally.oldest_us < watermark_us:
            return True
    return False


class Watermarks:
    """Computes the watermark of each batch in turn. ``advance`` moves to the next batch."""

    def __init__(
        self,
        policies: Mapping[str, LatePolicy],
        seen_us: Mapping[str, int] | None = None,
        watermark_us: int | None = None,
    ) -> None:
        """``seen_us`` (the greatest event times) and ``watermark_us`` are the values after the batches before."""
        self._allowed_us = {name: policy.allowed // _MICROSECOND for name, policy in policies.items()}
        self._seen_us = {
            name: time_us for name, time_us in (seen_us or {}).items() if name in self._allowed_us
        }
        self.current_us = watermark_us
        """The watermark of the next batch."""

    def advance(self, newest_us: Mapping[str, int | None]) -> None:
        """``newest_us`` is the greatest event time of each input in a batch."""
        for name, newest in newest_us.items():
            if newest is not None and name in self._allowed_us:
                self._seen_us[name] = max(newest, self._seen_us.get(name, newest))
        if not self._allowed_us or self._seen_us.keys() != self._allowed_us.keys():
            return
        watermark_us = min(time_us - self._allowed_us[name] for name, time_us in self._seen_us.items())
        if self.current_us is None or watermark_us > self.current_us:
            self.current_us = watermark_us
