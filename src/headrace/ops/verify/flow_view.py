"""Verifies a view of a flow's topic: derives the rows again from the flow's whole input and compares them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.app_argument import app_argument
from headrace.client.cluster import Cluster
from headrace.errors import HeadraceError
from headrace.flow.history.derived import (
    BY_TOPIC,
    UNKNOWN,
    Derived,
    RowColumns,
    fold_by_fields,
    fold_by_key,
    is_order_derivable,
)
from headrace.flow.history.gaps import batches_through
from headrace.flow.history.realtime import fold_by_sources
from headrace.model.declarations import Flow, View
from headrace.model.errors import ValueDoesNotFit
from headrace.model.progress import Batch, Generation, source_ends
from headrace.model.schema import fields_from_json
from headrace.ops.verify.comparison import RowEquality, Scratch
from headrace.ops.verify.derivation import Derivations, can_derive, function_finding, report_derivation
from headrace.ops.verify.flow_topic import FlowTopic
from headrace.ops.verify.plain_rows import PlainRows, Value
from headrace.ops.verify.position_check import check_position
from headrace.ops.verify.report import Finding, Report, Unprovable
from headrace.ops.verify.snapshot import StoreSnapshot
from headrace.ops.verify.topic_view import (
    TopicFold,
    dead_letter_records,
    missing_letters_finding,
    schema_finding,
)

__all__ = ["FlowView"]


@dataclass(slots=True)
class FlowView:
    cluster: Cluster
    view: View
    flow: Flow
    snapshot: StoreSnapshot
    scratch: Scratch
    derivations: Derivations
    folder: Path
    sample: int

    def check(self, report: Report) -> None:
        report.found_rows = self.scratch.count("found")
        position = check_position(self.cluster, self.flow, self.snapshot)
        report.findings += position.findings
        report.notes += position.notes
        report.behind = position.behind
        generation, through = position.generation, position.last_batch
        if generation is None:
            return
        changed = function_finding(self.derivations, self.flow, generation)
        key = tuple(self.view.key or generation.key)
        wrong_schema = schema_finding(self.snapshot, fields_from_json(generation.schema), key)
        report.findings += [finding for finding in (changed, wrong_schema) if finding is not None]
        if wrong_schema is not None or not can_derive(self.derivations, self.flow, generation):
            return
        if through is not None:
            report.batch = through.batch
        is_realtime = generation.latency == "realtime"
        if through is not None or is_realtime:
            try:
                if is_realtime:
                    self._expect_by_sources(generation, report)
                elif through is not None:
                    self._expect(generation, through, report)
            except HeadraceError:
                raise
            except Exception as error:
                raise self.derivations.translate_error(self.flow, error) from error
        is_aggregation = self.derivations.compiled(self.flow).mode == "update"
        equality = RowEquality(self.snapshot.fields, is_aggregation=is_aggregation)
        self.scratch.compare(sample=self.sample, differing=equality.differing_columns).add_to(report)

    def _expect(self, generation: Generation, through: Batch, report: Report) -> None:
        derived = self.derivations.derived(self.flow, generation, through)
        report_derivation(report, derived)
        rejected = dead_letter_records(self.cluster, self.view, generation.output, self.snapshot.offsets)
        row_converter = PlainRows(self.snapshot.fields, tuple(generation.key), self.snapshot.key)
        self.derivations.say(f"view {self.view.name}: comparing {report.found_rows:,} rows")
        compiled = self.derivations.compiled(self.flow)
        if set(self.snapshot.key) == set(generation.key):
            rows = fold_by_key(self.derivations.spark, self.cluster, compiled, generation, derived, rejected)
        elif not rejected and is_order_derivable(compiled, generation, derived):
            rows = fold_by_fields(self.derivations.spark, compiled, generation, derived, self.snapshot.key)
        else:
            self._expect_by_topic(generation, derived, rejected, row_converter, report)
            return
        self._expect_rows(rows, row_converter, report)
        self._exclude_unprovable(report, derived)

    def _expect_by_sources(self, generation: Generation, report: Report) -> None:
        """For a real-time flow, derive rows up to the input offsets that the view has reached."""
        ends = source_ends(self.snapshot.sources)
        derived = self.derivations.derived_realtime(self.flow, generation, ends)
        try:
            report.records, report.dead = derived.records, derived.dead
            log = generation.inputs[0].log
            report.notes += [
                f"the view reaches offset {end} of {log}/{number}" for number, end in sorted(ends.items())
            ]
            report.unprovable += [
                Unprovable(missing.topic, missing.partition, missing.before, missing.why)
                for missing in derived.missing
            ]
            rejected = dead_letter_records(self.cluster, self.view, generation.output, self.snapshot.offsets)
            row_converter = PlainRows(self.snapshot.fields, tuple(generation.key), self.snapshot.key)
            self.derivations.say(f"view {self.view.name}: comparing {report.found_rows:,} rows")
            folded_rows = fold_by_sources(
                self.derivations.spark,
                self.cluster,
                generation,
                derived,
                self.snapshot.sources,
                self.snapshot.offsets,
                rejected,
            )
            self._expect_rows(folded_rows, row_converter, report)
            if derived.missing:
                report.unprovable_rows += self.scratch.exclude_rows_not_derived()
        finally:
            derived.close()

    def _expect_rows(
        self, folded_rows: Iterator[RowColumns], row_converter: PlainRows, report: Report
    ) -> None:
        scratch, mismatches = self.scratch, list[str]()
        for keys, values, states in folded_rows:
            rows = list(zip(keys, values, states, strict=True))
            scratch.put("expected", _rows(row_converter, rows, mismatches, by_topic=False))
            scratch.expect_by_topic(_rows(row_converter, rows, mismatches, by_topic=True))
            absent = (key for key, value, state in rows if value is None and state != UNKNOWN)
            scratch.expect_absent(row_converter.key(key.encode()) for key in absent)
            scratch.expect_unknown(
                row_converter.key(key.encode()) for key, _, state in rows if state == UNKNOWN
            )
        if mismatches:
            report.findings.append(missing_letters_finding(self.view, mismatches))

    def _exclude_unprovable(self, report: Report, derived: Derived) -> None:
        extent = derived.extent
        match extent.kind:
            case "nothing":
                report.unprovable_rows += self.scratch.exclude("TRUE")
            case "derived keys":
                report.unprovable_rows += self.scratch.exclude_rows_not_derived()
            case "later times":
                report.unprovable_rows += self.scratch.exclude_up_to(extent.field, extent.above)

    def _expect_by_topic(
        self,
        generation: Generation,
        derived: Derived,
        rejected: set[tuple[int, int]],
        row_converter: PlainRows,
        report: Report,
    ) -> None:
        """Compare the topic with the derived rows, and the view with the topic. This is for views whose rows depend on
        an order that only the topic has.
        """
        if generation.continues >= 0:
            report.unprovable += [
                Unprovable(
                    generation.output, int(number), offset, "a switch copied the rows, without their order"
                )
                for number, offset in sorted(generation.output_starts.items())
                if offset
            ]
            report.unprovable_rows += self.scratch.exclude("TRUE")
            return
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            topic = FlowTopic(self.cluster, self.flow, self.derivations, Path(name), self.sample)
            topic_report = Report(app=report.app, what="flow", name=self.flow.name, topic=generation.output)
            comparison = topic.compare(generation, derived, topic_report)
        if wrong := comparison.missing + comparison.extra + comparison.different:
            report.findings.append(
                Finding(
                    "topic",
                    f"{wrong} rows of {generation.output}, which the view follows, are not as derived",
                    f"show these rows with: headrace verify {app_argument()} --flow {self.flow.name}",
                )
            )
        ends: dict[int, list[int]] = {}
        for batch in batches_through(self.cluster, self.flow, generation.generation, derived.through):
            for number, (_, end) in batch.outputs.get(generation.output, {}).items():
                ends.setdefault(int(number), []).append(end)
        fold = TopicFold(
            self.cluster,
            self.scratch,
            row_converter,
            generation.output,
            {int(number): offset for number, offset in generation.output_starts.items()},
            self.snapshot.offsets,
            rejected,
            ends,
            same_key=False,
        )
        fold.run()
        report.unprovable += fold.unprovable
        if fold.records_without_letter:
            report.findings.append(missing_letters_finding(self.view, fold.records_without_letter))
        if report.unprovable:
            report.unprovable_rows += self.scratch.exclude_rows_not_derived()


def _rows(
    row_converter: PlainRows,
    rows: list[tuple[str, str | None, int]],
    mismatches: list[str],
    *,
    by_topic: bool,
) -> Iterator[tuple[Value, ...]]:
    for key, value, state in rows:
        if value is None or state == UNKNOWN or (state == BY_TOPIC) is not by_topic:
            continue
        try:
            yield row_converter.row(value.encode())
        except ValueDoesNotFit as error:
            mismatches.append(f"key {key}: {error.message}")
