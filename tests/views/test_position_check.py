"""The position of a view whose generation continued in another topic after a switch names its last batch."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.records import write
from headrace.model.progress import Batch, Generation, encode
from headrace.ops.verify.position_check import check_position
from headrace.ops.verify.snapshot import StoreSnapshot


@dataclass(frozen=True)
class Ride:
    ride: str


def batch(number: int, topic: str, end: int) -> Batch:
    facts: dict[str, Any] = {"watermark_us": None, "next_watermark_us": None, "seen_us": {}}
    counts: dict[str, Any] = {"rows_in": 1, "rows_out": 1, "late": 0, "dead": 0, "fingerprint": ""}
    return Batch("flow", 1, number, {}, {}, {topic: {"0": (0, end)}}, **facts, **counts)


@pytest.mark.parametrize(
    ("topic", "number", "offset", "message"),
    [
        # Before and after the view continued, and after the next batch.
        ("rides", 1, 20, ""),
        ("rides.g1", 1, 12, ""),
        ("rides.g1", 2, 17, ""),
        ("rides.g1", 1, 17, "inconsistent"),
        ("rides.g1", 0, 10, "inconsistent"),
        ("rides.g1", 0, 12, "inconsistent"),
        ("rides.g7", 1, 12, "writes rides.g1"),
    ],
)
def test_a_view_is_at_the_batch_before_its_generation_continued(
    cluster: Cluster, topic: str, number: int, offset: int, message: str
) -> None:
    mark = uuid.uuid4().hex[:8]
    app = App(f"position-{mark}")
    rides = app.topic(f"rides-{mark}", Ride, key="ride")
    flow = app.flow(reads=[rides], writes=app.topic(f"known-{mark}", key="ride"), name=f"know-{mark}")(
        lambda rides: rides
    )
    progress = cluster.ensure_topic(flow.progress_topic, 1)
    first = Generation(
        "app", flow.name, 1, "", [], "rides", "rides", ["ride"], [], "", 0, output_starts={"0": 0}
    )
    second = msgspec.structs.replace(
        first, output="rides.g1", output_id="rides.g1", output_starts={"0": 12}, continues=0, batch_offset=2
    )
    records = [first, batch(0, "rides", 10), batch(1, "rides", 20), second, batch(2, "rides.g1", 17)]
    for record in records:
        key, value = encode(record)
        write(cluster, flow.progress_topic, key.decode(), value, "a test")
    progress_offset = {0: 2, 1: 3, 2: 5}[number]
    snapshot = StoreSnapshot(
        *(
            "store",
            "view",
            topic,
            topic,
            1,
            number,
            {0: offset},
            progress.id,
            progress_offset,
            (),
            ("ride",),
            {},
        )
    )
    found = check_position(cluster, flow, snapshot)
    assert [message in finding.message for finding in found.findings] == [True] * bool(message), (
        found.findings
    )
    if not message:
        assert (found.last_batch and found.last_batch.batch, found.behind) == (number, 2 - number)
