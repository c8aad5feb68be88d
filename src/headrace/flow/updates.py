"""What may stand behind an aggregation in a flow whose rows replace each other.

Batch by batch, an aggregation gives the rows of those groups that have changed. A row that was written stays in the
topic until another row of its key replaces it. So the stream is the same as the whole in one go only if every group
that was ever written is written again, under the same key, whenever it changes. That holds if what is kept and what
the key is depend on nothing but the columns that are grouped by; those are called *fixed* here. A filter by a sum would
leave a row behind for ever once the sum stops matching, and a key made of a sum would leave one for each value.

What is not known to be right is refused.
"""

from __future__ import annotations

from typing import Any

from headrace.flow.encoding import DELETED
from headrace.flow.mistakes import FlowMistake, first_line, line_of
from headrace.flow.plan_tree import children, class_name, each
from headrace.model.flow import Flow
from headrace.model.place import Place

__all__ = ["changing_key", "expect_replaceable"]

_AS_THEY_COME = frozenset(
    {
        "SubqueryAlias",
        "View",
        "ResolvedHint",
        "Repartition",
        "RepartitionByExpression",
        "RebalancePartitions",
        "EventTimeWatermark",
        "CollectMetrics",
    }
)
_INSTEAD = (
    "filter in the query of the view; or return every row, with a column"
    f" {DELETED} that is true for those that should go"
)


def expect_replaceable(flow: Flow, analyzed: Any) -> frozenset[str]:
    """The columns that are fixed; raises where a row that was written might not be replaced. ``analyzed`` is the plan
    over streams.
    """
    fixed = _Look(flow).fixed(analyzed)
    columns = {str(one.name()): _id(one) for one in each(analyzed.output())}
    names = frozenset(name for name, one in columns.items() if fixed is None or one in fixed)
    for name in flow.writes.key:
        if name not in names:
            raise changing_key(flow, name, f"topic {flow.writes.name}", flow.place)
    return names


def changing_key(flow: Flow, name: str, of: str, place: Place | None) -> FlowMistake:
    return FlowMistake(
        f"{name} is a key of {of}, and flow {flow.name} makes it out of what it adds up",
        place=place,
        detail="when it changes, the row under the key before would stay as it was, for ever",
        hint="the key of an aggregation is what it groups by; order and rank in the query of the view",
    )


class _Look:
    def __init__(self, flow: Flow) -> None:
        self._flow = flow

    def fixed(self, node: Any) -> set[int] | None:
        """The columns that depend on nothing but what is grouped by; None where nothing is added up, so that each row
        is written once and none is ever replaced.
        """
        name = class_name(node)
        if not node.isStreaming():
            return None
        found = [self.fixed(child) for child in children(node)]
        if name == "Aggregate" and found == [None]:
            return {_id(one) for one in each(node.aggregateExpressions()) if not _adds_up(one)}
        if all(one is None for one in found):
            return None
        if name == "Join":
            return self._join(node, found)
        if name == "Union":
            return _union(node, found)
        [fixed] = found
        assert fixed is not None
        if name in _AS_THEY_COME:
            return fixed
        match name:
            case "Project":
                return {_id(one) for one in each(node.projectList()) if _references(one) <= fixed}
            case "Filter":
                self._expect(node.condition(), fixed, "keeps rows by")
                return fixed
            case "Generate":
                self._expect(node.generator(), fixed, "makes as many rows as there are in")
                return fixed | set(map(_id, each(node.generatorOutput())))
            case "Expand":
                return _expand(node, fixed)
        raise FlowMistake(
            f"flow {self._flow.name} has {name} behind an aggregation, which changes its rows as more come in",
            place=self._flow.place,
            detail="what was written before would not be taken back",
            hint="make it two flows: one that adds up, and one that reads its topic",
        )

    def _expect(self, expression: Any, fixed: set[int], does: str) -> None:
        if not _references(expression) <= fixed:
            raise self._lost(expression, does)

    def _lost(self, expression: Any, does: str) -> FlowMistake:
        return FlowMistake(
            f"flow {self._flow.name} {does} {first_line(expression.toString())}, which changes as more comes in",
            place=line_of(self._flow, expression),
            detail="a row that was written, and no longer belongs there, would never be taken back",
            hint=_INSTEAD,
        )

    def _join(self, node: Any, found: list[set[int] | None]) -> set[int]:
        """Of one stream and something that does not change: the rows that are found must stay the same ones."""
        sides = children(node)
        if all(side.isStreaming() for side in sides):
            raise FlowMistake(
                f"flow {self._flow.name} joins what it has added up with a stream",
                place=self._flow.place,
                detail="it changes with every batch, and what was joined before would not be taken back",
                hint="make it two flows: one that adds up, and one that reads its topic",
            )
        at = 0 if sides[0].isStreaming() else 1
        fixed = found[at]
        assert fixed is not None
        condition = node.condition()
        asked = _references(condition.get()) if condition.isDefined() else set()
        if asked & set(map(_id, each(sides[at].output()))) <= fixed:
            return fixed | set(map(_id, each(sides[1 - at].output())))
        if str(node.joinType()) == ("LeftOuter", "RightOuter")[at]:
            return fixed
        raise self._lost(condition.get(), "keeps rows by")


def _union(node: Any, found: list[set[int] | None]) -> set[int]:
    fixed = set(map(_id, each(node.output())))
    for child, of_child in zip(children(node), found, strict=True):
        for above, below in zip(each(node.output()), each(child.output()), strict=True):
            if of_child is not None and _id(below) not in of_child:
                fixed.discard(_id(above))
    return fixed


def _expand(node: Any, fixed: set[int]) -> set[int]:
    found = set(map(_id, each(node.output())))
    for projection in each(node.projections()):
        for above, expression in zip(each(node.output()), each(projection), strict=True):
            if not _references(expression) <= fixed:
                found.discard(_id(above))
    return found


def _adds_up(expression: Any) -> bool:
    return class_name(expression) in ("AggregateExpression", "PythonUDAF") or any(
        map(_adds_up, children(expression))
    )


def _references(expression: Any) -> set[int]:
    return set(map(_id, each(expression.references().toSeq())))


def _id(named: Any) -> int:
    return int(named.exprId().id())
