"""What a flow's function does that matters when it is run over history: found in Spark's plan of it over nothing.

Most functions give the same rows in one go as batch by batch. Where the order of arrival decides (which of several
duplicates is kept, which row is held back until the watermark passes), the plan tells so, and whoever compares can ask
the log for the order.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from pyspark.sql import DataFrame

from headrace.flow.plan_tree import analyzed, class_name, nodes

__all__ = ["Operators", "operators_of"]


@dataclass(frozen=True, slots=True)
class Operators:
    aggregates: int = 0
    joins: int = 0
    deduplicates: bool = False
    forgets_duplicates: bool = False
    """Whether a duplicate counts again once the watermark has passed the first."""
    holds_back: bool = False
    """Whether rows wait for the watermark: those that an outer join finds no partner for."""


def operators_of(output: DataFrame) -> Operators:
    """``output`` is what the function makes of inputs that are not streams."""
    names: Counter[str] = Counter()
    outer = False
    for node in nodes(analyzed(output)):
        name = class_name(node)
        names[name] += 1
        outer = outer or (name == "Join" and "Outer" in str(node.joinType()))
    return Operators(
        aggregates=names["Aggregate"],
        joins=names["Join"],
        deduplicates=any(names[one] for one in ("Deduplicate", "DeduplicateWithinWatermark", "Distinct")),
        forgets_duplicates=bool(names["DeduplicateWithinWatermark"]),
        holds_back=outer,
    )
