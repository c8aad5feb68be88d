"""Subscribers that do not read: others get all changes in time, and memory stays bounded."""

from __future__ import annotations

import asyncio
import socket as sockets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from faults.run_process import run_in_process
from faults.seeds import seeds
from faults.serve import slow_subscribers
from faults.serve.http import Http
from faults.serve.local_server import served
from faults.serve.subscriber_copy import Copy, Ended, socket
from faults.views.follower_thread import following
from faults.views.scripted_flow import Change, ScriptedFlow
from headrace.client.cluster import Cluster
from tests.crash.verdicts import expect_caught, expect_no_problems

Fresh = Callable[[str], str]

UPGRADE = (
    "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


def _metric(http: Http, start: str) -> float:
    lines = [line for line in http.get("/metrics").body.decode().splitlines() if line.startswith(start)]
    return sum(float(line.split()[-1]) for line in lines)


@pytest.mark.parametrize("seed", seeds(1))
def test_a_subscriber_that_does_not_read_delays_no_other_and_is_closed_with_a_cursor(seed: int) -> None:
    """Fewer subscribers than the thousand of the full run, which also waits until those that never read are closed."""
    expect_no_problems(run_in_process(slow_subscribers, seed, slow=150, good=10, waits_for_dropped=False))


@pytest.mark.soak
def test_the_memory_check_catches_a_server_that_buffers_for_slow_subscribers() -> None:
    expect_caught(slow_subscribers, "back-pressure", tries=2)


def test_a_subscriber_behind_the_history_is_closed_with_a_cursor(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    flow = ScriptedFlow(cluster, fresh("slower"), partitions=1)
    flow.begin()
    flow.batch([("a", {"product": "a", "amount": 0, "note": None})])

    async def run(port: int) -> Copy:
        copy, last = Copy(), flow.batches + 30
        async with socket(port, flow.view.name, narrow=True) as (_, messages):
            while copy.position is None:
                copy.take(await anext(messages))
            for number in range(30):
                change = {"product": f"k{number % 3}", "amount": number, "note": "x" * 40_000}
                await asyncio.to_thread(flow.batch, [(f"k{number % 3}", change)])
            with pytest.raises(Ended) as ended:
                await _take_all(copy, messages)
            result = ended.value.args[0]
            assert (result["close"], result["retry_ms"], result["cursor"]) == (4000, 1_000, copy.cursor)
        assert copy.position["batch"] < last - 1
        copy.connected()
        async with socket(port, flow.view.name, copy.cursor) as (_, messages):
            while copy.position is None or copy.position["batch"] < last - 1:
                copy.take(await anext(messages))
        return copy

    with (
        following(cluster, flow.view, [flow.flow], tmp_path) as followed,
        served(flow.app, cluster, tmp_path, history_bytes=200_000, frame_ms=1) as http,
    ):
        followed.expect(flow.derived.rows)
        copy = asyncio.run(asyncio.wait_for(run(http.port), 60))
        # The history is too short, so the subscriber restarted with a snapshot.
        kinds = [kind for kind, _ in copy.seen]
        assert kinds[kinds.index("reset") :][:3] == ["reset", "hello", "snapshot"]
        assert {key[0]: row["amount"] for key, row in copy.rows.items()} == {
            key: values[1] for key, values in flow.derived.rows.items()
        }
        assert _metric(http, 'headrace_subscription_ended_total{why="HR-SERVE-SLOW-READER"}') == 1
        assert _metric(http, 'headrace_subscription_resumes_total{outcome="too old"}') == 1


def test_a_large_snapshot_may_be_read_slowly_while_writes_exceed_the_history(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    """The client reads page by page. Each page has the changes since the previous page."""
    flow = ScriptedFlow(cluster, fresh("large"), partitions=1)
    flow.begin()
    count, note = 4_000, "x" * 1_000
    flow.batch([(f"k{key:04}", {"product": f"k{key:04}", "amount": 0, "note": note}) for key in range(count)])
    history = 500_000

    def write(number: int) -> None:
        """Change and delete keys before, within and after the pages that were sent."""
        for _ in range(3):
            changes: list[Change] = [
                (f"k{key:04}", {"product": f"k{key:04}", "amount": flow.batches, "note": note})
                for key in range(number % 7, count, count // 25)
            ]
            flow.batch([*changes, (f"k{number:04}", None), (f"k{count - 1 - number:04}", None)])

    async def run(port: int) -> Copy:
        copy = Copy()
        pages = 0
        async with socket(port, flow.view.name, narrow=True) as (_, messages):
            while copy.position is None:
                result = await anext(messages)
                copy.take(result)
                if result["type"] == "snapshot" and pages % 6 == 0:
                    await asyncio.to_thread(write, pages)
                pages += 1
            while copy.position["batch"] < flow.batches - 1:
                copy.take(await anext(messages))
        return copy

    with (
        following(cluster, flow.view, [flow.flow], tmp_path) as followed,
        served(flow.app, cluster, tmp_path, history_bytes=history, frame_ms=1) as http,
    ):
        followed.expect(flow.derived.rows)
        copy = asyncio.run(asyncio.wait_for(run(http.port), 60))
    assert {key[0]: row["amount"] for key, row in copy.rows.items()} == {
        key: values[1] for key, values in flow.derived.rows.items()
    }
    assert [kind for kind, _ in copy.seen].count("hello") == 1
    # More was written meanwhile than the history holds.
    assert (flow.batches - 1) * 25 * 2_000 > 2 * history


async def _take_all(copy: Copy, messages: Any) -> None:
    while True:
        copy.take(await anext(messages))


def test_subscribers_are_limited_and_silent_ones_make_room(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    flow = ScriptedFlow(cluster, fresh("few"), partitions=1)
    flow.begin()
    flow.batch([("a", {"product": "a", "amount": 0, "note": None})])

    async def run(port: int) -> None:
        async with socket(port, flow.view.name) as (_, first), socket(port, flow.view.name) as (_, second):
            copies = [Copy(), Copy()]
            for copy, messages in zip(copies, (first, second), strict=True):
                while copy.position is None:
                    copy.take(await anext(messages))
            async with socket(port, flow.view.name) as (_, third):
                refused = await anext(third)
                with pytest.raises(Ended):
                    Copy().take(refused)
                assert (refused["close"], refused["retry_ms"]) == (4429, 1_000)

    with (
        following(cluster, flow.view, [flow.flow], tmp_path) as followed,
        served(flow.app, cluster, tmp_path, subscribers=2, receive_ms=500) as http,
    ):
        followed.expect(flow.derived.rows)
        asyncio.run(asyncio.wait_for(run(http.port), 60))
        silent = sockets.create_connection(("127.0.0.1", http.port), timeout=20)
        silent.sendall(
            f"GET /v1/views/{flow.view.name}/changes HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
            f"{UPGRADE}\r\n".encode()
        )
        output = b""
        while b"HR-SERVE-FIRST-MESSAGE" not in output:
            output += silent.recv(65_536)
        silent.close()
