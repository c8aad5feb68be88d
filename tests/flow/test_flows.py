"""The rows that flows derive, and the late and invalid records from which they derive no rows."""

from __future__ import annotations

import itertools
import json
import shutil
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from faults.flows.world import FlowWorld
from headrace.app import App
from headrace.client.declared_topics import KEEP
from headrace.client.progress import batches, current
from headrace.flow.compile.compiler import compile_app
from headrace.flow.errors import CheckpointLost, CheckpointStale, FlowChanged, InputReplaced
from headrace.model.declarations import Flow, Topic
from headrace.model.errors import AppMistakes
from headrace.model.progress import Batch, Generation, encode
from headrace.ops.verify.derivation import Derivations, function_finding
from tests.flow.topic_contents import committed, headers, last_values, values

pytestmark = pytest.mark.usefixtures("compiled_plans")

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@dataclass(frozen=True)
class Sale:
    sale_id: str
    product_id: str
    amount: Decimal
    at: datetime
    note: str | None = None


@dataclass(frozen=True)
class Product:
    product_id: str
    name: str


def sale(number: int, *, product: str = "p", amount: str = "1", after_s: float = 0) -> Sale:
    return Sale(f"s{number}", product, Decimal(amount), NOON + timedelta(seconds=after_s))


class Shop:
    """An app for each test: a stateless flow, and an aggregation that reads its output."""

    def __init__(self, *, late: timedelta = timedelta(minutes=5)) -> None:
        mark = uuid.uuid4().hex[:8]
        self.app = App(f"shop-{mark}")
        self.sales = self.app.topic(f"sales-{mark}", Sale, key="sale_id", time="at", late=late)
        self.kept = self.app.topic(f"kept-{mark}", key="sale_id", time="at", late=late)
        self.sums = self.app.topic(f"sums-{mark}", key=["product_id", "minute"])

        @self.app.flow(reads=[self.sales], writes=self.kept, name=f"keep-{mark}")
        def keep(sales: DataFrame) -> DataFrame:
            return sales.where("amount >= 0").drop("note")

        @self.app.flow(reads=[self.kept], writes=self.sums, name=f"sum-{mark}")
        def sum_up(kept: DataFrame) -> DataFrame:
            minutes = kept.groupBy("product_id", F.window("at", "1 minute").alias("window"))
            summed = minutes.agg(F.sum("amount").alias("amount"), F.count(F.lit(1)).alias("sales"))
            return summed.select("product_id", F.col("window.start").alias("minute"), "amount", "sales")

        self.keep: Flow = keep
        self.sum_up: Flow = sum_up


def all_batches(world: FlowWorld, flow: Flow, generation: int = 1) -> list[Batch]:
    return list(batches(world.cluster, flow.progress_topic, generation))


def expect_contiguous(all_of_flow: list[Batch]) -> None:
    """Check that each batch begins where the previous one ended, in its inputs and outputs."""
    for previous, following in itertools.pairwise(all_of_flow):
        assert following.batch > previous.batch
        for side in ("inputs", "outputs"):
            for topic, ranges in getattr(following, side).items():
                for number, (start, _) in ranges.items():
                    # A partition that was added meanwhile starts at its first offset.
                    assert start == getattr(previous, side)[topic].get(number, (0, 0))[1]


