"""Checks the steps after an aggregation, such as filters and joins. The rows of such a flow replace each other.

In each batch, an aggregation returns the rows of the groups that changed. A row remains in the topic until another row
of its key replaces it. The result is correct only if a group is written again, with the same key, whenever it changes.
This is true if filters and keys depend only on the grouped columns, which are called *fixed* here. With a filter on a
sum, the old row would remain forever when the new sum no longer matches. With a key computed from a sum, one row would
remain for each value of the sum.

A step that is not known to be safe is rejected.
"""

from __future__ import annotations

from typing import Any

from headrace.flow.codec.codec import DELETED
from headrace.flow.compile.mistakes import FlowMistake, first_line, line_of
from headrace.flow.compile.plan import children, class_name, each
from headrace.model.declarations import Flow
from headrace.model.errors import SourceLocation

__all__ = ["changing_key", "expect_replaceable"]

_PASS_THROUGH = frozenset(
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
_FILTER_HINT = (
    "filter in the query to the view; or return every row, with a column"
    f" {DELETED} that is true for rows to delete"
)


def expect_replaceable(flow: Flow, analyzed: Any) -> frozenset[str]:
    """Return the fixed columns. Raises if a written row might remain. ``analyzed`` is the plan over streams."""
    fixed = _FixedColumns(flow).fixed_columns(analyzed)
    columns = {str(column.name()): _id(column) for column in each(analyzed.output())}
    names = frozenset(name for name, column in columns.items() if fixed is None or column in fixed)
    for name in flow.writes.key:
        if name not in names:
            raise changing_key(flow, name, f"topic {flow.writes.name}", flow.location)
    return names


def changing_key(flow: Flow, name: str, key_owner: str, location: SourceLocation | None) -> FlowMistake:
    return FlowMistake(
        f"{name} is a key of {key_owner}, but flow {flow.name} computes it from an aggregate",
        location=location,
        detail="when it changes, the row with the previous key would remain forever",
        hint="use the grouped columns as the key; sort and rank in the query to the view",
    )


class _FixedColumns:
    def __init__(self, flow: Flow) -> None:
        self._flow = flow

    def fixed_columns(self, node: Any) -> set[int] | None:
        """Return the columns that depend only on grouped columns; None if the node has no aggregation below it, so that
        its rows are written once and never replaced.
        """
        name = class_name(node)
        if not node.isStreaming():
            return None
        child_columns = [self.fixed_columns(child) for child in children(node)]
        if name == "Aggregate" and child_columns == [None]:
            return {_id(column) for column in each(node.aggregateExpressions()) if not _aggregates(column)}
        if all(columns is None for columns in child_columns):
            return None
        if name == "Join":
            return self._join(node, child_columns)
        if name == "Union":
            return _union(node, child_columns)
        [fixed] = child_columns
        assert fixed is not None
        if name in _PASS_THROUGH:
            return fixed
        match name:
            case "Project":
                return {_id(column) for column in each(node.projectList()) if _references(column) <= fixed}
            case "Filter":
                self._expect(node.condition(), fixed, "filters rows by")
                return fixed
            case "Generate":
                self._expect(node.generator(), fixed, "generates rows from")
                return fixed | set(map(_id, each(node.generatorOutput())))
            case "Expand":
                return _expand(node, fixed)
        raise FlowMistake(
            f"flow {self._flow.name} has the step {name} after an aggregation, whose rows change with later input",
            location=self._flow.location,
            detail="rows that were written earlier would not be removed",
            hint="split the flow in two: the first aggregates, the second reads the result",
        )

    def _expect(self, expression: Any, fixed: set[int], action: str) -> None:
        if not _references(expression) <= fixed:
            raise self._outdated_row_error(expression, action)

    def _outdated_row_error(self, expression: Any, action: str) -> FlowMistake:
        return FlowMistake(
            f"flow {self._flow.name} {action} {first_line(expression.toString())}, which changes with later input",
            location=line_of(self._flow, expression),
            detail="a row that was written and does not match later would never be removed",
            hint=_FILTER_HINT,
        )

    def _join(self, node: Any, child_columns: list[set[int] | None]) -> set[int]:
        """Check a join of an aggregated stream with static rows: a group must always match the same rows."""
        sides = children(node)
        if all(side.isStreaming() for side in sides):
            raise FlowMistake(
                f"flow {self._flow.name} joins an aggregation with a stream",
                location=self._flow.location,
                detail="the aggregation changes with every batch, and rows that were joined earlier would remain",
                hint="split the flow in two: the first aggregates, the second reads the result",
            )
        stream_side = 0 if sides[0].isStreaming() else 1
        fixed = child_columns[stream_side]
        assert fixed is not None
        condition = node.condition()
        used_columns = _references(condition.get()) if condition.isDefined() else set()
        if used_columns & set(map(_id, each(sides[stream_side].output()))) <= fixed:
            return fixed | set(map(_id, each(sides[1 - stream_side].output())))
        if str(node.joinType()) == ("LeftOuter", "RightOuter")[stream_side]:
            return fixed
        raise self._outdated_row_error(condition.get(), "filters rows by")


def _union(node: Any, child_columns: list[set[int] | None]) -> set[int]:
    fixed = set(map(_id, each(node.output())))
    for child, fixed_in_child in zip(children(node), child_columns, strict=True):
        for output_column, child_column in zip(each(node.output()), each(child.output()), strict=True):
            if fixed_in_child is not None and _id(child_column) not in fixed_in_child:
                fixed.discard(_id(output_column))
    return fixed


def _expand(node: Any, fixed: set[int]) -> set[int]:
    fixed_after = set(map(_id, each(node.output())))
    for projection in each(node.projections()):
        for output_column, expression in zip(each(node.output()), each(projection), strict=True):
            if not _references(expression) <= fixed:
                fixed_after.discard(_id(output_column))
    return fixed_after


def _aggregates(expression: Any) -> bool:
    return class_name(expression) in ("AggregateExpression", "PythonUDAF") or any(
        map(_aggregates, children(expression))
    )


def _references(expression: Any) -> set[int]:
    return set(map(_id, each(expression.references().toSeq())))


def _id(named: Any) -> int:
    return int(named.exprId().id())
