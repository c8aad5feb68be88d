"""Makes steps over tables deterministic, or refuses them.

The rows of a table, and rows that the function itself creates, have no order in Spark. A step that picks one of several
rows could pick another one under another plan; then a batch that runs again, a rebuild and a proof would derive
different rows. So ``dropDuplicates`` keeps the row with the smallest columns, compared from left to right. Among equals
``max_by`` takes the row with the greatest columns, ``min_by`` the one with the smallest. Other steps that depend on the
order of the rows are refused at the user's line.
"""

from __future__ import annotations

from typing import Any

from headrace.flow.aggregates import takes_any_order
from headrace.flow.mistakes import FlowMistake, first_line, line_naming_in, line_of
from headrace.flow.plan_nodes import PlanNodes, expr_id
from headrace.flow.plan_tree import children, class_name, each, nodes
from headrace.flow.tie_breaking import break_ties, compares_rows, has_ties
from headrace.model.flow import Flow

__all__ = ["expect_deterministic_tables", "make_deterministic"]

_LIMITS = {"GlobalLimit": "limit", "LocalLimit": "limit", "Offset": "offset", "Tail": "tail"}
_RANKS = frozenset({"CumeDist", "DenseRank", "PercentRank", "Rank"})
"""Window functions that return the same number for equal rows."""
_MAX_BY = "F.max_by(F.struct(...), ...) picks a defined row"


def make_deterministic(plan: PlanNodes, node: Any) -> Any:
    """``node`` works on a table; the nodes below it are deterministic."""
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
            place=line_naming_in(flow, _LIMITS[name]),
            detail="another plan of Spark would return other rows",
            hint=f"filter with where(...), or aggregate: {_MAX_BY}",
        )
    if name == "Window":
        for expression in each(node.windowExpressions()):
            for part in nodes(expression):
                if class_name(part) == "WindowExpression" and not _treats_equals_alike(part):
                    function = part.windowFunction()
                    raise FlowMistake(
                        f"flow {flow.name}: {first_line(function.toString())} depends on the order of equal rows",
                        place=line_of(flow, expression, name=str(function.prettyName())),
                        detail="another plan of Spark would return other values",
                        hint=f"use rank() or dense_rank(), or aggregate: {_MAX_BY}",
                    )


def _treats_equals_alike(window: Any) -> bool:
    """Whether equal rows get equal values. A RANGE frame has all of them; a ROWS frame may end between them."""
    function = window.windowFunction()
    if class_name(function) in _RANKS:
        return True
    if class_name(function) != "AggregateExpression" or compares_rows(function):
        return False
    frame = window.windowSpec().frameSpecification()
    bounds = class_name(frame.lower()), class_name(frame.upper())
    is_unbounded = bounds == ("UnboundedPreceding$", "UnboundedFollowing$")
    is_range = class_name(frame.frameType()) == "RangeFrame$"
    return takes_any_order(function.aggregateFunction()) and (is_unbounded or is_range)


def _expect_no_choice(flow: Flow, node: Any) -> None:
    """``make_deterministic`` does not reach into subqueries. Spark itself refuses streams there."""
    if _picks_a_row(node):
        raise FlowMistake(
            f"flow {flow.name} picks one of several rows in a subquery, and their order is not defined",
            place=flow.place,
            detail="another plan of Spark would pick another row",
            hint="join the table instead",
        )


def _picks_a_row(node: Any) -> bool:
    """Whether it keeps one of several rows that differ."""
    match class_name(node):
        case "Deduplicate":
            keys = {expr_id(key) for key in each(node.keys())}
            return not keys >= {expr_id(column) for column in each(node.output())}
        case "Aggregate":
            return has_ties(node)
    return False
