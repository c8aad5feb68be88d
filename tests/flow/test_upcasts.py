"""Upcasters in flows: Spark's workers and plain Python convert alike, and their code belongs to the flow."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import DataFrame

from faults.flows.world import FlowWorld
from faults.seeds import drawn_seeds
from headrace.app import App
from headrace.flow.codec.codec import Decoder, TimeBounds
from headrace.flow.compile.compiler import compile_app
from headrace.flow.errors import FlowChanged
from headrace.flow.history.plain_decoder import plain_decode
from headrace.model.declarations import Topic
from headrace.model.errors import ValueDoesNotFit
from headrace.ops.verify.verifier import Verifier
from tests.flow.topic_contents import last_values, values
from tests.unit.model.shapes import same

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("compiled_plans")

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
RAW = "key binary, value binary, partition int, offset long, timestamp timestamp"
PER_KILOMETER = 1000


@dataclass(frozen=True)
class Ride:
    ride_id: str
    at: datetime
    kilometers: Decimal
    tags: list[str]
    city: str = "unknown"


def to_kilometers(value: dict[str, Any]) -> dict[str, Any]:
    if "meters" in value:
        value["kilometers"] = Decimal(value.pop("meters")) / PER_KILOMETER
    return value


def split_tags(value: dict[str, Any]) -> dict[str, Any]:
    if isinstance(value["tags"], str):
        value["tags"] = value["tags"].split(",")
    return value


def rides(upcast: Sequence[Callable[..., Any]] = (to_kilometers, split_tags), name: str = "rides") -> Topic:
    return App("bikes").topic(name, Ride, key="ride_id", time="at", upcast=upcast)


def random_values(seed: int, count: int) -> list[bytes | None]:
    """Values of every version, with fields that are missing, null or of another type."""
    rng = random.Random(seed)
    junk: list[Any] = [
        None,
        "",
        "a,b",
        7,
        -0.0,
        1e300,
        True,
        [],
        ["x"],
        {},
        "2026-03-01T12:00:00Z",
        "é\U0001f600",
    ]
    rows: list[bytes | None] = [None, b"", b"{", b"[]", b"\xff", b'{"ride_id":"a","ride_id":"b"}', b"1 2"]
    while len(rows) < count:
        row: dict[str, Any] = {"ride_id": f"r{len(rows)}", "at": "2026-03-01T11:59:00.000000Z"}
        row["tags"] = rng.choice(["a,b", ["a", "b"], ""])
        row[rng.choice(["meters", "kilometers"])] = rng.choice([1500, 0, 12.5, "7", -3])
        for name in rng.sample([*row, "city", "more"], rng.choice([0, 0, 0, 1, 2])):
            row[name] = rng.choice(junk)
        if rng.random() < 0.1:
            row.pop(rng.choice(list(row)))
        rows.append(json.dumps(row, ensure_ascii=rng.random() < 0.5).encode())
    return rows


def test_spark_and_python_upcast_every_value_alike(spark: SparkSession) -> None:
    topic = rides()
    [seed] = drawn_seeds(1)
    given = random_values(seed, 400)
    raw = spark.createDataFrame([(b"k", value, 0, at, NOON) for at, value in enumerate(given)], RAW)
    decoded = Decoder(topic, TimeBounds()).decode(raw).orderBy("offset").toArrow().to_pylist()
    plain = plain_decode(raw, topic, 3_600_000_000).orderBy("offset")
    accepted = 0
    for value, by_spark, by_verify in zip(given, decoded, plain.toArrow().to_pylist(), strict=True):
        assert by_spark["value"] == value
        try:
            if value is None:
                raise ValueDoesNotFit("null")
            expected: dict[str, Any] | None = topic.decode(value)
        except ValueDoesNotFit as error:
            expected, reason = None, error.message
            if "upcaster" in reason:
                assert by_spark["reason"] == reason
        for found in (by_spark, by_verify):
            if found["reason"] is not None and "ahead of" in found["reason"]:
                continue
            assert (found["row"] is None) == (found["reason"] is not None) == (expected is None), (
                value,
                found,
            )
            assert expected is None or same(dict(found["row"]), expected), (value, found)
        accepted += expected is not None
    assert 50 < accepted < len(given)


class Bikes:
    def __init__(self, upcast: Callable[..., Any], mark: str) -> None:
        self.app = App(f"bikes-{mark}")
        self.rides = self.app.topic(f"rides-{mark}", Ride, key="ride_id", time="at", upcast=upcast)
        self.long = self.app.topic(f"long-{mark}", key="ride_id")
        self.view = self.app.view(f"long-{mark}", self.long)

        @self.app.flow(reads=[self.rides], writes=self.long, name=f"keep-{mark}")
        def keep(rides: DataFrame) -> DataFrame:
            return rides.where("kilometers >= 1").select("ride_id", "kilometers")

        self.keep = keep


def ride(number: int, **fields: Any) -> tuple[bytes, bytes]:
    row = {"ride_id": f"r{number}", "at": "2026-03-01T12:00:00Z", "tags": [], **fields}
    return f"r{number}".encode(), json.dumps(row).encode()


def test_a_flow_derives_from_every_version_and_dead_letters_keep_their_bytes(flow_world: FlowWorld) -> None:
    mark = uuid.uuid4().hex[:8]
    bikes = Bikes(to_kilometers, mark)
    broken = ride(4, meters="far")
    flow_world.declare(bikes.app)
    flow_world.write(bikes.rides, [ride(1, meters=900), ride(2, meters=2500), ride(3, kilometers=3), broken])
    with flow_world.running(bikes.app) as run:
        run.wait_until_derived()
        run.wait_until_followed()
        compiled, schemas = run.compiled, run.schemas
    bootstrap = flow_world.cluster.bootstrap
    assert {key: row["kilometers"] for key, row in last_values(bootstrap, bikes.long.name).items()} == {
        "r2": 2.5,
        "r3": 3.0,
    }
    arguments = (flow_world.spark, flow_world.cluster, bikes.app, flow_world.settings(), compiled, schemas)
    with Verifier(*arguments) as verifier:
        report = verifier.view(bikes.view)
    assert report.exit_code == 0, report.lines()
    assert (report.records, report.dead) == (4, 1)
    dead = values(bootstrap, bikes.keep.dead_topic)
    assert dead == [json.loads(broken[1])]

    changed = Bikes(split_tags, mark)
    with pytest.raises(FlowChanged) as refused, flow_world.running(changed.app) as run:
        run.wait_until_derived()
    assert f"topic {bikes.rides.name}: the code of its upcasters changed" in refused.value.message


def test_a_changed_helper_of_an_upcaster_changes_the_fingerprint(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    fingerprints = set()
    for per_kilometer in (1000, 1000, 1024):
        monkeypatch.setattr(f"{__name__}.PER_KILOMETER", per_kilometer)
        bikes = Bikes(lambda value: to_kilometers(value), "printed")
        fingerprints.add(compile_app(spark, bikes.app)[0][0].fingerprint)
    assert len(fingerprints) == 2
