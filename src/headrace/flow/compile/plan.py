"""Reads and builds nodes and expressions of Spark's logical plans from Python.

Every call to the JVM takes about a tenth of a millisecond. Plans and nodes never change, so the plan of a frame, and
the class and children of a node, are requested once and kept with the Python object. New nodes are already resolved:
they use the attributes of the plan, and new columns get new ids.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "OrderSensitiveOperators",
    "PlanNodes",
    "analyzed",
    "children",
    "class_name",
    "each",
    "expr_id",
    "expressions",
    "full_class_name",
    "nodes",
    "order_sensitive_operators",
]
_CATALYST = "org.apache.spark.sql.catalyst."
_CHILDREN, _CLASS_NAME = "_headrace_children", "_headrace_class_name"
_analyzed: WeakKeyDictionary[DataFrame, Any] = WeakKeyDictionary()


def analyzed(frame: DataFrame) -> Any:
    """Return Spark's analyzed plan, with common table expressions (``WITH``) inlined and pipes (``|>``) removed."""
    plan = _analyzed.get(frame)
    if plan is None:
        plan = _analyzed[frame] = _analyze(frame)
    return plan


def _analyze(frame: DataFrame) -> Any:
    catalyst: Any = frame.sparkSession._jvm.org.apache.spark.sql.catalyst  # type: ignore[union-attr]
    plan: Any = frame._jdf.queryExecution().analyzed()
    plan = catalyst.expressions.EliminatePipeOperators.apply(plan)
    return catalyst.optimizer.InlineCTE(True, False).apply(plan)


def each(seq: Any) -> list[Any]:
    """Return the elements of a Scala ``Seq``."""
    return [seq.apply(index) for index in range(seq.size())]


def children(node: Any) -> list[Any]:
    if _CHILDREN not in node.__dict__:
        node.__dict__[_CHILDREN] = each(node.children())
    return [*node.__dict__[_CHILDREN]]


def class_name(node: Any) -> str:
    if _CLASS_NAME not in node.__dict__:
        node.__dict__[_CLASS_NAME] = str(_class_utils().getSimpleName(node))
    return str(node.__dict__[_CLASS_NAME])


def full_class_name(value: Any) -> str:
    return str(_class_utils().getName(value))


def _class_utils() -> Any:
    """Return a class that needs one call for a name, and not one for the class and another for its name."""
    jvm: Any = SparkContext._jvm
    return jvm.org.apache.commons.lang3.ClassUtils


def nodes(tree: Any, *, subqueries: bool = False) -> Iterator[Any]:
    """Yield the nodes of a plan or an expression, parents before children. With ``subqueries``, also yield the nodes of
    plans inside expressions.
    """
    yield tree
    for child in children(tree):
        yield from nodes(child, subqueries=subqueries)
    if subqueries:
        for plan in each(tree.subqueries()):
            yield from nodes(plan, subqueries=True)


def leaf_columns(plan: Any) -> Iterator[Any]:
    """Yield the columns of the sources that the plan reads."""
    for node in nodes(plan):
        if not children(node):
            yield from each(node.output())


def expressions(node: Any) -> list[Any]:
    """Return the expressions of a node, without nested expressions."""
    return each(node.expressions())


def expr_id(named: Any) -> int:
    return int(named.exprId().id())


