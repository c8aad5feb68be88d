"""The lag of flows, views and groups in records, bytes and seconds, and when it becomes a loss."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from faults.views.follower_thread import following
from faults.views.scripted_flow import Change, ScriptedFlow
from faults.wait import until
from headrace.cli.app_state import lag_monitor
from headrace.client.cluster import Cluster
from headrace.clock import SystemClock
from headrace.ops.lag.lag import Lag
from headrace.ops.lag.meter import LagMeter
from headrace.ops.lag.monitor import Groups, LagMonitor
from headrace.ops.lag.reader import Reader
from headrace.ops.outlook import sizes_of

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
    with contextlib.closing(LagMeter(cluster)) as created:
        yield created


def measure(meter: LagMeter, readers: Sequence[Reader]) -> dict[str, Lag]:
    return {lag.reader.name: lag for lag in meter.measure(readers)}


def expect_lag_and_loss(cluster: Cluster, topic: str) -> None:
    """Check the lag of three readers of a topic with two partitions and one hour of retention, on any Kafka."""
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
        assert [reader.name for reader in groups] == [f"{topic}-group"]
        found = measure(meter, [at_start, halfway, at_end, *groups])
        assert {name: value.records for name, value in found.items()} == {
            "at start": 110,
            "halfway": 60,
            "at end": 0,
            f"{topic}-group": 1,
        }
        assert found["at start"].est_bytes == sum(sizes.bytes.values())
        assert found["halfway"].est_bytes == pytest.approx(0.6 * sizes.bytes[topic, 0], abs=1)
        assert (found["at end"].est_bytes, found["at end"].age_s, found["at end"].loss) == (0, 0.0, None)
        # The oldest unread record, half or a quarter of an hour old, determines the loss.
        for name, share in (("at start", 1 / 2), ("halfway", 1 / 4), (f"{topic}-group", 1 / 4)):
            lag = found[name]
            assert lag.age_s is not None
            assert lag.age_s >= HOUR_MS * share / 1_000
            assert lag.loss is not None
            assert lag.loss.by == "retention.ms"
            assert lag.loss.in_s == pytest.approx(3_600 - lag.age_s)
        assert found["at start"].taken_per_s is None
        assert found["at start"].arriving_per_s == pytest.approx(10 / 60, rel=0.01)
        # The reader is faster than the writer was, so retention never reaches it.
        moved = Reader("flow", "at start", "begun", {(topic, 0): 90, (topic, 1): 10}, (topic,))
        after = measure(meter, [moved])["at start"]
        assert (after.records, after.loss and after.loss.by) == (10, "never")
        assert after.taken_per_s is not None
        assert after.taken_per_s > 0


def test_lag_is_measured_in_records_bytes_seconds_and_time_to_loss(cluster: Cluster, fresh: Fresh) -> None:
    expect_lag_and_loss(cluster, fresh("measured"))


def test_records_without_a_retention_limit_are_never_lost(
    cluster: Cluster, fresh: Fresh, meter: LagMeter
) -> None:
    unlimited, compacted, limited = fresh("unlimited"), fresh("compacted"), fresh("limited")
    cluster.ensure_topic(unlimited, 1, {"retention.ms": "-1"})
    cluster.ensure_topic(compacted, 1, {"cleanup.policy": "compact", "retention.ms": "60000"})
    cluster.ensure_topic(limited, 1, {"retention.ms": "-1", "retention.bytes": "1000000"})
    topics = (unlimited, compacted, limited)
    for topic in topics:
        write(cluster, topic, 5)
    found = measure(meter, [reader(topic, 0, topic) for topic in topics])
    losses = [found[topic].loss for topic in topics]
    assert [item and item.by for item in losses] == ["never", "never", "retention.bytes"]
    # No record arrives, so retention by size deletes nothing.
    until(
        lambda: [lag.loss and lag.loss.by for lag in meter.measure([reader(limited, 0)])] == ["never"],
        "quiet",
    )


def test_records_deleted_before_they_were_read_count_as_gone_and_not_as_lag(
    cluster: Cluster, fresh: Fresh, meter: LagMeter
) -> None:
    topic = fresh("trimmed")
    cluster.ensure_topic(topic, 1)
    write(cluster, topic, 10)
    cluster.admin().delete_records([TopicPartition(topic, 0, 4)])[TopicPartition(topic, 0)].result(30)
    (found,) = meter.measure([reader(topic, 1)])
    assert (found.records, found.gone) == (6, 3)
    # A flow that has not started will start at the first existing record.
    (found,) = meter.measure([Reader("flow", "new", "not begun", topics=(topic,), has_started=False)])
    assert (found.records, found.gone) == (6, 0)


def test_the_lag_names_a_missing_topic(cluster: Cluster, fresh: Fresh, meter: LagMeter) -> None:
    topic = fresh("nowhere")
    (found,) = meter.measure([reader(topic, 0)])
    assert (found.records, found.row()["state"]) == (None, f"topic {topic} does not exist")


def test_a_reader_that_stays_at_its_offset_causes_no_further_reads(
    cluster: Cluster, fresh: Fresh, meter: LagMeter, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = fresh("still")
    cluster.ensure_topic(topic, 1)
    write(cluster, topic, 100)
    readers = [reader(topic, at, f"r{at}") for at in (0, 50, 99)]
    reads = []
    inner = meter._next._read
    monkeypatch.setattr(
        meter._next, "_read", lambda points, deadline: (reads.append(points), inner(points, deadline))
    )
    first = [lag.age_s for lag in meter.measure(readers)]
    assert None not in first
    # The readers are at three offsets of one partition. Each offset is read once.
    assert [points[topic, 0] for points in reads] == [0, 50, 99]
    again = [lag.age_s for lag in meter.measure(readers)]
    assert len(reads) == 3
    assert all(after >= before for before, after in zip(first, again, strict=True) if after and before)


def row(number: int) -> Change:
    return f"p{number}", {"product": f"p{number}", "amount": number, "note": None}


def measure_app(monitor: LagMonitor) -> dict[str, Lag]:
    lags = [*monitor.measure().lags.values(), *monitor.measure_groups()]
    return {lag.reader.name: lag for lag in lags}


def test_a_monitor_measures_the_flows_views_and_groups_of_an_app(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    name = fresh("found")
    scripted = ScriptedFlow(cluster, name, partitions=1)
    source = scripted.flow.reads[0].name
    cluster.ensure_topic(source, 1)
    write(cluster, source, 5)
    with contextlib.closing(lag_monitor(cluster, scripted.app, tmp_path)) as monitor:
        before = measure_app(monitor)
    assert {lag.reader.state for lag in before.values()} == {"not begun", "not built"}
    assert before[scripted.flow.name].records == 5
    scripted.begin()
    scripted.batch([row(1), row(2)])
    commit(cluster, f"{name}-group", scripted.output, 1)
    with (
        following(cluster, scripted.view, [scripted.flow], tmp_path) as followed,
        contextlib.closing(lag_monitor(cluster, scripted.app, tmp_path)) as monitor,
    ):
        followed.expect(scripted.derived.rows, batch=0)
        lags = measure_app(monitor)
        assert monitor.lags == [*lags.values()]
    assert {key: (lag.reader.what, lag.records) for key, lag in lags.items()} == {
        scripted.flow.name: ("flow", 3),
        scripted.view.name: ("view", 0),
        # The flow's second row, and the end of its transaction.
        f"{name}-group": ("group", 2),
    }
    assert lags[scripted.flow.name].reader.dead == 0
