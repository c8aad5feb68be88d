"""Lineage: adds the coordinates of each row to the plan of the user's function, which does not see them.

After a shuffle (a join, an aggregation, ``dropDuplicates``), rows have no order, but the last row of a key must be
known. So each row has coordinates: the input record from which it was derived, and its number among the rows of that
record.
The coordinates are BIGINT columns, which are compared one after the other:

    _headrace_at0    number of the input among the flow's inputs * 2**32 + partition
    _headrace_at1    offset
    _headrace_at2…   one for each union and ``explode`` in the plan: the branch of the union, the index in the list;
                     after a join of two streams, the coordinates of the other side

The function selects columns and would drop the coordinates. So they are added to Spark's analyzed plan afterwards:
every projection of the plan passes them on. The result of an aggregation has no coordinates: it has one row per group,
and each group has its own key (``headrace.flow.compile.group_keys``). A plan that cannot pass on coordinates is
rejected.

When ``verify`` runs the function, the inputs also have ``_headrace_batch``, the batch that read the record. The batch
of a derived row is the latest batch of the records from which it was derived.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headrace.flow.compile.aggregates import break_ties, has_ties
from headrace.flow.compile.mistakes import FlowMistake
from headrace.flow.compile.plan import PlanNodes, analyzed, class_name, each, expr_id
from headrace.flow.compile.static_rows import make_deterministic
from headrace.model.declarations import Flow

__all__ = [
    "BATCH",
    "LINEAGE",
    "coordinates",
    "lineage_columns",
    "trace",
    "trace_output",
    "without_lineage",
]

LINEAGE = "_headrace_at"
BATCH = "_headrace_batch"
_INPUT_STEP = 2**32
_RECORD = 2
"""The number of coordinates that identify a record."""
_ABSENT = -1
"""The coordinate of a missing side of an outer join. It is lower than all others."""

# Nodes that return all columns of their only child, for all or some of its rows.
_PASS_THROUGH = frozenset(
    {
        "Filter",
        "SubqueryAlias",
        "View",
        "ResolvedHint",
        "EventTimeWatermark",
        "CollectMetrics",
        "Repartition",
        "RepartitionByExpression",
        "RebalancePartitions",
    }
)
_DEDUPLICATES = frozenset({"Deduplicate", "DeduplicateWithinWatermark"})
_ONE_SIDED = {"LeftSemi", "LeftAnti"}
# By join type: whether the join returns left rows without a match, and right rows without a match.
_KEEPS_UNMATCHED = {
    "LeftOuter": (True, False),
    "RightOuter": (False, True),
    "FullOuter": (True, True),
}


def coordinates(number: int) -> list[Column]:
    """Return the coordinates of the records of an input, from the columns ``partition`` and ``offset``."""
    source = F.lit(number * _INPUT_STEP) + F.col("partition").cast("long")
    return [source.alias(f"{LINEAGE}0"), F.col("offset").alias(f"{LINEAGE}1")]


def lineage_columns(frame: DataFrame) -> list[str]:
    """Return the names of the coordinate columns, in the order of comparison."""
    batch = [BATCH] if BATCH in frame.columns else []
    return [
        *batch,
        *sorted((n for n in frame.columns if n.startswith(LINEAGE)), key=lambda n: int(n[len(LINEAGE) :])),
    ]


def without_lineage(frames: Iterable[DataFrame]) -> list[DataFrame]:
    """Return the frames without coordinates, as arguments for the function."""
    return [frame.drop(*lineage_columns(frame)) for frame in frames]


def trace(flow: Flow, frames: Sequence[DataFrame]) -> DataFrame:
    """Call the function, and return its result with the coordinates of each row. Frames of events have coordinates;
    frames of tables have none.
    """
    return trace_output(flow, flow.function(*without_lineage(frames)))[0]


def trace_output(flow: Flow, output: DataFrame) -> tuple[DataFrame, bool]:
    """Return the output of the function with coordinates, and whether several rows can have the same coordinates."""
    nodes = PlanNodes(output.sparkSession)
    plan = analyzed(output)
    tracer = _Tracer(flow, nodes)
    traced = tracer.add_coordinates(plan)
    if traced.origin == "static":
        raise _untraceable(flow, "returns rows that do not come from its inputs")
    return nodes.frame(_named(nodes, traced, each(plan.output()))), tracer.ties


@dataclass(frozen=True, slots=True)
class _Traced:
    """A node, with the attributes that contain the coordinates of its rows."""

    node: Any
    origin: str
    """``rows``: derived from events. ``groups``: results of an aggregation. ``static``: rows of tables or of the
    function itself, which have no coordinates and do not change within a batch.
    """
    coords: tuple[Any, ...] = ()
    batch: Any = None

    @property
    def carried(self) -> list[Any]:
        return [*self.coords, *([] if self.batch is None else [self.batch])]


def _named(nodes: PlanNodes, traced: _Traced, columns: list[Any]) -> Any:
    """Return a projection to the columns of the function, followed by the named coordinates."""
    coords = [nodes.alias(column, f"{LINEAGE}{index}") for index, column in enumerate(traced.coords)]
    batch = [] if traced.batch is None else [nodes.alias(traced.batch, BATCH)]
    return nodes.project([*columns, *coords, *batch], traced.node)


class _Tracer:
    def __init__(self, flow: Flow, nodes: PlanNodes) -> None:
        self._flow = flow
        self._nodes = nodes
        self.ties = False

    def add_coordinates(self, node: Any) -> _Traced:
        """Return the plan with the coordinates among its columns."""
        if (input_node := self._as_input(node)) is not None:
            return input_node
        name = str(node.nodeName())
        original_children = each(node.children())
        children = [self.add_coordinates(child) for child in original_children]
        if all(child.origin == "static" for child in children):
            is_same = all(
                child.node is original for child, original in zip(children, original_children, strict=True)
            )
            static = node if is_same else self._nodes.with_children(node, [child.node for child in children])
            return _Traced(make_deterministic(self._nodes, static), "static")
        if name == "Join":
            return self._join(node, *children)
        if name == "Union":
            return self._union(node, children)
        [child] = children
        if name == "Project":
            project = self._nodes.project([*each(node.projectList()), *child.carried], child.node)
            return replace(child, node=project)
        if name in _PASS_THROUGH:
            return replace(child, node=self._nodes.with_children(node, [child.node]))
        if name == "Aggregate":
            return self._aggregate(node, child)
        if name in _DEDUPLICATES and child.origin == "rows":
            return self._deduplicate(node, child)
        if name == "Generate":
            return self._generate(node, child)
        if name == "Expand":
            return self._expand(node, child)
        raise _untraceable(self._flow, f"has a step ({name}) that hides which record a row comes from")

    def _as_input(self, node: Any) -> _Traced | None:
        """Return the node if it is an input of the function, which already has coordinates; else None."""
        named = {str(column.name()): column for column in each(node.output())}
        coords = [named[f"{LINEAGE}{index}"] for index in range(len(named)) if f"{LINEAGE}{index}" in named]
        return _Traced(node, "rows", tuple(coords), named.get(BATCH)) if coords else None

    def _join(self, node: Any, left: _Traced, right: _Traced) -> _Traced:
        kind = str(node.joinType())
        if left.origin != "static" and right.origin != "static":
            return self._join_streams(node, kind, left, right)
        event_side, coords = (left, 0) if right.origin == "static" else (right, 1)
        if _KEEPS_UNMATCHED.get(kind, (False, False))[1 - coords] or (coords == 1 and kind in _ONE_SIDED):
            raise _untraceable(self._flow, f"returns rows of a table without an event ({kind} join)")
        # One event can match several rows of the table.
        self.ties = self.ties or kind not in _ONE_SIDED
        return replace(event_side, node=self._nodes.with_children(node, [left.node, right.node]))

    def _join_streams(self, node: Any, kind: str, left: _Traced, right: _Traced) -> _Traced:
        # Rename the coordinates: a stream that is joined with itself has the same attributes on both sides.
        right = self._with_new_ids(right)
        joined = self._nodes.with_children(node, [left.node, right.node])
        if kind in _ONE_SIDED:
            return replace(left, node=joined) if left.batch is None else self._first_match(node, left, right)
        keeps_left, keeps_right = _KEEPS_UNMATCHED.get(kind, (False, False))
        coords = [self._coordinate(column, keeps_right) for column in left.coords]
        coords += [self._coordinate(column, keeps_left) for column in right.coords]
        names = [self._nodes.alias(column, "at") for column in coords]
        batch = None
        if left.batch is not None and right.batch is not None:
            batch = self._nodes.alias(self._nodes.greatest([left.batch, right.batch]), BATCH)
        return self._with_columns(_Traced(joined, "rows"), each(node.output()), names, batch)

    def _first_match(self, node: Any, left: _Traced, right: _Traced) -> _Traced:
        """For ``verify``: the batch of a left row is the first batch in which the row has a match."""
        joined = self._nodes.inner_join(node, left.node, right.node)
        batch = self._nodes.alias(self._nodes.greatest([left.batch, right.batch]), BATCH)
        columns = [column for column in each(left.node.output()) if expr_id(column) != expr_id(left.batch)]
        matches = self._nodes.project([*columns, batch], joined)
        batch_column = each(matches.output())[-1]
        first = self._nodes.first_of(list(left.coords), [batch_column], matches)
        return replace(left, node=first, batch=batch_column)

    def _coordinate(self, attribute: Any, may_be_absent: bool) -> Any:
        return self._nodes.coalesce([attribute, self._nodes.long(_ABSENT)]) if may_be_absent else attribute

    def _with_new_ids(self, traced: _Traced) -> _Traced:
        carried = {expr_id(column) for column in traced.carried}
        columns = [column for column in each(traced.node.output()) if expr_id(column) not in carried]
        coords = [self._nodes.alias(column, "at") for column in traced.coords]
        batch = None if traced.batch is None else self._nodes.alias(traced.batch, BATCH)
        return self._with_columns(traced, columns, coords, batch)

    def _with_columns(self, traced: _Traced, columns: list[Any], coords: list[Any], batch: Any) -> _Traced:
        """Return a projection to the columns and to named coordinates."""
        named = [*coords, *([] if batch is None else [batch])]
        project = self._nodes.project([*columns, *named], traced.node)
        carried = each(project.output())[len(columns) :]
        return _Traced(
            project, traced.origin, tuple(carried[: len(coords)]), None if batch is None else carried[-1]
        )

    def _union(self, node: Any, children: list[_Traced]) -> _Traced:
        if any(child.origin != children[0].origin for child in children):
            raise _untraceable(self._flow, "uses union to combine rows from events with other rows")
        width = max(len(child.coords) for child in children)
        branches = []
        for number, child in enumerate(children):
            carried = {expr_id(column) for column in child.carried}
            columns = [column for column in each(child.node.output()) if expr_id(column) not in carried]
            padding = [self._nodes.long(0) for _ in range(width - len(child.coords))]
            coords = [*child.coords[:_RECORD], self._nodes.long(number), *child.coords[_RECORD:], *padding]
            named = [self._nodes.alias(column, "at") for column in coords]
            batch = None if child.batch is None else self._nodes.alias(child.batch, BATCH)
            branches.append(self._with_columns(child, columns, named, batch))
        union = self._nodes.with_children(node, [branch.node for branch in branches])
        carried_columns = each(union.output())[len(each(node.output())) :]
        batch_column = carried_columns[-1] if branches[0].batch is not None else None
        # A union has the attributes of its first branch, and its parent nodes reference these attributes.
        return _Traced(union, children[0].origin, tuple(carried_columns[: width + 1]), batch_column)

    def _generate(self, node: Any, child: _Traced) -> _Traced:
        numbered = self._nodes.numbered(node, child.node)
        if numbered is None:
            raise _untraceable(
                self._flow, f"generates rows without a defined order ({class_name(node.generator())})"
            )
        generate, index = numbered
        columns = each(node.output())
        coords = [*child.coords, self._nodes.alias(index, "at")]
        return self._with_columns(_Traced(generate, child.origin), columns, coords, child.batch)

    def _expand(self, node: Any, child: _Traced) -> _Traced:
        expand, added = self._nodes.expanded(node, child.node, child.carried)
        coords = (*added[: len(child.coords)], added[-1])
        return _Traced(expand, child.origin, coords, added[-2] if child.batch is not None else None)

    def _deduplicate(self, node: Any, child: _Traced) -> _Traced:
        """Retain the duplicate that is first in the log, independently of Spark's shuffle."""
        keys = each(node.keys())
        ties = self._tie_breakers(child)
        if child.batch is not None and str(node.nodeName()) == "Deduplicate":
            first = self._nodes.first_of(keys, [child.batch, *child.coords, *ties], child.node)
            return replace(child, node=first)
        ordered = self._nodes.sorted_by_key(keys, [*child.carried, *ties], child.node)
        return replace(child, node=self._nodes.with_children(node, [ordered]))

    def _aggregate(self, node: Any, child: _Traced) -> _Traced:
        if child.origin != "rows":
            raise _untraceable(self._flow, "aggregates an aggregation")
        if has_ties(node):
            coords = [*child.coords, *self._tie_breakers(child)]
            return _Traced(break_ties(self._nodes, node, child.node, coords), "groups")
        return _Traced(self._nodes.with_children(node, [child.node]), "groups")

    def _tie_breakers(self, child: _Traced) -> list[Any]:
        """Return the columns that order rows with the same coordinates (one event joined with several table rows)."""
        if not self.ties:
            return []
        carried = {expr_id(column) for column in child.carried}
        columns = [column for column in each(child.node.output()) if expr_id(column) not in carried]
        return self._nodes.comparable(columns)


def _untraceable(flow: Flow, reason: str) -> FlowMistake:
    return FlowMistake(
        f"flow {flow.name} {reason}",
        location=flow.location,
        detail="each row must be traceable to its input record; otherwise the newest row of a key is unknown",
        hint="use select, where, explode, union, join, dropDuplicates and groupBy(...).agg(...); see docs/flows.md",
    )