def test_rows_are_derived_once_after_restarts_and_with_any_batch_size(flow_world: FlowWorld) -> None:
    shop = Shop()
    bootstrap = flow_world.cluster.bootstrap
    sent = [sale(n, product=f"p{n % 3}", amount=f"{n}.25", after_s=n % 150) for n in range(200)]
    for part, max_rows in ((sent[:90], 7), (sent[90:150], 100_000), (sent[150:], 40)):
        flow_world.write(shop.sales, part)
        with flow_world.running(shop.app, max_rows=max_rows, follow=False) as run:
            run.wait_until_derived()
    kept = values(bootstrap, shop.kept.name)
    assert sorted(row["sale_id"] for row in kept) == sorted(sent_sale.sale_id for sent_sale in sent)
    expected: dict[tuple[str, int], tuple[Decimal, int]] = {}
    for sent_sale in sent:
        minute = int((sent_sale.at - NOON).total_seconds()) // 60
        amount, count = expected.get((sent_sale.product_id, minute), (Decimal(0), 0))
        expected[sent_sale.product_id, minute] = (amount + sent_sale.amount, count + 1)
    rows = last_values(bootstrap, shop.sums.name).values()
    rows_found = {
        (row["product_id"], (datetime.fromisoformat(row["minute"]) - NOON) // timedelta(minutes=1)): (
            Decimal(str(row["amount"])),
            row["sales"],
        )
        for row in rows
    }
    assert rows_found == expected
    progress = all_batches(flow_world, shop.keep)
    assert len(progress) > 10
    assert max(sent_sale.rows_in for sent_sale in progress) <= 100
    expect_contiguous(progress)
    expect_contiguous(all_batches(flow_world, shop.sum_up))
    assert progress[-1].totals.rows_in == progress[-1].totals.rows_out == 200


POISON = {
    "truncated": b'{"sale_id": "x"',
    "not UTF-8": b'{"sale_id":"\xff","product_id":"p","amount":1,"at":"2026-03-01T12:00:00Z"}',
    "nesting": b'{"sale_id":"x","product_id":"p","amount":1,"at":"2026-03-01T12:00:00Z","z":'
    + b"[" * 100_000
    + b"]" * 100_000
    + b"}",
    "digits": b'{"sale_id":"x","product_id":"p","amount":' + b"1" * 5_000 + b',"at":"2026-03-01T12:00:00Z"}',
    "too many decimal places": b'{"sale_id":"x","product_id":"p","amount":1.23456789,"at":"2026-03-01T12:00:00Z"}',
    "NaN": b'{"sale_id":"x","product_id":"p","amount":NaN,"at":"2026-03-01T12:00:00Z"}',
    "half a surrogate pair": b'{"sale_id":"\\ud800","product_id":"p","amount":1,"at":"2026-03-01T12:00:00Z"}',
    "duplicate field": b'{"sale_id":"x","sale_id":"y","product_id":"p","amount":1,"at":"2026-03-01T12:00:00Z"}',
    "missing": b'{"sale_id":"x","amount":1,"at":"2026-03-01T12:00:00Z"}',
    "no time": b'{"sale_id":"x","product_id":"p","amount":1,"at":"yesterday"}',
    "1970": b'{"sale_id":"x","product_id":"p","amount":1,"at":"1970-01-01T00:00:01Z"}',
    "before 1970": b'{"sale_id":"x","product_id":"p","amount":1,"at":"1960-01-01T00:00:01Z"}',
    "9999": b'{"sale_id":"x","product_id":"p","amount":1,"at":"9999-12-31T23:59:59Z"}',
    "list": b"[1]",
    "empty": b"",
    "null": None,
}


def test_a_dead_letter_has_the_original_bytes_the_origin_and_the_reason(flow_world: FlowWorld) -> None:
    shop = Shop(late=timedelta(0))
    poison: list[Any] = [(name.encode(), value) for name, value in POISON.items()]
    good = [sale(n, after_s=n) for n in range(3)]
    nul = (b"nul", b'{"sale_id":"a\\u0000b","product_id":"p","amount":1,"at":"2026-03-01T12:00:03Z"}')
    flow_world.write(shop.sales, [good[0], *poison, *good[1:], nul])
    with flow_world.running(shop.app, follow=False) as run:
        run.wait_until_derived()
    bootstrap = flow_world.cluster.bootstrap
    assert {row["sale_id"] for row in values(bootstrap, shop.kept.name)} == {"s0", "s1", "s2", "a\0b"}
    dead = committed(bootstrap, shop.keep.dead_topic)
    assert {letter.key().decode(): letter.value() for letter in dead} == POISON
    for offset, name in enumerate(POISON, start=1):
        letter_headers = next(headers(letter) for letter in dead if letter.key().decode() == name)
        assert (letter_headers["topic"], letter_headers["partition"], letter_headers["offset"]) == (
            shop.sales.name,
            "0",
            str(offset),
        )
        assert letter_headers["message"]
    last = all_batches(flow_world, shop.keep)[-1]
    assert last.totals.rows_in == len(POISON) + 4
    assert last.totals.dead == len(POISON)
    # The implausible event times have not moved the watermark.
    assert last.seen_us == {shop.sales.name: int((NOON + timedelta(seconds=3)).timestamp()) * 1_000_000}


