"""Which letters are settled, for any generations and positions of the flows, compared with a plain computation."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace import App
from headrace.client.cluster import Cluster
from headrace.client.declared_topics import ensure_dead_letter_topic
from headrace.client.progress import Progress
from headrace.model.progress import Batch, Generation, Input
from headrace.model.rejection import LetterState, Reason, Rejection
from headrace.ops.dead.letter import Letter
from headrace.ops.dead.letter_index import LetterIndex
from headrace.ops.dead.letters import letters_at

OFFSETS = 6
FLOWS = ("sum", "count")


@dataclass(frozen=True)
class _Ride:
    ride: str


@dataclass
class _Refused:
    flow: str
    generation: int
    offset: int | None
    """None for a row without a key."""
    letter: Letter


@dataclass
class _Scene:
    index: LetterIndex
    topic: str
    refusals: list[_Refused]


@pytest.fixture(scope="module")
def scene(cluster: Cluster) -> Iterator[_Scene]:
    """Two flows that rejected some records in some generations."""
    rng, name = random.Random(7), "letter-states"
    app = App(name)
    rides = app.topic(f"{name}-rides", _Ride, key="ride")
    for flow in FLOWS:
        app.flow(reads=[rides], writes=app.topic(f"{name}-{flow}"), name=f"{name}-{flow}")(lambda rows: rows)
    producer = cluster.producer()
    cases: list[tuple[str, int, int | None]] = [
        (flow, generation, offset)
        for flow in FLOWS
        for generation in (1, 2, 3)
        for offset in (*range(OFFSETS), None)
        if rng.random() < 0.4
    ]
    refusals = []
    for flow in app.flows:
        ensure_dead_letter_topic(cluster, flow.dead_topic, [])
    for flow_name, generation, offset in cases:
        source = ("", "") if offset is None else (rides.name, "rides-id")
        reason = Reason.KEY if offset is None else Reason.SCHEMA
        rejection = Rejection(reason, "a test", generation, *source, 0, offset or 0)
        dead_topic = f"{name}.{name}-{flow_name}.dead"
        producer.produce(dead_topic, value=b"%d" % (offset or 0), headers=[*rejection.headers()])
    assert producer.flush(30) == 0
    with contextlib.closing(LetterIndex(None, cluster, app)) as index:
        index.catch_up(progress={})
        for flow_name in FLOWS:
            dead_topic = f"{name}.{name}-{flow_name}.dead"
            own = [case for case in cases if case[0] == flow_name]
            letters = letters_at(cluster, dead_topic, [(0, number) for number in range(len(own))])
            refusals += [_Refused(*case, letter) for case, letter in zip(own, letters, strict=True)]
        yield _Scene(index, rides.name, refusals)


def _progress(scene: _Scene, flow: str, generation: int, start: int, end: int) -> Progress:
    flow_name = f"letter-states-{flow}"
    inputs = [Input(scene.topic, scene.topic, "rides-id", "events", {"0": start})]
    begun: dict[str, Any] = {"app": "letter-states", "flow": flow_name, "fingerprint": "", "key": []}
    record = Generation(
        **begun,
        generation=generation,
        inputs=inputs,
        output="out",
        output_id="",
        schema=[],
        checkpoint="",
        started_ms=0,
    )
    batch = Batch(
        flow=flow_name,
        generation=generation,
        batch=0,
        inputs={scene.topic: {"0": (start, end)}},
        tables={},
        outputs={},
        watermark_us=None,
        next_watermark_us=None,
        seen_us={},
        rows_in=0,
        rows_out=0,
        late=0,
        dead=0,
        fingerprint="",
    )
    return Progress(record, batch, 0)


POSITIONS = st.tuples(st.integers(1, 4), st.integers(0, OFFSETS), st.integers(0, OFFSETS))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(served=st.fixed_dictionaries({flow: st.none() | POSITIONS for flow in FLOWS}))
def test_a_letter_is_settled_if_every_refusal_is_past_and_the_serving_generation_has_read_the_record(
    scene: _Scene, served: dict[str, tuple[int, int, int] | None]
) -> None:
    progress = {
        f"letter-states-{flow}": _progress(scene, flow, generation, start, max(start, end))
        for flow, position in served.items()
        if position is not None
        for generation, start, end in [position]
    }
    scene.index.settle(progress)

    def is_settled(refused: _Refused) -> bool:
        position = served[refused.flow]
        if position is None or position[0] == refused.generation:
            return False
        return refused.offset is None or position[1] <= refused.offset < position[2]

    by_letter: dict[bytes, list[_Refused]] = {}
    for refused in scene.refusals:
        by_letter.setdefault(refused.letter.id, []).append(refused)
    expected = {
        key: LetterState.SETTLED if all(map(is_settled, refusals)) else LetterState.OPEN
        for key, refusals in by_letter.items()
    }
    states = {key: info.state for key in by_letter if (info := scene.index.find(key)) is not None}
    assert states == expected
    for flow in FLOWS:
        own = {refused.letter.id for refused in scene.refusals if refused.flow == flow}
        counted = scene.index.counts().get(f"letter-states.letter-states-{flow}.dead", {})
        assert counted.get(LetterState.OPEN, 0) == sum(expected[key] is LetterState.OPEN for key in own)
        open_here = {
            refused.letter.id
            for refused in scene.refusals
            if refused.flow == flow and not is_settled(refused)
        }
        open_counts = scene.index.open_counts()
        listed = sum(
            count
            for (topic, _), count in open_counts.items()
            if topic == f"letter-states.letter-states-{flow}.dead"
        )
        assert listed == len(open_here)


def test_a_record_that_several_flows_rejected_is_one_letter_with_all_refusals(scene: _Scene) -> None:
    scene.index.settle({})
    letters: dict[bytes, int] = {}
    for refused in scene.refusals:
        letters[refused.letter.id] = letters.get(refused.letter.id, 0) + 1
    assert max(letters.values()) > 1
    for key, count in letters.items():
        info = scene.index.find(key)
        assert info is not None
        assert len(info.refusals) == count
