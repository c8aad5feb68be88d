"""Ensures that the steps of a function over tables are deterministic: rewrites or rejects all others.

The rows of a table, and rows that the function creates, have no order in Spark. A step (an operation of the plan, such
as a join) that selects one of several rows could select a different row when Spark chooses a different plan. Then a
repeated batch, a rebuild and ``verify`` would derive different rows. So ``dropDuplicates`` retains the row with the
smallest columns, compared from left to right. If rows have the same ordering value, ``max_by`` selects the row with the
greatest columns, and ``min_by`` the row with the smallest. Other steps that depend on the order of the rows are
rejected, with the line of the user's code.
"""

from __future__ import annotations

from typing import Any

from headrace.flow.compile.aggregates import break_ties, compares_rows, has_ties, ignores_order
from headrace.flow.compile.mistakes import FlowMistake, first_line, line_of, line_using
from headrace.flow.compile.plan import PlanNodes, children, class_name, each, expr_id, nodes
from headrace.model.declarations import Flow

__all__ = ["expect_deterministic_tables", "make_deterministic"]

_LIMITS = {"GlobalLimit": "limit", "LocalLimit": "limit", "Offset": "offset", "Tail": "tail"}
_RANKS = frozenset({"CumeDist", "DenseRank", "PercentRank", "Rank"})
"""Window functions that return the same number for equal rows."""
_MAX_BY = "F.max_by(F.struct(...), ...) returns a defined row"


def make_deterministic(plan: PlanNodes, node: Any) -> Any:
    """Return the node, rewritten if it selects one of several rows. ``node`` processes rows of tables; the nodes below
    it are deterministic.
    """
    if _picks_a_row(node):
        [child] = children(node)
        columns = plan.comparable(each(child.output()))
        if class_name(node) == "Deduplicate":
            return plan.first_of(each(node.keys()), columns, child)
        return break_ties(plan, node, child, columns)
    return node


def expect_deterministic_tables(flow: Flow, analyzed: Any) -> None:
    """``analyzed`` is the plan over streams."""
    for node in nodes(analyzed):
        _expect_no_order(flow, node)
        for subquery in each(node.subqueries()):
            for inner in nodes(subquery, subqueries=True):
                _expect_no_order(flow, inner)
                _expect_no_choice(flow, inner)


def _expect_no_order(flow: Flow, node: Any) -> None:
    if node.isStreaming():
        return
    name = class_name(node)
    if name in _LIMITS:
        raise FlowMistake(
            f"flow {flow.name} uses {_LIMITS[name]} on a table, whose rows have no order",
            location=line_using(flow, _LIMITS[name]),
            detail="Spark could return other rows with another plan",
            hint=f"filter with where(...), or aggregate: {_MAX_BY}",
        )
    if name == "Window":
        for expression in each(node.windowExpressions()):
            for part in nodes(expression):
                if class_name(part) == "WindowExpression" and not _treats_equals_alike(part):
                    function = part.windowFunction()
                    raise FlowMistake(
                        f"flow {flow.name}: {first_line(function.toString())} depends on the order of equal rows",
                        location=line_of(flow, expression, name=str(function.prettyName())),
                        detail="Spark could return other values with another plan",
                        hint=f"use rank() or dense_rank(), or aggregate: {_MAX_BY}",
                    )


def _treats_equals_alike(window: Any) -> bool:
    """Whether equal rows get equal values. A RANGE frame includes all equal rows; a ROWS frame can end between them."""
    function = window.windowFunction()
    if class_name(function) in _RANKS:
        return True
    if class_name(function) != "AggregateExpression" or compares_rows(function):
        return False
    frame = window.windowSpec().frameSpecification()
    bounds = class_name(frame.lower()), class_name(frame.upper())
    is_unbounded = bounds == ("UnboundedPreceding$", "UnboundedFollowing$")
    is_range = class_name(frame.frameType()) == "RangeFrame$"
    return ignores_order(function.aggregateFunction()) and (is_unbounded or is_range)


def _expect_no_choice(flow: Flow, node: Any) -> None:
    """Raise if a subquery selects one of several rows: ``make_deterministic`` does not rewrite subqueries. They never
    contain streams, because Spark rejects streams there.
    """
    if _picks_a_row(node):
        raise FlowMistake(
            f"flow {flow.name} selects one of several rows in a subquery, but their order is not defined",
            location=flow.location,
            detail="Spark could select another row with another plan",
            hint="join the table instead",
        )


def _picks_a_row(node: Any) -> bool:
    """Whether the node selects one of several rows that differ."""
    match class_name(node):
        case "Deduplicate":
            keys = {expr_id(key) for key in each(node.keys())}
            return not keys >= {expr_id(column) for column in each(node.output())}
        case "Aggregate":
            return has_ties(node)
    return False