def test_a_stream_is_joined_with_a_table_as_it_is_when_a_batch_begins(flow_world: FlowWorld) -> None:
    mark = uuid.uuid4().hex[:8]
    app = App(f"join-{mark}")
    sales = app.topic(f"sales-{mark}", Sale, key="sale_id", time="at")
    products = app.table(f"products-{mark}", Product, key="product_id")
    named = app.topic(f"named-{mark}", key="sale_id")

    @app.flow(reads=[sales, products], writes=named, name=f"name-{mark}")
    def name_them(sales: DataFrame, products: DataFrame) -> DataFrame:
        return sales.join(products, "product_id", "left").select("sale_id", "name")

    flow_world.declare(app)
    flow_world.write(products, [Product("p", "first"), (b"broken", b"{")])
    with flow_world.running(app, follow=False) as run:
        flow_world.write(sales, [sale(1), sale(2, product="q")])
        run.wait_until_derived()
        flow_world.write(products, [Product("p", "second"), Product("q", "late")])
        flow_world.write(sales, [sale(3), sale(4, product="q")])
        run.wait_until_derived()
        flow_world.write(products, [(b"p", None)])
        flow_world.write(sales, [sale(5)])
        run.wait_until_derived()
    bootstrap = flow_world.cluster.bootstrap
    rows = {row["sale_id"]: row["name"] for row in values(bootstrap, named.name)}
    assert rows == {"s1": "first", "s2": None, "s3": "second", "s4": "late", "s5": None}
    progress = all_batches(flow_world, name_them)
    assert [batch.tables[products.name]["0"] for batch in progress] == sorted(
        batch.tables[products.name]["0"] for batch in progress
    )
    assert [batch.value() for batch in committed(bootstrap, name_them.dead_topic)] == [b"{"]


def test_a_row_without_a_key_is_a_dead_letter_and_a_deleted_row_deletes_its_key(
    flow_world: FlowWorld,
) -> None:
    mark = uuid.uuid4().hex[:8]
    app = App(f"keys-{mark}")
    sales = app.topic(f"sales-{mark}", Sale, key="sale_id", time="at")
    rows = app.topic(f"rows-{mark}", key="product_id")

    @app.flow(reads=[sales], writes=rows, name=f"rows-{mark}")
    def make(sales: DataFrame) -> DataFrame:
        key = F.when(F.col("product_id") != "none", F.col("product_id"))
        return sales.select(key.alias("product_id"), "sale_id", (F.col("amount") < 0).alias("_deleted"))

    flow_world.declare(app)
    flow_world.write(sales, [sale(1, product="a"), sale(2, product="none"), sale(3, product="b")])
    with flow_world.running(app, follow=False) as run:
        run.wait_until_derived()
        flow_world.write(sales, [sale(4, product="a", amount="-1")])
        run.wait_until_derived()
    bootstrap = flow_world.cluster.bootstrap
    assert last_values(bootstrap, rows.name) == {"b": {"product_id": "b", "sale_id": "s3"}}
    [dead] = committed(bootstrap, make.dead_topic)
    assert json.loads(dead.value())["sale_id"] == "s2"
    assert all_batches(flow_world, make)[-1].totals.keyless == 1


def run_to_the_end(world: FlowWorld, app: App) -> None:
    with world.running(app, follow=False) as run:
        run.wait_until_derived()


def checkpoint_of(world: FlowWorld, flow: Flow) -> Path:
    """The checkpoint directory of a flow with state, which every run renames."""
    progress = current(world.cluster, flow.progress_topic)
    assert progress is not None
    [folder] = (world.settings().checkpoints / flow.name).glob(f"{progress.generation.checkpoint}.*")
    return folder


