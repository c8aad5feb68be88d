"""The key of an aggregation: it must tell all groups apart.

A batch writes one row for each group that has changed. If two groups had the same key, the row of an arbitrary one
would stay. So the key of the topic, and of every view on it, must determine all that is grouped by. A column does so
that is the grouped one, also as text or as the start of its window; one that merely follows from it, such as its first
letter, does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.flow.mistakes import FlowMistake, line_of
from headrace.flow.plan_nodes import expr_id
from headrace.flow.plan_tree import class_name as _kind
from headrace.flow.plan_tree import each, nodes
from headrace.model.flow import Flow
from headrace.model.place import Place as SourceLine

__all__ = ["expect_keys_of_groups", "not_told_apart"]

Group = tuple[int, int]
"""The number of an aggregation, and of an expression that it groups by."""

Direct = Callable[[Any], frozenset[Group]]
_SAME = frozenset({"Alias", "KnownNotNull", "KnownNullable"})
_DAY_US = 86_400_000_000
_BOUNDS_OF_WINDOWS = frozenset({"start", "end"})
# Of these types each value has a text of its own.
_TYPES_WITH_TEXT = frozenset(
    {"string", "tinyint", "smallint", "int", "bigint", "float", "double", "boolean", "timestamp", "date"}
)
_WIDER = {"tinyint": 1, "smallint": 2, "int": 3, "bigint": 4}


@dataclass(frozen=True, slots=True)
class _Grouped:
    groups: Mapping[Group, Any]
    """The expressions that are grouped by, of all aggregations below."""
    told_by: Mapping[int, frozenset[Group]]
    """By the id of a column, the groups that it determines."""
    whole_days: frozenset[Group] = frozenset()


def expect_keys_of_groups(flow: Flow, analyzed: Any) -> frozenset[frozenset[str]]:
    """Raises where the key of the topic does not tell all groups apart. ``analyzed`` is the plan over streams.

    Gives for each thing that is grouped by the columns that determine it.
    """
    grouped = _Look(flow).at(analyzed)
    if grouped is None:
        return frozenset()
    names = {expr_id(column): str(column.name()) for column in each(analyzed.output())}
    tellers: dict[Group, frozenset[str]] = {}
    for group in grouped.groups:
        told_by = (place for place, groups in grouped.told_by.items() if group in groups and place in names)
        tellers[group] = frozenset(names[place] for place in told_by)
    told = {group for group, columns in tellers.items() if columns & set(flow.writes.key)}
    missing = [one for group, one in grouped.groups.items() if not _follows(group, grouped.groups, told)]
    if missing:
        written = ", ".join(sorted(map(_written, missing)))
        raise not_told_apart(
            flow, written, flow.writes.key, f"topic {flow.writes.name}", line_of(flow, missing[0])
        )
    return frozenset(tellers[group] for group in told)


def not_told_apart(
    flow: Flow, groups: str, key: tuple[str, ...], of: str, place: SourceLine | None
) -> FlowMistake:
    return FlowMistake(
        f"flow {flow.name} groups by {groups}, which the key of {of} ({', '.join(key)}) does not tell",
        place=place,
        detail="of several groups with the same key, the row of an arbitrary one would stay",
        hint=f"return {groups} as it is, and name it in the key",
    )


def _written(expression: Any) -> str:
    return str(expression.name()) if _kind(expression) == "AttributeReference" else str(expression.sql())


def _follows(group: Group, groups: Mapping[Group, Any], told: set[Group]) -> bool:
    """Whether the group is determined: by a column, or since it is made of others that are."""
    if group in told:
        return True
    used = {expr_id(one) for one in each(groups[group].references().toSeq())}
    known = {
        expr_id(other)
        for place, other in groups.items()
        if place in told and place[0] == group[0] and _kind(other) == "AttributeReference"
    }
    return used <= known


class _Look:
    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._aggregations = 0

    def at(self, node: Any) -> _Grouped | None:
        """None where nothing was grouped."""
        if not node.isStreaming():
            return None
        name = str(node.nodeName())
        children = each(node.children())
        found = [self.at(child) for child in children]
        if name == "Aggregate":
            return self._aggregate(node)
        if name == "Union" and any(found):
            return self._union(node, children, found)
        grouped = next((one for one in found if one is not None), None)
        if grouped is None:
            return None
        if name == "Project":
            return self._project(node, grouped)
        return grouped

    def _project(self, node: Any, grouped: _Grouped) -> _Grouped:
        def direct(expression: Any) -> frozenset[Group]:
            is_column = _kind(expression) == "AttributeReference"
            return grouped.told_by.get(expr_id(expression), frozenset()) if is_column else frozenset()

        results, whole_days = each(node.projectList()), grouped.whole_days
        told_by = {expr_id(one): _determined(_unaliased(one), direct, whole_days) for one in results}
        return _Grouped(grouped.groups, told_by, whole_days)

    def _aggregate(self, node: Any) -> _Grouped:
        number, self._aggregations = self._aggregations, self._aggregations + 1
        groups = {(number, place): one for place, one in enumerate(each(node.groupingExpressions()))}

        def direct(expression: Any) -> frozenset[Group]:
            return frozenset(place for place, one in groups.items() if expression.semanticEquals(one))

        whole_days = frozenset(place for place, one in groups.items() if _begins_at_days(node, one))
        results = each(node.aggregateExpressions())
        told_by = {expr_id(one): _determined(_unaliased(one), direct, whole_days) for one in results}
        return _Grouped(groups, told_by, whole_days)

    def _union(self, node: Any, children: list[Any], found: list[_Grouped | None]) -> _Grouped:
        names = [str(column.name()) for column in each(node.output())]
        if not any(
            _differ(children, place) for place, name in enumerate(names) if name in self._flow.writes.key
        ):
            raise FlowMistake(
                f"flow {self._flow.name} puts rows together that were added up apart, and a key may be in both",
                place=self._flow.place,
                detail="of two rows with the same key, an arbitrary one would stay",
                hint="give each part a constant column of its own, and name that in the key of the topic",
            )
        groups: dict[Group, Any] = {}
        told_by: dict[int, frozenset[Group]] = {}
        for child, grouped in zip(children, found, strict=True):
            if grouped is None:
                continue
            groups |= grouped.groups
            for above, below in zip(each(node.output()), each(child.output()), strict=True):
                place = expr_id(above)
                told_by[place] = told_by.get(place, frozenset()) | grouped.told_by.get(
                    expr_id(below), frozenset()
                )
        whole_days = frozenset[Group]().union(*(one.whole_days for one in found if one is not None))
        return _Grouped(groups, told_by, whole_days)


def _determined(expression: Any, direct: Direct, whole_days: frozenset[Group]) -> frozenset[Group]:
    """What a column of this expression determines; ``direct`` says it of the columns that there are. ``whole_days`` are
    windows that begin whole days apart.
    """
    if found := direct(expression):
        return found
    kind, children = _kind(expression), each(expression.children())
    if kind == "GetStructField" and str(expression.extractFieldName()) in _BOUNDS_OF_WINDOWS:
        return _determined(children[0], direct, whole_days) if _is_window(children[0]) else frozenset()
    if kind == "CreateNamedStruct":
        return frozenset[Group]().union(*(_determined(child, direct, whole_days) for child in children))
    if kind in _SAME or (kind == "Cast" and _keeps_apart(expression)):
        return _determined(children[0], direct, whole_days)
    if kind == "ParseToDate":
        return _determined(expression.replacement(), direct, whole_days)
    if kind == "Cast" and _types(expression) == ("timestamp", "date"):
        # Windows that begin whole days apart begin on days of their own.
        return frozenset(
            group for group in _determined(children[0], direct, whole_days) if group in whole_days
        )
    return frozenset()


def _is_window(expression: Any) -> bool:
    """A window of the event time: all are of one length, so the start of one tells its end."""
    is_column = _kind(expression) == "AttributeReference"
    return is_column and bool(expression.metadata().contains("spark.timeWindow"))


def _begins_at_days(aggregate: Any, group: Any) -> bool:
    """Whether the group is a window of which each begins whole days behind the last."""
    if not _is_window(group):
        return False
    for node in nodes(each(aggregate.children())[0]):
        for column in each(node.projectList()) if str(node.nodeName()) == "Project" else ():
            if expr_id(column) == expr_id(group) and _kind(column) == "Alias":
                steps = [one for one in nodes(column) if _kind(one) == "Remainder"]
                literals = [each(one.children())[1] for one in steps]
                return bool(literals) and all(
                    _kind(one) == "Literal" and int(one.value()) % _DAY_US == 0 for one in literals
                )
    return False


def _types(cast: Any) -> tuple[str, str]:
    """What a cast is given, and what it gives."""
    return str(each(cast.children())[0].dataType().catalogString()), str(cast.dataType().catalogString())


def _keeps_apart(cast: Any) -> bool:
    given, wanted = _types(cast)
    if wanted == "string":
        return given in _TYPES_WITH_TEXT or given.startswith("decimal")
    return given == wanted or _WIDER.get(given, 9) <= _WIDER.get(wanted, 0)


def _differ(branches: list[Any], place: int) -> bool:
    """Whether the column is another constant in each branch."""
    constants = [_constant(branch, place) for branch in branches]
    return None not in constants and len(set(constants)) == len(constants)


def _constant(node: Any, place: int) -> str | None:
    """The constant that a column is, written in SQL; None if it is none."""
    if str(node.nodeName()) != "Project":
        return None
    result = _unaliased(each(node.projectList())[place])
    if _kind(result) != "AttributeReference":
        return str(result.sql()) if result.foldable() else None
    [child] = each(node.children())
    places = [at for at, column in enumerate(each(child.output())) if expr_id(column) == expr_id(result)]
    return _constant(child, places[0]) if places else None


def _unaliased(expression: Any) -> Any:
    while _kind(expression) == "Alias":
        expression = expression.child()
    return expression
