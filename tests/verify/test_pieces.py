"""The parts of a derivation that take care, each against a truth that the test keeps itself."""

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

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.reading import read
from headrace.flow.compiled import Compiled
from headrace.flow.decoding import TimeBounds
from headrace.flow.derived import ALL, Derived
from headrace.flow.folding import BY_TOPIC, DERIVED, UNKNOWN, folded
from headrace.flow.gone import last_short
from headrace.flow.operators import Operators
from headrace.flow.past_table import PastTable
from headrace.model.progress import Batch, Generation
from headrace.model.schema import schema_of
from tests.support.flows import FlowWorld
from tests.support.waiting import until
from tests.verify.mill import Reading
from tests.verify.test_gone import COMPACTED
from tests.views.seeing import produce


@dataclasses.dataclass(frozen=True)
class Price:
    product: str
    price: int
    note: str


def batch(number: int, **more: Any) -> Batch:
    told: dict[str, Any] = {"inputs": {}, "tables": {}, "outputs": {}, "rows_in": 0, "rows_out": 0} | more
    marks = {"watermark_us": None, "next_watermark_us": None, "seen_us": {}, "late": 0, "dead": 0}
    return Batch(flow="f", generation=1, batch=number, fingerprint="x", **marks, **told)


def compacted_to(cluster: Cluster, topic: str, most: int) -> dict[int, int]:
    """Waits until so many records are left at most; their offsets."""

    def left() -> list[int]:
        end = cluster.ends(topic)[0]
        return [one.offset() or 0 for one in read(cluster, topic, {0: (0, end)})]

    until(lambda: len(left()) <= most, "compaction", pause_s=0.05)
    return dict.fromkeys(left(), 1)


# Which of several derived rows counts


class Topic:
    """A flow's topic with rows in some order, and what may be derived of them."""

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

    def folded(
        self,
        derived: list[tuple[str, str | None]],
        operators: Operators,
        *,
        refused: list[int],
        stateful: bool,
    ) -> dict[str, tuple[str | None, int]]:
        app = App("a")
        flow = app.flow(reads=[app.topic("t", Reading)], writes=app.topic("o", key="k"))(lambda frame: frame)
        compiled = Compiled(flow, schema_of(Reading), "x", stateful, "append")
        rows = self.world.spark.createDataFrame(derived, "key string, value string")
        made = Derived(rows, len(derived), self.through, None, ALL, operators, 0, 0, 0)
        where = (self.world.spark, self.world.cluster, compiled, self.generation, made)
        found = [
            one for some in folded(*where, {(0, at) for at in refused}) for one in zip(*some, strict=True)
        ]
        assert len({key for key, _, _ in found}) == len(found)
        return {key: (value, known) for key, value, known in found}


def test_the_topic_says_which_of_several_derived_rows_came_last(flow_world: FlowWorld) -> None:
    topic = Topic(
        flow_world, [("a", "1"), ("b", "1"), ("b", "2"), ("c", "1"), ("c", None), ("d", "9"), ("f", "1")]
    )
    derived: list[tuple[str, str | None]] = [
        *(("a", "1"), ("a", "1")),
        *(("b", "2"), ("b", "1")),
        *(("c", None), ("c", "1")),
        *(("d", "1"), ("d", "2")),
        *(("e", "1"), ("e", "2")),
        ("f", "1"),
    ]
    found = topic.folded(derived, Operators(), refused=[], stateful=False)
    # d has a row in the topic that nobody derived, and e was derived and has none: what is expected is what is derived.
    assert found == {
        "a": ("1", DERIVED),
        "b": ("2", DERIVED),
        "c": (None, DERIVED),
        "d": ("2", DERIVED),
        "e": ("2", DERIVED),
        "f": ("1", DERIVED),
    }
    refused = topic.folded(derived, Operators(), refused=[2, 6], stateful=False)
    assert refused == found | {"b": ("1", DERIVED), "f": (None, DERIVED)}
    compacted = Topic(flow_world, [("a", "1"), ("b", "2")], policy="compact")
    derived = [("a", "1"), ("b", "1"), ("b", "2"), ("e", "1"), ("e", "2")]
    found = compacted.folded(derived, Operators(), refused=[], stateful=False)
    assert found == {"a": ("1", DERIVED), "b": ("2", DERIVED), "e": ("2", UNKNOWN)}


