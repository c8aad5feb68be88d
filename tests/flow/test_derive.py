"""``headrace.testing`` derives a flow from rows in batch, and rejects what the running flow rejects."""

from __future__ import annotations

import json
import os
import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headrace.app import App
from headrace.model.errors import AppError
from headrace.testing import Deleted, FlowTester, InvalidSample, Reason

NOON = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@dataclass(frozen=True)
class Sale:
    sale_id: str
    product_id: str | None
    amount: Decimal
    at: datetime


@dataclass(frozen=True)
class Product:
    product_id: str
    name: str


app = App("shop")
sales = app.topic("sales", Sale, key="sale_id", time="at", late=MINUTE)
products = app.table("products", Product, key="product_id")
named = app.topic("named", key="sale_id")
sums = app.topic("sums", key="product_id")


@app.flow(reads=[sales, products], writes=named)
def name_products(sales: DataFrame, products: DataFrame) -> DataFrame:
    return sales.join(products, "product_id").select("sale_id", "name")


@app.flow(reads=[sales], writes=sums, unbounded=True, late="drop")
def sum_up(sales: DataFrame) -> DataFrame:
    return sales.groupBy("product_id").agg(F.sum("amount").alias("amount"))


small_app = App("small")
small_sales = small_app.topic("sales", Sale, key="sale_id", time="at", late=MINUTE)
large = small_app.topic("large", key="product_id")


@small_app.flow(reads=[small_sales], writes=large, late="side")
def keep_large(sales: DataFrame) -> DataFrame:
    return sales.select("product_id", "amount", (F.col("amount") < 10).alias("_deleted"))


@small_app.flow(reads=[large], writes=small_app.topic("lengths", key="product_id"))
def measure(large: DataFrame) -> DataFrame:
    return large.select("product_id", F.length("product_id").alias("length"))


def sale(
    number: int, product: str | None = "p", amount: str = "1", *, after: timedelta = timedelta(0)
) -> Sale:
    return Sale(f"s{number}", product, Decimal(amount), NOON + after)


def test_rows_have_python_values_in_the_order_of_the_flow(derive: FlowTester) -> None:
    result = derive(sum_up, [sale(1, "b", "1.5"), sale(2, "a"), sale(3, "b", "2")])
    assert result.rows == [
        {"product_id": "a", "amount": Decimal("1.000000")},
        {"product_id": "b", "amount": Decimal("3.500000")},
    ]
    assert (result.late, result.dead) == ([], [])


def test_an_event_is_late_if_an_earlier_event_of_its_topic_is_too_far_ahead(derive: FlowTester) -> None:
    first = [sale(1), sale(2, after=-2 * MINUTE)]
    second = [sale(3, after=-MINUTE), sale(4, after=-2 * MINUTE)]
    result = derive(sum_up, first, second)
    assert [row["amount"] for row in result.current] == [Decimal(2)]
    assert [(late.topic, late.row["sale_id"], late.newest) for late in result.late] == [
        ("sales", "s2", NOON),
        ("sales", "s4", NOON),
    ]


def test_a_flow_that_keeps_late_events_gets_them(derive: FlowTester) -> None:
    result = derive(
        name_products, {products: [Product("p", "Tea")], sales: [sale(1), sale(2, after=-9 * MINUTE)]}
    )
    assert [row["sale_id"] for row in result.rows] == ["s1", "s2"]
    assert result.late == []


def test_random_events_are_late_by_the_rule(derive: FlowTester) -> None:
    rng = random.Random(int(os.environ["HEADRACE_TEST_SEED"]))
    events = [sale(number, after=rng.randint(-120, 120) * timedelta(seconds=1)) for number in range(100)]
    late = [
        event.sale_id
        for number, event in enumerate(events)
        if any(earlier.at - event.at > MINUTE for earlier in events[:number])
    ]
    result = derive(keep_large, events[:40], events[40:])
    assert [record.row["sale_id"] for record in result.late] == late
    assert len(result.rows) == len(events) - len(late)


