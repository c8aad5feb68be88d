"""Sets Spark's own watermark, at which Spark drops old state and old rows.

Spark computes its watermark at the end of a batch, from the greatest event time that each watermark node of the plan
has seen in any partition. Partitions can be far behind each other, so Spark would drop rows of a slow partition.
Therefore the flow replaces these times before the batch ends. Each node has them in an accumulator.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from headrace.flow.compile.plan import children
from headrace.flow.spark.internals import last_execution

__all__ = ["SparkWatermark"]

_NODE = "EventTimeWatermark"
Path = tuple[int, ...]
"""A node of a plan: the indexes of the children on the way to it."""


class SparkWatermark:
    def __init__(self) -> None:
        self._paths: list[Path] | None = None
        """The watermark nodes. Every batch of a query has the same plan, and each step to a node is a call to the JVM,
        so the nodes are searched only once.
        """

    def set(self, query: StreamingQuery, watermark_us: int | None) -> None:
        """Set the watermark that Spark will use after the current batch. Call it in ``foreachBatch``, after the plan
        has run.

        Spark's watermark then is a millisecond before ``watermark_us``, because Spark drops rows at its watermark.
        Spark never moves its watermark back.
        """
        root = last_execution(query).executedPlan()
        nodes = None if self._paths is None else [_descendant(root, path) for path in self._paths]
        if nodes is None or not all(_name(node) == _NODE for node in nodes):
            self._paths = list(_paths(root, ()))
            nodes = [_descendant(root, path) for path in self._paths]
        for node in nodes:
            seen = node.eventTimeStats()
            seen.reset()
            if watermark_us is not None:
                seen.add(watermark_us // 1_000 - 1 + node.delayMs())


def _name(node: Any) -> str:
    return str(node.nodeName())


def _steps(node: Any) -> list[Any]:
    """Return the children of a physical node. An adaptive plan and its stages have their plan in another field."""
    if _name(node) == "AdaptiveSparkPlan":
        return [node.executedPlan()]
    if _name(node).endswith("QueryStage"):
        return [node.plan()]
    return children(node)


def _descendant(node: Any, path: Path) -> Any:
    for index in path:
        node = _steps(node)[index]
    return node


def _paths(node: Any, path: Path) -> Iterator[Path]:
    if _name(node) == _NODE:
        yield path
    for index, child in enumerate(_steps(node)):
        yield from _paths(child, (*path, index))
