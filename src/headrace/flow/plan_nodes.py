"""Nodes of Spark's logical plan, built from Python: what Headrace adds to a plan that Spark has analyzed.

Everything is resolved already: attributes are those of the plan, and new columns get ids of their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from headrace.flow.plan_tree import class_name, each

__all__ = ["PlanNodes", "expr_id"]

_CATALYST = "org.apache.spark.sql.catalyst."


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
        """``aggregate`` with other results."""
        grouping, hint = aggregate.groupingExpressions(), aggregate.hint()
        return self._logical.Aggregate(grouping, self.sequence(results), child, hint)

    def numbered(self, generate: Any, child: Any) -> tuple[Any, Any] | None:
        """``generate`` over ``child``, and an expression that numbers the rows generated from one row of ``child``.
        None for a generator that cannot be numbered.
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
            self._alias(self._expressions.GetStructField(item, number, self._none), one.name(), one.exprId())
            for number, one in enumerate(output)
        ]
        return self.project([*each(child.output()), *fields, position], exploded), self._position(position)

    def _numbered_stack(self, stack: Any, output: list[Any]) -> Any:
        """Adds a column with the number of the row."""
        count, *values = each(stack.children())
        rows, width = int(count.eval(None)), len(output)
        values += [self._null(output[at % width].dataType()) for at in range(len(values), rows * width)]
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
        """``explode_outer`` of an empty list gives a row without a position."""
        return self.coalesce([self._expressions.Cast(attribute, self._long_type, self._none), self.long(-1)])

    def expanded(self, expand: Any, child: Any, carried: list[Any]) -> tuple[Any, list[Any]]:
        """``expand`` with more columns: those of ``child`` that are carried along, and the number of the projection.
        Gives the new attributes too.
        """
        given = [self._attribute("at", self._long_type) for _ in range(len(carried) + 1)]
        projections = [
            self.sequence([*each(projection), *carried, self.long(number)])
            for number, projection in enumerate(each(expand.projections()))
        ]
        output = self.sequence([*each(expand.output()), *given])
        return self._logical.Expand(self.sequence(projections), output, child), given

    def inner_join(self, join: Any, left: Any, right: Any) -> Any:
        """An inner join of ``left`` and ``right`` by the condition of ``join``."""
        return self._logical.Join(left, right, self._object("plans.Inner"), join.condition(), join.hint())

    def sorted_by_key(self, keys: list[Any], order: list[Any], child: Any) -> Any:
        """Rows of one key are in one partition, and there in this order."""
        none = self._none
        together = self._logical.RepartitionByExpression(self.sequence(keys), child, none, none)
        return self._logical.Sort(self.sequence(map(self._ascending, order)), False, together, none)

    def first_of(self, keys: list[Any], order: list[Any], child: Any) -> Any:
        """Of the rows of each key the first in this order, with all of its columns."""
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

    def _alias(self, expression: Any, name: str, given: Any) -> Any:
        nothing = self.sequence([])
        return self._expressions.Alias(expression, name, given, nothing, self._none, nothing)

    def comparable(self, columns: list[Any]) -> list[Any]:
        """Expressions that can be compared and that differ wherever the columns differ. Maps, which cannot be compared,
        and strings, whose collation may ignore case, are compared as UTF-8 text.
        """
        found = []
        for column in columns:
            kind = column.dataType()
            is_text = str(kind.typeName()).startswith("string")
            if is_text or not self._order_utils.isOrderable(kind):
                column = self._expressions.Cast(column, self._string_type, self._none)
            found.append(column)
        return found

    def long(self, value: int) -> Any:
        return self._expressions.Cast(self._literal(value), self._long_type, self._none)

    def coalesce(self, expressions: list[Any]) -> Any:
        return self._expressions.Coalesce(self.sequence(expressions))

    def greatest(self, expressions: list[Any]) -> Any:
        return self._expressions.Greatest(self.sequence(expressions))

    def struct_unless_null(self, first: Any, others: list[Any]) -> Any:
        """A struct of all of them; null where the first is null."""
        fields = [
            part for place, one in enumerate([first, *others]) for part in (self._literal(f"c{place}"), one)
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
        # RowOrdering has a method of the same name for sequences of expressions, and a struct is a sequence to py4j.
        return self._object("expressions.OrderUtils")

    @cached_property
    def _none(self) -> Any:
        return self._jvm.scala.Option.empty()

    def _object(self, name: str) -> Any:
        """A Scala object of Catalyst."""
        loader = self._jvm.java.lang.Thread.currentThread().getContextClassLoader()
        kind = self._jvm.java.lang.Class.forName(f"{_CATALYST}{name}$", True, loader)
        return kind.getField("MODULE$").get(None)
