"""Checks that the state of a flow is bounded: Spark must be able to drop old state.

- An aggregation and ``dropDuplicates`` are bounded if the event time, or a window of it, is one of their keys.
- ``dropDuplicatesWithinWatermark`` is always bounded.
- A join of two streams stores the rows of both sides, and each side must be bounded. Both sides are bounded if the
  columns that must be equal include an event time. Otherwise a side is bounded if the condition compares the event
  times of both sides and limits how old a row of this side can be, relative to the other side.

The rules for a join are Spark's own (``StreamingJoinHelper``). They are applied to the analyzed plan, after Spark's
rewrites that move a condition to its join and drop unused columns.
"""

from __future__ import annotations

import inspect
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql import DataFrame

from headrace.flow.compile.mistakes import FlowMistake, line_of, line_using
from headrace.flow.compile.plan import (
    analyzed,
    children,
    class_name,
    each,
    expr_id,
    expressions,
    leaf_columns,
    nodes,
)
from headrace.model.declarations import Flow

__all__ = ["expect_bounded", "keeps_state", "steps_with_state_by_time", "unbounded_sides"]

_STATEFUL = re.compile(r"(Aggregate|Deduplicate\w*|Join|FlatMapGroups\w*WithState|TransformWithState\w*)$")
_SIDES = ("left", "right")
_REWRITES = (
    "analysis.EliminateSubqueryAliases",
    "optimizer.ReplaceExpressions",
    "optimizer.RewriteWithExpression",
    "optimizer.ConstantFolding",
    "optimizer.PushDownPredicates",
    "optimizer.BooleanSimplification",
    "optimizer.ColumnPruning",
)
_DELAY = "spark.watermarkDelayMs"
"""The metadata field with which Spark marks an event time."""
_ANY_WATERMARK_MS = 1 << 40
_RANGE = "INTERVAL 1 HOUR"
_UNBOUNDED_HINT = "or accept unbounded state: @app.flow(..., unbounded=True)"


def keeps_state(node: Any) -> bool:
    """Whether the node has state. A join of a stream with static rows has no state."""
    if class_name(node) == "Join":
        return all(child.isStreaming() for child in children(node))
    return _STATEFUL.match(class_name(node)) is not None


def steps_with_state_by_time(stream_output: DataFrame) -> set[str]:
    """Return the kinds of steps whose state Spark drops by event time: windows, and joins within a time range."""
    steps = set()
    for node in nodes(_rewritten(stream_output)):
        if node.isStreaming() and keeps_state(node):
            name = class_name(node)
            if name != "Join":
                is_by_time = _has_bounded_keys(node)
            else:
                is_by_time = any(_Join(stream_output, node).is_bounded(side) for side in _SIDES)
            if is_by_time:
                steps.add(name)
    return steps


def expect_bounded(flow: Flow, stream_output: DataFrame, inputs: Sequence[DataFrame]) -> None:
    """Raise if Spark would store rows or keys forever, unless the flow is declared ``unbounded``.

    ``stream_output`` is the result of the flow's function for ``inputs``, which are streams.
    """
    plan = _rewritten(stream_output)
    for node in nodes(plan):
        if not node.isStreaming() or not keeps_state(node):
            continue
        _expect_no_late_rows(flow, stream_output, inputs, node)
        if class_name(node) == "Join":
            _expect_bounded_join(flow, stream_output, inputs, node)
        elif not flow.unbounded and not _has_bounded_keys(node):
            raise FlowMistake(
                f"the state of flow {flow.name} grows with every new key, without limit",
                location=flow.location,
                hint=f"group by a window of the event time, {_UNBOUNDED_HINT}",
            )


def unbounded_sides(stream_output: DataFrame) -> list[tuple[str, ...]]:
    """Return, for each join of two streams (outermost first), the sides whose rows Spark never drops."""
    joins = [
        node for node in nodes(_rewritten(stream_output)) if class_name(node) == "Join" and keeps_state(node)
    ]
    return [
        tuple(side for side in _SIDES if not _Join(stream_output, join).is_bounded(side)) for join in joins
    ]


def _rewritten(stream_output: DataFrame) -> Any:
    catalyst: Any = stream_output.sparkSession._jvm.org.apache.spark.sql.catalyst  # type: ignore[union-attr]
    plan = analyzed(stream_output)
    for rewrite in _REWRITES:
        package, name = rewrite.split(".")
        plan = getattr(getattr(catalyst, package), name).apply(plan)
    return plan


