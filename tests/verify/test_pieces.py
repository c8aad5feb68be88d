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
from headrace.flow import folding
from headrace.flow.compiled import Compiled
from headrace.flow.decoding import TimeBounds
from headrace.flow.derived import ALL, Derived
from headrace.flow.folding import BY_TOPIC, DERIVED, UNKNOWN, folded
from headrace.flow.operators import Operators
from headrace.flow.past_table import PastTable
from headrace.model.progress import Batch, Generation
from headrace.model.schema import schema_of
from tests.support.flows import FlowWorld
from tests.support.waiting import until
from tests.verify.mill import Reading
from tests.verify.test_gone import COMPACTED
from tests.views.seeing import produce

TRACED = "key string, value string, _headrace_batch long, _headrace_at0 long, _headrace_at1 long"


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


def test_rows_are_collected_in_shares_of_limited_bytes(
    flow_world: FlowWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folding, "_BYTES_AT_ONCE", 10_000)
    rows = flow_world.spark.range(100).selectExpr("CAST(id AS STRING) AS key", "id AS value")
    shares = list(folding.collected(rows, 100, 1_000))
    assert len(shares) == 10
    assert sorted(value for _, values in shares for value in values) == list(range(100))


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
        """``derived`` are rows in the order of their coordinates, two to a batch."""
        app = App("a")
        flow = app.flow(reads=[app.topic("t", Reading)], writes=app.topic("o", key="k"))(lambda frame: frame)
        compiled = Compiled(flow, schema_of(Reading), "x", stateful, "append")
        # Within a batch offsets begin anew, so that only batch and offset together tell the order.
        traced = [(*row, number // 2, 0, number % 2) for number, row in enumerate(derived)]
        rows = self.world.spark.createDataFrame(random.Random(3).sample(traced, len(traced)), TRACED)
        made = Derived(rows, len(derived), 100, self.through, None, ALL, operators, 0, 0, 0)
        where = (self.world.spark, self.world.cluster, compiled, self.generation, made)
        found = [
            one for some in folded(*where, {(0, at) for at in refused}) for one in zip(*some, strict=True)
        ]
        assert len({key for key, _, _ in found}) == len(found)
        return {key: (value, known) for key, value, known in found}


def test_coordinates_say_which_of_several_derived_rows_is_the_last_whatever_the_topic_has(
    flow_world: FlowWorld,
) -> None:
    topic = Topic(
        flow_world, [("a", "1"), ("b", "2"), ("b", "1"), ("c", None), ("c", "1"), ("d", "9"), ("f", "1")]
    )
    derived: list[tuple[str, str | None]] = [
        *(("a", "1"), ("b", "1"), ("c", "1"), ("a", "1"), ("b", "2"), ("c", None)),
        *(("d", "2"), ("d", "1"), ("e", "2"), ("e", "1"), ("f", "1")),
    ]
    found = topic.folded(derived, Operators(), refused=[], stateful=False)
    assert found == {
        "a": ("1", DERIVED),
        "b": ("2", DERIVED),
        "c": (None, DERIVED),
        "d": ("1", DERIVED),
        "e": ("1", DERIVED),
        "f": ("1", DERIVED),
    }


def test_a_row_that_a_view_has_refused_leaves_the_one_before_it(flow_world: FlowWorld) -> None:
    topic = Topic(flow_world, [("a", "1"), ("b", "1"), ("b", "2"), ("f", "1")])
    derived: list[tuple[str, str | None]] = [("a", "1"), ("b", "1"), ("b", "2"), ("f", "1")]
    found = topic.folded(derived, Operators(), refused=[2, 3], stateful=False)
    assert found == {"a": ("1", DERIVED), "b": ("1", DERIVED), "f": (None, DERIVED)}


def test_the_topic_is_asked_where_coordinates_do_not_tell_what_is_written_and_when(
    flow_world: FlowWorld,
) -> None:
    topic = Topic(flow_world, [("a", "1"), ("b", "other"), ("d", "2"), ("d", "1")])
    derived: list[tuple[str, str | None]] = [("a", "1"), ("b", "1"), ("c", "1"), ("d", "1"), ("d", "2")]
    known = {"a": ("1", DERIVED), "b": ("other", BY_TOPIC), "c": ("1", DERIVED), "d": ("1", DERIVED)}
    forgetting = Operators(deduplicates=True, forgets_duplicates=True)
    assert topic.folded(derived, forgetting, refused=[], stateful=True) == known
    outer = topic.folded(derived, Operators(holds_back=True), refused=[], stateful=True)
    assert outer == known | {"c": ("1", UNKNOWN)}
    kept = topic.folded(derived, Operators(deduplicates=True), refused=[], stateful=True)
    assert kept == known | {"b": ("1", DERIVED), "d": ("2", DERIVED)}


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
