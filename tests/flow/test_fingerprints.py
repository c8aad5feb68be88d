"""A changed function has another fingerprint; an equivalent function has the same."""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import math
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from pyspark.ml.functions import array_to_vector, vector_to_array
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.app import App
from headrace.flow.compile.compiler import compile_app
from headrace.flow.compile.plan_digest import plan_digest
from headrace.model.code_digest import code_digest
from headrace.model.errors import AppError, AppMistakes

# A Python UDF cannot be created without a session.
pytestmark = pytest.mark.usefixtures("spark")
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@dataclass(frozen=True)
class Sale:
    sale_id: str
    amount: int
    note: str
    at: datetime


def fingerprint(spark: SparkSession, function: Any, **options: Any) -> str:
    app = App("prints")
    sales = app.topic("sales", Sale, key="sale_id", time="at")
    out = app.topic("out", key="sale_id")
    app.flow(reads=[sales], writes=out, name="print", deterministic=True, unbounded=True, **options)(function)
    return compile_app(spark, app)[0][0].fingerprint


def mistake(spark: SparkSession, function: Any) -> str:
    with pytest.raises(AppMistakes) as found:
        fingerprint(spark, function)
    [only] = found.value.mistakes
    return str(only)


def wide(value: int) -> Callable[[DataFrame], DataFrame]:
    """Return a function that selects 40 columns. Only the 31st depends on ``value``."""

    def function(sales: DataFrame) -> DataFrame:
        columns = [(F.col("amount") + (value if at == 30 else at)).alias(f"c{at}") for at in range(40)]
        return sales.select("sale_id", *columns)

    return function


def parsed(mode: str) -> Callable[[DataFrame], DataFrame]:
    return lambda sales: sales.select("sale_id", F.from_json("note", "a int", {"mode": mode}).alias("note"))


def rows_of_sql(value: int) -> Callable[[DataFrame], DataFrame]:
    return lambda sales: sales.join(
        sales.sparkSession.sql(f"SELECT * FROM VALUES ({value}, array('x')) AS v(amount, names)"), "amount"
    )


def nested(value: int) -> Callable[[DataFrame], DataFrame]:
    return lambda sales: sales.select(
        "sale_id", F.transform(F.array("amount"), lambda item: item + value).alias("amounts")
    )


def subquery(value: int) -> Callable[[DataFrame], DataFrame]:
    return lambda sales: sales.sparkSession.sql(
        f"SELECT sale_id FROM {{sales}} WHERE amount > (SELECT max(a) FROM VALUES ({value}) AS v(a))",
        sales=sales,
    )


@pytest.mark.parametrize(
    ("change", "value", "other"),
    [
        (wide, 0, 1),
        (parsed, "FAILFAST", "PERMISSIVE"),
        (rows_of_sql, 1, 2),
        (nested, 1, 2),
        (subquery, 1, 2),
    ],
)
def test_the_fingerprint_includes_every_argument_of_every_expression(
    spark: SparkSession, change: Callable[[Any], Any], value: Any, other: Any
) -> None:
    first = fingerprint(spark, change(value))
    assert fingerprint(spark, change(value)) == first
    assert fingerprint(spark, change(other)) != first


RATE = 3
RATES = [1, {"a": [3]}]


class Unit(Enum):
    CENT = 1
    EURO = 100


class Scale:
    base = 1

    def __init__(self, factor: Any) -> None:
        self.factor = factor

    def times(self, number: int) -> Any:
        return number * self.factor * self.base


def python(function: Callable[[int], int]) -> Callable[[DataFrame], DataFrame]:
    """A flow whose rows pass through ``function``."""
    called = F.udf(function, "bigint", useArrow=False)
    return lambda sales: sales.withColumn("amount", called("amount"))


def closure(value: Any) -> Any:
    return python(lambda number: number * value)


def default(value: Any) -> Any:
    def scale(number: int, by: Any = value) -> Any:
        return number * by

    return python(scale)


def keyword_default(value: Any) -> Any:
    def scale(number: int, *, by: Any = value) -> Any:
        return number * by

    return python(scale)


def partial(value: Any) -> Any:
    return python(functools.partial(lambda by, number: number * by, value))


def lambda_in_a_list(value: Any) -> Any:
    steps = [lambda number: number, lambda number: number * value]
    return python(lambda number: steps[-1](number))


def method(value: Any) -> Any:
    return python(Scale(value).times)


def local_rows(value: Any) -> Any:
    def function(sales: DataFrame) -> DataFrame:
        rows = sales.sparkSession.createDataFrame([(value,)], "amount bigint")
        return sales.join(rows, "amount")

    return function


