"""Derives the rows of a flow again for the checks, and adds the counts of the derivation to the report.

``Derivations`` caches the last derivation, because a view and its flow's topic need the same rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from pyspark.sql import SparkSession

from headrace.app_argument import app_argument
from headrace.client.cluster import Cluster
from headrace.errors import HeadraceError
from headrace.flow.compile.compiler import Compiled
from headrace.flow.compile.fingerprint import is_comparable
from headrace.flow.compile.flow_digest import describe_changes
from headrace.flow.context import FlowOptions
from headrace.flow.failures import explain
from headrace.flow.history.derivation import derive
from headrace.flow.history.derived import Derived
from headrace.flow.history.realtime import RealtimeRows, derive_realtime
from headrace.model.declarations import Flow
from headrace.model.progress import Batch, Generation
from headrace.model.schema import Schema, fields_from_json
from headrace.ops.verify.errors import CannotVerify
from headrace.ops.verify.report import Finding, Report, Unprovable
from headrace.settings import Settings

__all__ = ["Derivations", "can_derive", "function_finding", "report_derivation"]

_NO_WORKER = re.compile(
    r"No module named '(?:headrace|msgspec|pyarrow|pyspark)[^\n]*|Cannot run program \"[^\n]*|PYTHON_VERSION_MISMATCH"
)
"""Errors of Spark executors that cannot run the Python code for decoding records."""


class Derivations:
    def __init__(
        self,
        spark: SparkSession,
        cluster: Cluster,
        settings: Settings,
        compiled: Sequence[Compiled],
        schemas: Mapping[str, Schema],
        say: Callable[[str], None],
    ) -> None:
        self.spark = spark
        self.say = say
        self._cluster = cluster
        self._bounds = FlowOptions.of(settings).bounds
        self._compiled = {flow.flow.name: flow for flow in compiled}
        self._schemas = schemas
        self._cached: tuple[tuple[str, int, int], Derived] | None = None

    def compiled(self, flow: Flow) -> Compiled:
        return self._compiled[flow.name]

    def derived(self, flow: Flow, generation: Generation, through: Batch) -> Derived:
        """Return the derived rows. They are valid until the next call with other arguments."""
        cache_key = flow.name, generation.generation, through.batch
        if self._cached is None or self._cached[0] != cache_key:
            self.close()
            derived = derive(
                self.spark,
                self._cluster,
                self._compiled[flow.name],
                self._schemas,
                generation,
                through,
                self._bounds,
                say=self.say,
            )
            self._cached = cache_key, derived
        return self._cached[1]

    def derived_realtime(self, flow: Flow, generation: Generation, ends: Mapping[int, int]) -> RealtimeRows:
        """Derive the rows of a real-time flow, up to these offsets of its input. The caller closes the result."""
        compiled = self._compiled[flow.name]
        return derive_realtime(
            self.spark, self._cluster, compiled, self._schemas, generation, ends, self._bounds
        )

    def close(self) -> None:
        if self._cached is not None:
            self._cached[1].close()
            self._cached = None

    @staticmethod
    def translate_error(flow: Flow, error: Exception) -> HeadraceError:
        """Translate an error of Spark."""
        if match := _NO_WORKER.search(str(error)):
            return CannotVerify(
                f"cannot derive flow {flow.name} again: Spark's Python workers cannot run headrace",
                detail=match[0],
                hint="install headrace[spark] for the Python of every executor, at the path in PYSPARK_PYTHON",
            )
        explained = explain(flow, error)
        if explained is error:
            return explained
        return CannotVerify(
            f"cannot derive flow {flow.name} again: {explained.message}",
            detail=explained.detail,
            hint="retry, because records might have been deleted during the read; -v shows the full error",
        )


def function_finding(derivations: Derivations, flow: Flow, generation: Generation) -> Finding | None:
    compiled = derivations.compiled(flow)
    if not is_comparable(generation.fingerprint):
        return Finding(
            "function",
            f"generation {generation.generation} of {flow.name} has {generation.fingerprint}, a fingerprint of an older"
            f" release; this release computes fingerprints differently, and the function now has"
            f" {compiled.fingerprint}",
            f"rebuild the flow once: headrace flow rebuild {app_argument()} {flow.name}",
        )
    if compiled.late != generation.late:
        rules = f"late={generation.late!r}" if generation.late else "the rules of an earlier release"
        return Finding(
            "function",
            f"generation {generation.generation} of {flow.name} treated late events with {rules}, and the flow now has"
            f" late={compiled.late!r}",
            f"to derive the rows with the current rules: headrace flow rebuild {app_argument()} {flow.name}",
        )
    if compiled.fingerprint == generation.fingerprint:
        return None
    changes = describe_changes(generation, flow, compiled.digest, compiled.schema)
    return Finding(
        "function",
        f"the rows were derived by another version of {flow.name}: generation {generation.generation} has the"
        f" fingerprint {generation.fingerprint}, and the function now has {compiled.fingerprint}: {changes}",
        f"to derive the rows with the current function: headrace flow rebuild {app_argument()} {flow.name}",
    )


def can_derive(derivations: Derivations, flow: Flow, generation: Generation) -> bool:
    """Whether the current function can derive this generation. Another version of the function can read other topics,
    return other columns, or no longer run in real time.
    """
    if generation.latency == "realtime" and not flow.is_realtime:
        return False
    has_same_inputs = {source.topic for source in generation.inputs} == {topic.name for topic in flow.reads}
    return has_same_inputs and derivations.compiled(flow).schema.fields == fields_from_json(generation.schema)


def report_derivation(report: Report, derived: Derived) -> None:
    report.records, report.late, report.dead = derived.records, derived.late, derived.dead
    report.unprovable += [
        Unprovable(missing.topic, missing.partition, missing.before, missing.why)
        for missing in derived.missing
    ]
    report.findings += [Finding("books", mistake) for mistake in derived.mistakes]
    if derived.extent.kind == "later times":
        field, last = derived.extent.field, derived.extent.above
        report.notes.append(
            f"rows with {field} up to {last} cannot be proven, because some input was deleted"
        )