class PlanNodes:
    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        jvm: Any = spark._jvm
        self._expressions = jvm.org.apache.spark.sql.catalyst.expressions
        self._jvm = jvm
        self._logical = jvm.org.apache.spark.sql.catalyst.plans.logical
        types = jvm.org.apache.spark.sql.types.DataTypes
        self._int_type, self._long_type, self._string_type = (
            types.IntegerType,
            types.LongType,
            types.StringType,
        )

    def frame(self, plan: Any) -> DataFrame:
        session: Any = self._spark._jsparkSession
        return DataFrame(self._jvm.org.apache.spark.sql.classic.Dataset.ofRows(session, plan), self._spark)

    def sequence(self, items: Iterable[Any]) -> Any:
        listed = self._jvm.java.util.ArrayList()
        for item in items:
            listed.add(item)
        return self._jvm.org.apache.spark.api.python.PythonUtils.toSeq(listed)

    # Nodes

    def with_children(self, node: Any, children: list[Any]) -> Any:
        return node.withNewChildren(self.sequence(children))

    def project(self, columns: list[Any], child: Any) -> Any:
        return self._logical.Project(self.sequence(columns), child)

    def aggregate(self, aggregate: Any, results: list[Any], child: Any) -> Any:
        """Return ``aggregate`` with other result columns and another child."""
        grouping, hint = aggregate.groupingExpressions(), aggregate.hint()
        return self._logical.Aggregate(grouping, self.sequence(results), child, hint)

    def numbered(self, generate: Any, child: Any) -> tuple[Any, Any] | None:
        """Return ``generate`` over ``child``, and an expression that numbers the rows generated from one row of
        ``child``. Returns None if the generator's rows cannot be numbered.
        """
        generator, output = generate.generator(), each(generate.generatorOutput())
        match class_name(generator):
            case "Explode":
                position = self._attribute("pos", self._int_type)
                exploded = self._expressions.PosExplode(each(generator.children())[0])
                numbered = self._generate(generate, exploded, [position, *output], child)
                return numbered, self._position(position)
            case "Inline":
                return self._numbered_inline(generate, output, child)
            case "Stack":
                position = self._attribute("pos", self._long_type)
                stacked = self._numbered_stack(generator, output)
                return self._generate(generate, stacked, [*output, position], child), position
            case "PosExplode" | "VariantExplode":
                return self._generate(generate, generator, output, child), self._position(output[0])
            case "JsonTuple":
                return self._generate(generate, generator, output, child), self.long(0)
        return None

    def _numbered_inline(self, generate: Any, output: list[Any], child: Any) -> tuple[Any, Any]:
        listed = each(generate.generator().children())[0]
        position = self._attribute("pos", self._int_type)
        item = self._attribute("item", listed.dataType().elementType())
        exploded = self._generate(generate, self._expressions.PosExplode(listed), [position, item], child)
        fields = [
            self._alias(
                self._expressions.GetStructField(item, number, self._none), field.name(), field.exprId()
            )
            for number, field in enumerate(output)
        ]
        return self.project([*each(child.output()), *fields, position], exploded), self._position(position)

    def _numbered_stack(self, stack: Any, output: list[Any]) -> Any:
        """Add a column with the number of the row."""
        count, *values = each(stack.children())
        rows, width = int(count.eval(None)), len(output)
        values += [self._null(output[index % width].dataType()) for index in range(len(values), rows * width)]
        numbered = [count]
        for row in range(rows):
            numbered += [*values[row * width : (row + 1) * width], self.long(row)]
        return self._expressions.Stack(self.sequence(numbered))

    def _generate(self, generate: Any, generator: Any, output: list[Any], child: Any) -> Any:
        return self._logical.Generate(
            generator,
            generate.unrequiredChildIndex(),
            generate.outer(),
            generate.qualifier(),
            self.sequence(output),
            child,
        )

    def _position(self, attribute: Any) -> Any:
        """Return the position, or -1: ``explode_outer`` of an empty list returns a row without a position."""
        return self.coalesce([self._expressions.Cast(attribute, self._long_type, self._none), self.long(-1)])

    def expanded(self, expand: Any, child: Any, carried: list[Any]) -> tuple[Any, list[Any]]:
        """Return ``expand`` with more columns, and the new attributes. The added columns are the ``carried`` columns of
        ``child`` and the number of the projection.
        """
        added = [self._attribute("at", self._long_type) for _ in range(len(carried) + 1)]
        projections = [
            self.sequence([*each(projection), *carried, self.long(number)])
            for number, projection in enumerate(each(expand.projections()))
        ]
        output = self.sequence([*each(expand.output()), *added])
        return self._logical.Expand(self.sequence(projections), output, child), added

    def inner_join(self, join: Any, left: Any, right: Any) -> Any:
        """Return an inner join of ``left`` and ``right`` with the condition of ``join``."""
        return self._logical.Join(left, right, self._object("plans.Inner"), join.condition(), join.hint())

    def sorted_by_key(self, keys: list[Any], order: list[Any], child: Any) -> Any:
        """Return a plan with all rows of a key in one partition, in this order."""
        no_value = self._none
        repartitioned = self._logical.RepartitionByExpression(self.sequence(keys), child, no_value, no_value)
        return self._logical.Sort(self.sequence(map(self._ascending, order)), False, repartitioned, no_value)

    def first_of(self, keys: list[Any], order: list[Any], child: Any) -> Any:
        """Return a plan with the first row of each key in this order, with all columns."""
        columns = each(child.output())
        frame = self._expressions.SpecifiedWindowFrame(
            self._object("expressions.RowFrame"),
            self._object("expressions.UnboundedPreceding"),
            self._object("expressions.CurrentRow"),
        )
        partitions, orders = self.sequence(keys), self.sequence(map(self._ascending, order))
        window = self._expressions.WindowSpecDefinition(partitions, orders, frame)
        number = self.alias(
            self._expressions.WindowExpression(self._expressions.RowNumber(), window), "number"
        )
        ranked = self._logical.Window(self.sequence([number]), partitions, orders, child, self._none)
        is_first = self._expressions.EqualTo(number.toAttribute(), self._literal(1))
        return self.project(columns, self._logical.Filter(is_first, ranked))

    # Expressions

    def alias(self, expression: Any, name: str) -> Any:
        return self._alias(expression, name, self._new_id())

    def _alias(self, expression: Any, name: str, expr_id: Any) -> Any:
        nothing = self.sequence([])
        return self._expressions.Alias(expression, name, expr_id, nothing, self._none, nothing)

    def comparable(self, columns: list[Any]) -> list[Any]:
        """Return comparable expressions that differ if the columns differ. Maps and strings are compared as UTF-8 text:
        Spark cannot compare maps, and a string's collation can ignore case.
        """
        comparable = []
        for column in columns:
            kind = column.dataType()
            is_text = str(kind.typeName()).startswith("string")
            if is_text or not self._order_utils.isOrderable(kind):
                column = self._expressions.Cast(column, self._string_type, self._none)
            comparable.append(column)
        return comparable

    def long(self, value: int) -> Any:
        return self._expressions.Cast(self._literal(value), self._long_type, self._none)

    def coalesce(self, expressions: list[Any]) -> Any:
        return self._expressions.Coalesce(self.sequence(expressions))

    def greatest(self, expressions: list[Any]) -> Any:
        return self._expressions.Greatest(self.sequence(expressions))

    def struct_unless_null(self, first: Any, others: list[Any]) -> Any:
        """Return a struct of all expressions; null if the first is null."""
        fields = [
            part
            for index, expression in enumerate([first, *others])
            for part in (self._literal(f"c{index}"), expression)
        ]
        struct = self._expressions.CreateNamedStruct(self.sequence(fields))
        return self._expressions.If(self._expressions.IsNull(first), self._null(struct.dataType()), struct)

    def _null(self, kind: Any) -> Any:
        return self._expressions.Literal(None, kind)

    def _literal(self, value: Any) -> Any:
        return self._literals.apply(value)

    def _ascending(self, expression: Any) -> Any:
        direction, nulls = self._object("expressions.Ascending"), self._object("expressions.NullsFirst")
        return self._expressions.SortOrder(expression, direction, nulls, self.sequence([]))

    def _attribute(self, name: str, data_type: Any) -> Any:
        metadata = self._jvm.org.apache.spark.sql.types.Metadata.empty()
        return self._expressions.AttributeReference(
            name, data_type, True, metadata, self._new_id(), self.sequence([])
        )

    def _new_id(self) -> Any:
        return self._named_expression.newExprId()

    @cached_property
    def _named_expression(self) -> Any:
        return self._object("expressions.NamedExpression")

    @cached_property
    def _literals(self) -> Any:
        return self._object("expressions.Literal")

    @cached_property
    def _order_utils(self) -> Any:
        # Not RowOrdering, whose method also has an overload for a sequence of expressions. For a struct type,
        # py4j would call that overload, because a struct type is a Scala sequence.
        return self._object("expressions.OrderUtils")

    @cached_property
    def _none(self) -> Any:
        return self._jvm.scala.Option.empty()

    def _object(self, name: str) -> Any:
        """Return a Scala singleton object of Catalyst."""
        loader = self._jvm.java.lang.Thread.currentThread().getContextClassLoader()
        kind = self._jvm.java.lang.Class.forName(f"{_CATALYST}{name}$", True, loader)
        return kind.getField("MODULE$").get(None)