def registered(value: Any) -> Any:
    def function(sales: DataFrame) -> DataFrame:
        return sales.withColumn("amount", F.expr("scaled(amount)"))

    def register(sales: DataFrame) -> DataFrame:
        sales.sparkSession.udf.register("scaled", lambda number: number * value, "bigint")
        return function(sales)

    return register


@pytest.mark.parametrize("change", [closure, local_rows, registered], ids=lambda change: change.__name__)
def test_the_fingerprint_includes_code_that_processes_or_creates_rows(
    spark: SparkSession, change: Callable[[Any], Any]
) -> None:
    first = fingerprint(spark, change(2))
    assert fingerprint(spark, change(2)) == first
    assert fingerprint(spark, change(3)) != first


@pytest.mark.parametrize(
    "change",
    [closure, default, keyword_default, partial, lambda_in_a_list, method],
    ids=lambda change: change.__name__,
)
def test_the_digest_includes_the_state_of_a_python_function(change: Callable[[Any], Any]) -> None:
    assert code_digest(change(2)) == code_digest(change(2)) != code_digest(change(3))


@pytest.mark.parametrize(
    ("value", "other"),
    [
        ([1, 2], [1, 3]),
        ({"a": {"b": 1}}, {"a": {"b": 2}}),
        ({"x", "y"}, {"x", "z"}),
        ((1, frozenset({1})), (1, frozenset({2}))),
        (Unit.CENT, Unit.EURO),
        (NOON, NOON.replace(hour=1)),
        (Scale(1), Scale(2)),
        (Sale("s", 1, "", NOON), Sale("s", 2, "", NOON)),
        (math.sin, math.cos),
        ([1].count, [2].count),
        (re.compile("a").search, re.compile("b").search),
    ],
)
def test_the_digest_includes_the_contents_of_containers_and_objects(value: Any, other: Any) -> None:
    assert code_digest(closure(value)) == code_digest(closure(value)) != code_digest(closure(other))


