"""``max_by`` and ``min_by`` among equals: the newest and the oldest record count, whatever order Spark adds them up in.

Of two rows with the same time ``max_by(price, at)`` would take any, and another one when a batch runs again. So the
coordinates of a row are compared as well, after what the user compares. Rows of a table have no coordinates: there the
columns are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.flow.plan_nodes import PlanNodes
from headrace.flow.plan_tree import class_name, each

__all__ = ["break_ties", "compares_rows", "has_ties"]

_BY = frozenset({"MaxBy", "MinBy", "MaxMinByK"})


def has_ties(aggregate: Any) -> bool:
    return any(map(compares_rows, each(aggregate.aggregateExpressions())))


def break_ties(nodes: PlanNodes, aggregate: Any, child: Any, at: Sequence[Any]) -> Any:
    """The same aggregation over ``child``; no two rows of ``child`` have equal columns ``at``."""

    def rewrite(expression: Any) -> Any:
        children = each(expression.children())
        if class_name(expression) in _BY:
            value, ordering, *count = children
            children = [value, nodes.struct_unless_null(ordering, list(at)), *count]
        elif compares_rows(expression):
            children = [rewrite(one) if compares_rows(one) else one for one in children]
        return expression.withNewChildren(nodes.sequence(children))

    results = [rewrite(one) if compares_rows(one) else one for one in each(aggregate.aggregateExpressions())]
    return nodes.aggregate(aggregate, results, child)


def compares_rows(expression: Any) -> bool:
    """Whether it is ``max_by`` or ``min_by``, or contains one."""
    return class_name(expression) in _BY or any(map(compares_rows, each(expression.children())))
