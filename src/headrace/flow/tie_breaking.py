"""``max_by`` and ``min_by`` among equals: the newest and the oldest record count, whatever order Spark adds them up in.

Of two rows with the same time ``max_by(price, at)`` would take any, and another one when a batch runs again. So the
coordinates of a row are compared too, behind what the user compares; of the rows of a table, their columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.flow.plan_nodes import PlanNodes
from headrace.flow.plan_tree import class_name, each

__all__ = ["break_ties", "has_ties"]

_BY = frozenset({"MaxBy", "MinBy", "MaxMinByK"})


def has_ties(aggregate: Any) -> bool:
    return any(map(_is_by, each(aggregate.aggregateExpressions())))


def break_ties(nodes: PlanNodes, aggregate: Any, child: Any, at: Sequence[Any]) -> Any:
    """The same aggregation over ``child``, of which ``at`` are columns that tell its rows apart."""

    def rewrite(expression: Any) -> Any:
        children = each(expression.children())
        if class_name(expression) in _BY:
            value, ordering, *count = children
            children = [value, nodes.struct_unless_null(ordering, list(at)), *count]
        elif _is_by(expression):
            children = [rewrite(one) if _is_by(one) else one for one in children]
        return expression.withNewChildren(nodes.sequence(children))

    results = [rewrite(one) if _is_by(one) else one for one in each(aggregate.aggregateExpressions())]
    return nodes.aggregate(aggregate, results, child)


def _is_by(expression: Any) -> bool:
    return class_name(expression) in _BY or any(map(_is_by, each(expression.children())))
