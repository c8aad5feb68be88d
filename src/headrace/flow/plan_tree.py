"""Spark's trees, walked from Python: logical plans, and the expressions inside them.

Every call crosses to the JVM, which takes about a tenth of a millisecond.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

__all__ = ["analyzed", "children", "class_name", "each", "expressions", "nodes"]


def analyzed(frame: DataFrame) -> Any:
    """Spark's analyzed plan, with common table expressions (``WITH``) inlined and pipe operators (``|>``) removed."""
    catalyst: Any = frame.sparkSession._jvm.org.apache.spark.sql.catalyst  # type: ignore[union-attr]
    plan: Any = frame._jdf.queryExecution().analyzed()
    plan = catalyst.expressions.EliminatePipeOperators.apply(plan)
    return catalyst.optimizer.InlineCTE(True, False).apply(plan)


def each(seq: Any) -> list[Any]:
    """The elements of a Scala ``Seq``."""
    return [seq.apply(index) for index in range(seq.size())]


def children(node: Any) -> list[Any]:
    return each(node.children())


def class_name(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def nodes(tree: Any, *, subqueries: bool = False) -> Iterator[Any]:
    """The tree's nodes, parents before children, of a plan or of an expression; on request those of the plans inside
    a plan's expressions, too.
    """
    yield tree
    for child in children(tree):
        yield from nodes(child, subqueries=subqueries)
    if subqueries:
        for plan in each(tree.subqueries()):
            yield from nodes(plan, subqueries=True)


def expressions(node: Any) -> list[Any]:
    """The expressions that a plan's node holds directly, without those inside them."""
    return each(node.expressions())
