"""Spark's analyzed plan as one complete text: every node, and every argument of every expression.

Spark's own text of a plan shows at most 25 fields of a node. This text has all constructor arguments of the plan's
nodes, except for parts that do not affect the rows:

- It omits names of columns, aliases, hints and metrics. Columns are identified by position, and the names of the result
  are in its schema.
- It replaces the ids that Spark assigns by new numbers, in the order of the text.

The text cannot include the code of Python functions and of functions that create rows: ``PlanDigest.python`` and
``has_foreign_rows`` report these. JVM functions and files have no text either: ``hidden`` and ``files`` have the nodes
that use them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from py4j.java_collections import JavaArray
from py4j.java_gateway import JavaObject, is_instance_of
from pyspark.sql import DataFrame, SparkSession

from headrace.flow.compile.plan import children, each, full_class_name

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
"""The order matters: for example, a Scala list is also a product, so ``seq`` is checked first."""
_ARGUMENTS_AS_TEXT = frozenset({"org.apache.spark.sql.catalyst.expressions.NumericEvalContext"})
"""Arguments of this class are encoded with their own text. The class occurs in every sum and product of columns, and
has only simple values.
"""

_TRANSPARENT = frozenset({"SubqueryAlias", "View", "ResolvedHint", "CollectMetrics"})
_OMITTED_ARGUMENTS = frozenset(
    {
        ("Join", "hint"),
        ("PythonUDF", "name"),
        ("PythonUDAF", "name"),
        ("PythonUDTF", "name"),
        ("Range", "numSlices"),
    }
)
_RENUMBERED_IDS = {
    ("CTERelationDef", "id"): "relation",
    ("CTERelationRef", "cteId"): "relation",
    ("LambdaVariable", "id"): "variable",
    ("UnionLoop", "id"): "loop",
    ("UnionLoopRef", "loopId"): "loop",
}
_WHOLE_LEAVES = frozenset(
    {"CTERelationRef", "OneRowRelation", "Range", "ResolvedInlineTable", "UnionLoopRef"}
)
"""Leaf nodes whose arguments define their rows completely."""
_PYTHON_STEPS = re.compile(
    r"(Map\w*In(Arrow|Pandas)|FlatMap\w*(Pandas|Arrow|Python)\w*|TransformWithStateInPy\w*)$"
)
_IDENTITY = re.compile(r"@[0-9a-f]+\b|\$\$Lambda")


Trail = tuple[Any, ...]
"""An expression, followed by the expressions and nodes that contain it, innermost first."""


@dataclass(slots=True)
class PlanDigest:
    text: str = ""
    python: list[tuple[str, Any]] = field(default_factory=list)
    """The Python functions that process rows: the name in the plan, and Spark's object for the function."""
    has_foreign_rows: bool = False
    """Whether the flow's function creates rows, instead of deriving them from its inputs."""
    files: list[Any] = field(default_factory=list)
    """Nodes that read data outside of the function, which can change: files, tables of Spark's catalog."""
    hidden: list[Trail] = field(default_factory=list)
    """Expressions with an argument that has no text."""
    steps: dict[str, list[Any]] = field(default_factory=dict)
    """The nodes of the plan and of its subqueries, by the simple name of their class."""
    expressions: dict[str, list[Trail]] = field(default_factory=dict)
    """Every expression, including nested expressions, by the simple name of its class."""

    @property
    def runs_python(self) -> bool:
        return bool(self.python)


def plan_digest(output: DataFrame, inputs: list[DataFrame]) -> PlanDigest:
    """``output`` is the result of the function for ``inputs``, which are not streams."""
    execution: Any = output._jdf.queryExecution()
    walk = _Walk(output.sparkSession, inputs)
    walk.digest.text = walk.encode(execution.analyzed())
    return walk.digest


_instances: dict[tuple[str, str], bool] = {}
_kinds: dict[str, str] = {}
_parameters: dict[str, list[str]] = {}
"""Caches by JVM class."""


