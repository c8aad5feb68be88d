"""The derivation that checks share: the last one is kept, since a view and its flow's topic ask for the same."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from pyspark.sql import SparkSession

from headrace.client.cluster import Cluster
from headrace.errors import HeadraceError
from headrace.flow.compiled import Compiled
from headrace.flow.derived import Derived
from headrace.flow.failures import explain
from headrace.flow.history import derive
from headrace.flow.options import FlowOptions
from headrace.flow.sourced_history import SourcedRows, derive_sourced
from headrace.model.flow import Flow
from headrace.model.progress import Batch, Generation
from headrace.model.schema import Schema
from headrace.ops.errors import CannotVerify
from headrace.settings import Settings

__all__ = ["Deriving"]

_NO_WORKER = re.compile(
    r"No module named '(?:headrace|msgspec|pyarrow|pyspark)[^\n]*|Cannot run program \"[^\n]*|PYTHON_VERSION_MISMATCH"
)
"""Records are decoded by Python on the executors: what it says where they cannot run it."""


class Deriving:
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
        self._compiled = {one.flow.name: one for one in compiled}
        self._schemas = schemas
        self._kept: tuple[tuple[str, int, int], Derived] | None = None

    def compiled(self, flow: Flow) -> Compiled:
        return self._compiled[flow.name]

    def derived(self, flow: Flow, generation: Generation, through: Batch) -> Derived:
        """Good until the next one is asked for."""
        wanted = flow.name, generation.generation, through.batch
        if self._kept is None or self._kept[0] != wanted:
            self.close()
            made = derive(
                self.spark,
                self._cluster,
                self._compiled[flow.name],
                self._schemas,
                generation,
                through,
                self._bounds,
                say=self.say,
            )
            self._kept = wanted, made
        return self._kept[1]

    def sourced(self, flow: Flow, generation: Generation, ends: Mapping[int, int]) -> SourcedRows:
        """Of a flow in real time, up to these offsets of its input; to be closed."""
        compiled = self._compiled[flow.name]
        where = (self.spark, self._cluster, compiled, self._schemas, generation, ends, self._bounds)
        return derive_sourced(*where)

    def close(self) -> None:
        if self._kept is not None:
            self._kept[1].close()
            self._kept = None

    @staticmethod
    def told(flow: Flow, error: Exception) -> HeadraceError:
        """What Spark has raised, in our terms."""
        if lacking := _NO_WORKER.search(str(error)):
            return CannotVerify(
                f"flow {flow.name} could not be derived again: Spark's Python workers cannot run headrace",
                detail=lacking[0],
                hint="install headrace[spark] for the Python of every executor, at the path that PYSPARK_PYTHON names",
            )
        explained = explain(flow, error)
        return (
            explained
            if explained is error
            else CannotVerify(
                f"flow {flow.name} could not be derived again: {explained.message}",
                detail=explained.detail,
                hint="records may have been deleted while they were read: try again; -v shows all of it",
            )
        )
