"""What earlier generations recorded about deleted records reaches every later generation."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.generations import own_progress_topic
from headrace.client.generations_writer import GenerationsWriter, drop_generation
from headrace.client.records import write
from headrace.flow.deleted_heads import find_deleted_heads
from headrace.model.progress import Batch, DeletedHead, Generation, Input, Record, encode


@dataclass(frozen=True)
class Ride:
    ride: str
    at: datetime


class History:
    """Generations of one flow that reads one topic of one partition, with the records that its driver would write."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        mark = uuid.uuid4().hex[:8]
        self.app = App(f"heads-{mark}")
        rides = self.app.topic(f"rides-{mark}", Ride, key="ride", time="at", late=timedelta(seconds=1))
        known = self.app.topic(f"known-{mark}", key="ride")
        self.log, self.topic_id = rides.name, "id"
        self.flow = self.app.flow(reads=[rides], writes=known, name=f"know-{mark}", late="drop")(
            lambda rides: rides
        )
        cluster.ensure_topic(self.flow.late_topic, 1)
        self._generations = dict[int, Generation]()

    def begin(self, start: int, deleted: DeletedHead | None = None, late: str = "drop") -> int:
        number = len(self._generations) + 1
        if number > 1:
            with GenerationsWriter(self._cluster, self.flow) as writer:
                writer.begin_generation("a function", "a test")
        heads = {} if deleted is None else {"0": deleted}
        source = Input(self.log, self.log, self.topic_id, "events", {"0": start}, heads)
        self._generations[number] = Generation(
            *(self.app.name, self.flow.name, number, "a function", [source]),
            output=self.flow.writes.name,
            output_id="",
            key=["ride"],
            schema=[],
            checkpoint="",
            started_ms=0,
            late=late,
        )
        self._cluster.ensure_topic(self._progress_topic(number), 1)
        self._write(number, self._generations[number])
        return number

    def add_batch(
        self,
        number: int,
        batch: int,
        ends: tuple[int, int],
        times: tuple[int | None, int | None],
        late: int = 0,
    ) -> None:
        before, after = ({} if time_us is None else {self.log: {"0": time_us}} for time_us in times)
        facts: dict[str, Any] = {"watermark_us": None, "next_watermark_us": None, "seen_us": {}}
        record = Batch(
            flow=self.flow.name,
            generation=number,
            batch=batch,
            inputs={self.log: {"0": ends}},
            tables={},
            outputs={},
            rows_in=0,
            rows_out=0,
            late=late,
            dead=0,
            fingerprint="",
            newest_us=before,
            next_newest_us=after,
            **facts,
        )
        self._write(number, record)

    def note(self, number: int, batch: int, offset: int) -> None:
        note = {"topic": self.log, "partition": 0, "offset": offset, "generation": number, "batch": batch}
        write(self._cluster, self.flow.late_topic, None, msgspec.json.encode(note), "a test")

    def find(self, start: int) -> DeletedHead | None:
        heads = find_deleted_heads(self._cluster, self.app, self.log, self.topic_id, {"0": start})
        return heads.get("0")

    def _progress_topic(self, number: int) -> str:
        return self.flow.progress_topic if number == 1 else own_progress_topic(self.flow, number)

    def _write(self, number: int, record: Record) -> None:
        key, value = encode(record)
        write(self._cluster, self._progress_topic(number), key.decode(), value, "a test")


@pytest.fixture
def history(cluster: Cluster) -> History:
    return History(cluster)


def test_the_event_times_of_a_later_generation_are_found_in_its_own_progress_topic(history: History) -> None:
    first = history.begin(0)
    history.add_batch(first, 0, (0, 10), (None, 100))
    second = history.begin(0)
    history.add_batch(second, 0, (0, 30), (None, 300))
    history.add_batch(second, 1, (30, 40), (300, 400), late=2)
    history.note(second, 1, 33)
    # The first generation still runs, and writes a note in between.
    history.note(first, 7, 8)
    history.note(3, 0, 36)
    history.note(second, 1, 37)
    assert history.find(30) == DeletedHead(300, 30, 300)
    assert history.find(35) == DeletedHead(300, 40, 400, [37])
    # Only the first generation has a batch that ends there; both know the newest event before it.
    assert history.find(10) == DeletedHead(None, 30, 300)
    assert history.find(41) is None


def test_the_newest_event_time_is_known_where_the_last_batch_ended(history: History) -> None:
    first = history.begin(0)
    history.add_batch(first, 0, (0, 10), (None, 100), late=1)
    history.note(first, 0, 5)
    assert history.find(10) == DeletedHead(100, 10, 100)


def test_a_generation_that_began_within_deleted_records_passes_on_what_it_inherited(history: History) -> None:
    first = history.begin(0)
    history.add_batch(first, 0, (0, 20), (None, 200), late=3)
    for offset in (4, 12, 16):
        history.note(first, 0, offset)
    inherited = history.find(10)
    assert inherited == DeletedHead(None, 20, 200, [12, 16])
    second = history.begin(10, inherited)
    # Its first batch began with too early a time, because the newest event was deleted.
    history.add_batch(second, 0, (10, 15), (None, 90), late=1)
    history.add_batch(second, 1, (15, 25), (90, 250), late=1)
    history.note(second, 1, 16)
    assert history.find(10) == inherited
    assert history.find(15) == DeletedHead(None, 20, 200, [16])
    assert history.find(20) == DeletedHead(90, 25, 250, [])


def test_a_generation_that_knew_nothing_of_deleted_records_is_used_last(history: History) -> None:
    first = history.begin(0)
    history.add_batch(first, 0, (0, 50), (None, 500))
    history.begin(0, late="keep")
    third = history.begin(40)
    history.add_batch(third, 0, (40, 50), (None, 110))
    assert history.find(50) == DeletedHead(500, 50, 500)
    history.add_batch(third, 1, (50, 60), (110, 120))
    assert history.find(60) == DeletedHead(120, 60, 120)


def test_a_dropped_generation_is_not_used(history: History, cluster: Cluster) -> None:
    first = history.begin(0)
    history.add_batch(first, 0, (0, 10), (None, 100))
    second = history.begin(0)
    history.add_batch(second, 0, (0, 20), (None, 200))
    drop_generation(cluster, history.flow, second)
    assert history.find(20) is None
    assert history.find(10) == DeletedHead(100, 10, 100)