@dataclass(frozen=True, slots=True)
class OrderSensitiveOperators:
    """Operators that can make a function's rows depend on batches: a flow runs the function batch by batch,
    ``verify`` runs it over all input at once, and the two may get different rows.
    """

    aggregates: int = 0
    joins: int = 0
    deduplicates: bool = False
    forgets_duplicates: bool = False
    """Whether a duplicate is written again after the watermark has passed the first row."""
    holds_back: bool = False
    """Whether an outer join delays rows without a match until the watermark passes."""


def order_sensitive_operators(output: DataFrame) -> OrderSensitiveOperators:
    """Return these operators from the plan of ``output``. The caller gets ``output`` by calling the function
    with inputs that are not streams. Most functions return the same rows, whether they run over all input at
    once or batch by batch. With these operators, the rows depend on the order in which records arrive.
    """
    names: Counter[str] = Counter()
    has_outer_join = False
    for node in nodes(analyzed(output)):
        name = class_name(node)
        names[name] += 1
        has_outer_join = has_outer_join or (name == "Join" and "Outer" in str(node.joinType()))
    return OrderSensitiveOperators(
        aggregates=names["Aggregate"],
        joins=names["Join"],
        deduplicates=any(names[step] for step in ("Deduplicate", "DeduplicateWithinWatermark", "Distinct")),
        forgets_duplicates=bool(names["DeduplicateWithinWatermark"]),
        holds_back=has_outer_join,
    )
