"""Faults that a running flow has in every batch, so that its topic, its progress records and its views agree. A proof
detects each of them, because it shares neither code nor progress records with the flow.

Each flow of the app has one fault. It is planted in the code of the running flow, and still present during the proof.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from faults.flows.world import FlowWorld, RunningApp
from headrace.app import App
from headrace.client.progress import batches
from headrace.client.transactional_writer import TransactionalWriter
from headrace.flow import batch_rows
from headrace.flow.codec import json_encode as encoding
from headrace.flow.codec.codec import Decoder
from headrace.flow.engine import enrichment
from headrace.flow.engine.micro_batch import MicroBatchRun
from headrace.flow.lateness import Lateness
from headrace.flow.tables.current import TableState
from headrace.model.declarations import LateMode
from headrace.ops.verify.report import Report
from tests.flow.topic_contents import committed
from tests.verify.planted_faults import verifier

pytestmark = pytest.mark.usefixtures("compiled_plans")

BEGIN = datetime(2026, 3, 1, 12, 0, 0, 250_000, tzinfo=UTC)
LATE = timedelta(minutes=1)
SHIFT = timedelta(seconds=30)
FAULTS = ("order", "decoder", "encoder", "lateness", "table", "partition", "count")


@dataclass(frozen=True)
class Sale:
    account: str
    number: int
    price: Decimal
    at: datetime


@dataclass(frozen=True)
class RoundedSale:
    account: str
    number: int
    cents: Decimal
    at: datetime


@dataclass(frozen=True)
class Rate:
    account: str
    rate: int


def kind_of(name: str) -> type[Sale | RoundedSale]:
    return RoundedSale if name == "decoder" else Sale


class Shop:
    def __init__(self) -> None:
        self.app = app = App("faulty")
        self.sales = {
            name: app.topic(f"{name}-faulty-sales", kind_of(name), key="account", time="at", late=LATE)
            for name in FAULTS
        }
        self.rates = app.table("faulty-rates", Rate, key="account")
        self.rows = {name: app.topic(f"{name}-faulty-rows", key="account") for name in FAULTS}
        self.view = app.view("faulty-last", self.rows["order"])
        self.flows = {name: self._flow(name) for name in FAULTS}

    def _flow(self, name: str) -> Any:
        reads = [self.sales[name], *([self.rates] if name == "table" else [])]

        late: LateMode | None = "drop" if name == "lateness" else None

        @self.app.flow(reads=reads, writes=self.rows[name], name=f"faulty-{name}", unbounded=True, late=late)
        def flow(sales: DataFrame, *tables: DataFrame) -> DataFrame:
            if name == "table":
                return sales.join(tables[0], "account", "left")
            if name == "count":
                return sales.groupBy("account").agg(F.count("*").alias("sales"))
            return sales.withColumnRenamed("at", "sold_at") if name == "encoder" else sales

        return flow


def reverse(rows: pa.Table, *, ties: bool) -> pa.Table:
    ordered = SORT_ROWS(rows, ties=ties)
    is_faulty = ordered.num_rows and ordered.column("key")[0].as_py().startswith("order")
    return ordered.take(list(range(ordered.num_rows - 1, -1, -1))) if is_faulty else ordered


SORT_ROWS = batch_rows.sort_rows


def decode_rounded(decoder: Decoder, raw: DataFrame) -> DataFrame:
    decoded = DECODE(decoder, raw)
    if "cents" not in decoded.schema["row"].dataType.names:
        return decoded
    rounded = F.round(F.col("row.cents")).cast("decimal(18,6)")
    return decoded.withColumn("row", F.col("row").withField("cents", rounded))


DECODE = Decoder.decode


def write_whole_seconds(rows: DataFrame, name: str) -> Column:
    column = ENCODABLE(rows, name)
    return F.date_trunc("second", column).alias(name) if name == "sold_at" else column


ENCODABLE = encoding._encodable


def late_too_soon(run: MicroBatchRun) -> dict[str, Lateness]:
    latenesses = OPEN_LATENESSES(run)
    for lateness in latenesses.values():
        lateness._policy = dataclasses.replace(lateness._policy, allowed=LATE - SHIFT)
    return latenesses


OPEN_LATENESSES = MicroBatchRun._open_latenesses


class OldTable(TableState):
    """A table that is read only once, although its recorded offsets move on."""

    def refresh(self) -> None:
        if not self.reached:
            super().refresh()
        else:
            self.reached = {str(number): end for number, end in self._cluster.ends(self.log).items()}


def write_to_wrong_partitions(
    writer: TransactionalWriter, topic: str, keys: Sequence[str], values: Sequence[str | None]
) -> None:
    """``partition`` alternates between two partitions; ``count`` writes each row to the partition to which its key does
    not belong.
    """
    if not topic.startswith(("partition", "count")):
        WRITE_ROWS(writer, topic, keys, values)
        return
    for number, (key, value) in enumerate(zip(keys, values, strict=True)):
        partition = number % 2 if topic.startswith("partition") else PARTITION_NOT_OF_COUNT
        writer._producer.produce(topic, value, key, partition=partition)


WRITE_ROWS = TransactionalWriter.send_rows
PARTITION_NOT_OF_COUNT = 1


@pytest.fixture(scope="module")
def shop() -> Shop:
    return Shop()


@pytest.fixture(scope="module")
def run(flow_world: FlowWorld, shop: Shop) -> Iterator[RunningApp]:
    """Two batches: the second has earlier sales, and the rates changed in between."""
    for name in ("partition", "count"):
        flow_world.cluster.ensure_topic(shop.rows[name].name, 2)
    flow_world.declare(shop.app)
    with pytest.MonkeyPatch.context() as planted:
        planted.setattr(batch_rows, "sort_rows", reverse)
        planted.setattr(Decoder, "decode", decode_rounded)
        planted.setattr(encoding, "_encodable", write_whole_seconds)
        planted.setattr(MicroBatchRun, "_open_latenesses", late_too_soon)
        planted.setattr(enrichment, "TableState", OldTable)
        planted.setattr(TransactionalWriter, "send_rows", write_to_wrong_partitions)
        flow_world.write(shop.rates, [Rate("table", 1)])
        send(flow_world, shop, 0, [0, 100, 101])
        with flow_world.running(shop.app) as running_app:
            running_app.wait_until_derived()
            flow_world.write(shop.rates, [Rate("table", 2)])
            send(flow_world, shop, 3, [60, 102])
            running_app.wait_until_followed()
        yield running_app


def send(world: FlowWorld, shop: Shop, first: int, seconds: list[int]) -> None:
    for name, topic in shop.sales.items():
        times = [BEGIN + timedelta(seconds=at) for at in seconds]
        rows = [kind_of(name)(name, first + n, Decimal("10.49"), at) for n, at in enumerate(times)]
        world.write(topic, rows, partition=0)


def verified(run: RunningApp, shop: Shop, name: str) -> Report:
    with verifier(run) as verification:
        return verification.flow(shop.flows[name])


def test_rows_in_the_wrong_order_are_detected_in_the_topic_and_in_the_view(
    shop: Shop, run: RunningApp
) -> None:
    with verifier(run) as verification:
        view, topic = verification.view(shop.view), verification.flow(shop.flows["order"])
    assert (topic.verdict, topic.missing, topic.extra, topic.findings) == ("different", 0, 0, [])
    assert "in another order" in "\n".join(topic.lines())
    # The second of the three rows is in its right partition.
    assert [difference.key["nth"] for difference in topic.differences] == [1, 3, 4, 5]
    (last,) = view.differences
    assert last.expected is not None
    assert last.found is not None
    assert (last.expected["number"], last.found["number"]) == (4, 3)


def test_a_decoder_that_rounds_is_detected(shop: Shop, run: RunningApp) -> None:
    report = verified(run, shop, "decoder")
    assert (report.verdict, report.findings) == ("different", [])
    found = "\n".join(report.lines())
    assert '"cents":10.490000' in found
    assert '"cents":10.000000' in found


def test_an_encoder_that_alters_values_is_detected(shop: Shop, run: RunningApp) -> None:
    report = verified(run, shop, "encoder")
    assert (report.verdict, report.findings) == ("different", [])
    found = "\n".join(report.lines())
    assert "12:00:00.250000Z" in found
    assert "12:00:00.000000Z" in found


def test_an_event_that_is_wrongly_late_is_detected_though_the_notes_agree_with_the_counts(
    flow_world: FlowWorld, shop: Shop, run: RunningApp
) -> None:
    flow = shop.flows["lateness"]
    assert len(committed(flow_world.cluster.bootstrap, flow.late_topic)) == 1
    report = verified(run, shop, "lateness")
    assert report.verdict == "different"
    (missing,) = report.differences
    assert (missing.kind, report.missing) == ("missing", 1)
    assert {finding.kind for finding in report.findings} == {"books"}
    lines = "\n".join(finding.message for finding in report.findings)
    assert (
        "batch 1 recorded 1 late events, but 0 events are too far behind the newest event of their partition"
        in lines
    )
    assert f"offset 3 of {shop.sales['lateness'].name}/0 in batch 1 was not late and is noted" in lines


def test_an_old_version_of_a_table_is_detected_though_the_progress_names_the_new_one(
    flow_world: FlowWorld, shop: Shop, run: RunningApp
) -> None:
    noted = [
        row.tables[shop.rates.name] for row in batches(flow_world.cluster, "faulty.faulty-table.progress", 1)
    ]
    assert noted == [{"0": 1}, {"0": 2}]
    report = verified(run, shop, "table")
    assert (report.verdict, report.findings) == ("different", [])
    assert report.different == 2
    for difference in report.differences:
        assert difference.expected is not None
        assert difference.found is not None
        assert '"rate":2' in difference.expected["value"]
        assert '"rate":1' in difference.found["value"]


def test_an_aggregated_row_in_the_wrong_partition_is_reported_as_missing(shop: Shop, run: RunningApp) -> None:
    report = verified(run, shop, "count")
    assert (report.verdict, report.missing, report.findings) == ("different", 1, [])


def test_rows_in_the_wrong_partition_are_detected(shop: Shop, run: RunningApp) -> None:
    report = verified(run, shop, "partition")
    assert (report.verdict, report.findings) == ("different", [])
    assert (report.missing, report.extra) == (2, 2)
    assert "in the wrong partition" in "\n".join(report.lines())
