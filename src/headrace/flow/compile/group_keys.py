"""Checks that the key of an aggregation distinguishes all groups.

A batch writes one row for each group that changed. If two groups had the same key, an arbitrary one of their rows would
remain. So the key of the topic, and of every view on it, must determine every grouped column. A key field determines a
grouped column if it is the column itself, the column as text, or the start of its window. A value computed from the
column, such as its first letter, does not determine it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.flow.compile.mistakes import FlowMistake, line_of
from headrace.flow.compile.plan import class_name as _kind
from headrace.flow.compile.plan import each, expr_id, nodes
from headrace.model.declarations import Flow
from headrace.model.errors import SourceLocation

__all__ = ["expect_keys_of_groups", "missing_from_key"]

Group = tuple[int, int]
"""A grouping expression: the number of the aggregation, and the number of the expression in it."""

ExistingGroups = Callable[[Any], frozenset[Group]]
_UNCHANGED = frozenset({"Alias", "KnownNotNull", "KnownNullable"})
_DAY_US = 86_400_000_000
_WINDOW_BOUNDS = frozenset({"start", "end"})
# Types in which different values have different texts.
_TYPES_WITH_TEXT = frozenset(
    {"string", "tinyint", "smallint", "int", "bigint", "float", "double", "boolean", "timestamp", "date"}
)
_INT_WIDTHS = {"tinyint": 1, "smallint": 2, "int": 3, "bigint": 4}


@dataclass(frozen=True, slots=True)
class _Grouped:
    groups: Mapping[Group, Any]
    """The grouping expressions of all aggregations at this node and below it."""
    determined_by: Mapping[int, frozenset[Group]]
    """The groups that a column determines, by the id of the column."""
    whole_days: frozenset[Group] = frozenset()


def expect_keys_of_groups(flow: Flow, analyzed: Any) -> frozenset[frozenset[str]]:
    """Return, for each grouping expression, the columns that determine it. ``analyzed`` is the plan over streams.

    Raises if the key of the topic does not distinguish all groups.
    """
    grouped = _GroupFinder(flow).groups_at(analyzed)
    if grouped is None:
        return frozenset()
    names = {expr_id(column): str(column.name()) for column in each(analyzed.output())}
    determiners: dict[Group, frozenset[str]] = {}
    for group in grouped.groups:
        determined_by = (
            column for column, groups in grouped.determined_by.items() if group in groups and column in names
        )
        determiners[group] = frozenset(names[column] for column in determined_by)
    determined = {group for group, columns in determiners.items() if columns & set(flow.writes.key)}
    missing = [
        expression
        for group, expression in grouped.groups.items()
        if not _is_determined(group, grouped.groups, determined)
    ]
    if missing:
        missing_text = ", ".join(sorted(map(_sql_text, missing)))
        raise missing_from_key(
            flow, missing_text, flow.writes.key, f"topic {flow.writes.name}", line_of(flow, missing[0])
        )
    return frozenset(determiners[group] for group in determined)


def missing_from_key(
    flow: Flow, groups: str, key: tuple[str, ...], key_owner: str, location: SourceLocation | None
) -> FlowMistake:
    return FlowMistake(
        f"flow {flow.name} groups by {groups}, which the key of {key_owner} ({', '.join(key)}) does not determine",
        location=location,
        detail="if several groups have the same key, an arbitrary one of their rows would remain",
        hint=f"return {groups} unchanged, and add it to the key",
    )


def _sql_text(expression: Any) -> str:
    return str(expression.name()) if _kind(expression) == "AttributeReference" else str(expression.sql())


def _is_determined(group: Group, groups: Mapping[Group, Any], determined: set[Group]) -> bool:
    """Whether the group is determined by a column, or is computed only from other groups that are determined."""
    if group in determined:
        return True
    used = {expr_id(column) for column in each(groups[group].references().toSeq())}
    grouped_columns = {
        expr_id(other)
        for other_group, other in groups.items()
        if other_group in determined and other_group[0] == group[0] and _kind(other) == "AttributeReference"
    }
    return used <= grouped_columns


class _GroupFinder:
    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._aggregations = 0

    def groups_at(self, node: Any) -> _Grouped | None:
        """Return the groups at a node; None if the node and those below it do not group."""
        if not node.isStreaming():
            return None
        name = str(node.nodeName())
        children = each(node.children())
        below = [self.groups_at(child) for child in children]
        if name == "Aggregate":
            return self._aggregate(node)
        if name == "Union" and any(below):
            return self._union(node, children, below)
        grouped = next((groups for groups in below if groups is not None), None)
        if grouped is None:
            return None
        if name == "Project":
            return self._project(node, grouped)
        return grouped

    def _project(self, node: Any, grouped: _Grouped) -> _Grouped:
        def existing_groups(expression: Any) -> frozenset[Group]:
            is_column = _kind(expression) == "AttributeReference"
            return grouped.determined_by.get(expr_id(expression), frozenset()) if is_column else frozenset()

        results, whole_days = each(node.projectList()), grouped.whole_days
        determined_by = {
            expr_id(column): _determined(_unaliased(column), existing_groups, whole_days)
            for column in results
        }
        return _Grouped(grouped.groups, determined_by, whole_days)

    def _aggregate(self, node: Any) -> _Grouped:
        number, self._aggregations = self._aggregations, self._aggregations + 1
        groups = {
            (number, index): grouping for index, grouping in enumerate(each(node.groupingExpressions()))
        }

        def existing_groups(expression: Any) -> frozenset[Group]:
            return frozenset(
                group for group, grouping in groups.items() if expression.semanticEquals(grouping)
            )

        whole_days = frozenset(
            group for group, grouping in groups.items() if _begins_whole_days_apart(node, grouping)
        )
        results = each(node.aggregateExpressions())
        determined_by = {
            expr_id(column): _determined(_unaliased(column), existing_groups, whole_days)
            for column in results
        }
        return _Grouped(groups, determined_by, whole_days)

    def _union(self, node: Any, children: list[Any], below: list[_Grouped | None]) -> _Grouped:
        names = [str(column.name()) for column in each(node.output())]
        if not any(
            _differ(children, index) for index, name in enumerate(names) if name in self._flow.writes.key
        ):
            raise FlowMistake(
                f"flow {self._flow.name} combines rows of several aggregations, and several can have the same key",
                location=self._flow.location,
                detail="if two rows have the same key, an arbitrary one would remain",
                hint="add a column with a different constant to each part, and add that column to the key of the topic",
            )
        groups: dict[Group, Any] = {}
        determined_by: dict[int, frozenset[Group]] = {}
        for child, grouped in zip(children, below, strict=True):
            if grouped is None:
                continue
            groups |= grouped.groups
            for output_column, child_column in zip(each(node.output()), each(child.output()), strict=True):
                column = expr_id(output_column)
                determined_by[column] = determined_by.get(column, frozenset()) | grouped.determined_by.get(
                    expr_id(child_column), frozenset()
                )
        whole_days = frozenset[Group]().union(*(groups.whole_days for groups in below if groups is not None))
        return _Grouped(groups, determined_by, whole_days)


def _determined(
    expression: Any, existing_groups: ExistingGroups, whole_days: frozenset[Group]
) -> frozenset[Group]:
    """Return the groups that a column with this expression determines. ``existing_groups`` returns the groups that an
    existing column determines. ``whole_days`` has the windows whose starts are whole days apart.
    """
    if groups := existing_groups(expression):
        return groups
    kind, children = _kind(expression), each(expression.children())
    if kind == "GetStructField" and str(expression.extractFieldName()) in _WINDOW_BOUNDS:
        return (
            _determined(children[0], existing_groups, whole_days) if _is_window(children[0]) else frozenset()
        )
    if kind == "CreateNamedStruct":
        return frozenset[Group]().union(
            *(_determined(child, existing_groups, whole_days) for child in children)
        )
    if kind in _UNCHANGED or (kind == "Cast" and _is_injective(expression)):
        return _determined(children[0], existing_groups, whole_days)
    if kind == "ParseToDate":
        return _determined(expression.replacement(), existing_groups, whole_days)
    if kind == "Cast" and _types(expression) == ("timestamp", "date"):
        # The starts of these windows are whole days apart, so their dates differ.
        return frozenset(
            group for group in _determined(children[0], existing_groups, whole_days) if group in whole_days
        )
    return frozenset()


def _is_window(expression: Any) -> bool:
    """Whether the expression is a window of the event time. All windows have the same length, so the start determines
    the end.
    """
    is_column = _kind(expression) == "AttributeReference"
    return is_column and bool(expression.metadata().contains("spark.timeWindow"))


def _begins_whole_days_apart(aggregate: Any, group: Any) -> bool:
    """Whether the group is a window, and each window begins whole days after the previous one."""
    if not _is_window(group):
        return False
    for node in nodes(each(aggregate.children())[0]):
        for column in each(node.projectList()) if str(node.nodeName()) == "Project" else ():
            if expr_id(column) == expr_id(group) and _kind(column) == "Alias":
                steps = [step for step in nodes(column) if _kind(step) == "Remainder"]
                literals = [each(step.children())[1] for step in steps]
                return bool(literals) and all(
                    _kind(literal) == "Literal" and int(literal.value()) % _DAY_US == 0
                    for literal in literals
                )
    return False


def _types(cast: Any) -> tuple[str, str]:
    """Return the types before and after a cast."""
    return str(each(cast.children())[0].dataType().catalogString()), str(cast.dataType().catalogString())


def _is_injective(cast: Any) -> bool:
    """Whether the cast converts different values to different values."""
    source, target = _types(cast)
    if target == "string":
        return source in _TYPES_WITH_TEXT or source.startswith("decimal")
    return source == target or _INT_WIDTHS.get(source, 9) <= _INT_WIDTHS.get(target, 0)


def _differ(branches: list[Any], index: int) -> bool:
    """Whether the column is a different constant in each branch."""
    constants = [_constant(branch, index) for branch in branches]
    return None not in constants and len(set(constants)) == len(constants)


def _constant(node: Any, index: int) -> str | None:
    """Return the constant of a column as SQL; None if the column is not constant."""
    if str(node.nodeName()) != "Project":
        return None
    result = _unaliased(each(node.projectList())[index])
    if _kind(result) != "AttributeReference":
        return str(result.sql()) if result.foldable() else None
    [child] = each(node.children())
    indexes = [
        position for position, column in enumerate(each(child.output())) if expr_id(column) == expr_id(result)
    ]
    return _constant(child, indexes[0]) if indexes else None


def _unaliased(expression: Any) -> Any:
    while _kind(expression) == "Alias":
        expression = expression.child()
    return expression
