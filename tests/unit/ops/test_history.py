"""Whether the history of a topic fits its declared schema: what is refused, and what the message names."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.app import App
from headrace.client.sample import Sample, SampledRecord
from headrace.model.codec.codec import new_codec
from headrace.model.declarations import Topic
from headrace.model.errors import AppError, ValueDoesNotFit
from headrace.model.evolution import is_same_value
from headrace.model.schema import Schema
from headrace.model.schema_version import SchemaVersion, next_version
from headrace.ops.schemas.history import TopicHistory, judge, static_mistakes
from tests.unit.model.test_evolution import schemas_then_and_now


@dataclass(frozen=True)
class Ride:
    ride_id: str
    meters: int


@dataclass(frozen=True)
class RideWithCity:
    ride_id: str
    meters: int
    city: str


@dataclass(frozen=True)
class RideWithDefault:
    ride_id: str
    meters: int
    city: str = "unknown"


@dataclass(frozen=True)
class RideInKilometers:
    ride_id: str
    kilometers: int


@dataclass(frozen=True)
class RideAsFloat:
    ride_id: str
    meters: float


def topic_of(schema: type, **options: Any) -> Topic:
    return App("bikes").topic("rides", schema, key="ride_id", **options)


def version_of(schema: type, *earlier: SchemaVersion, **options: Any) -> SchemaVersion:
    version = next_version(earlier, topic_of(schema, **options), now_ms=1_760_000_000_000)
    assert version is not None
    return version


def sample_of(*values: Any, complete: bool = True) -> Sample:
    records = [
        SampledRecord(
            index % 2, 10 + index, value if isinstance(value, bytes) else json.dumps(value).encode()
        )
        for index, value in enumerate(values)
    ]
    return Sample(records, len(records) if complete else 12_000, complete)


RIDES = [{"ride_id": f"r{number}", "meters": number} for number in range(6)]
V1 = version_of(Ride)


def only(mistakes: Sequence[AppError]) -> AppError:
    [mistake] = mistakes
    assert mistake.code == "HR-APP-HISTORY"
    return mistake


def test_a_new_required_field_is_refused_with_field_line_counts_and_ways_out() -> None:
    mistake = only(judge(topic_of(RideWithCity), [V1], sample_of(*RIDES)).mistakes)
    assert mistake.message == (
        "topic 'rides': 6 of 6 sampled records do not fit field 'city' of RideWithCity; the first is in partition 0"
        " at offset 10"
    )
    assert mistake.detail == (
        "city: the required field is missing (expected text); city is new and required, but old events do not have"
        " it: add a default (version 1 of 2025-10-09)"
    )
    assert mistake.hint == (
        "give city a default, or the type ... | None; or convert older values with an upcaster:"
        " app.topic('rides', ..., upcast=FUNCTION); or write to a new topic: app.topic('rides_2', ...)"
    )
    assert mistake.location is not None
    assert mistake.location.file == __file__
    line = Path(__file__).read_text(encoding="utf-8").splitlines()[mistake.location.line - 1]
    assert line == "    city: str"


def test_a_default_an_empty_topic_and_an_upcaster_are_accepted() -> None:
    assert judge(topic_of(RideWithDefault), [V1], sample_of(*RIDES)).mistakes == []
    assert judge(topic_of(RideWithCity), [V1], sample_of()).mistakes == []

    def add_city(value: dict[str, Any]) -> dict[str, Any]:
        return {"city": "unknown", **value}

    upcast = topic_of(RideWithCity, upcast=add_city)
    assert judge(upcast, [V1], sample_of(*RIDES, complete=False)).mistakes == []


def test_a_renamed_field_is_recognized() -> None:
    mistake = only(judge(topic_of(RideInKilometers), [V1], sample_of(*RIDES)).mistakes)
    assert "field 'kilometers' of RideInKilometers" in mistake.message
    assert mistake.detail.endswith(
        "; if kilometers is the new name of meters, an upcaster can move the value"
    )


def test_every_field_that_does_not_fit_is_counted() -> None:
    values = [{"ride_id": "a", "meters": 1}, {"ride_id": "b", "meters": 2, "city": "Ulm", "more": 1}]

    @dataclass(frozen=True)
    class Strict:
        ride_id: str
        meters: str
        city: str

    messages = [item.message for item in judge(topic_of(Strict), [V1], sample_of(*values)).mistakes]
    assert [message.partition("; ")[0] for message in messages] == [
        "topic 'rides': 2 of 2 sampled records do not fit field 'meters' of Strict",
        "topic 'rides': 1 of 2 sampled records do not fit field 'city' of Strict",
    ]


def test_a_value_that_would_silently_change_is_refused() -> None:
    exact = sample_of(*RIDES)
    assert judge(topic_of(RideAsFloat), [V1], exact).mistakes == []
    rounded = sample_of(*RIDES, {"ride_id": "far", "meters": 2**53 + 1})
    mistake = only(judge(topic_of(RideAsFloat), [V1], rounded).mistakes)
    assert "1 of 7 sampled records do not fit field 'meters'" in mistake.message
    assert "it was read as another value before" in mistake.detail


def test_a_change_is_refused_if_records_outside_the_sample_may_not_fit() -> None:
    sample = sample_of(*RIDES, complete=False)
    mistake = only(judge(topic_of(RideAsFloat), [V1], sample).mistakes)
    assert mistake.message == (
        "topic 'rides': older records may not fit field 'meters' of RideAsFloat; 0 of 6 sampled records do not fit,"
        " but the topic has 12000"
    )


def test_the_versions_of_another_app_refuse_nothing_that_the_records_fit() -> None:
    cities = sample_of(*(ride | {"city": "Ulm"} for ride in RIDES), complete=False)
    assert judge(topic_of(RideWithCity), [V1], cities).mistakes
    assert judge(topic_of(RideWithCity), [V1], cities, is_owner=False).mistakes == []
    assert judge(topic_of(RideWithCity), [V1], sample_of(*RIDES), is_owner=False).mistakes


def test_records_that_no_version_can_read_were_dead_letters_before() -> None:
    poison = [b"not json", {"ride_id": 7, "meters": 1}, {"meters": 1}]
    history = judge(topic_of(RideWithDefault), [V1], sample_of(*poison, RIDES[0]))
    assert (history.mistakes, history.invalid) == ([], 3)


def test_without_a_recorded_version_the_schema_must_fit_half_of_the_sample() -> None:
    assert judge(topic_of(RideWithCity), [], sample_of(*RIDES)).mistakes
    mostly = sample_of(b"{", {"ride_id": "a", "meters": 1, "city": "Ulm"})
    assert judge(topic_of(RideWithCity), [], mostly).invalid == 1


def test_an_upcaster_must_leave_the_values_that_it_returned_unchanged() -> None:
    def to_cents(value: dict[str, Any]) -> dict[str, Any]:
        return value | {"meters": value["meters"] * 100}

    topic = topic_of(Ride, upcast=to_cents)
    mistake = only(judge(topic, [V1], sample_of(*RIDES)).mistakes)
    assert mistake.detail.startswith("the value: the upcaster changes a value that it had returned")
    assert mistake.hint.startswith("correct the upcasters of topic 'rides'")
    assert mistake.location == topic.location


def test_an_upcaster_that_uses_randomness_is_refused() -> None:
    def guess(value: dict[str, Any]) -> dict[str, Any]:
        return value if "city" in value else {**value, "city": str(random.random())}

    mistake = only(judge(topic_of(RideWithCity, upcast=guess), [V1], sample_of(*RIDES)).mistakes)
    assert "it must not use clocks or randomness" in mistake.detail


def test_a_failing_upcaster_is_refused_with_its_error() -> None:
    def rename(value: dict[str, Any]) -> dict[str, Any]:
        return {"ride_id": value["ride_id"], "kilometers": value["metres"]}

    mistake = only(judge(topic_of(RideInKilometers, upcast=rename), [V1], sample_of(*RIDES)).mistakes)
    assert "6 of 6 sampled records do not fit RideInKilometers" in mistake.message
    assert "the upcaster rename raised KeyError: 'metres'" in mistake.detail


def test_an_older_schema_reads_newer_records_or_is_refused() -> None:
    """A reader with the schema before the change: the newer version is recorded too."""
    with_default = version_of(RideWithDefault, V1)
    newer = [{"ride_id": "a", "meters": 1, "city": "Ulm"}]
    assert judge(topic_of(Ride), [V1, with_default], sample_of(*newer, complete=False)).mistakes == []
    narrowed = version_of(RideInKilometers, V1, with_default)
    assert judge(topic_of(Ride), [V1, narrowed], sample_of({"ride_id": "a", "kilometers": 1})).mistakes


def test_a_file_is_compared_without_records() -> None:
    mistake = only(static_mistakes(topic_of(RideWithCity), [V1]))
    assert mistake.message.startswith("topic 'rides': records of schema version 1 of 2025-10-09 do not fit")
    assert static_mistakes(topic_of(RideWithDefault), [V1]) == []


def test_unchanged_upcasters_do_not_excuse_a_change_of_the_schema() -> None:
    def add_city(value: dict[str, Any]) -> dict[str, Any]:
        return {"city": "unknown", **value}

    assert static_mistakes(topic_of(RideWithCity, upcast=add_city), [V1]) == []
    recorded = version_of(RideWithCity, V1, upcast=add_city)

    @dataclass(frozen=True)
    class Narrowed:
        ride_id: str
        meters: int
        city: int

    for topic, refused in (
        (topic_of(Narrowed, upcast=add_city), 1),
        (topic_of(Narrowed, upcast=lambda value: value), 0),
        (topic_of(Narrowed), 1),
    ):
        assert len(static_mistakes(topic, [V1, recorded])) == refused


def declared_with(schema: Schema) -> Topic:
    """A topic with any schema, also one that no dataclass can declare."""
    return Topic("rides", schema, ())


@settings(max_examples=60)
@given(st.data())
def test_history_is_accepted_only_if_every_record_is_read_with_its_values(data: st.DataObject) -> None:
    old, new, row = data.draw(schemas_then_and_now())
    complete = data.draw(st.booleans())
    topic = declared_with(new)
    version = next_version([], declared_with(old))
    assert version is not None
    version = msgspec.structs.replace(version, ends={"0": 0})
    raw = new_codec(old).encode(row)
    history: TopicHistory = judge(topic, [version], sample_of(raw, complete=complete))
    if history.mistakes:
        return
    assert history.invalid == 0
    try:
        found = new_codec(new).decode(raw)
    except ValueDoesNotFit as error:
        raise AssertionError(error) from None
    assert is_same_value(new_codec(old).decode(raw), found) or old.fields == new.fields


def test_a_topic_with_many_changed_fields_has_a_bounded_number_of_mistakes() -> None:
    wide = make_dataclass("Wide", [("ride_id", str), *((f"f{number}", str) for number in range(500))])
    assert len(judge(topic_of(wide), [V1], sample_of(*RIDES)).mistakes) == 20
