"""How far flows, views and groups are behind, in records, bytes and seconds, and when that becomes a loss."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from bench.faults.flow_by_hand import Change, FlowByHand
from headrace.cli.app_lag import stored_readers
from headrace.client.cluster import Cluster
from headrace.clock import SystemClock
from headrace.ops.lag.groups import Groups
from headrace.ops.lag.lag import Lag
from headrace.ops.lag.meter import LagMeter
from headrace.ops.lag.reader import Reader
from headrace.ops.log_dirs import sizes_of
from tests.support.waiting import until
from tests.views.seeing import following

Fresh = Callable[[str], str]
HOUR_MS = 3_600_000
VALUE = b"x" * 100


def write(cluster: Cluster, topic: str, count: int, *, age_ms: int = 0, partition: int = 0) -> None:
    producer = cluster.producer({"linger.ms": 5})
    stamp = int(time.time() * 1_000) - age_ms
    for number in range(count):
        producer.produce(topic, key=b"%d" % number, value=VALUE, partition=partition, timestamp=stamp)
    assert producer.flush(30) == 0


def commit(cluster: Cluster, group: str, topic: str, offset: int, partition: int = 0) -> None:
    consumer = cluster.consumer({"group.id": group})
    with contextlib.closing(consumer):
        consumer.commit(offsets=[TopicPartition(topic, partition, offset)], asynchronous=False)


def reader(topic: str, at: int, what: str = "view") -> Reader:
    return Reader("view", what, "serving", {(topic, 0): at}, (topic,))


@pytest.fixture
def meter(cluster: Cluster) -> Iterator[LagMeter]:
    with contextlib.closing(LagMeter(cluster)) as made:
        yield made


def look(meter: LagMeter, readers: Sequence[Reader]) -> dict[str, Lag]:
    return {one.reader.name: one for one in meter.look(readers)}


def expect_lag_and_loss(cluster: Cluster, topic: str) -> None:
    """Of any Kafka: what is measured, of three readers in two partitions of a topic that keeps records for an hour."""
    cluster.ensure_topic(topic, 2, {"retention.ms": str(HOUR_MS)})
    write(cluster, topic, 40, age_ms=HOUR_MS // 2)
    write(cluster, topic, 60, age_ms=HOUR_MS // 4)
    write(cluster, topic, 10, partition=1)
    at_start = Reader("flow", "at start", "begun", {}, (topic,))
    halfway = Reader("view", "halfway", "serving", {(topic, 0): 40, (topic, 1): 10}, (topic,))
    at_end = Reader("view", "at end", "serving", {(topic, 0): 100, (topic, 1): 10}, (topic,))
    commit(cluster, f"{topic}-group", topic, 99)
    sizes = sizes_of(cluster, [(topic, 0), (topic, 1)])
    assert sizes is not None
    with contextlib.closing(LagMeter(cluster)) as meter:
        groups = Groups(cluster, SystemClock()).readers([topic])
        assert [one.name for one in groups] == [f"{topic}-group"]
        found = look(meter, [at_start, halfway, at_end, *groups])
        assert {name: one.records for name, one in found.items()} == {
            "at start": 110,
            "halfway": 60,
            "at end": 0,
            f"{topic}-group": 1,
        }
        assert found["at start"].est_bytes == sum(sizes.bytes.values())
        assert found["halfway"].est_bytes == pytest.approx(0.6 * sizes.bytes[topic, 0], abs=1)
        assert (found["at end"].est_bytes, found["at end"].age_s, found["at end"].loss) == (0, 0.0, None)
        # By the oldest record that is not read, which is half an hour old, or a quarter.
        for name, share in (("at start", 1 / 2), ("halfway", 1 / 4), (f"{topic}-group", 1 / 4)):
            one = found[name]
            assert one.age_s is not None
            assert one.age_s >= HOUR_MS * share / 1_000
            assert one.loss is not None
            assert one.loss.by == "retention.ms"
            assert one.loss.in_s == pytest.approx(3_600 - one.age_s)
        assert found["at start"].taken_per_s is None
        assert found["at start"].arriving_per_s == pytest.approx(10 / 60, rel=0.01)
        # Faster than it was written: it will never be caught up with.
        moved = Reader("flow", "at start", "begun", {(topic, 0): 90, (topic, 1): 10}, (topic,))
        after = look(meter, [moved])["at start"]
        assert (after.records, after.loss and after.loss.by) == (10, "never")
        assert after.taken_per_s is not None
        assert after.taken_per_s > 0


def test_lag_is_measured_in_records_bytes_and_seconds_and_so_is_the_time_to_loss(
    cluster: Cluster, fresh: Fresh
) -> None:
    expect_lag_and_loss(cluster, fresh("measured"))


def test_what_is_kept_or_compacted_is_never_lost(cluster: Cluster, fresh: Fresh, meter: LagMeter) -> None:
    kept, compacted, limited = fresh("kept"), fresh("compacted"), fresh("limited")
    cluster.ensure_topic(kept, 1, {"retention.ms": "-1"})
    cluster.ensure_topic(compacted, 1, {"cleanup.policy": "compact", "retention.ms": "60000"})
    cluster.ensure_topic(limited, 1, {"retention.ms": "-1", "retention.bytes": "1000000"})
    topics = (kept, compacted, limited)
    for topic in topics:
        write(cluster, topic, 5)
    found = look(meter, [reader(topic, 0, topic) for topic in topics])
    losses = [found[topic].loss for topic in topics]
    assert [one and one.by for one in losses] == ["never", "never", "retention.bytes"]
    # Nothing arrives any more, so nothing is pushed out.
    until(
        lambda: [one.loss and one.loss.by for one in meter.look([reader(limited, 0)])] == ["never"], "quiet"
    )


def test_what_was_deleted_before_it_was_read_is_gone_and_not_lag(
    cluster: Cluster, fresh: Fresh, meter: LagMeter
) -> None:
    topic = fresh("trimmed")
    cluster.ensure_topic(topic, 1)
    write(cluster, topic, 10)
    cluster.admin().delete_records([TopicPartition(topic, 0, 4)])[TopicPartition(topic, 0)].result(30)
    (found,) = meter.look([reader(topic, 1)])
    assert (found.records, found.gone) == (6, 3)
    # Whoever has not begun will begin with what is there.
    (found,) = meter.look([Reader("flow", "new", "not begun", topics=(topic,), begun=False)])
    assert (found.records, found.gone) == (6, 0)


def test_a_topic_that_is_not_there_is_said(cluster: Cluster, fresh: Fresh, meter: LagMeter) -> None:
    topic = fresh("nowhere")
    (found,) = meter.look([reader(topic, 0)])
    assert (found.records, found.row()["state"]) == (None, f"topic {topic} is not there")


def test_a_reader_that_stands_still_costs_no_reading(
    cluster: Cluster, fresh: Fresh, meter: LagMeter, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = fresh("still")
    cluster.ensure_topic(topic, 1)
    write(cluster, topic, 100)
    places = [reader(topic, at, f"r{at}") for at in (0, 50, 99)]
    read = []
    inner = meter._next._read
    monkeypatch.setattr(meter._next, "_read", lambda spots, end: (read.append(spots), inner(spots, end)))
    first = [one.age_s for one in meter.look(places)]
    assert None not in first
    # Three places of one partition, each read once.
    assert [spots[topic, 0] for spots in read] == [0, 50, 99]
    again = [one.age_s for one in meter.look(places)]
    assert len(read) == 3
    assert all(after >= before for before, after in zip(first, again, strict=True) if after and before)


def row(number: int) -> Change:
    return f"p{number}", {"product": f"p{number}", "amount": number, "note": None}


def test_an_app_s_flows_views_and_groups_are_found_where_they_are(
    cluster: Cluster, fresh: Fresh, tmp_path: Path, meter: LagMeter
) -> None:
    name = fresh("found")
    by_hand = FlowByHand(cluster, name, partitions=1)
    source = by_hand.flow.reads[0].name
    cluster.ensure_topic(source, 1)
    readers = stored_readers(cluster, by_hand.app, tmp_path)
    write(cluster, source, 5)
    before = look(meter, readers())
    assert {one.reader.state for one in before.values()} == {"not begun", "not built"}
    assert before[by_hand.flow.name].records == 5
    by_hand.begin()
    by_hand.batch([row(1), row(2)])
    commit(cluster, f"{name}-group", by_hand.output, 1)
    with following(cluster, by_hand.view, [by_hand.flow], tmp_path) as followed:
        followed.expect(by_hand.derived.rows, batch=0)
        found = look(meter, stored_readers(cluster, by_hand.app, tmp_path)())
    assert {key: (one.reader.what, one.records) for key, one in found.items()} == {
        by_hand.flow.name: ("flow", 3),
        by_hand.view.name: ("view", 0),
        # What the flow wrote, and the end of its transaction.
        f"{name}-group": ("group", 2),
    }
    assert found[by_hand.flow.name].reader.dead == 0
