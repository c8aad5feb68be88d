"""Tables that a flow joins: any values, any size, and invalid values reported once."""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any

import pytest
from pyspark.sql import DataFrame

from faults.flows.world import FlowWorld
from headrace.app import App
from headrace.flow.tables import current as tables
from headrace.model.codec.codec import decode_value, encode_value
from headrace.model.declarations import Flow
from tests.flow.test_flows import all_batches
from tests.flow.topic_contents import committed, headers, values


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Part:
    number: int
    name: str | None = None


@dataclass(frozen=True)
class Thing:
    thing: str
    counts: dict[str, int]
    part: Part
    parts: list[Part]
    price: Decimal
    at: datetime
    day: date
    raw: bytes
    colour: Colour
    more: Part | None = None


@dataclass(frozen=True)
class Name:
    thing: str
    name: str


@dataclass(frozen=True)
class Visit:
    visit: str
    thing: str


class Shelf:
    """Views of things, joined with a table of things."""

    def __init__(self, of: type, how: str = "left", known: str = "true") -> None:
        mark = uuid.uuid4().hex[:8]
        self.app = app = App(f"shelf-{mark}")
        self.visits = app.topic(f"visits-{mark}", Visit, key="visit")
        self.things = app.table(f"things-{mark}", of, key="thing")
        self.seen = app.topic(f"seen-{mark}", key="visit")

        @app.flow(reads=[self.visits, self.things], writes=self.seen, name=f"see-{mark}")
        def see(visits: DataFrame, table: DataFrame) -> DataFrame:
            return visits.join(table.where(known), "thing", how)

        self.see: Flow = see
        self.count = 0

    def visit(self, world: FlowWorld, *keys: str) -> list[str]:
        visits = [Visit(f"l{self.count + at}", key) for at, key in enumerate(keys)]
        self.count += len(visits)
        world.write(self.visits, visits)
        return [visit.visit for visit in visits]


def test_rows_of_a_table_keep_all_values_and_invalid_ones_are_reported_once(
    flow_world: FlowWorld,
) -> None:
    shelf = Shelf(Thing)
    noon = datetime(2026, 3, 1, 12, tzinfo=UTC)
    full = Thing(
        "full",
        {"x": 1, "y": 2},
        Part(1),
        [Part(2, "z")],
        Decimal("1.5"),
        noon,
        date(2026, 1, 1),
        b"\0\xff",
        Colour.RED,
    )
    bare = Thing(
        "bare",
        {},
        Part(1),
        [],
        Decimal("0.000001"),
        datetime(1, 1, 1, tzinfo=UTC),
        date(1, 1, 1),
        b"",
        Colour.RED,
        Part(3),
    )
    flow_world.declare(shelf.app)
    flow_world.write(shelf.things, [full, (b"broken", b"{"), (b"full", b'{"thing":"full"}')])
    shelf.visit(flow_world, "full")
    with flow_world.running(shelf.app, follow=False) as run:
        run.wait_until_derived()
        flow_world.write(shelf.things, [bare, (b"broken", b"[")])
        shelf.visit(flow_world, "bare", "full")
        run.wait_until_derived()
    shelf.visit(flow_world, "bare", "full")
    # A new run reads the whole table again.
    with flow_world.running(shelf.app, follow=False) as run:
        run.wait_until_derived()
    schema = shelf.things.schema
    assert schema is not None
    expected = {item.thing: decode_value(schema, encode_value(schema, item)) for item in (full, bare)}
    rows = [item.value() for item in committed(flow_world.cluster.bootstrap, shelf.seen.name)]
    assert len(rows) == 5
    for row in rows:
        found = decode_value(schema, row)
        assert found == expected[found["thing"]]
    dead = committed(flow_world.cluster.bootstrap, shelf.see.dead_topic)
    assert [(item.value(), headers(item)["offset"]) for item in dead] == [
        (b"{", "1"),
        (b'{"thing":"full"}', "2"),
        (b"[", "4"),
    ]
    last = all_batches(flow_world, shelf.see)[-1].totals
    assert (last.rows_in, last.rows_out, last.dead, last.table_dead) == (5, 5, 0, 3)


def test_a_table_is_as_it_was_written_however_large_it_grows(
    flow_world: FlowWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "_MEMORY_ROWS_MAX", 3)
    shelf, choose = Shelf(Name), random.Random(3)
    flow_world.declare(shelf.app)
    known: dict[str, str] = {}
    expected: dict[str, str | None] = {}
    for begin in (0, 3):
        with flow_world.running(shelf.app, follow=False) as run:
            for number in range(begin, begin + 3):
                changes: list[Any] = [
                    Name(f"t{choose.randrange(9)}", f"{number}-{at}") for at in range(number + 1)
                ]
                gone = f"t{choose.randrange(9)}"
                flow_world.write(shelf.things, [*changes, (gone.encode(), None)])
                known |= {change.thing: change.name for change in changes}
                known.pop(gone, None)
                keys = [f"t{at}" for at in range(9)]
                expected |= zip(shelf.visit(flow_world, *keys), map(known.get, keys), strict=True)
                run.wait_until_derived()
    rows = values(flow_world.cluster.bootstrap, shelf.seen.name)
    assert {row["visit"]: row["name"] for row in rows} == expected
    assert len(rows) == len(expected)


@pytest.mark.parametrize("rows", [0, 3])
def test_a_join_with_an_empty_table_counts_all_input(flow_world: FlowWorld, rows: int) -> None:
    shelf = Shelf(Name, how="inner", known="thing LIKE 'x%'")
    flow_world.declare(shelf.app)
    flow_world.write(shelf.things, [Name(f"t{number}", "n") for number in range(rows)])
    shelf.visit(flow_world, "a", "b")
    flow_world.write(shelf.visits, [(b"bad", b"{")])
    with flow_world.running(shelf.app, follow=False) as run:
        run.wait_until_derived()
    assert not committed(flow_world.cluster.bootstrap, shelf.seen.name)
    [batch] = all_batches(flow_world, shelf.see)
    assert (batch.rows_in, batch.rows_out, batch.dead) == (3, 0, 1)
    assert len(committed(flow_world.cluster.bootstrap, shelf.see.dead_topic)) == 1