def test_a_lost_checkpoint_stops_the_flow_and_a_new_generation_derives_the_same(
    flow_world: FlowWorld,
) -> None:
    shop = Shop()
    flow_world.write(shop.sales, [sale(n, after_s=n) for n in range(20)])
    run_to_the_end(flow_world, shop.app)
    checkpoint = checkpoint_of(flow_world, shop.sum_up)
    shutil.rmtree(checkpoint)
    with pytest.raises(CheckpointLost) as lost:
        run_to_the_end(flow_world, shop.app)
    assert str(checkpoint.with_suffix("")) in str(lost.value)
    assert "batch" in lost.value.detail
    with flow_world.running(shop.app, follow=False, rebuild=[shop.sum_up.name]) as run:
        run.wait_until_derived()
    bootstrap = flow_world.cluster.bootstrap
    assert last_values(bootstrap, f"{shop.sums.name}.g2") == last_values(bootstrap, shop.sums.name)


def test_a_checkpoint_that_does_not_match_the_log_is_refused(flow_world: FlowWorld, tmp_path: Path) -> None:
    shop = Shop()
    flow_world.write(shop.sales, [sale(n, after_s=n) for n in range(5)])
    run_to_the_end(flow_world, shop.app)
    checkpoint = checkpoint_of(flow_world, shop.sum_up)
    shutil.copytree(checkpoint, tmp_path / "backup")
    flow_world.write(shop.sales, [sale(n, after_s=n) for n in range(5, 9)])
    run_to_the_end(flow_world, shop.app)
    shutil.rmtree(checkpoint_of(flow_world, shop.sum_up))
    shutil.copytree(tmp_path / "backup", checkpoint)
    with pytest.raises(CheckpointStale):
        run_to_the_end(flow_world, shop.app)


def test_a_changed_function_does_not_resume_the_generation_of_the_old_function(flow_world: FlowWorld) -> None:
    shop = Shop()
    flow_world.write(shop.sales, [sale(1)])
    run_to_the_end(flow_world, shop.app)
    changed = App(shop.app.name)
    changed.topics += shop.app.topics

    @changed.flow(reads=[shop.sales], writes=shop.kept, name=shop.keep.name)
    def keep(sales: DataFrame) -> DataFrame:
        return sales.where("amount >= 1").drop("note")

    with pytest.raises(FlowChanged) as refused:
        run_to_the_end(flow_world, changed)
    assert "headrace flow rebuild" in refused.value.hint


def test_a_fingerprint_of_an_older_release_is_recognized_and_requires_one_rebuild(
    flow_world: FlowWorld,
) -> None:
    shop = Shop()
    flow_world.declare(shop.app)
    flow_world.cluster.ensure_topic(shop.keep.progress_topic, 1, KEEP)
    older = Generation(
        app=shop.app.name,
        flow=shop.keep.name,
        generation=1,
        fingerprint="0123456789abcdef",
        inputs=[],
        output=shop.kept.name,
        output_id="",
        key=["sale_id"],
        schema=[],
        checkpoint="g1",
        started_ms=0,
    )
    producer = flow_world.cluster.producer({})
    key, value = encode(older)
    producer.produce(shop.keep.progress_topic, key=key, value=value)
    assert producer.flush(30) == 0
    with pytest.raises(FlowChanged, match="this release computes fingerprints differently") as refused:
        run_to_the_end(flow_world, shop.app)
    assert "rebuild the flow once" in refused.value.hint

    compiled, schemas = compile_app(flow_world.spark, shop.app)
    deriving = Derivations(
        flow_world.spark, flow_world.cluster, flow_world.settings(), compiled, schemas, lambda _: None
    )
    finding = function_finding(deriving, shop.keep, older)
    assert finding is not None
    assert "this release computes fingerprints differently" in finding.message