def _has_bounded_keys(node: Any) -> bool:
    if class_name(node) == "DeduplicateWithinWatermark":
        return True
    keys = each(node.groupingExpressions()) if class_name(node) == "Aggregate" else expressions(node)
    return any(_is_event_time(key) for key in keys)


def _is_event_time(expression: Any) -> bool:
    """Whether a named expression, such as a column, is an event time or a window of an event time."""
    is_named = class_name(expression) in ("AttributeReference", "Alias")
    return is_named and bool(expression.metadata().contains(_DELAY))


def _expect_no_late_rows(
    flow: Flow, stream_output: DataFrame, inputs: Sequence[DataFrame], node: Any
) -> None:
    """Raise if a step that drops late rows can get old rows that were not late when their record was read: rows of a
    join without a time bound, or rows of a union with another time in the column of the event time. The step would drop
    such rows without counting them.
    """
    if class_name(node) == "Join":
        drops = any(_Join(stream_output, node).event_times(side) for side in _SIDES)
    else:
        drops = _has_bounded_keys(node)
    below = (step for child in children(node) for step in nodes(child)) if drops else ()
    for step in below:
        join = _Join(stream_output, step) if class_name(step) == "Join" and keeps_state(step) else None
        if join is not None and not all(join.is_bounded(side) for side in _SIDES):
            raise FlowMistake(
                f"flow {flow.name} would lose rows: a join without a time bound returns rows with old event times, and"
                f" the {class_name(node)} after it drops them as late",
                location=flow.location,
                hint=f"{_time_range_hint(flow, join, inputs)}, or split the flow in two",
            )
        for time, other in _mixed_times(step):
            raise FlowMistake(
                f"flow {flow.name} would lose rows: a union puts {other!r} under the event time {time!r}, and the"
                f" {class_name(node)} after it drops them as late",
                location=line_using(flow, "union", "unionAll", "unionByName"),
                detail="Spark uses the event time of the first branch for all branches",
                hint=f"put {other!r} in a separate column, or split the flow in two",
            )


def _mixed_times(node: Any) -> Iterator[tuple[str, str]]:
    """Yield, for each column of a union that is an event time only in the first branch, its name in both branches."""
    if class_name(node) != "Union":
        return
    first, *others = (each(branch.output()) for branch in children(node))
    for branch in others:
        for time, other in zip(first, branch, strict=True):
            if _is_event_time(time) and not _is_event_time(other):
                yield str(time.name()), str(other.name())


def _expect_bounded_join(
    flow: Flow, stream_output: DataFrame, inputs: Sequence[DataFrame], node: Any
) -> None:
    join = _Join(stream_output, node)
    location = (
        line_of(flow, node.condition().get(), name="join") if node.condition().isDefined() else flow.location
    )
    for side in _SIDES:
        times = join.event_times(side)
        if len(times) > 1 and not join.is_keyed_by_time:
            raise FlowMistake(
                f"flow {flow.name} has several event times on the {side} side of a join: {', '.join(times)}",
                location=location,
                hint="drop all but one event time from that side before the join: Spark allows only one",
            )
        if join.drops_by_another_column(side):
            raise FlowMistake(
                f"flow {flow.name} would lose rows of the {side} side of a join: the condition limits another column"
                f" than the event time {times[0]!r}, and Spark compares that column with the watermark",
                location=location,
                hint=f"compare {times[0]!r} in the condition, or drop {times[0]!r} from that side before the join",
            )
    unbounded = [side for side in _SIDES if not join.is_bounded(side)]
    if unbounded and not flow.unbounded:
        sides = " and the ".join(f"{side} side" for side in unbounded)
        raise FlowMistake(
            f"flow {flow.name} stores all rows of the {sides} of a join, without limit",
            location=location,
            detail="; ".join(join.unbounded_reason(side) for side in unbounded),
            hint=f"{_time_range_hint(flow, join, inputs)}, {_UNBOUNDED_HINT}",
        )