class _Walk:
    def __init__(self, spark: SparkSession, inputs: list[DataFrame]) -> None:
        self.digest = PlanDigest()
        self._spark: Any = spark
        self._inputs = {
            _rdd(frame._jdf.queryExecution().analyzed()): index for index, frame in enumerate(inputs)
        }
        self._numbers: dict[tuple[str, int], int] = {}
        self._trail: Trail = ()

    def encode(self, value: Any) -> str:
        if not isinstance(value, JavaObject):
            return f"{type(value).__name__} {value!r}"
        if isinstance(value, JavaArray):
            return f"[{', '.join(map(self.encode, value))}]"
        name = full_class_name(value)
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
            _kinds[name] = next(
                (kind for kind, java_class in _KINDS if self._is(name, value, java_class)), ""
            )
        return _kinds[name]

    def _number(self, kind: str, number: int) -> str:
        return f"#{self._numbers.setdefault((kind, int(number)), len(self._numbers))}"

    def _tree(self, name: str, node: Any) -> str:
        outer_trail, class_name = self._trail, name.rpartition(".")[2]
        self._trail = (node, *outer_trail)
        if self._is(name, node, _PLANS):
            self.digest.steps.setdefault(class_name, []).append(node)
        else:
            self.digest.expressions.setdefault(class_name, []).append(self._trail)
        text = self._node(name, class_name, node)
        self._trail = outer_trail
        return text

    def _node(self, name: str, class_name: str, node: Any) -> str:
        match class_name:
            case "AttributeReference":
                return self._attribute(node)
            case "Alias":
                return f"{self.encode(node.child())} as {self._number('id', node.exprId().id())}"
            case "NamedLambdaVariable":
                return f"{self._number('id', node.exprId().id())} {node.dataType().json()}"
            case "Literal":
                return f"{node.sql()} {node.dataType().json()}"
            case "LogicalRDD" if (input_index := self._inputs.get(_rdd(node))) is not None:
                return f"input {input_index} {self.encode(node.output())}"
            case "LocalRelation":
                return f"rows {self.encode(node.output())} {self._rows(node)}"
        inner = children(node) if class_name in _TRANSPARENT or _PYTHON_STEPS.match(class_name) else []
        if class_name in _TRANSPARENT:
            [child] = inner
            return self.encode(child)
        if self._is(name, node, _LEAVES) and class_name not in _WHOLE_LEAVES:
            self.digest.has_foreign_rows = True
            if class_name == "LogicalRDD":
                return f"rows {self.encode(node.output())} {self._rows(node)}"
            self.digest.files.append(node)
            return f"{name} {self.encode(node.output())}"
        arguments = [
            self._number(kind, value)
            if (kind := _RENUMBERED_IDS.get((class_name, parameter)))
            else self.encode(value)
            for parameter, value in self._arguments(name, class_name, node)
        ]
        # A function over whole rows can use their column names.
        arguments += [str(child.schema().json()) for child in inner]
        return f"{name}({', '.join(arguments)})"

    def _arguments(self, name: str, class_name: str, node: Any) -> list[tuple[str, Any]]:
        if name not in _parameters:
            _parameters[name] = [str(node.productElementName(index)) for index in range(node.productArity())]
        return [
            (parameter, node.productElement(index))
            for index, parameter in enumerate(_parameters[name])
            if (class_name, parameter) not in _OMITTED_ARGUMENTS
        ]

    def _attribute(self, node: Any) -> str:
        number = int(node.exprId().id())
        is_new = ("id", number) not in self._numbers
        text = self._number("id", number)
        return f"{text} {node.dataType().json()}" if is_new else text

    def _is(self, name: str, value: Any, java_class: str) -> bool:
        if (name, java_class) not in _instances:
            _instances[name, java_class] = bool(
                is_instance_of(self._spark.sparkContext._gateway, value, java_class)
            )
        return _instances[name, java_class]

    def _rows(self, node: Any) -> str:
        """Return the rows in Spark's binary format, which does not depend on how the rows were passed to Spark."""
        jvm = self._spark._jvm
        frame = jvm.org.apache.spark.sql.classic.Dataset.ofRows(self._spark._jsparkSession, node)
        rows = frame.queryExecution().executedPlan().executeCollect()
        return str(jvm.scala.collection.immutable.ArraySeq.unsafeWrapArray(rows).mkString(" "))


def _rdd(relation: Any) -> int | None:
    """Return the id of a relation's RDD. Copies of the relation have the same id."""
    return int(relation.rdd().id()) if relation.nodeName() == "LogicalRDD" else None
