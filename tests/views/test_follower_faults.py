"""Faults that a follower survives or that end it: stopped brokers; locked, full or missing stores."""

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

from faults.servers.headrace_broker import start_headrace
from faults.views.follower_thread import dead_letters, following
from faults.views.scripted_flow import ScriptedFlow
from faults.wait import until, unwatch, watch
from headrace.client.cluster import Cluster
from headrace.client.errors import LogError, from_kafka
from headrace.errors import HeadraceError
from headrace.follow.follower import Follower
from headrace.stores.errors import StoreForeign, StoreGone, StoreUnusable
from headrace.stores.sqlite.writer import SqliteWriter
from headrace.stores.writer import Owner
from tests.views.test_flow_views import random_changes, row

Fresh = Callable[[str], str]


def rss_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def test_a_follower_waits_for_a_broker_to_return(tmp_path: Path) -> None:
    """The broker is stopped and resumed, then killed and restarted. Records wait to be applied each time."""
    server, rng = start_headrace(tmp_path / "log"), random.Random(5)
    cluster = Cluster(server.bootstrap, timeout_s=0.5)
    flow = ScriptedFlow(Cluster(server.bootstrap), "sales")
    try:
        flow.begin()
        with following(cluster, flow.view, [flow.flow], tmp_path) as followed:
            flow.batch(random_changes(rng))
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
                flow.batch(random_changes(rng), raw=[(b"bad", b"no JSON %d" % number)])
                flow.batch(random_changes(rng))
                followed.expect(flow.derived.rows, batch=2 * number + 2)
                until(lambda: followed.follower.status.state == "following", "following")
            assert rss_mb() < base_mb + 64
            waits = [line for line in followed.lines if "waits" in line]
            # On a busy machine the follower can wait more often. Each wait is reported once, and so is its end.
            assert len(waits) >= 2, followed.lines
            assert len([line for line in followed.lines if "continues" in line]) == len(waits)
            assert followed.follower.status.rebuilds == 1
        assert {value for _, value, _ in dead_letters(cluster, "shop.sales.dead")} == {
            b"no JSON 0",
            b"no JSON 1",
        }
    finally:
        server.kill()


def test_a_request_that_never_times_out_counts_as_a_retriable_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headrace.client.cluster._GRACE_S", -5.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        cluster = Cluster(f"127.0.0.1:{silent.getsockname()[1]}", timeout_s=5.0)
        with pytest.raises(LogError) as late:
            cluster.topic("anything")
    assert late.value.retriable


def test_losing_the_broker_during_a_request_is_a_retriable_error() -> None:
    # When a broker is killed during a request for offsets, librdkafka returns this in one of thirty cases.
    found = KafkaError(KafkaError._NOENT, "Failed to query partition leaders: No leaders found")
    assert from_kafka(found, "asking for offsets").retriable


def test_a_follower_waits_for_a_locked_store(cluster: Cluster, fresh: Fresh, tmp_path: Path) -> None:
    flow = ScriptedFlow(cluster, fresh("sales"))
    flow.begin()
    flow.batch([row("a")])
    with following(cluster, flow.view, [flow.flow], tmp_path) as followed:
        followed.expect(flow.derived.rows, batch=0)
        with contextlib.closing(sqlite3.connect(followed.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            flow.batch([row("b")])
            followed.until_state("waiting", "another program is writing")
            other.execute("ROLLBACK")
        followed.expect(flow.derived.rows, batch=1)
        assert followed.follower.status.rebuilds == 1


def test_a_follower_that_lost_the_claim_response_claims_the_view_again(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    """The store fails when a batch arrives. Then the response to the follower's next claim is lost."""
    flow, claim_names, stop = ScriptedFlow(cluster, fresh("sales")), list[str](), threading.Event()
    flow.begin()
    flow.batch([row("a")])

    class LosesClaimResponse(SqliteWriter):
        def claim(self, name: str, now_ms: int, before: Owner | None = None) -> Owner:
            owner = super().claim(name, now_ms, before)
            claim_names.append(name)
            if len(claim_names) == 2:
                raise StoreGone("the server went before it answered")
            return owner

        def apply(self, *arguments: Any) -> None:
            if len(claim_names) == 1:
                raise StoreGone("the server went")
            super().apply(*arguments)

    follower = Follower(
        flow.view, [flow.flow], cluster, lambda: LosesClaimResponse(tmp_path / "shop.db", flow.view.name)
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
    first, second, third = claim_names
    assert first != second == third


def write_foreign_content(path: Path) -> None:
    path.write_bytes(b"something else entirely" * 100)


@pytest.mark.parametrize(
    ("obstruct", "error"), [(Path.mkdir, StoreUnusable), (write_foreign_content, StoreForeign)]
)
def test_an_unusable_store_ends_the_follower_with_the_reason(
    cluster: Cluster,
    fresh: Fresh,
    tmp_path: Path,
    obstruct: Callable[[Path], None],
    error: type[HeadraceError],
) -> None:
    flow = ScriptedFlow(cluster, fresh("sales"))
    obstruct(tmp_path / "shop.db")
    with following(cluster, flow.view, [flow.flow], tmp_path, may_end=True) as followed:
        until(lambda: followed.error is not None, "the error")
    assert isinstance(followed.error, error)
    assert followed.error.hint
    assert followed.follower.status.state == "stopped"


def test_a_store_below_a_file_cannot_be_created(cluster: Cluster, fresh: Fresh, tmp_path: Path) -> None:
    flow = ScriptedFlow(cluster, fresh("sales"))
    (tmp_path / "file").touch()
    with following(cluster, flow.view, [flow.flow], tmp_path / "file", may_end=True) as followed:
        until(lambda: followed.error is not None, "the error")
    assert isinstance(followed.error, StoreUnusable)


def test_a_rejected_dead_letter_stops_the_follower_before_its_record(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    flow = ScriptedFlow(cluster, fresh("sales"))
    flow.begin()
    flow.batch([row("a")])
    # The dead-letter topic accepts only records that are smaller than the value.
    cluster.ensure_topic(flow.view.dead_topic, 1, {"max.message.bytes": "100"})
    with following(cluster, flow.view, [flow.flow], tmp_path, may_end=True) as followed:
        before = followed.expect(flow.derived.rows, batch=0)
        flow.batch([row("b")], raw=[(b"bad", b"x" * 1_000)])
        until(lambda: followed.error is not None, "the error")
    assert isinstance(followed.error, HeadraceError)
    assert flow.view.dead_topic in str(followed.error)
    assert followed.read() == before
