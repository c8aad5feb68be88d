"""The intricate parts of a derivation, each compared with an oracle."""

from __future__ import annotations

import dataclasses
import json
import random
import uuid
from typing import Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from faults.flows.world import FlowWorld
from faults.views.follower_thread import produce
from faults.wait import until
from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.records import read
from headrace.flow.codec.codec import TimeBounds
from headrace.flow.compile.compiler import Compiled
from headrace.flow.compile.plan import OrderSensitiveOperators
from headrace.flow.history import derived as folding
from headrace.flow.history.derived import ALL, BY_TOPIC, DERIVED, UNKNOWN, Derived, fold_by_key
from headrace.flow.tables.versions import TableVersions
from headrace.model.progress import Batch, Generation
from headrace.model.schema import schema_of
from tests.verify.mill import Measurement
from tests.verify.test_deleted_input import COMPACTED

TRACED = "key string, value string, _headrace_batch long, _headrace_at0 long, _headrace_at1 long"


@dataclasses.dataclass(frozen=True)
class Price:
    product: str
    price: int
    note: str


def batch(number: int, **more: Any) -> Batch:
    result: dict[str, Any] = {"inputs": {}, "tables": {}, "outputs": {}, "rows_in": 0, "rows_out": 0} | more
    marks = {"watermark_us": None, "next_watermark_us": None, "seen_us": {}, "late": 0, "dead": 0}
    return Batch(flow="f", generation=1, batch=number, fingerprint="x", **marks, **result)


def compacted_to(cluster: Cluster, topic: str, most: int) -> dict[int, int]:
    """Wait until compaction leaves at most this many records; return their offsets."""

    def left() -> list[int]:
        end = cluster.ends(topic)[0]
        return [item.offset() or 0 for item in read(cluster, topic, {0: (0, end)})]

    until(lambda: len(left()) <= most, "compaction", pause_s=0.05)
    return dict.fromkeys(left(), 1)


def test_rows_are_collected_in_chunks_of_limited_size(
    flow_world: FlowWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folding, "_BYTES_PER_CHUNK", 10_000)
    rows = flow_world.spark.range(100).selectExpr("CAST(id AS STRING) AS key", "id AS value")
    chunks = list(folding.collect_chunks(rows, 100, 1_000))
    assert len(chunks) == 10
    assert sorted(value for _, values in chunks for value in values) == list(range(100))


# Choosing the last of several derived rows with the same key


