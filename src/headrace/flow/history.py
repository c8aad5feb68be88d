"""A flow over its history: the flow's own function over all that its batches have read, in one go.

The input of a generation is on record: from its ``starts`` to where the last batch ended. What the function gives for
it are the rows that the flow's topic should hold, as a bag: their order is not in them.

A flow that reads tables has called its function batch by batch, each with the tables of that moment. Batches in a row
that knew the same tables are taken together; for each such stretch the function is called with the tables as they were.

Where input is gone (``headrace.flow.gone``), the rest is derived: of a flow without state all batches behind the last
one that lacks something; of one that adds up over windows of the event time those windows that lie behind everything
that is gone; of any other with state, nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from itertools import islice
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from headrace.client.cluster import Cluster
from headrace.errors import HeadraceError
from headrace.flow.compiled import Compiled
from headrace.flow.decoding import TimeBounds
from headrace.flow.derived import ALL, NOTHING, Derived, Extent
from headrace.flow.gone import (
    between,
    deleted,
    gone_before,
    last_hit,
    last_short,
    last_unsure_late,
    through_batch,
)
from headrace.flow.operators import operators_of
from headrace.flow.past_table import PastTable
from headrace.flow.rereading import Counts, Rereading, counting
from headrace.flow.stretch import Stretch, stretches
from headrace.flow.table_reach import table_mistakes
from headrace.model.kinds import Plain
from headrace.model.progress import Batch, Generation, Ranges
from headrace.model.schema import Schema
from headrace.model.topic import Topic

__all__ = ["NotInOneGo", "derive"]

_STRETCHES_AT_ONCE = 50

Say = Callable[[str], None]


class NotInOneGo(HeadraceError):
    code = "HR-FLOW-NOT-IN-ONE-GO"


def derive(
    spark: SparkSession,
    cluster: Cluster,
    compiled: Compiled,
    schemas: Mapping[str, Schema],
    generation: Generation,
    through: Batch,
    bounds: TimeBounds,
    *,
    say: Say = lambda line: None,
) -> Derived:
    """The rows of all batches of the generation, up to and with ``through``; to be closed."""
    reading = Rereading(spark, cluster, compiled, schemas, generation, through, bounds)
    return _Derivation(reading, compiled, generation, through, say).run()


class _Derivation:
    def __init__(
        self, reading: Rereading, compiled: Compiled, generation: Generation, through: Batch, say: Say
    ) -> None:
        self._reading = reading
        self._cluster = reading.cluster
        self._flow = compiled.flow
        self._compiled = compiled
        self._generation = generation
        self._through = through
        self._say = say
        nothing = (reading.empty(topic) for topic in self._flow.reads)
        self._operators = operators_of(self._flow.function(*nothing))
        self._tables: dict[str, PastTable] = {}

    def run(self) -> Derived:
        if self._operators.own_state:
            raise NotInOneGo(
                f"flow {self._flow.name} keeps state of its own ({self._operators.own_state})",
                hint="its rows depend on the order of arrival, and cannot be derived again in one go",
            )
        try:
            for topic in self._flow.tables:
                self._tables[topic.name] = self._past(topic)
            derived = self._settled()
            derived.mistakes += self._table_mistakes()
            return derived
        finally:
            for table in self._tables.values():
                table.close()

    def _past(self, topic: Topic) -> PastTable:
        known, shaped = self._reading.input(topic), self._reading.topic(topic)
        place = (known.log, known.topic_id, known.starts)
        return PastTable(self._reading.spark, self._cluster, shaped, *place, self._reading.bounds)

    def _table_mistakes(self) -> tuple[str, ...]:
        logs = [one.log for one in self._tables.values() if not one.is_replaced]
        return table_mistakes(self._cluster, self._flow, self._generation, self._through, logs)

    def _settled(self) -> Derived:
        """Once more without what turned out not to be there."""
        broken, why = self._broken()
        while True:
            derived = self._attempt(broken, why)
            told = self._through.totals.rows_in - (derived.after.totals.rows_in if derived.after else 0)
            if derived.extent.kind not in ("all", "derived keys") or derived.records == told:
                return derived
            short = last_short(self._cluster, self._known(), broken)
            if short is None:
                mistake = f"{told} records were read by these batches, and there are {derived.records}"
                derived.mistakes = (mistake, *derived.mistakes)
                return derived
            derived.close()
            broken, why = short, "records before it were compacted away"

    def _known(self) -> Iterator[Batch]:
        return through_batch(self._cluster, self._flow, self._generation.generation, self._through)

    # What is gone

    def _broken(self) -> tuple[Batch | None, str]:
        """The last batch that cannot be derived again, and why."""
        starts, why = deleted(self._cluster, self._generation, self._through)
        found = [(last_hit(self._known(), starts) if starts else None, why)]
        unsure = last_unsure_late(self._cluster, self._flow, self._through, self._known())
        found.append((unsure, f"the notes of late rows in {self._flow.late_topic} were deleted"))
        if self._tables:
            found.append(self._last_without_tables())
        return max(found, key=lambda one: one[0].batch if one[0] else -1)

    def _last_without_tables(self) -> tuple[Batch | None, str]:
        last, lost = None, ""
        for stretch in stretches(self._known()):
            for table in self._tables.values():
                if not table.is_known_at(stretch.tables.get(table.log, {})):
                    last, lost = stretch.last, table.log
        return last, f"table {lost}, as it was then, was compacted away"

    def _attempt(self, broken: Batch | None, why: str) -> Derived:
        extent, after = self._extent(broken)
        held: list[DataFrame]
        if extent is NOTHING:
            rows = self._reading.spark.createDataFrame([], "key string, value string")
            counts, held = Counts(), []
        elif self._tables:
            rows, counts, held = self._by_stretches(after)
        else:
            rows, counts, held = self._at_once(between(self._generation, after, self._through))
        return Derived(
            rows=rows,
            count=counts.rows,
            through=self._through,
            after=after,
            extent=extent,
            operators=self._operators,
            records=counts.records,
            late=counts.late,
            dead=counts.dead,
            gone=gone_before(broken, why) if broken else (),
            mistakes=self._mistakes(counts, after) if extent.kind in ("all", "derived keys") else (),
            held=held,
        )

    def _extent(self, broken: Batch | None) -> tuple[Extent, Batch | None]:
        if broken is None:
            return ALL, None
        if broken.batch >= self._through.batch:
            return NOTHING, None
        if self._compiled.stateful:
            return self._later_times(broken), None
        return Extent("derived keys"), broken

    def _mistakes(self, counts: Counts, after: Batch | None) -> tuple[str, ...]:
        """Every record that comes in is counted, late or dead, now as then."""
        through, late, dead = self._through.totals, 0, 0
        if after is not None:
            late, dead = after.totals.late, after.totals.dead
        found = []
        if counts.late != through.late - late:
            found.append(
                f"{through.late - late} rows were late, and {counts.late} are noted in {self._flow.late_topic}"
            )
        if counts.dead != through.dead - dead:
            found.append(
                f"{through.dead - dead} records were dead letters, and {counts.dead} do not fit now;"
                " was flow.future_ms changed?"
            )
        return tuple(found)

    # All of it at once

    def _at_once(self, ranges: Ranges) -> tuple[DataFrame, Counts, list[DataFrame]]:
        reading = self._reading
        ranges = self._there(ranges)
        self._say(f"{self._flow.name}: deriving {_offsets(ranges):,} records")
        read: list[DataFrame] = []
        observed: list[Observation] = []
        frames = []
        for topic in self._flow.reads:
            marked = reading.marked(topic, ranges.get(reading.input(topic).log, {}))
            if marked is None:
                frames.append(reading.empty(topic))
                continue
            read.append(marked)
            observed.append(Observation(f"read {topic.name}"))
            frames.append(reading.rows(marked.observe(observed[-1], *counting()), topic))
        rows = reading.derived(frames)
        plan: Any = rows._jdf.queryExecution().optimizedPlan()
        told = str(plan.toString())
        counts = Counts(rows=rows.persist(StorageLevel.DISK_ONLY).count())
        # A function may use an input twice, or not at all, and Spark need not read what can leave no rows: then what is
        # counted on the way is not what was read.
        once = all(told.count(f"CollectMetrics {one._name},") == 1 for one in observed)
        if once and all(one.get["records"] for one in observed):
            for one in observed:
                counts.add(one.get)
        else:
            for marked in read:
                _count(counts, marked)
        return rows, counts, [rows]

    def _there(self, ranges: Ranges) -> Ranges:
        """Of the ranges, what the log has."""
        found: Ranges = {}
        for log, parts in ranges.items():
            starts = self._cluster.starts(log)
            found[log] = {
                number: (max(low, starts[int(number)]), high) for number, (low, high) in parts.items()
            }
        return found

    # Windows that lie behind what is gone

    def _later_times(self, broken: Batch) -> Extent:
        """Up to ``broken`` no event was later than the latest seen by then, so later windows lack nothing."""
        found, topic = self._operators, self._flow.streams[0]
        seen_us = broken.seen_us.get(topic.name)
        is_time = {
            one.name for one in self._compiled.schema.fields if one.kind in (Plain("time"), Plain("date"))
        }
        field = next((name for name in self._flow.writes.key if name in is_time), None)
        adds_up = found.aggregates == 1 and not (found.joins or found.deduplicates or found.sessions)
        if not adds_up or field is None or seen_us is None or topic.time is None:
            return NOTHING
        if self._flow.unbounded or len(self._flow.streams) > 1:
            return NOTHING
        ranges = self._there(between(self._generation, None, self._through))
        marked = self._reading.marked(topic, ranges[self._reading.input(topic).log])
        if marked is None:
            return NOTHING
        # Where the function would put all that is there if it had happened then.
        moved = self._reading.rows(marked, topic).withColumn(topic.time, F.timestamp_micros(F.lit(seen_us)))
        value = self._reading.derived([moved]).select(F.get_json_object("value", f"$['{field}']").alias("at"))
        row = value.agg(F.max("at")).first()
        return NOTHING if row is None or row[0] is None else Extent("later times", field, row[0])

    # Stretch by stretch

    def _by_stretches(self, after: Batch | None) -> tuple[DataFrame, Counts, list[DataFrame]]:
        known = (one for one in self._known() if after is None or one.batch > after.batch)
        counts, held = Counts(), []
        for some in _chunks(stretches(known)):
            self._say(
                f"{self._flow.name}: deriving up to batch {some[-1].last.batch} of {self._through.batch}"
            )
            held.append(self._chunk(some, counts))
        return reduce(DataFrame.unionByName, held), counts, held

    def _chunk(self, some: list[Stretch], counts: Counts) -> DataFrame:
        """Reads the stream once for all of them and folds each table once; to that each stretch adds what changed."""
        topic, held = self._flow.streams[0], []
        log = self._reading.input(topic).log
        begin, end = some[0].inputs.get(log, {}), some[-1].inputs.get(log, {})
        ranges = {number: (begin.get(number, (low, 0))[0], high) for number, (low, high) in end.items()}
        stream = self._reading.marked(topic, ranges)
        if stream is not None:
            stream = stream.persist(StorageLevel.DISK_ONLY)
            held.append(stream)
            _count(counts, stream)
        bases = {}
        for name, table in self._tables.items():
            bases[name] = table.folded(some[0].tables[table.log]).persist(StorageLevel.MEMORY_AND_DISK)
            held.append(bases[name])
        parts = [self._stretch(one, some[0], stream, bases) for one in some]
        rows = reduce(DataFrame.unionByName, parts).persist(StorageLevel.DISK_ONLY)
        counts.rows += rows.count()
        for frame in held:
            frame.unpersist()
        return rows

    def _stretch(
        self, stretch: Stretch, first: Stretch, stream: DataFrame | None, bases: dict[str, DataFrame]
    ) -> DataFrame:
        frames = []
        for topic in self._flow.reads:
            if topic.kind == "table":
                table = self._tables[topic.name]
                since, offsets = first.tables[table.log], stretch.tables[table.log]
                base = bases[topic.name]
                frames.append(table.rows(base if since == offsets else table.changed(base, since, offsets)))
            elif stream is None:
                frames.append(self._reading.empty(topic))
            else:
                ranges = stretch.inputs[self._reading.input(topic).log]
                frames.append(self._reading.rows(stream.where(_within(ranges)), topic))
        return self._reading.derived(frames)


def _count(counts: Counts, marked: DataFrame) -> None:
    row = marked.agg(*counting()).first()
    assert row is not None
    counts.add(row.asDict())


def _chunks(found: Iterator[Stretch]) -> Iterator[list[Stretch]]:
    while some := list(islice(found, _STRETCHES_AT_ONCE)):
        yield some


def _within(ranges: Mapping[str, tuple[int, int]]) -> Column:
    parts = (
        (F.col("partition") == int(number)) & F.col("offset").between(low, high - 1)
        for number, (low, high) in ranges.items()
        if low < high
    )
    return reduce(lambda so_far, one: so_far | one, parts, F.lit(False))


def _offsets(ranges: Ranges) -> int:
    return sum(high - low for parts in ranges.values() for low, high in parts.values())
