"""What a flow's function does that matters when it is run over history: found in Spark's plan of it over nothing.

Most functions give the same rows in one go as batch by batch. Where the order of arrival decides (which of several
duplicates is kept, which row is held back until the watermark passes), the plan tells so, and whoever compares can ask
the log for the order.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from headrace.flow.plan_tree import class_name, nodes

__all__ = ["Operators", "operators_of"]

_OWN_STATE = re.compile(r"FlatMapGroups\w*WithState|TransformWithState\w*")


@dataclass(frozen=True, slots=True)
class Operators:
    aggregates: int = 0
    joins: int = 0
    deduplicates: bool = False
    forgets_duplicates: bool = False
    """Whether a duplicate counts again once the watermark has passed the first."""
    holds_back: bool = False
    """Whether rows wait for the watermark: those that an outer join finds no partner for."""
    sessions: bool = False
    own_state: str = ""
    """The name of a step with a state of the user's own, which has no meaning in one go."""


def operators_of(output: DataFrame) -> Operators:
    """``output`` is what the function makes of inputs that are not streams."""
    analyzed: Any = output._jdf.queryExecution().analyzed()
    names: Counter[str] = Counter()
    outer = False
    for node in nodes(analyzed):
        name = class_name(node)
        names[name] += 1
        outer = outer or (name == "Join" and "Outer" in str(node.joinType()))
    own = next((name for name in names if _OWN_STATE.match(name)), "")
    return Operators(
        aggregates=names["Aggregate"],
        joins=names["Join"],
        deduplicates=any(names[one] for one in ("Deduplicate", "DeduplicateWithinWatermark", "Distinct")),
        forgets_duplicates=bool(names["DeduplicateWithinWatermark"]),
        holds_back=outer,
        sessions="session_window" in str(analyzed.toString()),
        own_state=own,
    )
