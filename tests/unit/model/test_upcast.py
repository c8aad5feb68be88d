"""Upcasters convert older values before they are decoded; a failing upcaster is a reason, never a crash."""

from __future__ import annotations

import enum
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given

from headrace.app import App
from headrace.model.codec.codec import new_codec, value_decoder
from headrace.model.codec.json_text import parse_plain
from headrace.model.errors import AppError, AppMistakes, ValueDoesNotFit
from headrace.model.graph import check
from headrace.model.schema import Schema
from headrace.model.upcast import Upcaster

from .shapes import SCHEMAS, rows, same


@dataclass(frozen=True)
class Rider:
    rider_id: str
    first: str
    last: str
    cents: int = 0


def split_name(value: dict[str, Any]) -> dict[str, Any]:
    if "name" in value:
        value["first"], value["last"] = value.pop("name").split(" ", 1)
    return value


def to_cents(value: dict[str, Any]) -> dict[str, Any]:
    if "euros" in value:
        value["cents"] = int(value.pop("euros") * 100)
    return value


def riders(*upcast: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    return App("bikes").topic("riders", Rider, key="rider_id", upcast=upcast)


def test_a_chain_converts_every_older_version_and_leaves_the_newest_unchanged() -> None:
    topic = riders(split_name, to_cents)
    expected = {"rider_id": "r1", "first": "Ada", "last": "King", "cents": 1250}
    assert topic.decode(b'{"rider_id":"r1","name":"Ada King","euros":12.50}') == expected
    assert topic.decode(b'{"rider_id":"r1","first":"Ada","last":"King","euros":12.5}') == expected
    assert topic.decode(b'{"rider_id":"r1","first":"Ada","last":"King","cents":1250}') == expected
    key, value = topic.encode(Rider("r1", "Ada", "King", 1250))
    assert (key, topic.decode(value)) == (b"r1", expected)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda value: {**value, "first": value["name"]}, "the upcaster <lambda> raised KeyError: 'name'"),
        (lambda value: sys.exit(3), "the upcaster <lambda> raised SystemExit: 3"),
        (lambda value: None, "the upcaster <lambda> returned NoneType None, not a dict"),
        (lambda value: {"at": object}, "the upcaster returned type"),
        (lambda value: {1: "a"}, "the key int 1, which is not text"),
        (lambda value: {"first": "\ud800"}, "cannot represent: UnicodeEncodeError"),
        (lambda value: {"first": Decimal("NaN")}, "the upcaster returned Decimal"),
        (lambda value: {}, "rider_id: the required field is missing"),
    ],
)
def test_a_failing_upcaster_is_the_reason_why_the_value_does_not_fit(function: Any, reason: str) -> None:
    with pytest.raises(ValueDoesNotFit) as refused:
        riders(function).decode(b'{"rider_id":"r1"}')
    assert reason in refused.value.message


@pytest.mark.parametrize("raw", [b"{", b"[]", b'{"a":1,"a":2}', b"\xff", b"7"])
def test_a_value_that_is_no_object_does_not_reach_the_upcaster(raw: bytes) -> None:
    def unreachable(value: dict[str, Any]) -> dict[str, Any]:
        raise AssertionError(value)

    with pytest.raises(ValueDoesNotFit) as refused:
        riders(unreachable).decode(raw)
    assert "AssertionError" not in refused.value.message


def test_an_upcaster_may_return_times_bytes_enums_dataclasses_and_special_floats() -> None:
    color = enum.StrEnum("Color", ["red"])
    returned = {
        "at": datetime(2026, 1, 31, 12, tzinfo=UTC),
        "day": date(2026, 1, 31),
        "raw": b"\0",
        "color": color.red,
        "rider": Rider("r1", "Ada", "King"),
        "floats": (float("nan"), float("-inf"), 0.5),
        "huge": 10**30,
    }
    assert parse_plain(Upcaster((lambda value: returned,)).apply(b"{}")) == {
        "at": "2026-01-31T12:00:00Z",
        "day": "2026-01-31",
        "raw": "AA==",
        "color": "red",
        "rider": {"rider_id": "r1", "first": "Ada", "last": "King", "cents": 0},
        "floats": ["NaN", "-Infinity", Decimal("0.5")],
        "huge": 10**30,
    }


@given(SCHEMAS.flatmap(lambda schema: rows(schema.fields).map(lambda row: (schema, row))))
def test_an_upcaster_that_changes_nothing_alters_no_value(schema_and_row: tuple[Schema, Any]) -> None:
    schema, row = schema_and_row
    raw = new_codec(schema).encode(row)
    unchanged = value_decoder(schema, Upcaster((lambda value: value,)))(raw)
    assert same(unchanged, new_codec(schema).decode(raw))


def test_the_sign_of_zero_and_the_digits_of_a_number_survive() -> None:
    raw = b'{"a":-0,"b":12.500,"c":1E-9,"d":-0.0}'
    assert Upcaster((lambda value: value,)).apply(raw) == raw


def test_upcast_must_be_functions() -> None:
    for argument in (3, "split", [split_name, None], dict):
        with pytest.raises(AppError, match="upcast must be a function of a value, or a list of functions"):
            App("bikes").topic("riders", Rider, key="rider_id", upcast=argument)  # type: ignore[arg-type]


HIDDEN = threading.Lock()


def mistakes_of(app: App) -> list[str]:
    with pytest.raises(AppMistakes) as refused:
        check(app)
    return [mistake.message for mistake in refused.value.mistakes]


def test_upcasters_are_refused_where_they_cannot_work() -> None:
    app = App("bikes")
    rides = app.topic("rides", Rider, key="rider_id", upcast=split_name)
    derived = app.topic("derived", Rider, key="rider_id", upcast=split_name)
    app.topic("counted", Rider, key="rider_id", upcast=lambda value: {**value, "cents": HIDDEN.locked()})

    @app.flow(reads=[rides], writes=derived, latency="realtime")
    def copy(rides: Any) -> Any:
        return rides

    assert mistakes_of(app) == [
        "topic 'derived' cannot have these upcasters: flow 'copy' writes it",
        "topic 'counted' cannot have these upcasters: they read HIDDEN.locked, a _thread.lock, whose changes"
        " Headrace cannot detect",
        "flow 'copy' cannot run in real time: topic rides has upcasters",
    ]
