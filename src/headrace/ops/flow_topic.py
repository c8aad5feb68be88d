"""A flow's topic, held against the flow's own function over its history.

Where every row that the function gives is written, and written once, the topic must hold exactly these, and the rows of
each key in the order of their coordinates: that is "exactly once", shown. Where rows of a key replace each other as
they change (an aggregation), it is the last row of each key that must be right. A flow in real time may write a row
again; then all that tells one source must be one row, and each row must be there.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.progress_log import batches, generations
from headrace.errors import HeadraceError
from headrace.flow.derived import Derived
from headrace.flow.folding import (
    BY_TOPIC,
    DERIVED,
    UNKNOWN,
    Some,
    bag,
    collected,
    folded,
    has_its_partitions,
    is_bag_provable,
    last_written,
    numbered,
    numbered_written,
)
from headrace.flow.plain_encoder import spell_plainly
from headrace.flow.sourced import output_partition
from headrace.flow.written import first_written, is_whole, made_of, output_ranges, written
from headrace.model.flow import Flow
from headrace.model.progress import Batch, Generation
from headrace.ops.derivation import can_derive, function_finding, tell_of_derivation
from headrace.ops.deriving import Deriving
from headrace.ops.errors import NotDerived
from headrace.ops.plain_rows import Column
from headrace.ops.report import Report
from headrace.ops.sameness import Sameness
from headrace.ops.scratch import Compared, Scratch, Side
from headrace.ops.standing import progress_of

__all__ = ["FlowTopic"]

_ORDERED: list[Column] = [("key", "TEXT"), ("value", "TEXT"), ("nth", "INTEGER")]
_BAG: list[Column] = [("key", "TEXT"), ("value", "TEXT"), ("times", "INTEGER")]
_LAST: list[Column] = [("key", "TEXT"), ("value", "TEXT")]


@dataclass(slots=True)
class FlowTopic:
    cluster: Cluster
    flow: Flow
    deriving: Deriving
    folder: Path
    sample: int

    def check(self, app: App, through: tuple[int, int] | None) -> Report:
        """``through`` is a generation and a batch; otherwise all that there is."""
        generation, batch = self._find(through)
        report = Report(app=app.name, what="flow", name=self.flow.name, topic=generation.output)
        report.generation = generation.generation
        changed = function_finding(self.deriving, self.flow, generation)
        if changed is not None:
            report.findings.append(changed)
        if batch is None or not can_derive(self.deriving, self.flow, generation):
            return report
        report.batch = batch.batch
        report.offsets = {one: end for one, (_, end) in batch.outputs.get(generation.output, {}).items()}
        try:
            derived = self.deriving.derived(self.flow, generation, batch)
            tell_of_derivation(report, derived)
            self.compare(generation, derived, report).tell(report)
        except HeadraceError:
            raise
        except Exception as error:
            raise self.deriving.told(self.flow, error) from error
        return report

    def _find(self, through: tuple[int, int] | None) -> tuple[Generation, Batch | None]:
        newest = progress_of(self.cluster, self.flow)
        if through is None or through == (newest.generation.generation, newest.last and newest.last.batch):
            return newest.generation, newest.last
        number, wanted = through
        topic = self.flow.progress_topic
        generation = next((one for one in generations(self.cluster, topic) if one.generation == number), None)
        if generation is None:
            raise NotDerived(f"flow {self.flow.name} has no generation {number}")
        return generation, next(
            (one for one in batches(self.cluster, topic, number) if one.batch == wanted), None
        )

    def compare(self, generation: Generation, derived: Derived, report: Report) -> Compared:
        """The topic is told of in ``report``; the rest is what was found."""
        compiled, spark = self.deriving.compiled(self.flow), self.deriving.spark
        ranges = output_ranges(generation, derived.after, derived.through)
        whole = is_whole(self.cluster, generation, ranges)
        self.deriving.say(f"flow {self.flow.name}: comparing its topic {generation.output}")
        if generation.latency == "realtime":
            # Rows may be there more than once; each counts once.
            ends = {int(number): high for number, (_, high) in ranges.items()}
            once = first_written(spark, self.cluster, generation, ends)
            topic = made_of(once, derived.after, derived.through)
        else:
            topic = written(spark, self.cluster, generation, ranges)
        # As many as were written, at most.
        rows_max = derived.through.totals.rows_out + derived.count
        if is_bag_provable(compiled, derived, whole=whole) and derived.extent.kind != "nothing":
            report.found_rows = derived.through.totals.rows_out
            if derived.after is not None:
                report.unprovable_rows += derived.after.totals.rows_out
            if not self._is_ordered(generation, derived):
                return self._compare_bags(derived, topic, rows_max)
            partition = output_partition(spark, F.col("key"), generation)
            found = self._compare_in_order(derived, topic, partition, rows_max)
            if not found.differs:
                return found
            bags = self._compare_bags(derived, topic, rows_max)
            if not bags.differs:
                wrong = "in a partition that is not theirs" if found.extra else "in another order"
                report.notes.append(f"it has every derived row, each once, but rows of a key {wrong}")
                return found
            # One row more or less moves all that follow it; as bags, only that row differs.
            return bags if found.missing or found.extra else found
        scratch = Scratch(Scratch.open(self.folder), _LAST, ["key"])
        try:
            if self._is_ordered(generation, derived):
                topic = topic.where(F.col("partition") == output_partition(spark, F.col("key"), generation))
            last = last_written(topic).where("value IS NOT NULL")
            _fill(scratch, "found", collected(last, rows_max, derived.row_bytes))
            report.found_rows = scratch.count("found")
            self._expect(scratch, folded(spark, self.cluster, compiled, generation, derived))
            self._set_aside(scratch, report, derived)
            return scratch.compare(sample=self.sample, differing=self._sameness().of_values)
        finally:
            scratch.close()

    @staticmethod
    def _is_ordered(generation: Generation, derived: Derived) -> bool:
        """In real time a row may be there again."""
        return generation.latency == "batch" and has_its_partitions(generation, derived)

    def _sameness(self) -> Sameness:
        compiled = self.deriving.compiled(self.flow)
        return Sameness(compiled.schema.fields, floats_add_up=compiled.mode == "update")

    def _compare_in_order(
        self, derived: Derived, topic: DataFrame, partition: SparkColumn, rows_max: int
    ) -> Compared:
        """Row by row: the n-th of a key in the topic must be its n-th derived one, and in ``partition``."""
        there = numbered_written(topic, partition)
        return self._compare_rows(_ORDERED, ["key", "nth"], numbered(derived), there, rows_max, derived)

    def _compare_bags(self, derived: Derived, topic: DataFrame, rows_max: int) -> Compared:
        """Every derived row, as often as it was derived."""
        spelled = spell_plainly(topic, self.deriving.compiled(self.flow).schema)
        return self._compare_rows(_BAG, ["key", "value"], bag(derived.rows), bag(spelled), rows_max, derived)

    def _compare_rows(
        self,
        columns: list[Column],
        key: list[str],
        expected: DataFrame,
        found: DataFrame,
        rows_max: int,
        derived: Derived,
    ) -> Compared:
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            scratch = Scratch(Scratch.open(Path(name)), columns, key)
            try:
                _fill(scratch, "expected", collected(expected, rows_max, derived.row_bytes))
                _fill(scratch, "found", collected(found, rows_max, derived.row_bytes))
                differing = self._sameness().of_values if columns is _ORDERED else None
                return scratch.compare(sample=self.sample, differing=differing)
            finally:
                scratch.close()

    @staticmethod
    def _expect(scratch: Scratch, some: Iterator[Some]) -> None:
        for keys, values, known in some:
            rows = list(zip(keys, values, known, strict=True))
            there = [(key, value, one) for key, value, one in rows if value is not None]
            scratch.put("expected", ((key, value) for key, value, one in there if one == DERIVED))
            scratch.expect_by_topic((key, value) for key, value, one in there if one == BY_TOPIC)
            scratch.expect_absent((key,) for key, value, one in rows if value is None and one == DERIVED)
            scratch.expect_unknown((key,) for key, _, one in rows if one == UNKNOWN)

    @staticmethod
    def _set_aside(scratch: Scratch, report: Report, derived: Derived) -> None:
        extent = derived.extent
        match extent.kind:
            case "nothing":
                report.unprovable_rows += scratch.set_aside("TRUE")
            case "derived keys":
                report.unprovable_rows += scratch.set_aside_underived()
            case "later times":
                condition, path = "json_extract(c1, ?) <= ?", f'$."{extent.field}"'
                report.unprovable_rows += scratch.set_aside(condition, (path, extent.above))


def _fill(scratch: Scratch, side: Side, some: Iterator[Some]) -> None:
    for columns in some:
        scratch.put(side, zip(*columns, strict=True))
