"""A function that could return different rows when a batch runs again is refused; the error names the user's line."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyspark.sql.functions as functions
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from faults.servers.spark import session_conf
from headrace.app import App
from headrace.flow.compile.aggregates import expect_order_ignored
from headrace.flow.compile.compiler import compile_app
from headrace.flow.compile.mistakes import FlowMistake
from headrace.model.errors import AppMistakes


@dataclass(frozen=True)
class Event:
    event: str
    place: str
    amount: int
    at: datetime


def declare(function: Any) -> App:
    app = App("same")
    events = app.topic("events", Event, key="event", time="at", late=timedelta(seconds=10))
    out = app.topic("out", key="event")
    app.flow(reads=[events], writes=out, name="same", unbounded=True)(function)
    return app


def refusal(spark: SparkSession, function: Any) -> str:
    with pytest.raises(AppMistakes) as raised:
        compile_app(spark, declare(function))
    [mistake] = raised.value.mistakes
    return str(mistake)


def with_expression(expression: str) -> Any:
    return lambda events: events.withColumn("what", F.expr(expression))


@pytest.mark.parametrize(
    "expression",
    [
        "current_timestamp()",
        "current_date()",
        "curdate()",
        "now()",
        "localtimestamp()",
        "unix_timestamp()",
        "cast('now' as timestamp)",
        "cast(concat('n', nvl(null, 'ow')) as timestamp)",
        "to_date(' Today')",
        "at > 'yesterday'",
        "named_struct('a', array(named_struct('b', now())))",
        "transform(array(1), x -> now())",
        "(SELECT max(a) FROM VALUES (now()) AS v(a))",
    ],
)
def test_a_clock_is_found_anywhere_in_the_plan(spark: SparkSession, expression: str) -> None:
    assert "flow same reads the clock" in refusal(spark, with_expression(expression))


def test_the_time_of_day_is_a_clock_if_spark_supports_it(spark: SparkSession) -> None:
    with session_conf(spark, {"spark.sql.timeType.enabled": "true"}):
        assert "flow same reads the clock" in refusal(spark, with_expression("hour(current_time())"))


@pytest.mark.parametrize(
    "function",
    [
        lambda events: events.withColumn("what", F.lit(datetime.now(UTC))),
        with_expression("timestamp 'now'"),
    ],
)
def test_a_clock_that_is_read_while_the_function_is_called_is_found(
    spark: SparkSession, function: Any
) -> None:
    assert "flow same returns a different plan each time it is called" in refusal(spark, function)


@pytest.mark.parametrize(
    "expression",
    [
        "rand()",
        "randn(3)",
        "uniform(1, 5)",
        "randstr(5)",
        "uuid()",
        "shuffle(array(1, 2))[0]",
        "input_file_name()",
        "monotonically_increasing_id()",
        "spark_partition_id()",
        "java_method('java.util.UUID', 'randomUUID')",
        "base64(aes_encrypt(event, '0000111122223333'))",
        "named_struct('a', array(rand()))",
        "(SELECT max(a) FROM (SELECT a + rand() AS a FROM VALUES (1) AS v(a)))",
    ],
)
def test_randomness_and_dependence_on_the_split_are_found_anywhere_in_the_plan(
    spark: SparkSession, expression: str
) -> None:
    assert "flow same is not deterministic" in refusal(spark, with_expression(expression))


@pytest.mark.parametrize(
    "expression",
    ["current_user()", "current_timezone()", "current_schema()", "current_catalog()", "version()"],
)
def test_a_dependence_on_the_session_is_refused(spark: SparkSession, expression: str) -> None:
    assert "depends on the Spark session" in refusal(spark, with_expression(expression))


@pytest.mark.parametrize(
    "expression", ["event COLLATE UTF8_LCASE", "CAST(event AS STRING COLLATE UTF8_BINARY_RTRIM)"]
)
def test_a_collation_under_which_different_texts_are_equal_is_refused(
    spark: SparkSession, expression: str
) -> None:
    assert "a collation in which different texts are equal" in refusal(spark, with_expression(expression))


def test_a_deterministic_function_is_accepted(spark: SparkSession) -> None:
    expressions = [
        "unix_timestamp(at)",
        "to_date('2026-01-01')",
        "cast(concat('2026-', '01-01') as timestamp)",
        "base64(aes_encrypt(event, '0000111122223333', 'CBC', 'PKCS', unhex('00000000000000000000000000000000')))",
        "hash(event)",
        "base64(aes_encrypt(event, '0000111122223333', 'ECB'))",
        "'now'",
        "event COLLATE UTF8_BINARY",
    ]
    columns = [F.expr(expression).alias(f"c{index}") for index, expression in enumerate(expressions)]
    compile_app(spark, declare(lambda events: events.select("event", *columns)))


def test_the_error_names_the_line_of_a_clock_a_sample_and_a_watermark(spark: SparkSession) -> None:
    def in_the_42nd_column(events: DataFrame) -> DataFrame:
        columns = [F.lit(index).alias(f"c{index}") for index in range(41)]
        clock = F.struct(F.current_timestamp()).alias("clock")
        return events.select("event", *columns, clock)

    def without_an_alias(events: DataFrame) -> DataFrame:
        events = events.where("amount > 3")
        return events.withColumn("now", F.current_timestamp())

    def sample_rows(events: DataFrame) -> DataFrame:
        sample = events.sample(0.5, 3)
        return sample.select("event")

    def watermarked(events: DataFrame) -> DataFrame:
        kept = events.where("amount > 3")
        return kept.withWatermark("at", "1 second").dropDuplicates(["event", "at"])

    for function, line, text in (
        (in_the_42nd_column, 2, "reads the clock"),
        (without_an_alias, 2, "reads the clock"),
        (sample_rows, 1, "a sample of the rows"),
        (watermarked, 2, "sets a watermark of its own"),
    ):
        error = refusal(spark, function)
        assert error.startswith(f"{__file__}:{inspect.getsourcelines(function)[1] + line}: flow same ")
        assert text in error


def test_reading_a_topic_twice_does_not_count_as_setting_a_watermark(spark: SparkSession) -> None:
    def unions(events: DataFrame) -> DataFrame:
        return events.unionByName(events.withColumn("event", F.upper("event"))).dropDuplicates(
            ["event", "at"]
        )

    compile_app(spark, declare(unions))


ANY_ORDER = {
    "any": "any(b)",
    "approx_count_distinct": "approx_count_distinct(s)",
    "avg": "avg(n)",
    "bit_and": "bit_and(n)",
    "bit_or": "bit_or(n)",
    "bit_xor": "bit_xor(n)",
    "bitmap_and_agg": "bitmap_and_agg(x)",
    "bitmap_construct_agg": "bitmap_construct_agg(n)",
    "bitmap_or_agg": "bitmap_or_agg(x)",
    "bool_and": "bool_and(b)",
    "bool_or": "bool_or(b)",
    "corr": "corr(d, n)",
    "count": "count(*)",
    "count_distinct": "count(DISTINCT s)",
    "count_if": "count_if(b)",
    "count_min_sketch": "count_min_sketch(s, 0.5D, 0.5D, 1)",
    "covar_pop": "covar_pop(d, n)",
    "covar_samp": "covar_samp(d, n)",
    "every": "every(b)",
    "kurtosis": "kurtosis(d)",
    "max": "max(n)",
    "max_by": "max_by(s, n)",
    "mean": "mean(n)",
    "median": "median(n)",
    "min": "min(n)",
    "min_by": "min_by(s, n)",
    "percentile": "percentile(n, 0.5)",
    "percentile_cont": "percentile_cont(0.5) WITHIN GROUP (ORDER BY n)",
    "percentile_disc": "percentile_disc(0.5) WITHIN GROUP (ORDER BY n)",
    "product": F.product,
    "regr_avgx": "regr_avgx(d, n)",
    "regr_avgy": "regr_avgy(d, n)",
    "regr_count": "regr_count(d, n)",
    "regr_intercept": "regr_intercept(d, n)",
    "regr_r2": "regr_r2(d, n)",
    "regr_slope": "regr_slope(d, n)",
    "regr_sxx": "regr_sxx(d, n)",
    "regr_sxy": "regr_sxy(d, n)",
    "regr_syy": "regr_syy(d, n)",
    "skewness": "skewness(d)",
    "some": "some(b)",
    "std": "std(d)",
    "stddev": "stddev(d)",
    "stddev_pop": "stddev_pop(d)",
    "stddev_samp": "stddev_samp(d)",
    "sum": "sum(n)",
    "sum_distinct": "sum(DISTINCT n)",
    "try_avg": "try_avg(n)",
    "try_sum": "try_sum(n)",
    "var_pop": "var_pop(d)",
    "var_samp": "var_samp(d)",
    "variance": "variance(d)",
}
BY_ORDER = {
    "any_value": "any_value(s)",
    "approx_percentile": "approx_percentile(n, 0.5)",
    "approx_top_k": "approx_top_k(s)",
    "approx_top_k_accumulate": "approx_top_k_accumulate(s)",
    "approx_top_k_combine": "approx_top_k_combine(k, 10)",
    "array_agg": "array_agg(s)",
    "collect_list": "collect_list(s)",
    "collect_set": "collect_set(s)",
    "first": "first(s)",
    "first_value": "first_value(s)",
    "histogram_numeric": "histogram_numeric(n, 5)",
    "hll_sketch_agg": "hll_sketch_agg(s)",
    "hll_union_agg": "hll_union_agg(x)",
    "kll_merge_agg_bigint": "kll_merge_agg_bigint(x)",
    "kll_merge_agg_double": "kll_merge_agg_double(x)",
    "kll_merge_agg_float": "kll_merge_agg_float(x)",
    "kll_sketch_agg_bigint": "kll_sketch_agg_bigint(n)",
    "kll_sketch_agg_double": "kll_sketch_agg_double(d)",
    "kll_sketch_agg_float": "kll_sketch_agg_float(float(d))",
    "last": "last(s)",
    "last_value": "last_value(s)",
    "listagg": "listagg(s)",
    "listagg_distinct": "listagg(DISTINCT s)",
    "mode": "mode(s)",
    "percentile_approx": "percentile_approx(n, 0.5)",
    "schema_of_variant_agg": "schema_of_variant_agg(parse_json(s))",
    "string_agg": "string_agg(s)",
    "string_agg_distinct": "string_agg(DISTINCT s)",
    "theta_intersection_agg": "theta_intersection_agg(x)",
    "theta_sketch_agg": "theta_sketch_agg(s)",
    "theta_union_agg": "theta_union_agg(x)",
    "tuple_intersection_agg_double": "tuple_intersection_agg_double(x)",
    "tuple_intersection_agg_integer": "tuple_intersection_agg_integer(x)",
    "tuple_sketch_agg_double": "tuple_sketch_agg_double(s, d)",
    "tuple_sketch_agg_integer": "tuple_sketch_agg_integer(s, n)",
    "tuple_union_agg_double": "tuple_union_agg_double(x)",
    "tuple_union_agg_integer": "tuple_union_agg_integer(x)",
}
NO_FUNCTIONS_OF_ROWS = {"grouping", "grouping_id", "measure"}


def aggregates_of_spark(spark: SparkSession) -> set[str]:
    """The names of all aggregate functions, from SQL's registry and from the source of ``pyspark.sql.functions``."""
    jvm: Any = spark._jvm
    registered: Any = jvm.org.apache.spark.sql.catalyst.analysis.FunctionRegistry.expressions().toSeq()
    names = set()
    for index in range(registered.size()):
        entry = registered.apply(index)
        if entry._2()._1().getGroup() == "agg_funcs":
            names.add(str(entry._1()))
    listed = inspect.getsource(functions).partition("# Aggregate Functions")[2].partition("# Window")[0]
    return names | set(re.findall(r'"(\w+)"', listed)) | {"schema_of_variant_agg"}


