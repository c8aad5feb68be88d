"""Verifies a flow's topic: derives the rows again from the flow's whole input and compares them with the topic.

If the flow writes every row of its function once, the topic must have exactly these rows, and the rows of each key in
order. That proves "exactly once". If newer rows of a key replace older rows (an aggregation), the last row of each key
must be right. A real-time flow can repeat a row. Then all output records of one input record must be the same row, and
no row may be missing.
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
from headrace.client.generations import progress_topic_of
from headrace.client.progress import batches, generations
from headrace.errors import HeadraceError
from headrace.flow.history.derived import (
    BY_TOPIC,
    DERIVED,
    UNKNOWN,
    Derived,
    RowColumns,
    collect_chunks,
    count_equal_rows,
    fold_by_key,
    has_initial_partitions,
    is_multiset_provable,
    last_written,
    number_rows,
    number_written_rows,
)
from headrace.flow.history.plain_encoder import normalize_values
from headrace.flow.history.written import (
    from_batches,
    is_whole,
    output_ranges,
    read_first_written,
    read_written,
)
from headrace.flow.realtime_rows import output_partition
from headrace.model.declarations import Flow
from headrace.model.progress import Batch, Generation
from headrace.ops.verify.comparison import Comparison, RowEquality, Scratch, Side
from headrace.ops.verify.derivation import Derivations, can_derive, function_finding, report_derivation
from headrace.ops.verify.errors import NotDerived
from headrace.ops.verify.plain_rows import Column
from headrace.ops.verify.position_check import progress_of
from headrace.ops.verify.report import Report

__all__ = ["FlowTopic"]

_ORDERED_COLUMNS: list[Column] = [("key", "TEXT"), ("value", "TEXT"), ("nth", "INTEGER")]
_BAG_COLUMNS: list[Column] = [("key", "TEXT"), ("value", "TEXT"), ("times", "INTEGER")]
_LAST_COLUMNS: list[Column] = [("key", "TEXT"), ("value", "TEXT")]


@dataclass(slots=True)
class FlowTopic:
    cluster: Cluster
    flow: Flow
    derivations: Derivations
    folder: Path
    sample: int

    def check(self, app: App, through: tuple[int, int] | None) -> Report:
        """Verify the topic up to ``through``, a generation and a batch. None means the newest batch."""
        generation, batch = self._find(through)
        report = Report(app=app.name, what="flow", name=self.flow.name, topic=generation.output)
        report.generation = generation.generation
        changed = function_finding(self.derivations, self.flow, generation)
        if changed is not None:
            report.findings.append(changed)
        if batch is None or not can_derive(self.derivations, self.flow, generation):
            return report
        report.batch = batch.batch
        report.offsets = {
            number: end for number, (_, end) in batch.outputs.get(generation.output, {}).items()
        }
        try:
            derived = self.derivations.derived(self.flow, generation, batch)
            report_derivation(report, derived)
            self.compare(generation, derived, report).add_to(report)
        except HeadraceError:
            raise
        except Exception as error:
            raise self.derivations.translate_error(self.flow, error) from error
        return report

    def _find(self, through: tuple[int, int] | None) -> tuple[Generation, Batch | None]:
        newest = progress_of(self.cluster, self.flow)
        if through is None or through == (newest.generation.generation, newest.last and newest.last.batch):
            return newest.generation, newest.last
        number, batch_number = through
        topic = progress_topic_of(self.cluster, self.flow, number)
        generation = next(
            (recorded for recorded in generations(self.cluster, topic) if recorded.generation == number), None
        )
        if generation is None:
            raise NotDerived(f"flow {self.flow.name} has no generation {number}")
        return generation, next(
            (batch for batch in batches(self.cluster, topic, number) if batch.batch == batch_number), None
        )

    def compare(self, generation: Generation, derived: Derived, report: Report) -> Comparison:
        """Compare the topic with the derived rows. Add counts and notes to ``report``."""
        compiled, spark = self.derivations.compiled(self.flow), self.derivations.spark
        ranges = output_ranges(generation, derived.after, derived.through)
        whole = is_whole(self.cluster, generation, ranges) and not _is_reduced(generation, derived)
        self.derivations.say(f"flow {self.flow.name}: comparing its topic {generation.output}")
        if generation.latency == "realtime":
            # Count repeated rows once.
            ends = {int(number): high for number, (_, high) in ranges.items()}
            first_rows = read_first_written(spark, self.cluster, generation, ends)
            topic = from_batches(first_rows, derived.after, derived.through)
        else:
            topic = read_written(spark, self.cluster, generation, ranges)
        # An upper bound of the number of rows on either side.
        rows_max = derived.through.totals.rows_out + derived.count
        if is_multiset_provable(compiled, derived, whole=whole) and derived.extent.kind != "nothing":
            report.found_rows = derived.through.totals.rows_out
            if derived.after is not None:
                report.unprovable_rows += derived.after.totals.rows_out
            if not self._is_ordered(generation, derived):
                return self._compare_bags(derived, topic, rows_max)
            partition = output_partition(spark, F.col("key"), generation)
            in_order = self._compare_in_order(derived, topic, partition, rows_max)
            if not in_order.differs:
                return in_order
            bags = self._compare_bags(derived, topic, rows_max)
            if not bags.differs:
                wrong = "in the wrong partition" if in_order.extra else "in another order"
                report.notes.append(f"the topic has every derived row once, but rows of a key {wrong}")
                return in_order
            # A missing or extra row shifts the numbers of all later rows. Compared as bags, that is without
            # order, only that row differs.
            return bags if in_order.missing or in_order.extra else in_order
        scratch = Scratch(Scratch.open(self.folder), _LAST_COLUMNS, ["key"])
        try:
            if self._is_ordered(generation, derived):
                topic = topic.where(F.col("partition") == output_partition(spark, F.col("key"), generation))
            last = last_written(topic).where("value IS NOT NULL")
            _fill(scratch, "found", collect_chunks(last, rows_max, derived.row_bytes))
            report.found_rows = scratch.count("found")
            self._expect(scratch, fold_by_key(spark, self.cluster, compiled, generation, derived))
            self._exclude_unprovable(scratch, report, derived)
            return scratch.compare(sample=self.sample, differing=self._equality().differing_values)
        finally:
            scratch.close()

    @staticmethod
    def _is_ordered(generation: Generation, derived: Derived) -> bool:
        """Whether the order of rows can be compared. For a real-time flow it cannot, because rows can be repeated."""
        return generation.latency == "batch" and has_initial_partitions(generation, derived)

    def _equality(self) -> RowEquality:
        compiled = self.derivations.compiled(self.flow)
        return RowEquality(compiled.schema.fields, is_aggregation=compiled.mode == "update")

    def _compare_in_order(
        self, derived: Derived, topic: DataFrame, partition: SparkColumn, rows_max: int
    ) -> Comparison:
        """Compare in order: the n-th row of a key in the topic must be its n-th derived row, in ``partition``."""
        found = number_written_rows(topic, partition)
        return self._compare_rows(
            _ORDERED_COLUMNS, ["key", "nth"], number_rows(derived), found, rows_max, derived
        )

    def _compare_bags(self, derived: Derived, topic: DataFrame, rows_max: int) -> Comparison:
        """Compare without order: the topic must have each derived row as often as it was derived."""
        normalized_topic = normalize_values(topic, self.derivations.compiled(self.flow).schema)
        return self._compare_rows(
            _BAG_COLUMNS,
            ["key", "value"],
            count_equal_rows(derived.rows),
            count_equal_rows(normalized_topic),
            rows_max,
            derived,
        )

    def _compare_rows(
        self,
        columns: list[Column],
        key: list[str],
        expected: DataFrame,
        found: DataFrame,
        rows_max: int,
        derived: Derived,
    ) -> Comparison:
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            scratch = Scratch(Scratch.open(Path(name)), columns, key)
            try:
                _fill(scratch, "expected", collect_chunks(expected, rows_max, derived.row_bytes))
                _fill(scratch, "found", collect_chunks(found, rows_max, derived.row_bytes))
                differing = self._equality().differing_values if columns is _ORDERED_COLUMNS else None
                return scratch.compare(sample=self.sample, differing=differing)
            finally:
                scratch.close()

    @staticmethod
    def _expect(scratch: Scratch, batches_of_rows: Iterator[RowColumns]) -> None:
        for keys, values, states in batches_of_rows:
            rows = list(zip(keys, values, states, strict=True))
            present = [(key, value, state) for key, value, state in rows if value is not None]
            scratch.put("expected", ((key, value) for key, value, state in present if state == DERIVED))
            scratch.expect_by_topic((key, value) for key, value, state in present if state == BY_TOPIC)
            scratch.expect_absent((key,) for key, value, state in rows if value is None and state == DERIVED)
            scratch.expect_unknown((key,) for key, _, state in rows if state == UNKNOWN)

    @staticmethod
    def _exclude_unprovable(scratch: Scratch, report: Report, derived: Derived) -> None:
        extent = derived.extent
        match extent.kind:
            case "nothing":
                report.unprovable_rows += scratch.exclude("TRUE")
            case "derived keys":
                report.unprovable_rows += scratch.exclude_rows_not_derived()
            case "later times":
                condition, path = "json_extract(c1, ?) <= ?", f'$."{extent.field}"'
                report.unprovable_rows += scratch.exclude(condition, (path, extent.above))


def _is_reduced(generation: Generation, derived: Derived) -> bool:
    """Whether the topic can lack derived rows, because the generation continued in it after a switch. The switch copied
    the earlier rows of each key since its last deletion.
    """
    if generation.continues < 0:
        return False
    if derived.after is not None and generation.output not in derived.after.outputs:
        return True
    return not derived.rows.where("value IS NULL").isEmpty()


def _fill(scratch: Scratch, side: Side, batches_of_rows: Iterator[RowColumns]) -> None:
    for columns in batches_of_rows:
        scratch.put(side, zip(*columns, strict=True))
