"""A flow over its history: the flow's own function over all that its batches have read, in one go.

The input of a generation is on record: from its ``starts`` to where the last batch ended. What the function gives for
it are the rows that the flow's topic should hold, each with the batch that writes it and with its coordinates
(``headrace.flow.lineage``), which together say in which order.

Nothing of this asks the running flow's code or its notes, save for where its batches begin and end and which tables
they knew: records are decoded and rows are written by the plain-Python codec, and which events were late follows from
the events. What the flow has noted is compared (``headrace.flow.books``).

A flow that reads tables has called its function batch by batch, each with the tables of that moment. Batches in a row
that knew the same tables are taken together; for each such stretch the function is called with the tables as they were.

Where input is gone (``headrace.flow.gone``), the rest is derived: of a flow without state all batches behind the last
one that lacks something; of one that adds up over windows of the event time those windows that lie behind everything
that is gone; of any other with state, nothing. Watermarks are then taken up from the last batch that lacks something.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from itertools import islice

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.client.cluster import Cluster
from headrace.client.tombstones import Tombstones
from headrace.flow.batch_index import BatchIndex
from headrace.flow.books import Books
from headrace.flow.compiled import Compiled
from headrace.flow.decoding import TimeBounds
from headrace.flow.derived import ALL, NOTHING, Derived, Extent
from headrace.flow.gone import between, deleted, gone_before, last_hit, through_batch
from headrace.flow.late_check import LateCheck
from headrace.flow.operators import operators_of
from headrace.flow.past_table import PastTable
from headrace.flow.rereading import Rereading
from headrace.flow.row_sizes import average, measured
from headrace.flow.stretch import Stretch, stretches
from headrace.flow.table_reach import table_mistakes
from headrace.model.kinds import Plain
from headrace.model.progress import Batch, Generation
from headrace.model.schema import Schema
from headrace.model.topic import Topic

__all__ = ["derive"]

_STRETCHES_AT_ONCE = 50

Say = Callable[[str], None]


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
    index = BatchIndex.of(through_batch(cluster, compiled.flow, generation.generation, through))
    reading = Rereading(spark, cluster, compiled, schemas, generation, index, bounds)
    return _Derivation(reading, compiled, generation, index, through, say).run()


class _Derivation:
    def __init__(
        self,
        reading: Rereading,
        compiled: Compiled,
        generation: Generation,
        index: BatchIndex,
        through: Batch,
        say: Say,
    ) -> None:
        self._reading = reading
        self._cluster = reading.cluster
        self._flow = compiled.flow
        self._compiled = compiled
        self._generation = generation
        self._index = index
        self._through = through
        self._say = say
        nothing = (reading.empty(topic) for topic in self._flow.reads)
        self._operators = operators_of(self._flow.function(*nothing))
        self._tables: dict[str, PastTable] = {}

    def run(self) -> Derived:
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
        is_compacted = any(
            Tombstones.of(self._cluster.configs(self._reading.input(topic).log)).compacted
            for topic in self._flow.streams
        )
        while True:
            books = Books(is_compacted)
            derived = self._attempt(broken, why, books)
            if books.short is None:
                return derived
            derived.close()
            broken = next(one for one in self._known() if one.batch == books.short)
            why = "records before it were compacted away"

    def _known(self) -> Iterator[Batch]:
        return through_batch(self._cluster, self._flow, self._generation.generation, self._through)

    # What is gone

    def _broken(self) -> tuple[Batch | None, str]:
        """The last batch that cannot be derived again, and why."""
        starts, why = deleted(self._cluster, self._generation, self._through)
        found = [(last_hit(self._known(), starts) if starts else None, why)]
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

    def _attempt(self, broken: Batch | None, why: str, books: Books) -> Derived:
        extent, after = self._extent(broken)
        held: list[DataFrame] = []
        if extent is NOTHING:
            rows = self._reading.spark.createDataFrame([], "key string, value string")
        else:
            held = self._derive(after, broken, books)
            rows = reduce(DataFrame.unionByName, held)
        return Derived(
            rows=rows,
            count=books.rows,
            row_bytes=average(books.rows, books.bytes),
            through=self._through,
            after=after,
            extent=extent,
            operators=self._operators,
            records=books.records,
            late=books.late,
            dead=books.dead,
            gone=gone_before(broken, why) if broken else (),
            mistakes=books.mistakes,
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

    def _there(self, log: str, ranges: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
        """Of the ranges, what the log has."""
        starts = self._cluster.starts(log)
        return {number: (max(low, starts[int(number)]), high) for number, (low, high) in ranges.items()}

    # Windows that lie behind what is gone

    def _later_times(self, broken: Batch) -> Extent:
        """Up to ``broken`` no event was later than the latest seen by then, so later windows lack nothing."""
        found, topic = self._operators, self._flow.streams[0]
        seen_us = broken.seen_us.get(topic.name)
        is_time = {
            one.name for one in self._compiled.schema.fields if one.kind in (Plain("time"), Plain("date"))
        }
        field = next((name for name in self._flow.writes.key if name in is_time), None)
        adds_up = found.aggregates == 1 and not (found.joins or found.deduplicates)
        if not adds_up or field is None or seen_us is None or topic.time is None:
            return NOTHING
        if self._flow.unbounded or len(self._flow.streams) > 1:
            return NOTHING
        log = self._reading.input(topic).log
        ranges = self._there(log, between(self._generation, None, self._through)[log])
        records = self._reading.records(topic, ranges)
        if records is None:
            return NOTHING
        # Where the function would put all that is there if it had happened then.
        moved = self._reading.rows(records, topic).withColumn(topic.time, F.timestamp_micros(F.lit(seen_us)))
        value = self._reading.derived([moved])
        row = value.agg(F.max(F.get_json_object("value", f"$['{field}']"))).first()
        records.unpersist()
        return NOTHING if row is None or row[0] is None else Extent("later times", field, row[0])

    # Stretch by stretch

    def _derive(self, after: Batch | None, broken: Batch | None, books: Books) -> list[DataFrame]:
        """Rows, on disk."""
        known = (one for one in self._known() if after is None or one.batch > after.batch)
        late = LateCheck(self._reading, self._generation, self._index, self._through, broken)
        held = []
        for some in _chunks(stretches(known)):
            self._say(
                f"{self._flow.name}: deriving up to batch {some[-1].last.batch} of {self._through.batch}"
            )
            held.append(self._chunk(some, late, books))
        late.close()
        return held

    def _chunk(self, some: list[Stretch], late: LateCheck, books: Books) -> DataFrame:
        """Reads the streams once for all of them and folds each table once; to that each stretch adds what changed."""
        records = {topic.name: self._records(topic, some) for topic in self._flow.streams}
        streams = late.leave_out(records, some[0].first.batch, some[-1].last.batch, books)
        bases = {
            name: table.folded(some[0].tables[table.log]).persist(StorageLevel.MEMORY_AND_DISK)
            for name, table in self._tables.items()
        }
        parts = [self._stretch(one, some[0], streams, bases) for one in some]
        rows = reduce(DataFrame.unionByName, parts).persist(StorageLevel.DISK_ONLY)
        count, size = measured(rows)
        books.rows += count
        books.bytes += size
        for frame in (*records.values(), *bases.values()):
            if frame is not None:
                frame.unpersist()
        return rows

    def _records(self, topic: Topic, some: list[Stretch]) -> DataFrame | None:
        log = self._reading.input(topic).log
        begin, end = some[0].inputs.get(log, {}), some[-1].inputs.get(log, {})
        ranges = {number: (begin.get(number, (low, 0))[0], high) for number, (low, high) in end.items()}
        return self._reading.records(topic, self._there(log, ranges))

    def _stretch(
        self,
        stretch: Stretch,
        first: Stretch,
        streams: Mapping[str, DataFrame | None],
        bases: Mapping[str, DataFrame],
    ) -> DataFrame:
        frames = []
        for topic in self._flow.reads:
            if topic.kind == "table":
                table = self._tables[topic.name]
                since, offsets = first.tables[table.log], stretch.tables[table.log]
                base = bases[topic.name]
                frames.append(table.rows(base if since == offsets else table.changed(base, since, offsets)))
                continue
            records = streams[topic.name]
            if records is None:
                frames.append(self._reading.empty_input(topic))
                continue
            read = records.where(F.col("batch").between(stretch.first.batch, stretch.last.batch))
            frames.append(self._reading.rows(read, topic))
        return self._reading.derived(frames)


def _chunks(found: Iterator[Stretch]) -> Iterator[list[Stretch]]:
    while some := list(islice(found, _STRETCHES_AT_ONCE)):
        yield some
