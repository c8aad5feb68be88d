"""What every check of something derived says about the derivation itself."""

from __future__ import annotations

from headrace.flow.derived import Derived
from headrace.flow.fingerprint import is_comparable
from headrace.model.flow import Flow
from headrace.model.progress import Generation
from headrace.model.schema_json import fields_from_json
from headrace.ops.deriving import Deriving
from headrace.ops.report import Finding, Report, Unprovable

__all__ = ["can_derive", "function_finding", "tell_of_derivation"]


def function_finding(deriving: Deriving, flow: Flow, generation: Generation) -> Finding | None:
    now = deriving.compiled(flow).fingerprint
    if now == generation.fingerprint:
        return None
    if not is_comparable(generation.fingerprint):
        return Finding(
            "function",
            f"generation {generation.generation} of {flow.name} has {generation.fingerprint}, a fingerprint of an older"
            f" release, and this release computes fingerprints differently; the function now has {now}",
            f"rebuild it once: headrace flow rebuild APP {flow.name}",
        )
    return Finding(
        "function",
        f"it was derived by another version of {flow.name}: generation {generation.generation} has the fingerprint"
        f" {generation.fingerprint}, and the function now has {now}",
        f"headrace flow rebuild APP {flow.name} derives it again with the function as it is now",
    )


def can_derive(deriving: Deriving, flow: Flow, generation: Generation) -> bool:
    """Another version of the function may read other topics, give other columns, or no longer go row by row."""
    if generation.latency == "realtime" and not flow.is_realtime:
        return False
    same_inputs = {one.topic for one in generation.inputs} == {topic.name for topic in flow.reads}
    return same_inputs and deriving.compiled(flow).schema.fields == fields_from_json(generation.schema)


def tell_of_derivation(report: Report, derived: Derived) -> None:
    report.records, report.late, report.dead = derived.records, derived.late, derived.dead
    report.unprovable += [Unprovable(one.topic, one.partition, one.before, one.why) for one in derived.gone]
    report.findings += [Finding("books", mistake) for mistake in derived.mistakes]
    if derived.extent.kind == "later times":
        field, above = derived.extent.field, derived.extent.above
        report.notes.append(f"rows with {field} up to {above} may lack what is gone")