def test_the_digest_changes_with_a_global_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    function = python(lambda number: number * RATE + len(RATES) * Scale(1).times(number))
    before = code_digest(function)
    seen = {before}
    for target, name, value in (
        (sys.modules[__name__], "RATE", 4),
        (sys.modules[__name__], "RATES", [1, {"a": [4]}]),
        (Scale, "base", 2),
        (Scale, "times", lambda self, number: number),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(target, name, value)
            seen.add(code_digest(function))
    assert len(seen) == 5
    assert code_digest(function) == before


def test_the_digest_includes_constants_of_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "print_settings.py").write_text(
        "RATE = 2\nLIMITS = {'low': 1}\n\ndef tax(n):\n    return n + RATE\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    settings: Any = importlib.import_module("print_settings")

    def inside(number: int) -> Any:
        import print_settings  # type: ignore[import-not-found]
        from print_settings import LIMITS  # type: ignore[import-not-found]

        return print_settings.tax(number) * LIMITS["low"]

    through_closure = python(lambda number: number * settings.RATE + len(settings.LIMITS))
    circle = python(lambda number: int(number * math.pi))
    flows = [through_closure, python(inside), circle]
    before = [code_digest(function) for function in flows]
    with monkeypatch.context() as patch:
        patch.setattr(settings, "RATE", 3)
        patch.setattr(math, "pi", 3)
        after = [code_digest(function) for function in flows]
    assert all(earlier != later for earlier, later in zip(before, after, strict=True))
    with monkeypatch.context() as patch:
        patch.setattr(settings, "LIMITS", {"low": 2})
        assert code_digest(flows[0]) != before[0]
        assert code_digest(flows[1]) != before[1]
    assert [code_digest(function) for function in flows] == before


def test_equivalent_functions_have_the_same_fingerprint(spark: SparkSession) -> None:
    def written(sales: DataFrame) -> DataFrame:
        raised = sales.withColumn("raised", F.col("amount") + 1)
        return raised.where(F.col("raised") > 3).select("sale_id", F.col("raised").alias("amount"))

    def moved(rows: DataFrame) -> DataFrame:
        """Documented, renamed, and with a hint for Spark."""
        more = rows.alias("r").withColumn("more", F.col("amount") + F.lit(1)).hint("broadcast")
        return more.filter("more > 3").select("sale_id", F.col("more").alias("amount"))

    assert fingerprint(spark, written) == fingerprint(spark, moved)
    # Other processes compute the same fingerprint. If this value changes, the number of the rule must change too.
    assert fingerprint(spark, written) == "2:e79d6e5103e55801"


def test_the_digest_includes_column_names_that_python_sees(spark: SparkSession) -> None:
    rows = spark.createDataFrame([], "sale_id string, note string")

    def text(name: str) -> str:
        named = rows.withColumnRenamed("note", name)
        return plan_digest(named.mapInPandas(lambda frames: frames, "sale_id string"), [rows]).text

    assert text("note") == text("note") != text("text")


def test_code_has_the_same_text_in_every_process() -> None:
    program = (
        "from headrace.model.code_digest import HiddenState, code_digest\n"
        "names = {'a', 'b', 'c', ('d', 1)}\n"
        "class Sort:\n    order = frozenset(names)\n"
        "def function(x, by=Sort()):\n    return x in {'p', 'q', 'r'} or x in names or by.order\n"
        "print(code_digest(function))"
    )
    fingerprints = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(fingerprints) == 1


LOCK = threading.Lock()
SCALE = Scale(threading.Lock())


def locked(number: int) -> int:
    with LOCK:
        return number


def scaled(number: int) -> int:
    return int(SCALE.times(number))


def test_a_value_without_a_fingerprint_is_refused_by_name_unless_a_version_is_declared(
    spark: SparkSession,
) -> None:
    error = mistake(spark, python(locked))
    line = inspect.getsourcelines(locked)[1] + 1
    assert error.startswith(
        f"{__file__}:{line}: flow print reads LOCK, a _thread.lock, which cannot be fingerprinted"
    )
    assert 'version="2"' in error
    assert "flow print reads SCALE.times.factor, a _thread.lock" in mistake(spark, python(scaled))
    versions = {fingerprint(spark, python(locked), version=version) for version in ("1", "2")}
    assert len(versions) == 2


def test_the_fingerprint_includes_rows_that_the_function_creates(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "rates.json"

    def read(sales: DataFrame) -> DataFrame:
        rates = spark.createDataFrame(json.loads(file.read_text()), "note string, rate int")
        return sales.join(rates, "note").select("sale_id", "rate")

    seen = set()
    for rate in (2, 3, 2):
        file.write_text(json.dumps([["a", rate]]))
        seen.add(fingerprint(spark, read, version="1"))
    assert len(seen) == 2


def test_files_are_refused_unless_a_version_is_declared(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "rates.csv").write_text("a,2\n")

    def read(sales: DataFrame) -> DataFrame:
        rates = spark.read.csv(str(tmp_path), schema="note string, rate int")
        return sales.join(rates, "note").select("sale_id", "rate")

    error = mistake(spark, read)
    line = inspect.getsourcelines(read)[1] + 1
    assert error.startswith(f"{__file__}:{line}: flow print reads files or tables that can change: Relation")
    fingerprint(spark, read, version="1")


class Times:
    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __call__(self, number: int) -> int:
        return number * self.factor


@pytest.mark.parametrize(
    "factory", [Times, lambda factor: functools.partial(scaled_by, factor)], ids=["object", "partial"]
)
def test_a_registered_function_may_be_any_callable(
    spark: SparkSession, factory: Callable[[int], Any]
) -> None:
    def named(sales: DataFrame) -> DataFrame:
        return sales.selectExpr("sale_id", "print_times(amount) AS amount")

    seen = set()
    for factor in (2, 3):
        spark.udf.register("print_times", factory(factor), "bigint")
        seen.add(fingerprint(spark, named))
    assert len(seen) == 2


def scaled_by(factor: int, number: int) -> int:
    return factor * number


def test_a_function_of_the_jvm_is_refused_unless_a_version_is_declared(spark: SparkSession) -> None:
    def vectors(sales: DataFrame) -> DataFrame:
        numbers = F.array(F.col("amount").cast("double"))
        return sales.select("sale_id", vector_to_array(array_to_vector(numbers)).alias("numbers"))

    error = mistake(spark, vectors)
    assert error.startswith(f"{__file__}:{inspect.getsourcelines(vectors)[1] + 2}: flow print calls JVM code")
    assert fingerprint(spark, vectors, version="1") == fingerprint(spark, vectors, version="1")


def test_the_fingerprint_includes_the_version_which_must_be_a_string(spark: SparkSession) -> None:
    def function(sales: DataFrame) -> DataFrame:
        return sales

    assert len({fingerprint(spark, function, version=version) for version in ("", "1", "2")}) == 3
    with pytest.raises(AppError, match="version must be a string"):
        fingerprint(spark, function, version=2)
