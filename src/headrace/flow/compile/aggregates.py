"""Checks the aggregate functions of a flow: their result must not depend on the order of rows.

A stream aggregates batch by batch, ``verify`` aggregates all rows at once, and a shuffle returns rows in any order. So
only functions that are known to ignore the order are allowed; unknown functions are rejected. Functions that compute
with ``double`` are allowed, although their last digits depend on the order.

``max_by`` and ``min_by`` are allowed as well. If two rows have the same time, ``max_by(price, at)`` could return
either, and a repeated batch could return the other. So the rows are compared first by the user's expression and then by
their coordinates: ``max_by`` returns the value of the newest record, ``min_by`` that of the oldest. Rows of a table
have no coordinates; their columns are compared instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from headrace.flow.compile.mistakes import FlowMistake, first_line, line_of
from headrace.flow.compile.plan import PlanNodes, children, class_name, each, nodes
from headrace.model.declarations import Flow

__all__ = ["break_ties", "compares_rows", "expect_order_ignored", "has_ties", "ignores_order"]

_ANY_ORDER = frozenset(
    {
        "Average",
        "BitAndAgg",
        "BitOrAgg",
        "BitXorAgg",
        "BitmapAndAgg",
        "BitmapConstructAgg",
        "BitmapOrAgg",
        "BoolAnd",
        "BoolOr",
        "Corr",
        "Count",
        "CountIf",
        "CountMinSketchAgg",
        "CovPopulation",
        "CovSample",
        "HyperLogLogPlusPlus",
        "Kurtosis",
        "Max",
        "MaxBy",
        "MaxMinByK",
        "Median",
        "Min",
        "MinBy",
        "Percentile",
        "PercentileCont",
        "PercentileDisc",
        "PivotFirst",
        "Product",
        "RegrAvgX",
        "RegrAvgY",
        "RegrCount",
        "RegrIntercept",
        "RegrR2",
        "RegrSXX",
        "RegrSXY",
        "RegrSYY",
        "RegrSlope",
        "Skewness",
        "StddevPop",
        "StddevSamp",
        "Sum",
        "VariancePop",
        "VarianceSamp",
    }
)
_COLLECT_FUNCTIONS = frozenset({"CollectList", "CollectSet"})
_IGNORE_ELEMENT_ORDER = frozenset({"SortArray", "Size"})
_DEFAULT_COMPARATOR = re.compile(
    r"lambdafunction\(if \(\(isnull\((?P<left>lambda \w+#\w+)\) AND isnull\((?P<right>lambda \w+#\w+)\)\)\) 0"
    r" else if \(isnull\((?P=left)\)\) 1 else if \(isnull\((?P=right)\)\) -1"
    r" else if \(\((?P=left) < (?P=right)\)\) -1 else if \(\((?P=left) > (?P=right)\)\) 1 else 0"
    r", (?P=left), (?P=right), false\)"
)
"""Spark's text of the default comparator of ``array_sort``. It treats only identical elements as equal."""
_KEEPS_ELEMENTS = frozenset(
    {"AggregateExpression", "ArrayDistinct", "ArrayTransform", "Cast", "Coalesce", "Flatten"}
)
"""Functions that may process collected values before a function that ignores the order of these values."""

_COUNT_DISTINCT_HINT = "use F.approx_count_distinct(...), which returns the same number in any order"
_PERCENTILE_HINT = "use F.percentile(...), which is exact"
_HINTS = {
    "AnyValue": "use F.min(...) or F.max(...), which return a defined value",
    "ApproxTopK": "group by the item and count; sort and limit when you query the view",
    "ApproximatePercentile": _PERCENTILE_HINT,
    "CollectList": "use F.sort_array(F.collect_list(...)), which has a defined order",
    "CollectSet": "use F.sort_array(F.collect_set(...)), which has a defined order",
    "First": "use F.min_by(what, when), which defines which row is the first",
    "Histogram": "group by the bin, for example F.floor(what / 10), and count",
    "Hll": _COUNT_DISTINCT_HINT,
    "Kll": _PERCENTILE_HINT,
    "Last": "use F.max_by(what, when), which defines which row is the last",
    "ListAgg": "use F.array_join(F.sort_array(F.collect_list(...)), ', '), which has a defined order",
    "Mode": "use F.mode(what, deterministic=True), which returns the smallest of the most frequent values",
    "Python": "use Spark's own functions, or apply a Python function to F.sort_array(F.collect_list(...))",
    "Theta": _COUNT_DISTINCT_HINT,
    "Tuple": _COUNT_DISTINCT_HINT,
}
"""The hint for a rejected function, by the beginning of Spark's class name."""
_MAX_MIN_BY = frozenset({"MaxBy", "MinBy", "MaxMinByK"})


