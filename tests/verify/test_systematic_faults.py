"""Faults that the running flow has in every batch, so that its topic, its notes and its views agree with each other: a
proof finds each, since it shares neither code nor notes with what it proves.

Each flow of the app has one of them. They are planted in the running flow, and gone when it is verified.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headrace.app import App
from headrace.client.progress_log import batches
from headrace.flow import batch, batch_rows, running
from headrace.flow.decoding import Decoder
from headrace.flow.encoding import encode
from headrace.flow.tables import TableState
from headrace.flow.watermark import next_watermark
from headrace.model.schema import Schema
from headrace.model.topic import Topic
from headrace.ops.report import Report
from tests.flow.reading import committed
from tests.support.flows import FlowWorld, RunningApp
from tests.verify.planting import verifier

BEGIN = datetime(2026, 3, 1, 12, 0, 0, 250_000, tzinfo=UTC)
LATE = timedelta(minutes=1)
SHIFT = timedelta(seconds=30)
FAULTS = ("order", "decoder", "encoder", "lateness", "table")


@dataclass(frozen=True)
class Sale:
    account: str
    number: int
    price: Decimal
    at: datetime


@dataclass(frozen=True)
class Rate:
    account: str
    rate: int


class Shop:
    def __init__(self) -> None:
        self.app = app = App("faulty")
        self.sales = {
            name: app.topic(f"{name}-faulty-sales", Sale, key="account", time="at", late=LATE)
            for name in FAULTS
        }
        self.rates = app.table("faulty-rates", Rate, key="account")
        self.rows = {name: app.topic(f"{name}-faulty-rows", key="account") for name in FAULTS}
        self.view = app.view("faulty-last", self.rows["order"])
        self.flows = {name: self._flow(name) for name in FAULTS}

    def _flow(self, name: str) -> Any:
        reads = [self.sales[name], *([self.rates] if name == "table" else [])]

        @self.app.flow(reads=reads, writes=self.rows[name], name=f"faulty-{name}")
        def flow(sales: DataFrame, *tables: DataFrame) -> DataFrame:
            return sales.join(tables[0], "account", "left") if tables else sales

        return flow


def reverse(rows: pa.Table, *, ties: bool) -> pa.Table:
    ordered = IN_ORDER(rows, ties=ties)
    is_faulty = ordered.num_rows and ordered.column("key")[0].as_py().startswith("order")
    return ordered.take(list(range(ordered.num_rows - 1, -1, -1))) if is_faulty else ordered


IN_ORDER = batch_rows.in_order


class RoundingDecoder(Decoder):
    def __init__(self, topic: Topic, *more: Any) -> None:
        super().__init__(topic, *more)
        self._rounds = topic.name.startswith("decoder")

    def decode(self, raw: DataFrame) -> DataFrame:
        decoded = super().decode(raw)
        rounded = F.round(F.col("row.price")).cast("decimal(18,6)")
        return (
            decoded.withColumn("row", F.col("row").withField("price", rounded)) if self._rounds else decoded
        )


def encode_without_fractions(
    rows: DataFrame, schema: Schema, key: tuple[str, ...], beside: Sequence[str] = ()
) -> DataFrame:
    encoded = encode(rows, schema, key, beside)
    cut = F.regexp_replace("value", r"\.[0-9]{6}Z", ".000000Z")
    return encoded.withColumn(
        "value", F.when(F.col("key").startswith("encoder"), cut).otherwise(F.col("value"))
    )


def next_watermark_too_soon(streams: tuple[Topic, ...], seen_us: Mapping[str, int]) -> int | None:
    right = next_watermark(streams, seen_us)
    is_faulty = right is not None and streams[0].name.startswith("lateness")
    return right + SHIFT // timedelta(microseconds=1) if is_faulty and right is not None else right


class OldTable(TableState):
    """Reads the table once, and notes that it has read all that came after."""

    def refresh(self, *arguments: Any) -> list[Any]:
        if not self.reached:
            return super().refresh(*arguments)
        self.reached = {str(number): end for number, end in self._cluster.ends(self.log).items()}
        return []


@pytest.fixture(scope="module")
def shop() -> Shop:
    return Shop()


@pytest.fixture(scope="module")
def run(flow_world: FlowWorld, shop: Shop) -> RunningApp:
    """Two batches: the second has sales of before, and the rates have changed in between."""
    flow_world.declare(shop.app)
    with pytest.MonkeyPatch.context() as planted:
        planted.setattr(batch_rows, "in_order", reverse)
        planted.setattr(running, "Decoder", RoundingDecoder)
        planted.setattr(running, "encode", encode_without_fractions)
        planted.setattr(batch, "next_watermark", next_watermark_too_soon)
        planted.setattr(running, "TableState", OldTable)
        flow_world.write(shop.rates, [Rate("table", 1)])
        send(flow_world, shop, 0, [0, 100, 101])
        with flow_world.running(shop.app) as running_app:
            running_app.derived()
            flow_world.write(shop.rates, [Rate("table", 2)])
            send(flow_world, shop, 3, [60, 102])
            running_app.followed()
    return running_app


def send(world: FlowWorld, shop: Shop, first: int, seconds: list[int]) -> None:
    for name, topic in shop.sales.items():
        times = [BEGIN + timedelta(seconds=at) for at in seconds]
        world.write(
            topic, [Sale(name, first + n, Decimal("10.49"), at) for n, at in enumerate(times)], partition=0
        )


def verified(run: RunningApp, shop: Shop, name: str) -> Report:
    with verifier(run) as one:
        return one.flow(shop.flows[name])


def test_rows_written_in_the_wrong_order_are_found_in_the_topic_and_in_the_view(
    shop: Shop, run: RunningApp
) -> None:
    with verifier(run) as one:
        view, topic = one.view(shop.view), one.flow(shop.flows["order"])
    assert (topic.verdict, topic.missing, topic.extra, topic.findings) == ("different", 0, 0, [])
    assert "in another order" in "\n".join(topic.lines())
    # The middle one of three stays where it is.
    assert [one.key["nth"] for one in topic.differences] == [1, 3, 4, 5]
    (last,) = view.differences
    assert last.expected is not None
    assert last.found is not None
    assert (last.expected["number"], last.found["number"]) == (4, 3)


def test_a_decoder_that_rounds_is_found(shop: Shop, run: RunningApp) -> None:
    report = verified(run, shop, "decoder")
    assert (report.verdict, report.findings) == ("different", [])
    found = "\n".join(report.lines())
    assert '"price":10.490000' in found
    assert '"price":10.000000' in found


def test_an_encoder_that_alters_values_is_found(shop: Shop, run: RunningApp) -> None:
    report = verified(run, shop, "encoder")
    assert (report.verdict, report.findings) == ("different", [])
    found = "\n".join(report.lines())
    assert "12:00:00.250000Z" in found
    assert "12:00:00.000000Z" in found


def test_a_watermark_that_is_too_soon_is_found_though_the_notes_of_late_events_agree_with_it(
    flow_world: FlowWorld, shop: Shop, run: RunningApp
) -> None:
    flow = shop.flows["lateness"]
    assert len(committed(flow_world.cluster.bootstrap, flow.late_topic)) == 1
    report = verified(run, shop, "lateness")
    assert report.verdict == "different"
    (missing,) = report.differences
    assert (missing.kind, report.missing) == ("missing", 1)
    assert {one.kind for one in report.findings} == {"books"}
    lines = "\n".join(one.message for one in report.findings)
    assert "batch 1 had 1 late events, and by the watermark that follows from the events it is 0" in lines
    right, wrong = ((BEGIN + timedelta(seconds=101) - late).isoformat() for late in (LATE, LATE - SHIFT))
    assert f"batch 1 began with the watermark {wrong}, and {right} follows from the events" in lines
    assert f"offset 3 of {shop.sales['lateness'].name}/0 in batch 1 was not late and is noted" in lines


def test_an_old_version_of_a_table_is_found_though_the_progress_names_the_new_one(
    flow_world: FlowWorld, shop: Shop, run: RunningApp
) -> None:
    noted = [one.tables[shop.rates.name] for one in batches(flow_world.cluster, "faulty-table.progress", 1)]
    assert noted == [{"0": 1}, {"0": 2}]
    report = verified(run, shop, "table")
    assert (report.verdict, report.findings) == ("different", [])
    assert report.different == 2
    for difference in report.differences:
        assert difference.expected is not None
        assert difference.found is not None
        assert '"rate":2' in difference.expected["value"]
        assert '"rate":1' in difference.found["value"]
