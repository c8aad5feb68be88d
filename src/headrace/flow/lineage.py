"""The coordinates of each row, carried through a function that does not see them.

Spark hands rows over in no order wherever it shuffles: behind a join, an aggregation, ``dropDuplicates``. What counts
for a key is its last row, so each row brings its coordinates along: which record of the input it comes from, and which
of the rows made of that record it is. They are BIGINT columns, compared one after the other:

    _headrace_at0    number of the input among those that the flow reads * 2**32 + partition
    _headrace_at1    offset
    _headrace_at2…   one for each union and ``explode`` on the way: the branch of the union, the place in the list;
                     behind a join of two streams, the coordinates of the other side

The function selects the columns that it wants, so these are added to Spark's analyzed plan behind its back: every
projection on the way passes them on. An aggregation ends them: it gives one row for each group, and a group is a key of
its own (``headrace.flow.updates``). A plan in which coordinates cannot be carried is refused at the user's line.

Over history the inputs also have ``_headrace_batch``, the batch that read the record; a row has the batch that writes
it, the latest of those that it is made of.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headrace.flow.mistakes import FlowMistake
from headrace.flow.plan_nodes import PlanNodes, expr_id
from headrace.flow.plan_tree import analyzed, class_name, each
from headrace.flow.static_rows import make_deterministic
from headrace.flow.tie_breaking import break_ties, has_ties
from headrace.model.flow import Flow

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
"""So many coordinates name a record."""
_ABSENT = -1
"""The coordinate of the side of an outer join that has no row: before all others."""

# Nodes that give the rows of their one child with all columns, or leave some rows out.
_PASSING = frozenset(
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
# By the type of a join, whether rows without a partner are kept of the left side, and of the right.
_KEPT = {
    "LeftOuter": (True, False),
    "RightOuter": (False, True),
    "FullOuter": (True, True),
}


def coordinates(number: int) -> list[Column]:
    """Of a record of the input with this number; its frame has the columns ``partition`` and ``offset``."""
    source = F.lit(number * _INPUT_STEP) + F.col("partition").cast("long")
    return [source.alias(f"{LINEAGE}0"), F.col("offset").alias(f"{LINEAGE}1")]


def lineage_columns(frame: DataFrame) -> list[str]:
    """In the order in which they are compared."""
    batch = [BATCH] if BATCH in frame.columns else []
    return [
        *batch,
        *sorted((n for n in frame.columns if n.startswith(LINEAGE)), key=lambda n: int(n[len(LINEAGE) :])),
    ]


def without_lineage(frames: Iterable[DataFrame]) -> list[DataFrame]:
    """What the function is called with."""
    return [frame.drop(*lineage_columns(frame)) for frame in frames]


def trace(flow: Flow, frames: Sequence[DataFrame]) -> DataFrame:
    """What the function makes of the frames, with the coordinates of each row. Frames of events have coordinates; those
    of tables have none.
    """
    return trace_output(flow, flow.function(*without_lineage(frames)))[0]


def trace_output(flow: Flow, output: DataFrame) -> tuple[DataFrame, bool]:
    """The output of the function with coordinates, and whether several rows may have the same."""
    nodes = PlanNodes(output.sparkSession)
    plan = analyzed(output)
    tracer = _Tracer(flow, nodes)
    traced = tracer.through(plan)
    if traced.origin == "static":
        raise _refused(flow, "returns rows that do not come from its inputs")
    return nodes.frame(_named(nodes, traced, each(plan.output()))), tracer.ties


@dataclass(frozen=True, slots=True)
class _Traced:
    """A node, with the attributes that hold the coordinates of its rows."""

    node: Any
    origin: str
    """``rows`` of events; ``groups`` of them; ``static``: without coordinates, the same throughout a batch."""
    at: tuple[Any, ...] = ()
    batch: Any = None

    @property
    def carried(self) -> list[Any]:
        return [*self.at, *([] if self.batch is None else [self.batch])]


def _named(nodes: PlanNodes, traced: _Traced, columns: list[Any]) -> Any:
    """The columns of the function, then the coordinates under their names."""
    at = [nodes.alias(one, f"{LINEAGE}{place}") for place, one in enumerate(traced.at)]
    batch = [] if traced.batch is None else [nodes.alias(traced.batch, BATCH)]
    return nodes.project([*columns, *at, *batch], traced.node)


class _Tracer:
    def __init__(self, flow: Flow, nodes: PlanNodes) -> None:
        self._flow = flow
        self._nodes = nodes
        self.ties = False

    def through(self, node: Any) -> _Traced:
        """The same plan, with the coordinates among its columns."""
        if (found := self._found(node)) is not None:
            return found
        name = str(node.nodeName())
        below = each(node.children())
        children = [self.through(child) for child in below]
        if all(child.origin == "static" for child in children):
            is_same = all(child.node is one for child, one in zip(children, below, strict=True))
            given = node if is_same else self._nodes.with_children(node, [child.node for child in children])
            return _Traced(make_deterministic(self._nodes, given), "static")
        if name == "Join":
            return self._join(node, *children)
        if name == "Union":
            return self._union(node, children)
        [child] = children
        if name == "Project":
            project = self._nodes.project([*each(node.projectList()), *child.carried], child.node)
            return replace(child, node=project)
        if name in _PASSING:
            return replace(child, node=self._nodes.with_children(node, [child.node]))
        if name == "Aggregate":
            return self._aggregate(node, child)
        if name in _DEDUPLICATES and child.origin == "rows":
            return self._deduplicate(node, child)
        if name == "Generate":
            return self._generate(node, child)
        if name == "Expand":
            return self._expand(node, child)
        raise _refused(self._flow, f"has a step that hides which record a row comes from ({name})")

    def _found(self, node: Any) -> _Traced | None:
        """Where the function's input begins, below what it does not see."""
        named = {str(one.name()): one for one in each(node.output())}
        at = [named[f"{LINEAGE}{place}"] for place in range(len(named)) if f"{LINEAGE}{place}" in named]
        return _Traced(node, "rows", tuple(at), named.get(BATCH)) if at else None

    def _join(self, node: Any, left: _Traced, right: _Traced) -> _Traced:
        kind = str(node.joinType())
        if left.origin != "static" and right.origin != "static":
            return self._join_streams(node, kind, left, right)
        carrier, at = (left, 0) if right.origin == "static" else (right, 1)
        if _KEPT.get(kind, (False, False))[1 - at] or (at == 1 and kind in _ONE_SIDED):
            raise _refused(self._flow, f"keeps rows of a table that no event belongs to ({kind} join)")
        # One event may find several rows of the table.
        self.ties = self.ties or kind not in _ONE_SIDED
        return replace(carrier, node=self._nodes.with_children(node, [left.node, right.node]))

    def _join_streams(self, node: Any, kind: str, left: _Traced, right: _Traced) -> _Traced:
        # A stream that is joined with itself has the same attributes on both sides.
        right = self._renewed(right)
        joined = self._nodes.with_children(node, [left.node, right.node])
        if kind in _ONE_SIDED:
            return (
                replace(left, node=joined) if left.batch is None else self._first_partner(node, left, right)
            )
        keeps_left, keeps_right = _KEPT.get(kind, (False, False))
        at = [self._present(one, keeps_right) for one in left.at]
        at += [self._present(one, keeps_left) for one in right.at]
        names = [self._nodes.alias(one, "at") for one in at]
        batch = None
        if left.batch is not None and right.batch is not None:
            batch = self._nodes.alias(self._nodes.greatest([left.batch, right.batch]), BATCH)
        return self._with_columns(_Traced(joined, "rows"), each(node.output()), names, batch)

    def _first_partner(self, node: Any, left: _Traced, right: _Traced) -> _Traced:
        """Over history: the batch that first has a partner for a row of the left side writes that row."""
        joined = self._nodes.inner_join(node, left.node, right.node)
        batch = self._nodes.alias(self._nodes.greatest([left.batch, right.batch]), BATCH)
        columns = [one for one in each(left.node.output()) if expr_id(one) != expr_id(left.batch)]
        paired = self._nodes.project([*columns, batch], joined)
        batch_given = each(paired.output())[-1]
        first = self._nodes.first_of(list(left.at), [batch_given], paired)
        return replace(left, node=first, batch=batch_given)

    def _present(self, attribute: Any, may_lack: bool) -> Any:
        return self._nodes.coalesce([attribute, self._nodes.long(_ABSENT)]) if may_lack else attribute

    def _renewed(self, traced: _Traced) -> _Traced:
        carried = {expr_id(one) for one in traced.carried}
        columns = [one for one in each(traced.node.output()) if expr_id(one) not in carried]
        at = [self._nodes.alias(one, "at") for one in traced.at]
        batch = None if traced.batch is None else self._nodes.alias(traced.batch, BATCH)
        return self._with_columns(traced, columns, at, batch)

    def _with_columns(self, traced: _Traced, columns: list[Any], at: list[Any], batch: Any) -> _Traced:
        """A projection to the columns, and to coordinates that are named here."""
        named = [*at, *([] if batch is None else [batch])]
        project = self._nodes.project([*columns, *named], traced.node)
        given = each(project.output())[len(columns) :]
        at_given = tuple(given[: len(at)])
        return _Traced(project, traced.origin, at_given, None if batch is None else given[-1])

    def _union(self, node: Any, children: list[_Traced]) -> _Traced:
        if any(child.origin != children[0].origin for child in children):
            raise _refused(self._flow, "puts together rows of events and others")
        width = max(len(child.at) for child in children)
        branches = []
        for number, child in enumerate(children):
            carried = {expr_id(one) for one in child.carried}
            columns = [one for one in each(child.node.output()) if expr_id(one) not in carried]
            padding = [self._nodes.long(0) for _ in range(width - len(child.at))]
            at = [*child.at[:_RECORD], self._nodes.long(number), *child.at[_RECORD:], *padding]
            named = [self._nodes.alias(one, "at") for one in at]
            batch = None if child.batch is None else self._nodes.alias(child.batch, BATCH)
            branches.append(self._with_columns(child, columns, named, batch))
        union = self._nodes.with_children(node, [branch.node for branch in branches])
        given = each(union.output())[len(each(node.output())) :]
        batch_given = given[-1] if branches[0].batch is not None else None
        # The attributes of a union are those of its first branch, and that is where its parents find their columns.
        return _Traced(union, children[0].origin, tuple(given[: width + 1]), batch_given)

    def _generate(self, node: Any, child: _Traced) -> _Traced:
        numbered = self._nodes.numbered(node, child.node)
        if numbered is None:
            raise _refused(
                self._flow, f"generates rows without a defined order ({class_name(node.generator())})"
            )
        generate, place = numbered
        columns = each(node.output())
        at = [*child.at, self._nodes.alias(place, "at")]
        return self._with_columns(_Traced(generate, child.origin), columns, at, child.batch)

    def _expand(self, node: Any, child: _Traced) -> _Traced:
        expand, given = self._nodes.expanded(node, child.node, child.carried)
        at = (*given[: len(child.at)], given[-1])
        return _Traced(expand, child.origin, at, given[-2] if child.batch is not None else None)

    def _deduplicate(self, node: Any, child: _Traced) -> _Traced:
        """The first row of each in the order of the log is kept, however Spark has shuffled them."""
        keys = each(node.keys())
        ties = self._tie_breakers(child)
        if child.batch is not None and str(node.nodeName()) == "Deduplicate":
            first = self._nodes.first_of(keys, [child.batch, *child.at, *ties], child.node)
            return replace(child, node=first)
        ordered = self._nodes.sorted_by_key(keys, [*child.carried, *ties], child.node)
        return replace(child, node=self._nodes.with_children(node, [ordered]))

    def _aggregate(self, node: Any, child: _Traced) -> _Traced:
        if child.origin != "rows":
            raise _refused(self._flow, "adds up what it has added up before")
        if has_ties(node):
            at = [*child.at, *self._tie_breakers(child)]
            return _Traced(break_ties(self._nodes, node, child.node, at), "groups")
        return _Traced(self._nodes.with_children(node, [child.node]), "groups")

    def _tie_breakers(self, child: _Traced) -> list[Any]:
        """The columns that order rows with the same coordinates: one event joined with several rows of a table."""
        if not self.ties:
            return []
        carried = {expr_id(one) for one in child.carried}
        columns = [one for one in each(child.node.output()) if expr_id(one) not in carried]
        return self._nodes.comparable(columns)


def _refused(flow: Flow, why: str) -> FlowMistake:
    return FlowMistake(
        f"flow {flow.name} {why}",
        place=flow.place,
        detail="a row must show which record it comes from, or nobody knows which row of a key is the newest",
        hint="use select, where, explode, unions, joins, dropDuplicates and groupBy(...).agg(...); see docs/flows.md",
    )
