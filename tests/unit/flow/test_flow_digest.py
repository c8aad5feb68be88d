"""The message about a changed flow names the part that changed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.app import App
from headrace.flow.compile import flow_digest as digests
from headrace.flow.compile.flow_digest import changes_since, describe_changes
from headrace.model.code_digest import code_digest, code_parts
from headrace.model.declarations import Flow, Topic
from headrace.model.progress import Digest, Generation, Input, decode, encode
from headrace.model.schema import Schema, fields_to_json, schema_of

RATE = 3


@dataclass(frozen=True)
class Ride:
    ride_id: str
    meters: int


@dataclass(frozen=True)
class RideWithCity:
    ride_id: str
    meters: float
    city: str = "unknown"


@dataclass(frozen=True)
class Total:
    ride_id: str
    total: int


def helper(number: int) -> int:
    return number * RATE


def total(rides: Any) -> Any:
    return [helper(ride) for ride in rides]


def flow_of(topic: Topic) -> Flow:
    app = App("bikes")
    app.topics.append(topic)
    return app.flow(reads=[topic], writes=app.topic("totals", key="ride_id"))(total)


RIDES = App("bikes").topic("rides", Ride, key="ride_id", late=timedelta(seconds=30))
OUTPUT = schema_of(Total)


class NoSpark:
    """The settings of a session."""

    class conf:
        @staticmethod
        def get(name: str) -> str:
            return f"the default of {name}"


def digest_of(flow: Flow, plan: str = "plan") -> Digest:
    schemas = {topic.name: topic.schema for topic in flow.reads if topic.schema is not None}
    return digests.flow_digest(NoSpark(), flow, plan, schemas)  # type: ignore[arg-type]


def generation_of(flow: Flow, digest: Digest | None) -> Generation:
    return Generation(
        app="bikes",
        flow=flow.name,
        generation=1,
        fingerprint="2:0",
        inputs=[Input("rides", "rides", "id", "events")],
        output="totals",
        output_id="id",
        key=["ride_id"],
        schema=fields_to_json(OUTPUT.fields),
        checkpoint="g1",
        started_ms=0,
        digest=digest,
    )


def changes(new: Topic = RIDES, *, plan: str = "plan", output: Schema = OUTPUT, **digest: Any) -> list[str]:
    """Return the changes since a generation of ``flow_of(RIDES)``."""
    old, flow = flow_of(RIDES), flow_of(new)
    recorded = generation_of(old, msgspec.structs.replace(digest_of(old), **digest))
    _, value = encode(recorded)
    read = decode(value, where="progress")
    assert isinstance(read, Generation)
    return changes_since(read, flow, digest_of(flow, plan), output)


def test_an_unchanged_flow_has_no_changes() -> None:
    assert changes() == []
    assert changes(plan="other") == ["Spark's plan of the function"]


def test_changed_code_is_named_with_function_value_and_line(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    recorded = digest_of(flow_of(RIDES)).code
    assert set(recorded) == {"total", "helper", "helper: RATE"}
    line = lines.index("    return number * RATE") + 1
    assert changes(code={**recorded, "helper: RATE": "other"}, plan="x") == [
        f"the value of RATE, which helper reads ({__file__}:{line}), changed"
    ]
    assert changes(code={**recorded, "total": "other", "gone": "x"}) == [
        f"the code of total ({__file__}:{lines.index('def total(rides: Any) -> Any:') + 1}) changed",
        "the code of gone is no longer used",
    ]
    del recorded["helper"]
    assert changes(code=recorded) == [f"the code of helper ({__file__}:{line - 1}) is new"]


def test_a_changed_input_is_named_with_its_field() -> None:
    later = App("bikes").topic("rides", RideWithCity, key="ride_id", late=timedelta(minutes=1))
    assert changes(later) == [
        'topic rides: field meters was a 64-bit integer and is now a number, "NaN", "Infinity" or "-Infinity"',
        "topic rides: field city is new",
        "topic rides: late was 0:00:30 and is now 0:01:00",
    ]
    assert changes(replace(RIDES, key=("ride_id", "meters"), time="at", kind="table")) == [
        "topic rides: the key was ride_id and is now ride_id, meters",
        "topic rides: the time field was None and is now at",
        "topic rides: the kind was events and is now table",
    ]
    assert changes(replace(RIDES, name="trips")) == [
        "the flow reads topic trips, which is new",
        "the flow no longer reads topic rides",
    ]
    upcast = App("bikes").topic("rides", Ride, key="ride_id", late=RIDES.late, upcast=lambda value: value)
    assert changes(upcast) == ["topic rides: the code of its upcasters changed"]


def test_a_changed_output_version_and_runtime_are_named() -> None:
    assert changes(output=schema_of(Ride)) == [
        "output column meters is new",
        "output column total was removed",
    ]
    assert changes(version="1") == ["version was '1' and is now ''"]
    runtime = {**digest_of(flow_of(RIDES)).runtime, "Python": "3.10"}
    assert changes(runtime=runtime) == []
    [python] = changes(runtime=runtime, plan="x")
    assert python.startswith("Python was 3.10 and is now 3.")


def test_a_record_of_an_earlier_release_is_readable_and_has_no_parts() -> None:
    flow = flow_of(RIDES)
    _, value = encode(generation_of(flow, None))
    document = msgspec.json.decode(value)
    del document["digest"]
    earlier = decode(msgspec.json.encode(document), where="progress")
    assert isinstance(earlier, Generation)
    assert changes_since(earlier, flow, digest_of(flow), OUTPUT) == []
    assert describe_changes(earlier, flow, digest_of(flow), OUTPUT) == (
        "an earlier release began it and recorded only the fingerprint"
    )


def test_a_long_list_of_changes_is_cut() -> None:
    flow = flow_of(RIDES)
    digest = msgspec.structs.replace(digest_of(flow), code={f"f{number}": "x" for number in range(40)})
    text = describe_changes(generation_of(flow, digest), flow, digest_of(flow), OUTPUT)
    assert text.endswith("; and 35 more changes")


def test_a_value_that_cannot_be_pickled_is_left_out() -> None:
    class Hostile:
        def __reduce_ex__(self, protocol: Any) -> Any:
            raise SystemError(protocol)

    hostile = Hostile()
    names = {name.rpartition(".")[2] for name in digests._code_parts(lambda: hostile)}
    assert names == {"<lambda>", "<lambda>: hostile"}


def test_the_parts_of_the_code_are_the_whole_digest() -> None:
    parts = code_parts(total)
    assert sorted("\n".join(part.text for part in parts.values()).splitlines()) == sorted(
        code_digest(total).splitlines()
    )