def test_records_that_do_not_fit_are_dead_with_reason_and_message(derive: FlowTester) -> None:
    at = "2026-01-31T12:00:00Z"
    values = [
        b"{",
        json.dumps({"sale_id": "s", "product_id": "q", "amount": "20", "at": at}).encode(),
        json.dumps({"sale_id": "s", "amount": "x", "at": at}).encode(),
    ]
    result = derive(keep_large, [*values, sale(2, after=61 * MINUTE)], logged_at=NOON)
    assert [row for row in result.rows if not isinstance(row, Deleted)] == [
        {"product_id": "q", "amount": Decimal("20.000000")}
    ]
    assert [(dead.topic, dead.reason) for dead in result.dead] == [
        ("sales", Reason.SCHEMA),
        ("sales", Reason.SCHEMA),
        ("sales", Reason.TIME),
    ]
    messages = [dead.message for dead in result.dead]
    assert messages[0].startswith("not JSON")
    assert messages[1].startswith("amount: expected")
    assert "ahead of the record's own time" in messages[2]


def test_a_row_without_a_key_is_dead_and_a_deletion_removes_its_key(derive: FlowTester) -> None:
    result = derive(keep_large, [sale(1, amount="20"), sale(2, "q", "30"), sale(3), sale(4, None)])
    assert result.rows[2] == Deleted({"product_id": "p"})
    assert result.current == [{"product_id": "q", "amount": Decimal("30.000000")}]
    assert [(dead.topic, dead.reason) for dead in result.dead] == [("large", Reason.KEY)]


def test_an_event_is_joined_with_the_table_as_it_was_in_its_batch(derive: FlowTester) -> None:
    result = derive(
        name_products,
        {products: [Product("p", "Tea")], sales: [sale(1)]},
        {"sales": [sale(2)], "products": [Product("p", "Green tea"), b"{"]},
        {products: [Deleted({"product_id": "p"})], sales: [sale(3)]},
    )
    assert result.rows == [{"sale_id": "s1", "name": "Tea"}, {"sale_id": "s2", "name": "Green tea"}]
    assert [dead.topic for dead in result.dead] == ["products"]


def test_a_flow_of_a_derived_topic_needs_the_app(derive: FlowTester) -> None:
    rows = [{"product_id": "p", "amount": Decimal(1)}]
    with pytest.raises(InvalidSample, match="flow 'measure' reads large, which has no declared schema"):
        derive(measure, rows)
    assert derive(measure, rows, app=small_app).rows == [{"product_id": "p", "length": 1}]
    with pytest.raises(InvalidSample, match="app 'small' does not declare flow 'sum_up'"):
        derive(sum_up, [], app=small_app)


def test_nothing_is_derived_from_nothing(derive: FlowTester) -> None:
    assert derive(sum_up, []).rows == []


@pytest.mark.parametrize(
    ("flow", "batch", "message"),
    [
        (name_products, [sale(1)], "reads sales and products: it is not clear whose rows these are"),
        (sum_up, {"sale": []}, "flow 'sum_up' does not read sale"),
        (sum_up, sale(1), "a batch must be a list of rows"),
        (sum_up, [{"sale_id": 1}], "a row for topic 'sales' does not fit its schema"),
    ],
)
def test_rows_that_are_no_input_of_the_flow_are_refused(
    derive: FlowTester, flow: Any, batch: Any, message: str
) -> None:
    with pytest.raises(InvalidSample, match=message):
        derive(flow, batch)


def test_a_flow_that_could_not_run_is_refused(derive: FlowTester) -> None:
    other = App("other")
    events = other.topic("events", Sale, key="sale_id", time="at")

    @other.flow(reads=[events], writes=other.topic("counts", key="product_id"))
    def count(events: DataFrame) -> DataFrame:
        return events.groupBy("product_id").count()

    with pytest.raises(AppError, match="grow"):
        derive(count, [sale(1)])
