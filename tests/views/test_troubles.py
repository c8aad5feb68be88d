"""What a follower outlasts, and what ends it: brokers that go, stores that are locked, full or not there."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError

from bench.faults.flow_by_hand import FlowByHand
from headrace.client.cluster import Cluster
from headrace.client.errors import LogError, from_kafka
from headrace.errors import HeadraceError
from headrace.views.errors import StoreForeign, StoreGone, StoreUnusable
from headrace.views.follower import Follower
from headrace.views.sqlite import SqliteStore
from headrace.views.store import Owner
from tests.support.embedded import start_headrace
from tests.support.waiting import until, unwatch, watch
from tests.views.seeing import dead_letters, following
from tests.views.test_flow_views import row, some

Fresh = Callable[[str], str]


def rss_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def test_a_broker_that_goes_and_comes_back_is_waited_for(tmp_path: Path) -> None:
    """Stopped and woken, then killed and started again; there is something to write to it each time."""
    server, rng = start_headrace(tmp_path / "log"), random.Random(5)
    cluster = Cluster(server.bootstrap, timeout_s=0.5)
    flow = FlowByHand(Cluster(server.bootstrap), "sales")
    try:
        flow.begin()
        with following(cluster, flow.view, [flow.flow], tmp_path) as followed:
            flow.batch(some(rng))
            followed.expect(flow.derived.rows, batch=0)
            base_mb = rss_mb()
            for number in range(2):
                if number == 0:
                    os.kill(server.process.pid, signal.SIGSTOP)
                    followed.until_state("waiting")
                    os.kill(server.process.pid, signal.SIGCONT)
                else:
                    server.kill()
                    followed.until_state("waiting")
                    server = start_headrace(tmp_path / "log", port=server.port)
                flow.batch(some(rng), raw=[(b"bad", b"no JSON %d" % number)])
                flow.batch(some(rng))
                followed.expect(flow.derived.rows, batch=2 * number + 2)
                until(lambda: followed.follower.status.state == "following", "following")
            assert rss_mb() < base_mb + 64
            waits = [line for line in followed.told if "waits" in line]
            # On a busy machine there may be more, each told once, and each with its end.
            assert len(waits) >= 2, followed.told
            assert len([line for line in followed.told if "goes on" in line]) == len(waits)
            assert followed.follower.status.rebuilds == 1
        assert {value for _, value, _ in dead_letters(cluster, "sales.dead")} == {b"no JSON 0", b"no JSON 1"}
    finally:
        server.kill()


def test_an_answer_that_the_client_does_not_even_give_up_waiting_for_is_a_log_that_may_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headrace.client.cluster._GRACE_S", -5.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        cluster = Cluster(f"127.0.0.1:{silent.getsockname()[1]}", timeout_s=5.0)
        with pytest.raises(LogError) as late:
            cluster.topic("anything")
    assert late.value.retriable


def test_a_partition_whose_broker_is_lost_in_the_middle_of_a_question_may_come_back() -> None:
    # What librdkafka answered in one of thirty kills of a broker that was asked for offsets.
    found = KafkaError(KafkaError._NOENT, "Failed to query partition leaders: No leaders found")
    assert from_kafka(found, "asking for offsets").retriable


def test_a_locked_store_is_waited_for(cluster: Cluster, fresh: Fresh, tmp_path: Path) -> None:
    flow = FlowByHand(cluster, fresh("sales"))
    flow.begin()
    flow.batch([row("a")])
    with following(cluster, flow.view, [flow.flow], tmp_path) as followed:
        followed.expect(flow.derived.rows, batch=0)
        with contextlib.closing(sqlite3.connect(followed.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            flow.batch([row("b")])
            followed.until_state("waiting", "written by somebody else")
            other.execute("ROLLBACK")
        followed.expect(flow.derived.rows, batch=1)
        assert followed.follower.status.rebuilds == 1


def test_a_follower_that_cannot_know_whether_it_has_its_view_takes_it_again(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    """The store fails when a batch comes, and then again behind the commit that makes the follower its owner."""
    flow, takes, stop = FlowByHand(cluster, fresh("sales")), list[str](), threading.Event()
    flow.begin()
    flow.batch([row("a")])

    class Unheard(SqliteStore):
        def take(self, name: str, now_ms: int, before: Owner | None = None) -> Owner:
            owner = super().take(name, now_ms, before)
            takes.append(name)
            if len(takes) == 2:
                raise StoreGone("the server went before it answered")
            return owner

        def apply(self, *given: Any) -> None:
            if len(takes) == 1:
                raise StoreGone("the server went")
            super().apply(*given)

    follower = Follower(
        flow.view, [flow.flow], cluster, lambda: Unheard(tmp_path / "shop.db", flow.view.name)
    )
    thread = threading.Thread(target=follower.run, args=(stop,))
    thread.start()
    watch(thread, lambda: None if thread.is_alive() else "the follower ended")
    try:
        until(lambda: follower.status.state in ("following", "stopped"), "the view")
        assert follower.status.state == "following"
    finally:
        unwatch(thread)
        stop.set()
        thread.join()
    first, second, third = takes
    assert first != second == third


def not_ours(path: Path) -> None:
    path.write_bytes(b"something else entirely" * 100)


@pytest.mark.parametrize(("make", "error"), [(Path.mkdir, StoreUnusable), (not_ours, StoreForeign)])
def test_a_store_that_cannot_be_used_ends_the_follower_with_the_reason(
    cluster: Cluster,
    fresh: Fresh,
    tmp_path: Path,
    make: Callable[[Path], None],
    error: type[HeadraceError],
) -> None:
    flow = FlowByHand(cluster, fresh("sales"))
    make(tmp_path / "shop.db")
    with following(cluster, flow.view, [flow.flow], tmp_path, may_end=True) as followed:
        until(lambda: followed.error is not None, "the error")
    assert isinstance(followed.error, error)
    assert followed.error.hint
    assert followed.follower.status.state == "stopped"


def test_a_store_below_a_file_cannot_be_made(cluster: Cluster, fresh: Fresh, tmp_path: Path) -> None:
    flow = FlowByHand(cluster, fresh("sales"))
    (tmp_path / "file").touch()
    with following(cluster, flow.view, [flow.flow], tmp_path / "file", may_end=True) as followed:
        until(lambda: followed.error is not None, "the error")
    assert isinstance(followed.error, StoreUnusable)


def test_a_dead_letter_that_the_log_refuses_ends_the_follower_before_its_value(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    flow = FlowByHand(cluster, fresh("sales"))
    flow.begin()
    flow.batch([row("a")])
    # As if somebody had made the topic, with less room than the values need.
    cluster.ensure_topic(flow.view.dead_topic, 1, {"max.message.bytes": "100"})
    with following(cluster, flow.view, [flow.flow], tmp_path, may_end=True) as followed:
        before = followed.expect(flow.derived.rows, batch=0)
        flow.batch([row("b")], raw=[(b"bad", b"x" * 1_000)])
        until(lambda: followed.error is not None, "the error")
    assert isinstance(followed.error, HeadraceError)
    assert flow.view.dead_topic in str(followed.error)
    assert followed.look() == before