def expect_order_ignored(flow: Flow, analyzed: Any) -> None:
    """Raise if an aggregation depends on the order of rows."""
    for node in nodes(analyzed, subqueries=True):
        if class_name(node) != "Aggregate":
            continue
        for expression in each(node.aggregateExpressions()):
            for function in _order_dependent(expression):
                kind = class_name(function)
                raise FlowMistake(
                    f"flow {flow.name}: {first_line(function.toString())} depends on the order of the rows",
                    location=line_of(flow, expression, name=str(function.prettyName())),
                    detail="the same rows, split into other batches, would produce another result",
                    hint=next(
                        (hint for begin, hint in _HINTS.items() if kind.startswith(begin)),
                        "use F.sum, F.count, F.min, F.max, F.max_by or another function that ignores the order",
                    ),
                )


def _order_dependent(expression: Any, *, order_is_ignored: bool = False) -> Iterator[Any]:
    kind = class_name(expression)
    if kind == "PythonUDAF":
        yield expression
    if kind == "AggregateExpression":
        function = expression.aggregateFunction()
        if not ignores_order(function) and not (
            order_is_ignored and class_name(function) in _COLLECT_FUNCTIONS
        ):
            yield function
        return
    for child in children(expression):
        yield from _order_dependent(
            child,
            order_is_ignored=_ignores_element_order(kind, expression)
            or (order_is_ignored and _keeps_elements(kind, expression)),
        )


def ignores_order(function: Any) -> bool:
    kind = class_name(function)
    if kind == "Mode":
        return bool(function.reverseOpt().isDefined())
    return kind in _ANY_ORDER


def _ignores_element_order(kind: str, expression: Any) -> bool:
    if kind == "ArraySort":
        return _DEFAULT_COMPARATOR.fullmatch(str(expression.function().toString())) is not None
    return kind in _IGNORE_ELEMENT_ORDER


def _keeps_elements(kind: str, expression: Any) -> bool:
    if kind == "ArrayTransform":
        return int(expression.function().arguments().size()) == 1  # The function does not use the index.
    return kind in _KEEPS_ELEMENTS


def has_ties(aggregate: Any) -> bool:
    return any(map(compares_rows, each(aggregate.aggregateExpressions())))


def break_ties(nodes: PlanNodes, aggregate: Any, child: Any, tie_breakers: Sequence[Any]) -> Any:
    """Return the aggregation over ``child``. The columns ``tie_breakers`` are unique in ``child``."""

    def rewrite(expression: Any) -> Any:
        children = each(expression.children())
        if class_name(expression) in _MAX_MIN_BY:
            value, ordering, *count = children
            children = [value, nodes.struct_unless_null(ordering, list(tie_breakers)), *count]
        elif compares_rows(expression):
            children = [rewrite(child) if compares_rows(child) else child for child in children]
        return expression.withNewChildren(nodes.sequence(children))

    results = [
        rewrite(column) if compares_rows(column) else column
        for column in each(aggregate.aggregateExpressions())
    ]
    return nodes.aggregate(aggregate, results, child)


def compares_rows(expression: Any) -> bool:
    """Whether the expression is or contains ``max_by`` or ``min_by``."""
    return class_name(expression) in _MAX_MIN_BY or any(map(compares_rows, each(expression.children())))
