"""A view of what a flow writes, held against the flow's own function over its history."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.client.cluster import Cluster
from headrace.errors import HeadraceError
from headrace.flow.derived import Derived
from headrace.flow.folding import BY_TOPIC, UNKNOWN, Some, folded, folded_by_fields, is_order_derivable
from headrace.flow.gone import through_batch
from headrace.flow.sourced_folding import folded_by_sources
from headrace.model.errors import ValueDoesNotFit
from headrace.model.flow import Flow
from headrace.model.progress import Batch, Generation
from headrace.model.schema_json import fields_from_json
from headrace.model.source import reaches
from headrace.model.view import View
from headrace.ops.derivation import can_derive, function_finding, tell_of_derivation
from headrace.ops.deriving import Deriving
from headrace.ops.flow_topic import FlowTopic
from headrace.ops.plain_rows import PlainRows, Value
from headrace.ops.refused import refused_places
from headrace.ops.report import Finding, Report, Unprovable
from headrace.ops.sameness import Sameness
from headrace.ops.scratch import Scratch
from headrace.ops.served import Served
from headrace.ops.standing import stand
from headrace.ops.topic_fold import TopicFold
from headrace.ops.topic_view import shape_finding, unnoted_finding

__all__ = ["FlowView"]


@dataclass(slots=True)
class FlowView:
    cluster: Cluster
    view: View
    flow: Flow
    served: Served
    scratch: Scratch
    deriving: Deriving
    folder: Path
    sample: int

    def check(self, report: Report) -> None:
        report.found_rows = self.scratch.count("found")
        standing = stand(self.cluster, self.flow, self.served)
        report.findings += standing.findings
        report.notes += standing.notes
        report.behind = standing.behind
        generation, through = standing.generation, standing.through
        if generation is None:
            return
        changed = function_finding(self.deriving, self.flow, generation)
        key = tuple(self.view.key or generation.key)
        wrong = shape_finding(self.served, fields_from_json(generation.schema), key)
        report.findings += [one for one in (changed, wrong) if one is not None]
        if wrong is not None or not can_derive(self.deriving, self.flow, generation):
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
                raise self.deriving.told(self.flow, error) from error
        adds_up = self.deriving.compiled(self.flow).mode == "update"
        sameness = Sameness(self.served.fields, floats_add_up=adds_up)
        self.scratch.compare(sample=self.sample, differing=sameness.of_rows).tell(report)

    def _expect(self, generation: Generation, through: Batch, report: Report) -> None:
        derived = self.deriving.derived(self.flow, generation, through)
        tell_of_derivation(report, derived)
        refused = refused_places(self.cluster, self.view, generation.output, self.served.offsets)
        plain = PlainRows(self.served.fields, tuple(generation.key), self.served.key)
        self.deriving.say(f"view {self.view.name}: comparing {report.found_rows:,} rows")
        compiled = self.deriving.compiled(self.flow)
        if set(self.served.key) == set(generation.key):
            some = folded(self.deriving.spark, self.cluster, compiled, generation, derived, refused)
        elif not refused and is_order_derivable(compiled, generation, derived):
            some = folded_by_fields(self.deriving.spark, generation, derived, self.served.key)
        else:
            self._expect_by_topic(generation, derived, refused, plain, report)
            return
        self._expect_some(some, plain, report)
        self._set_aside(report, derived)

    def _expect_by_sources(self, generation: Generation, report: Report) -> None:
        """Of a flow in real time: through the record of the input that each partition of the topic has come to."""
        ends = reaches(self.served.sources)
        derived = self.deriving.sourced(self.flow, generation, ends)
        try:
            report.records, report.dead = derived.records, derived.dead
            log = generation.inputs[0].log
            report.notes += [f"it reaches offset {end} of {log}/{one}" for one, end in sorted(ends.items())]
            report.unprovable += [
                Unprovable(one.topic, one.partition, one.before, one.why) for one in derived.gone
            ]
            refused = refused_places(self.cluster, self.view, generation.output, self.served.offsets)
            plain = PlainRows(self.served.fields, tuple(generation.key), self.served.key)
            self.deriving.say(f"view {self.view.name}: comparing {report.found_rows:,} rows")
            where = (self.deriving.spark, self.cluster, generation, derived)
            place = (self.served.sources, self.served.offsets, refused)
            self._expect_some(folded_by_sources(*where, *place), plain, report)
            if derived.gone:
                report.unprovable_rows += self.scratch.set_aside_underived()
        finally:
            derived.close()

    def _expect_some(self, some: Iterator[Some], plain: PlainRows, report: Report) -> None:
        scratch, unfit = self.scratch, list[str]()
        for keys, values, known in some:
            rows = list(zip(keys, values, known, strict=True))
            scratch.put("expected", _rows(plain, rows, unfit, by_topic=False))
            scratch.expect_by_topic(_rows(plain, rows, unfit, by_topic=True))
            absent = (key for key, value, one in rows if value is None and one != UNKNOWN)
            scratch.expect_absent(plain.key(key.encode()) for key in absent)
            scratch.expect_unknown(plain.key(key.encode()) for key, _, one in rows if one == UNKNOWN)
        if unfit:
            report.findings.append(unnoted_finding(self.view, unfit))

    def _set_aside(self, report: Report, derived: Derived) -> None:
        extent = derived.extent
        match extent.kind:
            case "nothing":
                report.unprovable_rows += self.scratch.set_aside("TRUE")
            case "derived keys":
                report.unprovable_rows += self.scratch.set_aside_underived()
            case "later times":
                report.unprovable_rows += self.scratch.set_aside_up_to(extent.field, extent.above)

    def _expect_by_topic(
        self,
        generation: Generation,
        derived: Derived,
        refused: set[tuple[int, int]],
        plain: PlainRows,
        report: Report,
    ) -> None:
        """Where only the topic has the order of rows, it takes two steps: the topic is held against what was derived,
        and the view against the topic.
        """
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            topic = FlowTopic(self.cluster, self.flow, self.deriving, Path(name), self.sample)
            aside = Report(app=report.app, what="flow", name=self.flow.name, topic=generation.output)
            found = topic.compare(generation, derived, aside)
        if wrong := found.missing + found.extra + found.different:
            report.findings.append(
                Finding(
                    "topic",
                    f"{wrong} rows of {generation.output}, which it follows, are not as derived",
                    f"headrace verify APP --flow {self.flow.name} shows them",
                )
            )
        ends: dict[int, list[int]] = {}
        for batch in through_batch(self.cluster, self.flow, generation.generation, derived.through):
            for number, (_, end) in batch.outputs.get(generation.output, {}).items():
                ends.setdefault(int(number), []).append(end)
        fold = TopicFold(
            self.cluster,
            self.scratch,
            plain,
            generation.output,
            {int(number): at for number, at in generation.output_starts.items()},
            self.served.offsets,
            refused,
            ends,
            same_key=False,
        )
        fold.run()
        report.unprovable += fold.unprovable
        if fold.unnoted:
            report.findings.append(unnoted_finding(self.view, fold.unnoted))
        if report.unprovable:
            report.unprovable_rows += self.scratch.set_aside_underived()


def _rows(
    plain: PlainRows, rows: list[tuple[str, str | None, int]], unfit: list[str], *, by_topic: bool
) -> Iterator[tuple[Value, ...]]:
    for key, value, known in rows:
        if value is None or known == UNKNOWN or (known == BY_TOPIC) is not by_topic:
            continue
        try:
            yield plain.row(value.encode())
        except ValueDoesNotFit as error:
            unfit.append(f"key {key}: {error.message}")
