"""Computes from the events which of them were late, and compares the result with the flow's own records.

``verify`` must not rely on the flow for the events that the flow rejected. So this module implements the rules a second
time, without code of the running flow (``headrace.flow.lateness``, ``headrace.flow.commit``):

- An event is late if its time is more than the topic's ``late`` before the newest event time of the earlier records in
  its partition. Spark's window functions compute the newest event time here, over the records of many batches.
- An event that is not late is *behind* if its time is before the watermark of its batch, and the flow drops state by
  event time. It is a dead letter. The watermark depends on how long partitions were idle, so the recorded one is used.
  It must never decrease, and never be later than the newest event time of an input minus its ``late``.
- If the flow keeps late events, no event is late or behind, and the watermark is exactly that time.

The result is compared with the watermarks, newest event times and counts in the progress records, and with the notes in
``<flow>.late``, where the flow writes one note for each late event.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from functools import reduce

import msgspec
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headrace.client.records import read
from headrace.flow.history.inputs import HistoryInputs, InputTally
from headrace.flow.history.progress_check import BatchIndex, BatchNote, ProgressCheck, Tally
from headrace.flow.inputs import history
from headrace.model.declarations import LatePolicy, Topic
from headrace.model.progress import Batch, DeletedHead, Generation

__all__ = ["LateCheck", "Watermarks"]

_NOTE_TYPE = "topic string, partition int, offset long, event_us long, batch long, generation int"
_NOTE_HEADER = "__headrace.late"
_EVENT_COLUMNS = ["topic", "partition", "offset", "event_us", "batch"]
Records = Mapping[str, DataFrame | None]
"""Decoded records by input; None if the input has no records."""
Tallies = Mapping[tuple[int, int], InputTally]
"""By batch and partition."""
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
        *,
        has_watermark: bool,
    ) -> None:
        """``last_broken_batch`` is the last batch with missing records. Up to that batch, the recorded watermarks are
        used.
        """
        self._inputs = inputs
        self._generation = generation
        self._index = index
        self._through = through
        self._last_trusted_batch = -1 if last_broken_batch is None else last_broken_batch.batch
        self._rejects = generation.late in ("drop", "side")
        self._has_watermark = has_watermark
        # A real-time flow has no late events.
        streams = inputs.flow.streams if generation.latency == "batch" else ()
        self._policies = {
            topic.name: policy for topic in streams if (policy := topic.late_policy) is not None
        }
        start = (
            ({}, None)
            if last_broken_batch is None
            else (last_broken_batch.seen_us, last_broken_batch.next_watermark_us)
        )
        self._watermarks = Watermarks(self._policies, *start)
        self._newest = _newest_before(generation, last_broken_batch)
        """By input and partition, the newest event time of the records that were checked."""
        self._late_notes: DataFrame | None = None
        self._batches_with_notes: set[int] = set()
        self._notes_missing_through = self._last_trusted_batch
        """Notes of batches up to this batch might have been deleted."""
        self._read_notes()

    def close(self) -> None:
        if self._late_notes is not None:
            self._late_notes.unpersist()

    def without_late_events(self, records: Records, first: int, last: Batch, check: ProgressCheck) -> Records:
        """Return the records of the batches from ``first`` to ``last`` that the function got. Adds differences to
        ``check``.
        """
        tallies = {name: self._inputs.tallies(frame) for name, frame in records.items() if frame is not None}
        notes = self._index.between(first, last.batch)
        by_batch = {name: _by_batch(input_tallies) for name, input_tallies in tallies.items()}
        watermarks = {note.number: self._next_watermark(note, by_batch) for note in notes}
        recorded = {note.number: note.watermark_us for note in notes}
        totals = {note.number: _total(note.number, by_batch) for note in notes}
        remaining: dict[str, DataFrame | None] = {}
        late: list[DataFrame] = []
        for name, decoded in records.items():
            if decoded is None or not self._may_reject(name, tallies[name], recorded):
                remaining[name] = decoded
                continue
            marked = self._marked(name, decoded, recorded)
            remaining[name] = marked.where(~F.col("late") & ~F.col("behind"))
            late.append(self._events(name, marked.where("late")))
            for batch, count in marked.where("behind").groupBy("batch").count().collect():
                totals[batch].dead += count
        for name, input_tallies in tallies.items():
            if name in self._policies:
                self._add_newest(name, input_tallies, last)
        for frame in late:
            for batch, count in frame.groupBy("batch").count().collect():
                totals[batch].late += count
        check.count(totals.values())
        untrusted = [note for note in notes if note.number > self._last_trusted_batch]
        check.compare(untrusted, totals, watermarks, exact=not self._rejects)
        self._compare_newest(last, check)
        self._compare_notes(late, totals, check)
        return remaining

    def _next_watermark(self, note: BatchNote, tallies: Mapping[str, Mapping[int, InputTally]]) -> int | None:
        """Return the watermark of the batch, or the latest that it may have."""
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

    def _add_newest(self, name: str, tallies: Tallies, last: Batch) -> None:
        newest = self._newest.setdefault(name, {})
        for (_, partition), tally in tallies.items():
            if tally.newest_us is not None:
                newest[partition] = max(newest.get(partition, tally.newest_us), tally.newest_us)
        log = self._inputs.input(self._topic(name)).log
        for number, head in self._deleted(name).items():
            if last.inputs.get(log, {}).get(str(number), (0, 0))[1] >= head.end:
                newest[number] = max(newest.get(number, head.newest_at_end_us), head.newest_at_end_us)

    def _may_reject(self, name: str, tallies: Tallies, watermarks: Mapping[int, int | None]) -> bool:
        """Whether a record can be late or behind. The exact computation needs a sort of all records."""
        if not self._rejects or name not in self._policies:
            return False
        if self._deleted(name):
            return True
        allowed_us = self._policies[name].allowed_us
        newest = dict(self._newest.get(name, {}))
        for (batch, partition), tally in tallies.items():
            if tally.oldest_us is None or tally.newest_us is None:
                continue
            newest[partition] = max(newest.get(partition, tally.newest_us), tally.newest_us)
            watermark_us = watermarks[batch]
            if tally.oldest_us < newest[partition] - allowed_us:
                return True
            if self._has_watermark and watermark_us is not None and tally.oldest_us < watermark_us:
                return True
        return False

    def _marked(self, name: str, decoded: DataFrame, watermarks: Mapping[int, int | None]) -> DataFrame:
        """Add the columns ``late`` and ``behind``."""
        marked = self._inputs.with_newest(decoded, self._newest.get(name, {}))
        allowed_us, newest_us, event_us = (
            self._policies[name].allowed_us,
            F.col("newest_us"),
            F.col("event_us"),
        )
        is_noted: Column = F.lit(False)
        for number, head in self._deleted(name).items():
            is_past = (F.col("partition") == number) & (F.col("offset") >= head.end)
            newest_us = F.when(is_past, F.greatest(newest_us, F.lit(head.newest_at_end_us))).otherwise(
                newest_us
            )
            is_noted |= (F.col("partition") == number) & F.col("offset").isin(head.late)
        late = F.coalesce(event_us < newest_us - allowed_us, F.lit(False)) | is_noted
        # Records before some of these records are missing, so what was late cannot be computed.
        late &= F.col("batch") > self._last_trusted_batch
        marked = self._inputs.with_watermarks(marked.withColumn("late", late), watermarks)
        behind = F.lit(False)
        if self._has_watermark:
            behind = F.coalesce(~F.col("late") & (event_us < F.col("watermark_us")), F.lit(False))
        return marked.withColumn("behind", behind).drop("newest_us", "watermark_us")

    def _deleted(self, name: str) -> dict[int, DeletedHead]:
        source = self._inputs.input(self._topic(name))
        return {int(number): head for number, head in source.deleted.items()}

    def _topic(self, name: str) -> Topic:
        return next(declared for declared in self._inputs.flow.streams if declared.name == name)

    def _events(self, name: str, records: DataFrame) -> DataFrame:
        log = F.lit(self._inputs.input(self._topic(name)).log).alias("topic")
        return records.select(log, *_EVENT_COLUMNS[1:])

    def _compare_newest(self, last: Batch, check: ProgressCheck) -> None:
        """Compare the newest event times after a batch. They never decrease, so not every batch must be compared."""
        if not self._rejects or last.batch <= self._last_trusted_batch:
            return
        for name, times in sorted(self._newest.items()):
            recorded = last.next_newest_us.get(name, {})
            for number, time_us in sorted(times.items()):
                if recorded.get(str(number)) != time_us:
                    check.add(
                        f"batch {last.batch} recorded {recorded.get(str(number))} as the newest event time of"
                        f" {self._inputs.input(self._topic(name)).log}/{number} in microseconds, but it is {time_us}"
                    )
                    return

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
        records = history(self._inputs.spark, cluster, log, {"0": (start, end)}, headers=True)
        in_header = F.filter("headers", lambda header: header["key"] == _NOTE_HEADER)[0]["value"]
        text = F.coalesce(in_header, F.col("value")).cast("string")
        notes = records.select(F.from_json(text, _NOTE_TYPE).alias("note")).select("note.*")
        of_generation = (F.col("generation") == generation) & (F.col("batch") <= self._through.batch)
        self._late_notes = notes.where(of_generation).select(*_EVENT_COLUMNS).persist(StorageLevel.DISK_ONLY)
        self._batches_with_notes = {row[0] for row in self._late_notes.select("batch").distinct().collect()}

    def _last_batch_without_notes(self, start: int, end: int) -> int:
        """Return the last batch whose notes might have been deleted: the batch of this generation's first note that
        still exists. Generations that run side by side write their notes to one topic.
        """
        for message in read(self._inputs.cluster, self._inputs.flow.late_topic, {0: (start, end)}):
            headers = dict(message.headers() or ())
            try:
                note = msgspec.json.decode(headers.get(_NOTE_HEADER) or message.value() or b"", type=_Note)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue  # Another program wrote this record.
            if note.generation == self._generation.generation:
                return note.batch
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


class _Note(msgspec.Struct, frozen=True):
    generation: int
    batch: int


def _newest_before(generation: Generation, last_broken_batch: Batch | None) -> dict[str, dict[int, int]]:
    """Return the newest event times that are known before the first checked batch."""
    if last_broken_batch is not None:
        return {
            name: {int(number): time_us for number, time_us in times.items()}
            for name, times in last_broken_batch.next_newest_us.items()
        }
    return {
        source.topic: {
            int(number): head.newest_us
            for number, head in source.deleted.items()
            if head.newest_us is not None
        }
        for source in generation.inputs
        if source.deleted
    }


def _by_batch(tallies: Tallies) -> dict[int, InputTally]:
    """Return the sums over the partitions."""
    by_batch: dict[int, InputTally] = {}
    for (batch, _), tally in tallies.items():
        known = by_batch.get(batch)
        if known is None:
            by_batch[batch] = tally
            continue
        times = [
            time_us
            for time_us in (known.oldest_us, tally.oldest_us, tally.newest_us, known.newest_us)
            if time_us is not None
        ]
        by_batch[batch] = InputTally(
            known.records + tally.records,
            known.dead + tally.dead,
            min(times, default=None),
            max(times, default=None),
        )
    return by_batch


def _total(batch: int, tallies: Mapping[str, Mapping[int, InputTally]]) -> Tally:
    batch_tallies = [by_batch[batch] for by_batch in tallies.values() if batch in by_batch]
    return Tally(sum(tally.records for tally in batch_tallies), sum(tally.dead for tally in batch_tallies))


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
