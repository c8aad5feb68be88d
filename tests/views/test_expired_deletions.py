"""When a follower last read its topic to the end, and which expired deletions it may have missed."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from faults.servers.server import Server
from faults.views.follower_thread import following, produce, read_view
from faults.views.scripted_flow import ScriptedFlow
from faults.wait import until, unwatch, watch
from headrace.client.cluster import Cluster
from headrace.clock import SystemClock
from headrace.follow.follower import Follower
from headrace.follow.rebuild import Retention
from headrace.stores.position import Position
from headrace.stores.registry import open_writer
from tests.views.test_flow_views import random_changes, row
from tests.views.test_lag import expect_lag_and_loss
from tests.views.test_topic_views import COMPACTED, orders, record, rows

Fresh = Callable[[str], str]
DAY_MS = 86_400_000


class Shifted(SystemClock):
    """The real clock, shifted into the future."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def now_ms(self) -> int:
        return super().now_ms() + int(self.ahead_s * 1_000)

    def steady(self) -> float:
        return super().steady() + self.ahead_s


def position(at: int, complete_ms: int = 0, removed_below: int = 0) -> Position:
    return Position("t", "id", {0: at}, complete_ms=complete_ms, removed_below={0: removed_below})


@pytest.mark.parametrize(
    ("retention", "stored", "now_ms", "missed"),
    [
        # The log does not report removed tombstones, so only time counts.
        (Retention(True, 100, None), position(5), 100, False),
        (Retention(True, 100, None), position(5), 101, True),
        (Retention(True, 100, None), position(0), 101, False),
        (Retention(False, 100, None), position(5), 101, False),
        # The log reports the offset below which tombstones were removed.
        (Retention(True, 100, {0: 5}), position(5), DAY_MS, False),
        (Retention(True, 100, {0: 6}), position(5), 1, True),
        (Retention(True, 100, {0: 6}), position(0), DAY_MS, False),
        # These tombstones were removed before the view was built, so the deleted keys were never in the view.
        (Retention(True, 100, {0: 6}), position(5, removed_below=6), 100, False),
        (Retention(True, 100, {0: 6}), position(5, removed_below=6), 101, True),
        (Retention(True, 100, {0: 7}), position(5, removed_below=6), 1, True),
    ],
)
def test_a_deletion_that_may_have_expired_counts_as_missed(
    retention: Retention, stored: Position, now_ms: int, missed: bool
) -> None:
    assert (retention.missed_tombstone_reason(stored, {0: 0}, now_ms) is not None) == missed


def test_a_view_of_a_quiet_topic_stays_complete(cluster: Cluster, fresh: Fresh, tmp_path: Path) -> None:
    """A view of a quiet topic records that it is complete, so that its follower need not rebuild it."""
    view, clock, stop = orders(fresh("orders")), Shifted(), threading.Event()
    topic = cluster.ensure_topic(view.topic.name, 1, COMPACTED).name
    produce(cluster, topic, [record("a")])
    follower = Follower(view, [], cluster, lambda: open_writer(view, "shop", tmp_path), clock=clock)
    thread = threading.Thread(target=follower.run, args=(stop,))
    thread.start()
    watch(thread, lambda: None if thread.is_alive() else "the follower ended")
    try:
        until(lambda: read_view(tmp_path / "shop.db", view.name), "the view")
        before = complete_ms(tmp_path / "shop.db")
        clock.ahead_s = 20 * 3_600
        until(lambda: complete_ms(tmp_path / "shop.db") - before > 19 * 3_600_000, "a later time")
        assert follower.status.rebuilds == 1
    finally:
        unwatch(thread)
        stop.set()
        thread.join()


def complete_ms(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        (found,) = connection.execute("SELECT complete_ms FROM _headrace_views").fetchone()
    return int(found)


def test_views_follow_apache_kafka_as_well(kafka_server: Server, tmp_path: Path) -> None:
    cluster = Cluster(kafka_server.bootstrap)
    flow = ScriptedFlow(cluster, "sales")
    flow.begin()
    with following(cluster, flow.view, [flow.flow], tmp_path) as followed:
        for number in range(6):
            if number % 2:
                flow.abort([row("never")])
            flow.batch(
                [row("a", number), row(f"b{number}")], raw=[(b"bad", b"no JSON")] if number == 3 else []
            )
        followed.expect(flow.derived.rows, batch=5)
        assert followed.follower.status.dead == 1
    flow.begin()
    flow.batch([row("c")], consumed=12)
    with following(cluster, flow.view, [flow.flow], tmp_path) as followed:
        followed.expect(flow.derived.rows, batch=0, generation=2)
    kafka_keeps_deletions_for_a_time(cluster, tmp_path)
    expect_lag_and_loss(cluster, "measured")


def kafka_keeps_deletions_for_a_time(cluster: Cluster, home: Path) -> None:
    view = orders("orders")
    topic = cluster.ensure_topic("orders", 1, {"cleanup.policy": "compact"}).name
    produce(cluster, topic, [record("a")])
    for kept_ms, rebuilds in ((DAY_MS, 1), (DAY_MS, 0), (1, 1)):
        resource = ConfigResource(ResourceType.TOPIC, topic)
        entry = ConfigEntry("delete.retention.ms", str(kept_ms), incremental_operation=AlterConfigOpType.SET)
        resource.add_incremental_config(entry)
        next(iter(cluster.admin().incremental_alter_configs([resource]).values())).result(10)
        until(lambda kept=kept_ms: cluster.configs(topic)["delete.retention.ms"] == str(kept), "the setting")
        with following(cluster, view, [], home) as followed:
            followed.until_state("following")
            followed.expect(rows(("a", 1)))
            assert followed.follower.status.rebuilds == rebuilds, (kept_ms, followed.lines)


def test_a_view_built_after_compaction_has_the_last_rows(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    """After compaction, the offset ranges of batches have gaps, also at their ends."""
    import random

    flow, rng = ScriptedFlow(cluster, fresh("sales")), random.Random(9)
    flow.begin(configs=COMPACTED | {"delete.retention.ms": "0"})
    for _ in range(40):
        flow.batch([*random_changes(rng, keys=6), row("fill", rng.randrange(99), "x" * 300)])
    ends = cluster.ends(flow.output)
    until(lambda: sum(records_left(cluster, flow.output).values()) < sum(ends.values()) // 2, "compaction")
    with following(cluster, flow.view, [flow.flow], tmp_path) as followed:
        followed.expect(flow.derived.rows, batch=39)


def records_left(cluster: Cluster, topic: str) -> dict[int, int]:
    from headrace.client.records import read

    left = dict.fromkeys(cluster.ends(topic), 0)
    for message in read(cluster, topic, {number: (0, end) for number, end in cluster.ends(topic).items()}):
        left[message.partition() or 0] += 1
    return left
