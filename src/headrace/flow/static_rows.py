"""Rows that are the same throughout a batch, of tables or of the function itself, before they are joined with events.

Spark gives them in no order. Where a step takes one of several rows, or numbers them, another plan could take another
one: a batch that runs again, a rebuild or a proof would derive other rows. So ``dropDuplicates`` takes the least by all
columns, from left to right, and ``max_by`` and ``min_by`` among equals the greatest and the least. What cannot be made
the same is refused at the user's line.
"""

from __future__ import annotations

from typing import Any

from headrace.flow.aggregates import takes_any_order
from headrace.flow.mistakes import FlowMistake, first_line, line_naming_in, line_of
from headrace.flow.plan_nodes import PlanNodes, expr_id
from headrace.flow.plan_tree import children, class_name, each, nodes
from headrace.flow.tie_breaking import break_ties, has_ties
from headrace.model.flow import Flow

__all__ = ["expect_settled", "settled"]

_SOME = {"GlobalLimit": "limit", "LocalLimit": "limit", "Offset": "offset", "Tail": "tail"}
_OF_PEERS = frozenset({"CumeDist", "DenseRank", "PercentRank", "Rank"})
"""Functions of a window that give equal rows the same number."""
_BY_ALL = "F.max_by or F.min_by of all that is wanted, F.struct(...), says which"


def settled(plan: PlanNodes, node: Any) -> Any:
    """The node, so that it gives the same rows always; those below it do."""
    name = class_name(node)
    if name == "Deduplicate" and not _has_all(node):
        [child] = children(node)
        return plan.first_of(each(node.keys()), plan.comparable(each(child.output())), child)
    if name == "Aggregate" and has_ties(node):
        [child] = children(node)
        return break_ties(plan, node, child, plan.comparable(each(child.output())))
    return node


def expect_settled(flow: Flow, analyzed: Any) -> None:
    """``analyzed`` is the plan over streams. Raises where another plan could take other rows."""
    for node in nodes(analyzed):
        _expect(flow, node)
        for inside in each(node.subqueries()):
            for one in nodes(inside, subqueries=True):
                _expect_in_subquery(flow, one)


def _expect(flow: Flow, node: Any) -> None:
    if node.isStreaming():
        return
    name = class_name(node)
    if name in _SOME:
        raise FlowMistake(
            f"flow {flow.name} takes some rows of a table ({_SOME[name]}), and nothing says which",
            place=line_naming_in(flow, _SOME[name]),
            detail="another plan of Spark would take others",
            hint=f"use where(...), or groupBy(...).agg(...): {_BY_ALL}",
        )
    if name == "Window":
        for expression in each(node.windowExpressions()):
            for one in nodes(expression):
                if class_name(one) == "WindowExpression" and not _is_of_peers(one):
                    raise FlowMistake(
                        f"flow {flow.name}: {first_line(one.windowFunction().toString())} depends on the order of"
                        " rows that may be equal",
                        place=line_of(flow, expression, name=str(one.windowFunction().prettyName())),
                        detail="of equal rows, another plan of Spark would take another one first",
                        hint=f"use rank() or dense_rank(), or groupBy(...).agg(...): {_BY_ALL}",
                    )


def _is_of_peers(window: Any) -> bool:
    """Whether equal rows get the same: a frame by values takes all of them, one by rows may end between them."""
    function = window.windowFunction()
    if class_name(function) in _OF_PEERS:
        return True
    if class_name(function) != "AggregateExpression":
        return False
    frame = window.windowSpec().frameSpecification()
    ends = class_name(frame.lower()), class_name(frame.upper())
    is_whole = ends == ("UnboundedPreceding$", "UnboundedFollowing$")
    by_values = class_name(frame.frameType()) == "RangeFrame$"
    return takes_any_order(function.aggregateFunction()) and (is_whole or by_values)


def _expect_in_subquery(flow: Flow, node: Any) -> None:
    """``settled`` does not come there. A stream cannot be there: Spark refuses it."""
    _expect(flow, node)
    if (class_name(node) == "Deduplicate" and not _has_all(node)) or (
        class_name(node) == "Aggregate" and has_ties(node)
    ):
        raise FlowMistake(
            f"flow {flow.name} takes one of several rows in a subquery, and nothing says which",
            place=flow.place,
            detail="another plan of Spark would take another one",
            hint="use a join",
        )


def _has_all(deduplicate: Any) -> bool:
    """Whether rows that are taken for the same are equal in every column."""
    keys = {expr_id(one) for one in each(deduplicate.keys())}
    return keys >= {expr_id(one) for one in each(deduplicate.output())}
