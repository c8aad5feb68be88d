"""Which events were late, batch by batch; and whether the flow has noted the same.

Judged are decoded records, by watermarks that follow from them (``headrace.flow.lateness``). With these are compared
the watermarks and counts in the progress records, and the notes in ``<flow>.late``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

import msgspec
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headrace.client.reading import read
from headrace.flow.batch_index import BatchIndex, BatchNote
from headrace.flow.books import Books, Tally
from headrace.flow.inputs import history
from headrace.flow.lateness import Watermarks
from headrace.flow.rereading import InputTally, Rereading
from headrace.model.progress import Batch, Generation

__all__ = ["LateCheck"]

_NOTE = "topic string, partition int, offset long, event_us long, batch long, generation int"
_PLACE = ["topic", "partition", "offset", "event_us", "batch"]
Records = Mapping[str, DataFrame | None]
"""Decoded records by input; None where there are none."""


class LateCheck:
    """Takes the batches of a generation in their order; to be closed."""

    def __init__(
        self,
        reading: Rereading,
        generation: Generation,
        index: BatchIndex,
        through: Batch,
        broken: Batch | None,
    ) -> None:
        """``broken`` is the last batch that lacks records: up to it watermarks are those that the flow has noted."""
        self._reading = reading
        self._generation = generation
        self._index = index
        self._through = through
        self._trusted = -1 if broken is None else broken.batch
        # In real time nothing is late.
        streams = reading.flow.streams if generation.latency == "batch" else ()
        begin = ({}, None) if broken is None else (broken.seen_us, broken.next_watermark_us)
        self._watermarks = Watermarks(streams, *begin)
        self._notes: DataFrame | None = None
        self._noted_batches: set[int] = set()
        self._noted_after = self._trusted
        """The notes of batches up to this one may have been deleted."""
        self._read_notes()

    def close(self) -> None:
        if self._notes is not None:
            self._notes.unpersist()

    def leave_out(self, records: Records, first: int, last: int, books: Books) -> Records:
        """The records of these batches without those that were late. Notes that differ go to ``books``."""
        tallies = {name: self._reading.tallies(one) for name, one in records.items() if one is not None}
        notes = self._index.between(first, last)
        watermarks = {note.number: self._next_watermark(note, tallies) for note in notes}
        totals = {note.number: _total(note.number, tallies) for note in notes}
        left: dict[str, DataFrame | None] = {}
        late: list[DataFrame] = []
        for name, found in records.items():
            if found is None or not _may_be_late(tallies[name], watermarks):
                left[name] = found
                continue
            marked = self._reading.mark_late(found, watermarks)
            left[name] = marked.where(~F.col("late"))
            late.append(self._places(name, marked.where("late")))
        for frame in late:
            for batch, count in frame.groupBy("batch").count().collect():
                totals[batch].late += count
        books.count(totals.values())
        books.compare([note for note in notes if note.number > self._trusted], totals, watermarks)
        self._compare_notes(late, totals, books)
        return left

    def _next_watermark(self, note: BatchNote, tallies: Mapping[str, Mapping[int, InputTally]]) -> int | None:
        if note.number <= self._trusted:
            return note.watermark_us
        watermark_us = self._watermarks.current_us
        found = {name: ones[note.number] for name, ones in tallies.items() if note.number in ones}
        self._watermarks.advance({name: one.newest_us for name, one in found.items()})
        return watermark_us

    def _places(self, name: str, records: DataFrame) -> DataFrame:
        topic = next(one for one in self._reading.flow.streams if one.name == name)
        log = F.lit(self._reading.input(topic).log).alias("topic")
        return records.select(log, *_PLACE[1:])

    # The notes of the flow

    def _read_notes(self) -> None:
        cluster, log, generation = (
            self._reading.cluster,
            self._reading.flow.late_topic,
            self._generation.generation,
        )
        if cluster.topic(log) is None:
            return
        begin, end = cluster.starts(log)[0], cluster.ends(log)[0]
        if begin:
            self._noted_after = max(self._trusted, self._last_unnoted(begin, end))
        if begin == end:
            return
        records = history(self._reading.spark, cluster, log, {"0": (begin, end)})
        notes = records.select(F.from_json(F.col("value").cast("string"), _NOTE).alias("note")).select(
            "note.*"
        )
        mine = (F.col("generation") == generation) & (F.col("batch") <= self._through.batch)
        self._notes = notes.where(mine).select(*_PLACE).persist(StorageLevel.DISK_ONLY)
        self._noted_batches = {row[0] for row in self._notes.select("batch").distinct().collect()}

    def _last_unnoted(self, begin: int, end: int) -> int:
        """The last batch whose notes may have been deleted: that of the first note which is there."""
        for message in read(self._reading.cluster, self._reading.flow.late_topic, {0: (begin, end)}):
            first = msgspec.json.decode(message.value() or b"{}")
            if first["generation"] < self._generation.generation:
                return -1
            if first["generation"] == self._generation.generation:
                return int(first["batch"])
            break
        return self._through.batch

    def _compare_notes(self, late: list[DataFrame], totals: Mapping[int, Tally], books: Books) -> None:
        batches = [number for number in totals if number > self._noted_after]
        if not any(totals[number].late or number in self._noted_batches for number in batches):
            return
        sides = [(one, "late") for one in late] + (
            [(self._notes, "noted")] if self._notes is not None else []
        )
        marked = reduce(DataFrame.unionByName, (one.withColumn("side", F.lit(side)) for one, side in sides))
        within = F.col("batch").between(min(batches), max(batches))
        by_side = [F.count_if(F.col("side") == side).alias(side) for side in ("late", "noted")]
        differing = marked.where(within).groupBy(*_PLACE).agg(*by_side).where("late <> noted")
        first = differing.orderBy("batch", "topic", "partition", "offset").limit(1).collect()
        if first:
            (row,) = first
            where = f"offset {row['offset']} of {row['topic']}/{row['partition']} in batch {row['batch']}"
            was = "was late" if row["late"] else "was not late"
            noted = "is noted" if row["noted"] else "is not noted"
            books.add(
                f"{self._reading.flow.late_topic}: {where} {was} and {noted}; {differing.count()} differ"
            )


def _total(batch: int, tallies: Mapping[str, Mapping[int, InputTally]]) -> Tally:
    found = [ones[batch] for ones in tallies.values() if batch in ones]
    return Tally(sum(one.records for one in found), sum(one.dead for one in found))


def _may_be_late(tallies: Mapping[int, InputTally], watermarks: Mapping[int, int | None]) -> bool:
    for batch, tally in tallies.items():
        watermark_us = watermarks[batch]
        if watermark_us is not None and tally.oldest_us is not None and tally.oldest_us < watermark_us:
            return True
    return False
