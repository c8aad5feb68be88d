"""Which aggregate functions a flow may use: those that give the same result for the same rows, whatever their order.

A stream adds up batch by batch, a rebuild and ``verify`` in one go, and a shuffle hands rows over in any order. So only
functions are allowed that are known not to care; one that is unknown is refused. Functions that compute with ``double``
are allowed, though their last digits depend on the order. ``max_by`` and ``min_by`` are allowed, too;
``headrace.flow.tie_breaking`` defines which of several equal rows they take.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from headrace.flow.mistakes import FlowMistake, first_line, line_of
from headrace.flow.plan_tree import children, class_name, each, nodes
from headrace.model.flow import Flow

__all__ = ["expect_any_order", "takes_any_order"]

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
_COLLECTED = frozenset({"CollectList", "CollectSet"})
_ORDER_FORGOTTEN = frozenset({"SortArray", "Size"})
_DEFAULT_COMPARATOR = re.compile(
    r"lambdafunction\(if \(\(isnull\((?P<one>lambda \w+#\w+)\) AND isnull\((?P<other>lambda \w+#\w+)\)\)\) 0"
    r" else if \(isnull\((?P=one)\)\) 1 else if \(isnull\((?P=other)\)\) -1"
    r" else if \(\((?P=one) < (?P=other)\)\) -1 else if \(\((?P=one) > (?P=other)\)\) 1 else 0"
    r", (?P=one), (?P=other), false\)"
)
"""Spark's text of the comparator that ``array_sort`` has by default. Only identical elements are equal to it."""
_KEEPS_ALL = frozenset(
    {"AggregateExpression", "ArrayDistinct", "ArrayTransform", "Cast", "Coalesce", "Flatten"}
)
"""What may stand between a function that forgets the order and what is collected."""

_COUNTED = "F.approx_count_distinct(...) gives the same number in any order"
_RANKED = "F.percentile(...) is exact"
_INSTEAD = {
    "AnyValue": "F.min(...) or F.max(...) say which one",
    "ApproxTopK": "group by the item and count; the query of the view takes the first ones",
    "ApproximatePercentile": _RANKED,
    "CollectList": "F.sort_array(F.collect_list(...)) has an order of its own",
    "CollectSet": "F.sort_array(F.collect_set(...)) has an order of its own",
    "First": "F.min_by(what, when) says which one is the first",
    "Histogram": "group by the bin, for example F.floor(what / 10), and count",
    "Hll": _COUNTED,
    "Kll": _RANKED,
    "Last": "F.max_by(what, when) says which one is the last",
    "ListAgg": "F.array_join(F.sort_array(F.collect_list(...)), ', ') has an order of its own",
    "Mode": "F.mode(what, deterministic=True) takes the least of those that are as frequent",
    "Python": "use Spark's own functions, or F.sort_array(F.collect_list(...)) and a function in Python over it",
    "Theta": _COUNTED,
    "Tuple": _COUNTED,
}
"""By how the class begins."""


def expect_any_order(flow: Flow, analyzed: Any) -> None:
    """Raises where an aggregation takes rows in the order in which they happen to come."""
    for node in nodes(analyzed, subqueries=True):
        if class_name(node) != "Aggregate":
            continue
        for expression in each(node.aggregateExpressions()):
            for function in _by_order(expression):
                kind = class_name(function)
                raise FlowMistake(
                    f"flow {flow.name}: {first_line(function.toString())} depends on the order of the rows",
                    place=line_of(flow, expression, name=str(function.prettyName())),
                    detail="the same rows in other batches, or in one go, would give another result",
                    hint=next(
                        (hint for begin, hint in _INSTEAD.items() if kind.startswith(begin)),
                        "use F.sum, F.count, F.min, F.max, F.max_by or another function that takes rows in any order",
                    ),
                )


def _by_order(expression: Any, *, is_sorted: bool = False) -> Iterator[Any]:
    kind = class_name(expression)
    if kind == "PythonUDAF":
        yield expression
    if kind == "AggregateExpression":
        function = expression.aggregateFunction()
        if not takes_any_order(function) and not (is_sorted and class_name(function) in _COLLECTED):
            yield function
        return
    for child in children(expression):
        yield from _by_order(
            child, is_sorted=_sorts(kind, expression) or (is_sorted and _keeps_all(kind, expression))
        )


def takes_any_order(function: Any) -> bool:
    kind = class_name(function)
    if kind == "Mode":
        return bool(function.reverseOpt().isDefined())
    return kind in _ANY_ORDER


def _sorts(kind: str, expression: Any) -> bool:
    if kind == "ArraySort":
        return _DEFAULT_COMPARATOR.fullmatch(str(expression.function().toString())) is not None
    return kind in _ORDER_FORGOTTEN


def _keeps_all(kind: str, expression: Any) -> bool:
    if kind == "ArrayTransform":
        return int(expression.function().arguments().size()) == 1  # Without the index.
    return kind in _KEEPS_ALL
