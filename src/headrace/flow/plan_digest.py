"""Spark's analyzed plan as one text that is complete: every node, and every argument of every expression.

Spark's own text of a plan leaves out what is beyond 25 fields. This one is made by walking the plan's constructor
arguments. Left out is what says nothing about the rows:

- names of columns (their places count; the names of the result are in its schema), aliases, hints, metrics
- numbers that Spark gives out as it goes, which are numbered again in the order in which the text has them

Functions in Python cannot be in the text, nor how the function came to rows of its own; ``PlanDigest`` says that there
are some. A function in the JVM has no text, and neither have files: ``hidden`` and ``files`` have what reads them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from py4j.java_collections import JavaArray
from py4j.java_gateway import JavaObject, is_instance_of
from pyspark.sql import DataFrame, SparkSession

from headrace.flow.plan_tree import children, each

__all__ = ["PlanDigest", "Trail", "plan_digest"]

_PLANS = "org.apache.spark.sql.catalyst.plans.logical.LogicalPlan"
_LEAVES = "org.apache.spark.sql.catalyst.plans.logical.LeafNode"
_KINDS = (
    ("tree", "org.apache.spark.sql.catalyst.trees.TreeNode"),
    ("type", "org.apache.spark.sql.types.DataType"),
    ("id", "org.apache.spark.sql.catalyst.expressions.ExprId"),
    ("common id", "org.apache.spark.sql.catalyst.expressions.CommonExpressionId"),
    ("python", "org.apache.spark.api.python.PythonFunction"),
    ("resources", "org.apache.spark.resource.ResourceProfile"),
    ("map", "scala.collection.Map"),
    ("set", "scala.collection.Set"),
    ("seq", "scala.collection.Seq"),
    ("product", "scala.Product"),
)
"""In the order in which they are tried: a Scala list is a product, too."""
_ARGUMENTS_AS_TEXT = frozenset({"org.apache.spark.sql.catalyst.expressions.NumericEvalContext"})
"""Of plain values only, and in every sum and product of columns."""

_PASSED = frozenset({"SubqueryAlias", "View", "ResolvedHint", "CollectMetrics"})
_LEFT_OUT = frozenset(
    {
        ("Join", "hint"),
        ("PythonUDF", "name"),
        ("PythonUDAF", "name"),
        ("PythonUDTF", "name"),
        ("Range", "numSlices"),
    }
)
_NUMBERED = {
    ("CTERelationDef", "id"): "relation",
    ("CTERelationRef", "cteId"): "relation",
    ("LambdaVariable", "id"): "variable",
    ("UnionLoop", "id"): "loop",
    ("UnionLoopRef", "loopId"): "loop",
}
_WHOLE_LEAVES = frozenset(
    {"CTERelationRef", "OneRowRelation", "Range", "ResolvedInlineTable", "UnionLoopRef"}
)
"""Plans without children whose arguments say which rows they give."""
_PYTHON_STEPS = re.compile(
    r"(Map\w*In(Arrow|Pandas)|FlatMap\w*(Pandas|Arrow|Python)\w*|TransformWithStateInPy\w*)$"
)
_IDENTITY = re.compile(r"@[0-9a-f]+\b|\$\$Lambda")


Trail = tuple[Any, ...]
"""An expression, and the expressions and nodes around it, innermost first."""


@dataclass(slots=True)
class PlanDigest:
    text: str = ""
    python: list[tuple[str, Any]] = field(default_factory=list)
    """The functions in Python that rows go through: the name in the plan, and Spark's object for it."""
    has_foreign_rows: bool = False
    """Whether some rows come from the function itself, and not from the inputs."""
    files: list[Any] = field(default_factory=list)
    """The nodes that read what may change while the function stays as it is: files, tables of Spark's catalog."""
    hidden: list[Trail] = field(default_factory=list)
    """Expressions that hold something without a text."""
    steps: dict[str, list[Any]] = field(default_factory=dict)
    """The nodes of the plan, by the simple name of their class; those of plans inside expressions, too."""
    expressions: dict[str, list[Trail]] = field(default_factory=dict)
    """Every expression, also those inside others, by the simple name of its class."""

    @property
    def runs_python(self) -> bool:
        return bool(self.python)


def plan_digest(output: DataFrame, inputs: list[DataFrame]) -> PlanDigest:
    """``output`` is what the function returns for ``inputs``, which are not streams."""
    execution: Any = output._jdf.queryExecution()
    walk = _Walk(output.sparkSession, inputs)
    walk.digest.text = walk.encode(execution.analyzed())
    return walk.digest


_instances: dict[tuple[str, str], bool] = {}
_kinds: dict[str, str] = {}
_parameters: dict[str, list[str]] = {}
"""By the class of the JVM, whose objects all have the same."""


