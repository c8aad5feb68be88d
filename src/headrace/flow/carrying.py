"""A column that goes along with each row through a function that knows nothing of it.

The source of a row is such a column: a function selects what it likes, and the row that it returns must still tell
which record it was made of. So the column is put into the plan behind the function's back: every projection on the way
passes it on. That is right as long as a row of the output is made of one row of the input, and of each at most one. A
plan of nothing but projections and filters is so; any other is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame

from headrace.flow.mistakes import FlowMistake
from headrace.model.flow import Flow

__all__ = ["SOURCE", "carried"]

SOURCE = "_headrace_source"
# Each gives the rows of its one child, with all their columns, or leaves some rows out.
_AS_THEY_COME = frozenset({"Filter", "SubqueryAlias", "View", "ResolvedHint", "EventTimeWatermark"})
_SEVERAL = {
    "Generate": "makes several rows of one (explode)",
    "Expand": "makes several rows of one",
    "Union": "puts rows together that come more than one way",
    "Join": "joins",
}


def carried(flow: Flow, rows: DataFrame, function: Callable[[DataFrame], DataFrame]) -> DataFrame:
    """What ``function`` makes of ``rows``, with their column ``_headrace_source``, which it does not see."""
    made = function(rows.drop(SOURCE))
    execution: Any = made._jdf.queryExecution()
    plan = execution.analyzed()
    jvm: Any = made.sparkSession._jvm
    if plan.containsPattern(jvm.org.apache.spark.sql.catalyst.trees.TreePattern.PLAN_EXPRESSION()):
        raise _refused(flow, "asks a query of its own for each row")
    source: Any = next(one for one in _each(_analyzed(rows).output()) if str(one.name()) == SOURCE)
    passed_on = _Passing(flow, jvm, source).through(plan)
    session: Any = made.sparkSession._jsparkSession
    return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(session, passed_on), made.sparkSession)


class _Passing:
    def __init__(self, flow: Flow, jvm: Any, source: Any) -> None:
        self._flow = flow
        self._jvm = jvm
        self._source = source
        self._id = int(source.exprId().id())

    def through(self, node: Any) -> Any:
        """The same plan, with the column among what it gives."""
        if any(int(one.exprId().id()) == self._id for one in _each(node.output())):
            return node
        name, children = str(node.nodeName()), _each(node.children())
        if not children:
            # Rows that come from elsewhere have no source.
            raise _refused(self._flow, f"has rows that are not of its input ({name})")
        if name == "Project":
            columns = [*_each(node.projectList()), self._source]
            project = self._jvm.org.apache.spark.sql.catalyst.plans.logical.Project
            return project(self._sequence(columns), self.through(children[0]))
        if name in _AS_THEY_COME:
            return node.withNewChildren(self._sequence([self.through(children[0])]))
        raise _refused(self._flow, _SEVERAL.get(name, f"has a step that does not go row by row ({name})"))

    def _sequence(self, items: list[Any]) -> Any:
        listed = self._jvm.java.util.ArrayList()
        for one in items:
            listed.add(one)
        return self._jvm.org.apache.spark.api.python.PythonUtils.toSeq(listed)


def _refused(flow: Flow, why: str) -> FlowMistake:
    return FlowMistake(
        f"flow {flow.name} cannot run in real time: it {why}",
        place=flow.place,
        detail="each record of its input must give one row at most, by select, withColumn, where and the like",
        hint='leave latency="realtime" away, or let another flow do the rest',
    )


def _analyzed(frame: DataFrame) -> Any:
    execution: Any = frame._jdf.queryExecution()
    return execution.analyzed()


def _each(found: Any) -> list[Any]:
    return [found.apply(at) for at in range(found.size())]