def _time_range_hint(flow: Flow, join: _Join, inputs: Sequence[DataFrame]) -> str:
    """Return a hint with a condition that the user can paste. It joins the rows that are at most an hour apart."""
    parameters = list(inspect.signature(flow.function).parameters)
    names, times = dict(zip(_SIDES, _SIDES, strict=True)), dict[str, str]()
    for side in _SIDES:
        number = join.input_number(side, inputs)
        if number is not None and number < len(parameters):
            names[side] = parameters[number]
        # The plan does not have a column that the function does not use after the join.
        declared = None if number is None else flow.reads[number].time
        time = next(iter(join.event_times(side)), declared)
        if time:
            times[side] = time
    without_time = [side for side in _SIDES if side not in times]
    if without_time:
        return (
            f"declare time= and late= for the topic of the {' and the '.join(without_time)} side, keep that column, and"
            " limit the time between the two rows in the join condition"
        )

    def column(side: str, name: str) -> str:
        return f"{names[side]}[{json.dumps(name)}]"

    equal = [f"({column('left', left)} == {column('right', right)})" for left, right in join.equal_columns()]
    left, right = (column(side, times[side]) for side in _SIDES)
    within = f'{left}.between({right} - F.expr("{_RANGE}"), {right} + F.expr("{_RANGE}"))'
    return f"limit the time between the two rows, such as: join on {' & '.join([*equal, within])}"


class _Join:
    """A join of two streams."""

    def __init__(self, stream_output: DataFrame, node: Any) -> None:
        jvm: Any = stream_output.sparkSession._jvm
        self._some = jvm.scala.Some
        self._helper = jvm.org.apache.spark.sql.catalyst.analysis.StreamingJoinHelper
        self._node = node
        self._children = dict(zip(_SIDES, children(node), strict=True))
        self.is_keyed_by_time = bool(self._helper.isWatermarkInJoinKeys(node))
        """Whether the columns that must be equal include an event time."""

    def is_bounded(self, side: str) -> bool:
        if self.is_keyed_by_time:
            return True
        return any(self._bounds(side, part) for part in self._conjuncts() if _compares_event_times(part))

    def drops_by_another_column(self, side: str) -> bool:
        """Whether Spark would drop rows by another column than their event time: the condition limits only that column,
        and Spark compares the watermark with it.
        """
        if self.is_bounded(side) or not self.event_times(side):
            return False
        return any(self._bounds(side, part) for part in self._conjuncts())

    def event_times(self, side: str) -> list[str]:
        return [
            str(column.name()) for column in each(self._children[side].output()) if _is_event_time(column)
        ]

    def input_number(self, side: str, inputs: Sequence[DataFrame]) -> int | None:
        """Return the number of the input that is the side's only input, or None."""
        read = {expr_id(column) for column in leaf_columns(self._children[side])}
        numbers = [
            number
            for number, frame in enumerate(inputs)
            if read & {expr_id(column) for column in leaf_columns(analyzed(frame))}
        ]
        return numbers[0] if len(numbers) == 1 else None

    def equal_columns(self) -> Iterator[tuple[str, str]]:
        """Yield the pairs of columns of both sides that must be equal."""
        ids = {side: {expr_id(column) for column in each(self._children[side].output())} for side in _SIDES}
        for part in self._conjuncts():
            pair = children(part) if class_name(part) == "EqualTo" else ()
            if all(class_name(column) == "AttributeReference" for column in pair):
                for left, right in itertools.permutations(pair, 2):
                    if expr_id(left) in ids["left"] and expr_id(right) in ids["right"]:
                        yield str(left.name()), str(right.name())

    def unbounded_reason(self, side: str) -> str:
        times = self.event_times(side)
        if not times:
            return f"the {side} side has no event time, or drops it"
        return f"the condition does not limit how old {times[0]!r} of the {side} side can be"

    def _bounds(self, side: str, conjunct: Any) -> bool:
        """Whether this part of the condition limits how old a row of the side can be."""
        other = _SIDES[1 - _SIDES.index(side)]
        watermark = self._helper.getStateValueWatermark(
            self._children[side].outputSet(),
            self._children[other].outputSet(),
            self._some(conjunct),
            self._some(_ANY_WATERMARK_MS),
        )
        return bool(watermark.isDefined())

    def _conjuncts(self) -> list[Any]:
        condition = self._node.condition()
        return list(_conjuncts_of(condition.get())) if condition.isDefined() else []


def _conjuncts_of(condition: Any) -> Iterator[Any]:
    """Yield the parts of a conjunction."""
    if class_name(condition) != "And":
        yield condition
        return
    for part in children(condition):
        yield from _conjuncts_of(part)


def _compares_event_times(conjunct: Any) -> bool:
    return all(_is_event_time(column) for column in each(conjunct.references().toSeq()))