class _Walk:
    def __init__(self, spark: SparkSession, inputs: list[DataFrame]) -> None:
        self.digest = PlanDigest()
        self._spark: Any = spark
        self._inputs = {_rdd(frame._jdf.queryExecution().analyzed()): at for at, frame in enumerate(inputs)}
        self._numbers: dict[tuple[str, int], int] = {}
        self._trail: Trail = ()

    def encode(self, value: Any) -> str:
        if not isinstance(value, JavaObject):
            return f"{type(value).__name__} {value!r}"
        if isinstance(value, JavaArray):
            return f"[{', '.join(map(self.encode, value))}]"
        name = str(value.getClass().getName())
        match self._kind(name, value):
            case "tree":
                return self._tree(name, value)
            case "type":
                return str(value.json())
            case "id" | "common id" as kind:
                return self._number(kind, value.id())
            case "python":
                self.digest.python.append((str(self._trail[0].name()), value))
                return "python"
            case "resources":
                return ""
            case "map" | "set":
                return f"{{{', '.join(sorted(map(self.encode, each(value.toSeq()))))}}}"
            case "seq":
                return f"[{', '.join(map(self.encode, each(value)))}]"
            case "product" if name not in _ARGUMENTS_AS_TEXT:
                return f"{name}({', '.join(map(self.encode, each(value.productIterator().toSeq())))})"
        text = str(value.toString())
        if _IDENTITY.search(text) and not name.endswith(".UTF8String"):
            self.digest.hidden.append(self._trail)
            return "hidden"
        return f"{name} {text!r}"

    def _kind(self, name: str, value: Any) -> str:
        if name not in _kinds:
            _kinds[name] = next((kind for kind, of in _KINDS if self._is(name, value, of)), "")
        return _kinds[name]

    def _number(self, kind: str, number: int) -> str:
        return f"#{self._numbers.setdefault((kind, int(number)), len(self._numbers))}"

    def _tree(self, name: str, node: Any) -> str:
        around, simple = self._trail, name.rpartition(".")[2]
        self._trail = (node, *around)
        if self._is(name, node, _PLANS):
            self.digest.steps.setdefault(simple, []).append(node)
        else:
            self.digest.expressions.setdefault(simple, []).append(self._trail)
        text = self._node(name, simple, node)
        self._trail = around
        return text

    def _node(self, name: str, simple: str, node: Any) -> str:
        match simple:
            case "AttributeReference":
                return self._attribute(node)
            case "Alias":
                return f"{self.encode(node.child())} as {self._number('id', node.exprId().id())}"
            case "NamedLambdaVariable":
                return f"{self._number('id', node.exprId().id())} {node.dataType().json()}"
            case "Literal":
                return f"{node.sql()} {node.dataType().json()}"
            case "LogicalRDD" if (at := self._inputs.get(_rdd(node))) is not None:
                return f"input {at} {self.encode(node.output())}"
            case "LocalRelation":
                return f"rows {self.encode(node.output())} {self._rows(node)}"
        inner = children(node) if simple in _PASSED or _PYTHON_STEPS.match(simple) else []
        if simple in _PASSED:
            [child] = inner
            return self.encode(child)
        if self._is(name, node, _LEAVES) and simple not in _WHOLE_LEAVES:
            self.digest.has_foreign_rows = True
            if simple == "LogicalRDD":
                return f"rows {self.encode(node.output())} {self._rows(node)}"
            self.digest.files.append(node)
            return f"{name} {self.encode(node.output())}"
        arguments = [
            self._number(kind, value) if (kind := _NUMBERED.get((simple, parameter))) else self.encode(value)
            for parameter, value in self._arguments(name, simple, node)
        ]
        # A function over whole rows sees the names of their columns.
        arguments += [str(child.schema().json()) for child in inner]
        return f"{name}({', '.join(arguments)})"

    def _arguments(self, name: str, simple: str, node: Any) -> list[tuple[str, Any]]:
        if name not in _parameters:
            _parameters[name] = [str(node.productElementName(index)) for index in range(node.productArity())]
        return [
            (parameter, node.productElement(index))
            for index, parameter in enumerate(_parameters[name])
            if (simple, parameter) not in _LEFT_OUT
        ]

    def _attribute(self, node: Any) -> str:
        number = int(node.exprId().id())
        is_new = ("id", number) not in self._numbers
        text = self._number("id", number)
        return f"{text} {node.dataType().json()}" if is_new else text

    def _is(self, name: str, value: Any, of: str) -> bool:
        if (name, of) not in _instances:
            _instances[name, of] = bool(is_instance_of(self._spark.sparkContext._gateway, value, of))
        return _instances[name, of]

    def _rows(self, node: Any) -> str:
        """As Spark's binary rows, which are the same however they were handed over."""
        jvm = self._spark._jvm
        frame = jvm.org.apache.spark.sql.classic.Dataset.ofRows(self._spark._jsparkSession, node)
        rows = frame.queryExecution().executedPlan().executeCollect()
        return str(jvm.scala.collection.immutable.ArraySeq.unsafeWrapArray(rows).mkString(" "))


def _rdd(relation: Any) -> int | None:
    """The number of the RDD that a relation reads, which copies of the relation share."""
    return int(relation.rdd().id()) if relation.nodeName() == "LogicalRDD" else None
