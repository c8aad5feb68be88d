"""Converts a random flow to the function that a user would write, with DataFrames, for Spark to run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from faults.flows.tree import (
    MINUTE,
    Aggregate,
    Compute,
    Condition,
    DropDuplicates,
    Explode,
    Filter,
    FlowTree,
    Join,
    JoinStreams,
    MarkDeleted,
    Repartition,
    Result,
    Select,
    Step,
    Stream,
    Union,
    Unpivot,
    columns_of,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["render"]

_DELETED = "_deleted"


def render(tree: FlowTree) -> Callable[..., DataFrame]:
    """Return the flow's function. Its arguments are the streams, then the table, if any."""

    def derive(*frames: DataFrame) -> DataFrame:
        table = frames[tree.streams] if tree.table else None
        return _DataFrameBuilder(frames[: tree.streams], table).frame_of(tree.root)

    return derive


class _DataFrameBuilder:
    def __init__(self, streams: Sequence[DataFrame], table: DataFrame | None) -> None:
        self._streams = streams
        self._table = table

    def frame_of(self, step: Step) -> DataFrame:
        from pyspark.sql import functions as F

        match step:
            case Stream(number):
                return self._streams[number]
            case Compute(child, name):
                return self.frame_of(child).withColumn(name, _computed_column(step))
            case Select(child, columns):
                deleted = [_DELETED] if isinstance(child, MarkDeleted) else []
                return self.frame_of(child).select(*columns, *deleted)
            case Filter(child, test):
                return self.frame_of(child).where(_test_column(test))
            case Explode(child, outer, positions, name):
                explode: Any = {
                    (False, False): F.explode,
                    (True, False): F.explode_outer,
                    (False, True): F.posexplode,
                    (True, True): F.posexplode_outer,
                }[outer, positions]
                names = [f"{name}_at", name] if positions else [name]
                return self.frame_of(child).select("*", explode("parts").alias(*names))
            case Unpivot(child, columns, name, stack):
                kept = [column for column in columns_of(child) if column not in columns]
                if stack:
                    pairs = ", ".join(f"'{column}', {column}" for column in columns)
                    stacked = f"stack({len(columns)}, {pairs}) AS ({name}_of, {name})"
                    return self.frame_of(child).selectExpr(*kept, stacked)
                return self.frame_of(child).unpivot([*kept], [*columns], f"{name}_of", name)
            case Union(branches):
                united = self.frame_of(branches[0])
                for branch in branches[1:]:
                    united = united.union(self.frame_of(branch))
                return united
            case Join(child, on, how, name):
                events = self.frame_of(child)
                joined = events.join(self._rows(step, events), F.col(on) == F.col(f"{name}_on"), how)
                return joined.drop(f"{name}_on")
            case JoinStreams(left, right):
                renamed = self.frame_of(right).select(
                    *(F.col(column).alias(f"r_{column}") for column in columns_of(right))
                )
                same = (F.col("item") == F.col("r_item")) & (F.col("code") == F.col("r_code"))
                return self.frame_of(left).join(renamed, same)
            case DropDuplicates(child, columns):
                return self.frame_of(child).dropDuplicates(list(columns))
            case Repartition(child, count, columns):
                return self.frame_of(child).repartition(count, *columns)
            case Aggregate(child, by, minutes, results):
                window = [F.window("at", "1 minute").alias("window")] if minutes else []
                grouped = self.frame_of(child).groupBy(*by, *window).agg(*map(_result_column, results))
                minute = [F.col("window.start").alias(MINUTE)] if minutes else []
                return grouped.select(*by, *minute, *(result.name for result in results))
            case MarkDeleted(child, test):
                return self.frame_of(child).withColumn(_DELETED, F.coalesce(_test_column(test), F.lit(False)))

    def _rows(self, join: Join, events: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        name = join.name
        if join.rows is not None:
            schema = f"{name}_on string, {name}_label string, {name}_weight long"
            rows = events.sparkSession.createDataFrame(list(join.rows), schema)
        else:
            assert self._table is not None
            names = {join.on: f"{name}_on", "label": f"{name}_label", "weight": f"{name}_weight"}
            rows = self._table.select(*(F.col(column).alias(as_name) for column, as_name in names.items()))
        if join.pick == "first":
            return rows.dropDuplicates([f"{name}_on"])
        if join.pick == "last":
            label_and_weight = F.struct(f"{name}_label", f"{name}_weight")
            last = rows.groupBy(f"{name}_on").agg(F.max_by(label_and_weight, F.lit(1)).alias("last"))
            return last.select(f"{name}_on", "last.*")
        return rows


def _computed_column(step: Compute) -> Column:
    from pyspark.sql import functions as F

    column, constant = F.col(step.column), F.lit(step.constant).cast("long")
    match step.operation:
        case "add":
            return column + constant
        case "times":
            return column * constant
        case "modulo":
            return F.pmod(column, constant)
        case "null if even":
            return F.when(F.pmod(column, F.lit(2)) != 0, column)
        case _:
            return F.concat(F.col("account"), F.lit("/"), column.cast("string"))


def _test_column(test: Condition) -> Column:
    from pyspark.sql import functions as F

    return F.pmod(F.col(test.column), F.lit(test.divisor)) >= test.least


def _result_column(result: Result) -> Column:
    from pyspark.sql import functions as F

    match result.function:
        case "count":
            aggregate = F.count(F.lit(1))
        case "max_by" | "min_by":
            aggregate = getattr(F, result.function)(result.column, result.by)
        case _:
            aggregate = getattr(F, result.function)(result.column)
    return aggregate.alias(result.name)
