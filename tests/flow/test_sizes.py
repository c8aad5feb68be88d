"""A record of the maximum size fits into a dead letter, and a row may be larger than its source record."""

from __future__ import annotations

import secrets
import uuid
from dataclasses import dataclass

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from faults.flows.world import FlowWorld
from headrace.app import App
from headrace.flow.errors import RowTooLarge
from tests.flow.topic_contents import committed, headers, values

MIB = 1024 * 1024


@dataclass(frozen=True)
class Note:
    note_id: str
    text: str
    times: int


def notes_app(mark: str) -> App:
    app = App(f"notes-{mark}")
    notes = app.topic(f"notes-{mark}", Note, key="note_id")
    repeated = app.topic(f"repeated-{mark}", key="note_id")

    @app.flow(reads=[notes], writes=repeated, name=f"repeat-{mark}")
    def repeat(notes: DataFrame) -> DataFrame:
        return notes.select("note_id", F.expr("repeat(text, times)").alias("text"))

    return app


def test_a_record_of_maximum_size_fits_into_a_dead_letter_and_a_row_may_exceed_its_source(
    flow_world: FlowWorld,
) -> None:
    mark = uuid.uuid4().hex[:8]
    app = notes_app(mark)
    notes = app.topics[0]
    flow_world.declare(app)
    largest = b"{" + b"x" * (MIB - 300)
    flow_world.write(notes, [(b"n", largest), Note("a", "y" * 600_000, 3), Note("b", "z", 1)])
    with flow_world.running(app) as run:
        run.wait_until_derived()
    bootstrap = flow_world.cluster.bootstrap
    (letter,) = committed(bootstrap, f"notes-{mark}.repeat-{mark}.dead")
    assert letter.value() == largest
    assert headers(letter)["topic"] == notes.name
    rows = {row["note_id"]: len(row["text"]) for row in values(bootstrap, f"repeated-{mark}")}
    assert rows == {"a": 1_800_000, "b": 1}


def test_a_row_that_is_too_large_stops_its_flow_with_its_key(flow_world: FlowWorld) -> None:
    mark = uuid.uuid4().hex[:8]
    app = notes_app(mark)
    flow_world.declare(app)
    # Random bytes, which cannot be compressed.
    text = secrets.token_hex(320_000)
    flow_world.write(app.topics[0], [Note("small", "z", 1), Note("huge", text, 20)])
    with pytest.raises(RowTooLarge) as refused, flow_world.running(app) as run:
        run.wait_until_derived()
    assert "key 'huge'" in refused.value.detail
    assert f"headrace topic alter repeated-{mark}" in refused.value.hint
    assert committed(flow_world.cluster.bootstrap, f"repeated-{mark}") == []
