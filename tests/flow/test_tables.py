"""Tables that a flow reads: whatever their rows hold, however many there are, and what does not fit told once."""

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

from headrace.app import App
from headrace.flow import tables
from headrace.model.flow import Flow
from headrace.model.values import decode_value, encode_value
from tests.flow.reading import committed, headers, values
from tests.flow.test_flows import all_batches
from tests.support.flows import FlowWorld


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
class Look:
    look: str
    thing: str


class Shelf:
    """Looks at things, joined with what is known of them."""

    def __init__(self, of: type, how: str = "left", known: str = "true") -> None:
        mark = uuid.uuid4().hex[:8]
        self.app = app = App(f"shelf-{mark}")
        self.looks = app.topic(f"looks-{mark}", Look, key="look")
        self.things = app.table(f"things-{mark}", of, key="thing")
        self.seen = app.topic(f"seen-{mark}", key="look")

        @app.flow(reads=[self.looks, self.things], writes=self.seen, name=f"see-{mark}")
        def see(looks: DataFrame, things: DataFrame) -> DataFrame:
            return looks.join(things.where(known), "thing", how)

        self.see: Flow = see
        self.count = 0

    def look(self, world: FlowWorld, *things: str) -> list[str]:
        looks = [Look(f"l{self.count + at}", thing) for at, thing in enumerate(things)]
        self.count += len(looks)
        world.write(self.looks, looks)
        return [one.look for one in looks]


def test_rows_of_a_table_keep_all_that_they_hold_and_what_does_not_fit_is_told_once(
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
    shelf.look(flow_world, "full")
    with flow_world.running(shelf.app, follow=False) as run:
        run.derived()
        flow_world.write(shelf.things, [bare, (b"broken", b"[")])
        shelf.look(flow_world, "bare", "full")
        run.derived()
    shelf.look(flow_world, "bare", "full")
    # A new run reads the whole table again.
    with flow_world.running(shelf.app, follow=False) as run:
        run.derived()
    schema = shelf.things.schema
    assert schema is not None
    expected = {one.thing: decode_value(schema, encode_value(schema, one)) for one in (full, bare)}
    rows = [one.value() for one in committed(flow_world.cluster.bootstrap, shelf.seen.name)]
    assert len(rows) == 5
    for row in rows:
        found = decode_value(schema, row)
        assert found == expected[found["thing"]]
    dead = committed(flow_world.cluster.bootstrap, shelf.see.dead_topic)
    assert [(one.value(), headers(one)["offset"]) for one in dead] == [
        (b"{", "1"),
        (b'{"thing":"full"}', "2"),
        (b"[", "4"),
    ]
    last = all_batches(flow_world, shelf.see)[-1].totals
    assert (last.rows_in, last.rows_out, last.dead, last.table_dead) == (5, 5, 0, 3)


def test_a_table_is_as_it_was_written_however_large_it_grows(
    flow_world: FlowWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "_FEW", 3)
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
                known |= {one.thing: one.name for one in changes}
                known.pop(gone, None)
                things = [f"t{at}" for at in range(9)]
                expected |= zip(shelf.look(flow_world, *things), map(known.get, things), strict=True)
                run.derived()
    rows = values(flow_world.cluster.bootstrap, shelf.seen.name)
    assert {row["look"]: row["name"] for row in rows} == expected
    assert len(rows) == len(expected)


@pytest.mark.parametrize("rows", [0, 3])
def test_all_is_counted_though_a_join_with_an_empty_table_leaves_nothing(
    flow_world: FlowWorld, rows: int
) -> None:
    shelf = Shelf(Name, how="inner", known="thing LIKE 'x%'")
    flow_world.declare(shelf.app)
    flow_world.write(shelf.things, [Name(f"t{number}", "n") for number in range(rows)])
    shelf.look(flow_world, "a", "b")
    flow_world.write(shelf.looks, [(b"bad", b"{")])
    with flow_world.running(shelf.app, follow=False) as run:
        run.derived()
    assert not committed(flow_world.cluster.bootstrap, shelf.seen.name)
    [batch] = all_batches(flow_world, shelf.see)
    assert (batch.rows_in, batch.rows_out, batch.dead) == (3, 0, 1)
    assert len(committed(flow_world.cluster.bootstrap, shelf.see.dead_topic)) == 1