def test_a_topic_that_was_created_again_is_recognized(flow_world: FlowWorld) -> None:
    shop = Shop()
    flow_world.write(shop.sales, [sale(1)])
    run_to_the_end(flow_world, shop.app)
    admin = AdminClient({"bootstrap.servers": flow_world.cluster.bootstrap})
    admin.delete_topics([shop.sales.name])[shop.sales.name].result(30)
    flow_world.declare(shop.app)
    with pytest.raises(InputReplaced):
        run_to_the_end(flow_world, shop.app)


def mistake_of(world: FlowWorld, function: Any, **options: Any) -> str:
    mark = uuid.uuid4().hex[:8]
    app = App(f"wrong-{mark}")
    sales = app.topic(f"sales-{mark}", Sale, key="sale_id", time="at")
    out: Topic = app.topic(f"out-{mark}", key="sale_id")
    app.flow(reads=[sales], writes=out, name=f"wrong-{mark}", **options)(function)
    with pytest.raises(AppMistakes) as raised:
        compile_app(world.spark, app)
    [mistake] = raised.value.mistakes
    assert f"{__file__}:" in str(mistake)
    return mistake.message


def test_mistakes_of_a_function_are_found_before_anything_starts(flow_world: FlowWorld) -> None:
    def expect_mistake(function: Any, text: str) -> None:
        assert text in mistake_of(flow_world, function)

    python = F.udf(lambda text: text, "string")
    expect_mistake(lambda sales: sales.withColumn("dice", F.rand()), "not deterministic")
    expect_mistake(lambda sales: sales.withColumn("id", F.expr("uuid()")), "not deterministic")
    expect_mistake(lambda sales: sales.withColumn("now", F.current_timestamp()), "clock")
    expect_mistake(lambda sales: sales.withColumn("sale_id", python("sale_id")), "uses a Python function")
    expect_mistake(lambda sales: sales.orderBy("at"), "needs the end of its input")
    expect_mistake(lambda sales: sales.limit(3), "needs the end of its input")
    expect_mistake(lambda sales: sales.groupBy("sale_id").count(), "without limit")
    expect_mistake(lambda sales: sales.select("product_id"), "returns no sale_id")
    expect_mistake(lambda sales: sales.select("*", "sale_id"), "several columns named sale_id")
    expect_mistake(
        lambda sales: sales.select("*", F.lit(1).alias("Sale_Id")), "several columns named Sale_Id or sale_id"
    )
    expect_mistake(lambda sales: 3, "not a DataFrame")
    expect_mistake(lambda sales: sales.select("nothing"), "nothing")
    expect_mistake(lambda sales: sales.select(F.col("sale_id"), 1 / 0), "ZeroDivisionError")


def test_a_column_of_another_type_is_reported_with_both_types(flow_world: FlowWorld) -> None:
    mark = uuid.uuid4().hex[:8]
    app = App(f"wrong-{mark}")
    sales = app.topic(f"sales-{mark}", Sale, key="sale_id", time="at")
    named: Topic = app.topic(f"named-{mark}", Product, key="product_id")
    app.flow(reads=[sales], writes=named, name=f"wrong-{mark}")(
        lambda sales: sales.select("product_id", F.lit(1).alias("name"))
    )
    expected = f"topic named-{mark} declares name as string, but flow wrong-{mark} returns bigint"
    with pytest.raises(AppMistakes, match=expected):
        compile_app(flow_world.spark, app)


def test_the_same_function_has_the_same_fingerprint_however_it_is_written(flow_world: FlowWorld) -> None:
    def fingerprints(*functions: Any) -> list[str]:
        mark = uuid.uuid4().hex[:8]
        result = []
        for function in functions:
            app = App(f"print-{mark}")
            sales = app.topic(f"sales-{mark}", Sale, key="sale_id", time="at")
            out = app.topic(f"out-{mark}", key="sale_id")
            app.flow(reads=[sales], writes=out, name=f"print-{mark}")(function)
            result.append(compile_app(flow_world.spark, app)[0][0].fingerprint)
        return result

    first, same, other = fingerprints(
        lambda sales: sales.where(F.col("amount") > 3),
        lambda rows: rows.filter("amount > 3"),
        lambda sales: sales.where(F.col("amount") > 4),
    )
    assert first == same
    assert first != other