def test_where_the_order_of_arrival_decides_only_the_topic_knows(flow_world: FlowWorld) -> None:
    topic = Topic(flow_world, [("a", "1"), ("b", "other")])
    derived: list[tuple[str, str | None]] = [("a", "1"), ("b", "1"), ("c", "1")]
    duplicates = topic.folded(derived, Operators(deduplicates=True), refused=[], stateful=True)
    assert duplicates == {"a": ("1", DERIVED), "b": ("other", BY_TOPIC), "c": ("1", DERIVED)}
    outer = topic.folded(derived, Operators(holds_back=True), refused=[], stateful=True)
    assert outer == {"a": ("1", DERIVED), "b": ("other", BY_TOPIC), "c": ("1", UNKNOWN)}


# What a table was


@pytest.mark.parametrize("expired", [False, True], ids=["deletions kept", "deletions expired"])
def test_a_table_of_the_past_is_told_right_or_said_to_be_unknown(
    flow_world: FlowWorld, expired: bool
) -> None:
    cluster, choose = flow_world.cluster, random.Random(7)
    app = App("past")
    name = f"prices-{uuid.uuid4().hex[:8]}"
    table = app.table(name, Price, key="product")
    # A lag keeps everything until the test has seen that everything is known.
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
        rows = {one: at for one, at in truth[-1].items() if one != product}
        truth.append(rows if price is None else rows | {product: price})
    past = PastTable(flow_world.spark, cluster, table, name, info.id, {}, TimeBounds())
    assert all(past.is_known_at({"0": at}) for at in range(len(truth)))
    past.close()
    set_config(cluster, name, "min.compaction.lag.ms", "0")
    compacted_to(cluster, name, 20)
    past = PastTable(flow_world.spark, cluster, table, name, info.id, {}, TimeBounds())
    known = [at for at in range(len(truth)) if past.is_known_at({"0": at})]
    assert 0 < len(known) < len(truth)
    assert known[0] == 0
    assert known[-1] == len(sent)
    for at in choose.sample(known, min(4, len(known))):
        found = past.rows(past.folded({"0": at})).collect()
        assert {row.product: row.price for row in found} == truth[at], at
        base = past.folded({"0": known[0]})
        changed = past.rows(past.changed(base, {"0": known[0]}, {"0": at})).collect()
        assert {row.product: row.price for row in changed} == truth[at], at
    past.close()


def set_config(cluster: Cluster, topic: str, name: str, value: str) -> None:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    resource.add_incremental_config(ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET))
    next(iter(cluster.admin().incremental_alter_configs([resource]).values())).result(10)


# What was compacted away of events


def test_the_last_batch_that_lacks_a_record_is_found_by_counting(flow_world: FlowWorld) -> None:
    cluster = flow_world.cluster
    topic = f"events-{uuid.uuid4().hex[:8]}"
    cluster.ensure_topic(topic, 1, COMPACTED)
    for number in range(24):
        produce(cluster, topic, [(b"k%d" % (number % 4 if number < 14 else number), b"x" * 600)])
    left = compacted_to(cluster, topic, 16)
    known = [batch(n, inputs={topic: {"0": (4 * n, 4 * n + 4)}}, rows_in=4) for n in range(6)]
    lacking = [one for one in known if any(at not in left for at in range(4 * one.batch, 4 * one.batch + 4))]
    found = last_short(cluster, known, None)
    assert found is lacking[-1]
    assert last_short(cluster, known, found) is None