class Topic:
    """A flow's topic that contains ``rows``. ``fold`` compares it with derived rows."""

    def __init__(
        self, world: FlowWorld, rows: list[tuple[str, str | None]], *, policy: str = "delete"
    ) -> None:
        self.world = world
        name = f"rows-{uuid.uuid4().hex[:8]}"
        info = world.cluster.ensure_topic(name, 1, {"cleanup.policy": policy})
        produce(world.cluster, name, [(key.encode(), value and value.encode()) for key, value in rows])
        self.generation = Generation(
            app="a",
            flow="f",
            generation=1,
            fingerprint="x",
            inputs=[],
            key=["k"],
            output=name,
            output_id=info.id,
            schema=[],
            checkpoint="c",
            started_ms=0,
        )
        self.through = batch(0, outputs={name: {"0": (0, len(rows))}})

    def fold(
        self,
        derived: list[tuple[str, str | None]],
        operators: OrderSensitiveOperators,
        *,
        rejected: list[int],
        stateful: bool,
    ) -> dict[str, tuple[str | None, int]]:
        """``derived`` are rows in the order of their coordinates, two to a batch."""
        app = App("a")
        flow = app.flow(reads=[app.topic("t", Measurement)], writes=app.topic("o", key="k"))(
            lambda frame: frame
        )
        compiled = Compiled(flow, schema_of(Measurement), "x", stateful, "append")
        # Offsets restart in each batch, so only batch and offset together define the order.
        traced = [(*row, number // 2, 0, number % 2) for number, row in enumerate(derived)]
        rows = self.world.spark.createDataFrame(random.Random(3).sample(traced, len(traced)), TRACED)
        created = Derived(rows, len(derived), 100, self.through, None, ALL, operators, 0, 0, 0)
        arguments = (self.world.spark, self.world.cluster, compiled, self.generation, created)
        found = [
            item
            for chunk in fold_by_key(*arguments, {(0, at) for at in rejected})
            for item in zip(*chunk, strict=True)
        ]
        assert len({key for key, _, _ in found}) == len(found)
        return {key: (value, origin) for key, value, origin in found}


def test_the_coordinates_decide_which_derived_row_is_the_last(
    flow_world: FlowWorld,
) -> None:
    topic = Topic(
        flow_world, [("a", "1"), ("b", "2"), ("b", "1"), ("c", None), ("c", "1"), ("d", "9"), ("f", "1")]
    )
    derived: list[tuple[str, str | None]] = [
        *(("a", "1"), ("b", "1"), ("c", "1"), ("a", "1"), ("b", "2"), ("c", None)),
        *(("d", "2"), ("d", "1"), ("e", "2"), ("e", "1"), ("f", "1")),
    ]
    found = topic.fold(derived, OrderSensitiveOperators(), rejected=[], stateful=False)
    assert found == {
        "a": ("1", DERIVED),
        "b": ("2", DERIVED),
        "c": (None, DERIVED),
        "d": ("1", DERIVED),
        "e": ("1", DERIVED),
        "f": ("1", DERIVED),
    }


def test_if_the_view_rejects_a_row_the_previous_row_of_the_key_is_the_last(flow_world: FlowWorld) -> None:
    topic = Topic(flow_world, [("a", "1"), ("b", "1"), ("b", "2"), ("f", "1")])
    derived: list[tuple[str, str | None]] = [("a", "1"), ("b", "1"), ("b", "2"), ("f", "1")]
    found = topic.fold(derived, OrderSensitiveOperators(), rejected=[2, 3], stateful=False)
    assert found == {"a": ("1", DERIVED), "b": ("1", DERIVED), "f": (None, DERIVED)}


def test_the_topic_decides_where_coordinates_do_not_determine_the_order(
    flow_world: FlowWorld,
) -> None:
    topic = Topic(flow_world, [("a", "1"), ("b", "other"), ("d", "2"), ("d", "1")])
    derived: list[tuple[str, str | None]] = [("a", "1"), ("b", "1"), ("c", "1"), ("d", "1"), ("d", "2")]
    expected = {"a": ("1", DERIVED), "b": ("other", BY_TOPIC), "c": ("1", DERIVED), "d": ("1", DERIVED)}
    forgetting_operators = OrderSensitiveOperators(deduplicates=True, forgets_duplicates=True)
    assert topic.fold(derived, forgetting_operators, rejected=[], stateful=True) == expected
    held_back = topic.fold(derived, OrderSensitiveOperators(holds_back=True), rejected=[], stateful=True)
    assert held_back == expected | {"c": ("1", UNKNOWN)}
    deduplicated = topic.fold(derived, OrderSensitiveOperators(deduplicates=True), rejected=[], stateful=True)
    assert deduplicated == expected | {"b": ("1", DERIVED), "d": ("2", DERIVED)}


# Past versions of a table


@pytest.mark.parametrize("expired", [False, True], ids=["deletions kept", "deletions expired"])
def test_a_past_version_of_a_table_is_exact_or_reported_as_unknown(
    flow_world: FlowWorld, expired: bool
) -> None:
    cluster, choose = flow_world.cluster, random.Random(7)
    app = App("past")
    name = f"prices-{uuid.uuid4().hex[:8]}"
    table = app.table(name, Price, key="product")
    # The compaction lag keeps everything until the test has seen that all versions are known.
    configs = COMPACTED | {
        "min.compaction.lag.ms": "9999999",
        "delete.retention.ms": "0" if expired else "9999999",
    }
    info = cluster.ensure_topic(name, 1, configs)
    sent: list[tuple[str, int | None]] = []
    for number in range(36):
        product = f"p{choose.randrange(5 if number < 20 else 3)}"
        sent.append((product, None if choose.random() < 0.2 else number))
    for product, price in sent:
        value = (
            None
            if price is None
            else json.dumps({"product": product, "price": price, "note": "x" * 500}).encode()
        )
        produce(cluster, name, [(product.encode(), value)])
    truth: list[dict[str, int]] = [{}]
    for product, price in sent:
        rows = {name: price_of for name, price_of in truth[-1].items() if name != product}
        truth.append(rows if price is None else rows | {product: price})
    past = TableVersions(flow_world.spark, cluster, table, name, info.id, {}, TimeBounds())
    assert all(past.is_known_at({"0": at}) for at in range(len(truth)))
    past.close()
    set_config(cluster, name, "min.compaction.lag.ms", "0")
    compacted_to(cluster, name, 20)
    past = TableVersions(flow_world.spark, cluster, table, name, info.id, {}, TimeBounds())
    known = [at for at in range(len(truth)) if past.is_known_at({"0": at})]
    assert 0 < len(known) < len(truth)
    assert known[0] == 0
    assert known[-1] == len(sent)
    for at in choose.sample(known, min(4, len(known))):
        found = past.rows(past.last_records({"0": at})).collect()
        assert {row.product: row.price for row in found} == truth[at], at
        base = past.last_records({"0": known[0]})
        changed = past.rows(past.changed_since(base, {"0": known[0]}, {"0": at})).collect()
        assert {row.product: row.price for row in changed} == truth[at], at
    past.close()


def set_config(cluster: Cluster, topic: str, name: str, value: str) -> None:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    resource.add_incremental_config(ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET))
    next(iter(cluster.admin().incremental_alter_configs([resource]).values())).result(10)
