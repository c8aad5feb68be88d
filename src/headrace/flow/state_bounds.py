"""Which steps of a flow keep state between batches, and whether Spark can drop what is old of it.

- An aggregation and ``dropDuplicates`` are bounded if the event time, or a window of it, is among their keys.
- ``dropDuplicatesWithinWatermark`` is always bounded.
- A join of two streams keeps the rows of both sides, and each side must be bounded. Both are if columns that must be
  equal have an event time among them. Otherwise a side is if the condition compares the event times of both, and says
  how old a row of this side may be, as seen from the other one.

The rules for a join are Spark's own (``StreamingJoinHelper``). They are applied to the analyzed plan, after those
rewrites of Spark's that bring a condition to its join and leave out columns that nobody needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

from headrace.flow.mistakes import FlowMistake, line_naming_in, line_of
from headrace.flow.plan_tree import analyzed, children, class_name, each, expressions, nodes
from headrace.model.flow import Flow

__all__ = ["expect_bounded", "keeps_state", "unbounded_sides"]

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
"""What Spark notes in the metadata of an event time."""
_ANY_WATERMARK_MS = 1 << 40
_MEANT = "or say that it is meant: @app.flow(..., unbounded=True)"


def keeps_state(node: Any) -> bool:
    """A join with something that does not change while the batch runs keeps none."""
    if class_name(node) == "Join":
        return all(child.isStreaming() for child in children(node))
    return _STATEFUL.match(class_name(node)) is not None


def expect_bounded(flow: Flow, live: DataFrame) -> None:
    """Raises where Spark would keep rows or keys for ever, unless the flow says that this is meant. ``live`` is the
    flow over streams.
    """
    plan = _rewritten(live)
    for node in nodes(plan):
        if not node.isStreaming() or not keeps_state(node):
            continue
        _expect_no_late_rows(flow, live, node)
        if class_name(node) == "Join":
            _expect_bounded_join(flow, live, node)
        elif not flow.unbounded and not _has_bounded_keys(node):
            raise FlowMistake(
                f"the state of flow {flow.name} grows with every new key, for ever",
                place=flow.place,
                hint=f"group by a window of the event time, {_MEANT}",
            )


def unbounded_sides(live: DataFrame) -> list[tuple[str, ...]]:
    """For each join of two streams, the outermost first, the sides of which Spark drops no rows."""
    joins = [node for node in nodes(_rewritten(live)) if class_name(node) == "Join" and keeps_state(node)]
    return [tuple(side for side in _SIDES if not _Join(live, join).is_bounded(side)) for join in joins]


def _rewritten(live: DataFrame) -> Any:
    catalyst: Any = live.sparkSession._jvm.org.apache.spark.sql.catalyst  # type: ignore[union-attr]
    plan = analyzed(live)
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
    """Of a named one, such as a column; also of a window of the event time."""
    is_named = class_name(expression) in ("AttributeReference", "Alias")
    return is_named and bool(expression.metadata().contains(_DELAY))


def _expect_no_late_rows(flow: Flow, live: DataFrame, node: Any) -> None:
    """Raises where a step that drops rows by event time gets rows whose time was not compared with the watermark when
    their record was read. It would drop them as late, and nothing would count them.
    """
    if class_name(node) == "Join":
        drops = any(_Join(live, node).event_times(side) for side in _SIDES)
    else:
        drops = _has_bounded_keys(node)
    below = (one for child in children(node) for one in nodes(child)) if drops else ()
    for step in below:
        is_join = class_name(step) == "Join" and keeps_state(step)
        if is_join and not all(_Join(live, step).is_bounded(side) for side in _SIDES):
            raise FlowMistake(
                f"flow {flow.name} would lose rows: a join without a time bound returns rows with old event times, and"
                f" the {class_name(node)} after it drops them as late",
                place=flow.place,
                hint="bound the event time of each side of the join by that of the other, or make it two flows",
            )
        for time, other in _mixed_times(step):
            raise FlowMistake(
                f"flow {flow.name} would lose rows: a union puts {other!r} under the event time {time!r}, and the"
                f" {class_name(node)} after it drops them as late",
                place=line_naming_in(flow, "union", "unionAll", "unionByName"),
                detail="Spark takes the event time of the first branch for that of all branches",
                hint=f"give {other!r} a column of its own, or make it two flows",
            )


def _mixed_times(node: Any) -> Iterator[tuple[str, str]]:
    """For each column of a union that is an event time in its first branch only: its name, and that in the other."""
    if class_name(node) != "Union":
        return
    first, *others = (each(branch.output()) for branch in children(node))
    for branch in others:
        for time, other in zip(first, branch, strict=True):
            if _is_event_time(time) and not _is_event_time(other):
                yield str(time.name()), str(other.name())


def _expect_bounded_join(flow: Flow, live: DataFrame, node: Any) -> None:
    join = _Join(live, node)
    place = line_of(flow, node.condition().get(), name="join") if node.condition().isDefined() else flow.place
    for side in _SIDES:
        times = join.event_times(side)
        if len(times) > 1 and not join.is_keyed_by_time:
            raise FlowMistake(
                f"flow {flow.name} has several event times on the {side} side of a join: {', '.join(times)}",
                place=place,
                hint="leave all but one of them out of that side before the join; Spark does not run it otherwise",
            )
        if join.drops_by_another_column(side):
            raise FlowMistake(
                f"flow {flow.name} would lose rows of the {side} side of a join: Spark drops them by the event time"
                f" {times[0]!r}, and the condition compares another column",
                place=place,
                hint=f"compare {times[0]!r} itself, or leave it out of that side before the join",
            )
    unbounded = [side for side in _SIDES if not join.is_bounded(side)]
    if unbounded and not flow.unbounded:
        which = " and the ".join(f"{side} side" for side in unbounded)
        raise FlowMistake(
            f"flow {flow.name} keeps all rows of the {which} of a join, for ever",
            place=place,
            detail="; ".join(join.why(side) for side in unbounded),
            hint="bound the event time of each side by that of the other, as in"
            f" left.at.between(right.at - hour, right.at + hour), {_MEANT}",
        )


class _Join:
    """A join of two streams."""

    def __init__(self, live: DataFrame, node: Any) -> None:
        jvm: Any = live.sparkSession._jvm
        self._some = jvm.scala.Some
        self._helper = jvm.org.apache.spark.sql.catalyst.analysis.StreamingJoinHelper
        self._node = node
        self._children = dict(zip(_SIDES, children(node), strict=True))
        self.is_keyed_by_time = bool(self._helper.isWatermarkInJoinKeys(node))
        """Whether an event time is among the columns that must be equal."""

    def is_bounded(self, side: str) -> bool:
        if self.is_keyed_by_time:
            return True
        return any(self._bounds(side, one) for one in self._conjuncts() if _compares_event_times(one))

    def drops_by_another_column(self, side: str) -> bool:
        """Spark takes the event time of the side for whichever column of it the condition compares."""
        if self.is_bounded(side) or not self.event_times(side):
            return False
        return any(self._bounds(side, one) for one in self._conjuncts())

    def event_times(self, side: str) -> list[str]:
        return [str(one.name()) for one in each(self._children[side].output()) if _is_event_time(one)]

    def why(self, side: str) -> str:
        times = self.event_times(side)
        if not times:
            return f"the {side} side has no event time, or leaves it out"
        return f"nothing says how old {times[0]!r} of the {side} side may be"

    def _bounds(self, side: str, conjunct: Any) -> bool:
        """Whether this part of the condition says how old a row of the side may be."""
        other = _SIDES[1 - _SIDES.index(side)]
        found = self._helper.getStateValueWatermark(
            self._children[side].outputSet(),
            self._children[other].outputSet(),
            self._some(conjunct),
            self._some(_ANY_WATERMARK_MS),
        )
        return bool(found.isDefined())

    def _conjuncts(self) -> list[Any]:
        condition = self._node.condition()
        return list(_split(condition.get())) if condition.isDefined() else []


def _split(condition: Any) -> Iterator[Any]:
    """The parts that must all hold."""
    if class_name(condition) != "And":
        yield condition
        return
    for part in children(condition):
        yield from _split(part)


def _compares_event_times(conjunct: Any) -> bool:
    return all(_is_event_time(one) for one in each(conjunct.references().toSeq()))