def test_every_aggregate_function_of_spark_ignores_the_order_or_is_refused(
    spark: SparkSession,
) -> None:
    assert ANY_ORDER.keys() | BY_ORDER.keys() | NO_FUNCTIONS_OF_ROWS == aggregates_of_spark(spark)
    top_k: Any = spark.sql("SELECT approx_top_k_accumulate(s) AS k FROM VALUES ('a') AS v(s)").schema["k"]
    fields = spark.createDataFrame([], "n int, d double, s string, b boolean, x binary").schema.add(top_k)
    rows = spark.createDataFrame([], fields)
    flow = declare(lambda events: events).flows[0]

    def plan(*calls: Any) -> Any:
        columns = [F.expr(call) if isinstance(call, str) else call("n") for call in calls]
        summed: Any = rows.groupBy("s").agg(*columns)
        return summed._jdf.queryExecution().analyzed()

    deterministic_mode = F.mode("s", deterministic=True)
    expect_order_ignored(flow, plan(*ANY_ORDER.values(), lambda _: deterministic_mode))
    for call in BY_ORDER.values():
        with pytest.raises(FlowMistake, match="depends on the order of the rows") as refused:
            expect_order_ignored(flow, plan(call))
        assert refused.value.hint


@pytest.mark.parametrize(
    ("result", "is_accepted"),
    [
        ("sort_array(collect_list(event))", True),
        ("array_sort(collect_list(event))", True),
        ("array_sort(collect_list(event), (a, b) -> if(a < b, -1, 1))", False),
        ("array_sort(collect_list(struct(amount, event)), (a, b) -> a.amount - b.amount)", False),
        ("size(array_distinct(collect_list(event)))", True),
        ("sort_array(transform(collect_list(amount), x -> x + 1))", True),
        ("sort_array(flatten(collect_list(array(amount))))", True),
        ("sort_array(slice(collect_list(event), 1, 3))", False),
        ("sort_array(transform(collect_list(amount), (x, i) -> x + i))", False),
        ("sort_array(array(first(event)))", False),
    ],
)
def test_collected_values_must_be_sorted_as_a_whole(
    spark: SparkSession, result: str, is_accepted: bool
) -> None:
    def summed(events: DataFrame) -> DataFrame:
        counted = F.count("*").alias("count")
        return events.groupBy("event").agg(counted, F.expr(result).alias("what"))

    if is_accepted:
        compile_app(spark, declare(summed))
    else:
        error = refusal(spark, summed)
        assert error.startswith(f"{__file__}:{inspect.getsourcelines(summed)[1] + 2}: flow same: ")
