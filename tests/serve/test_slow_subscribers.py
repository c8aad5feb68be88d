"""Many subscribers, some of whom do not read: the others are told all of it in time, and what is held is bounded."""

from __future__ import annotations

import asyncio
import socket as sockets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.faults import x22_subscribers
from bench.faults.apart import run_apart
from bench.faults.flow_by_hand import Change, FlowByHand
from bench.faults.seeds import seeds
from headrace.client.cluster import Cluster
from tests.crash.verdicts import expect_caught, expect_held
from tests.serve.copying import Copy, Ended, socket
from tests.serve.http import Http
from tests.serve.serving import served
from tests.views.seeing import following

Fresh = Callable[[str], str]

UPGRADE = (
    "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


def _metric(http: Http, start: str) -> float:
    found = [one for one in http.get("/metrics").body.decode().splitlines() if one.startswith(start)]
    return sum(float(one.split()[-1]) for one in found)


@pytest.mark.parametrize("seed", seeds(1))
def test_who_does_not_read_holds_up_nobody_and_is_sent_away_with_where_to_go_on(seed: int) -> None:
    """A share of a thousand; those who never read again are waited for in the full count."""
    expect_held(run_apart(x22_subscribers, seed, slow=150, good=10, waits_for_dropped=False))


def test_a_server_that_sends_to_whoever_does_not_read_is_caught_by_its_memory() -> None:
    expect_caught(x22_subscribers, "back-pressure", tries=2)


def test_who_is_slower_than_what_is_remembered_is_sent_away_with_where_to_go_on(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    flow = FlowByHand(cluster, fresh("slower"), partitions=1)
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
                await _all(copy, messages)
            told = ended.value.args[0]
            assert (told["close"], told["retry_ms"], told["cursor"]) == (4000, 1_000, copy.cursor)
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
        # More came since than can be told again: it began anew by itself.
        kinds = [kind for kind, _ in copy.seen]
        assert kinds[kinds.index("reset") :][:3] == ["reset", "hello", "snapshot"]
        assert {key[0]: one["amount"] for key, one in copy.rows.items()} == {
            key: values[1] for key, values in flow.derived.rows.items()
        }
        assert _metric(http, 'headrace_subscription_ended_total{why="HR-SERVE-SLOW-READER"}') == 1
        assert _metric(http, 'headrace_subscription_resumes_total{outcome="too old"}') == 1


def test_a_large_snapshot_may_be_taken_slowly_while_more_is_written_than_is_remembered(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    """Page by page: what came behind each is told with it."""
    flow = FlowByHand(cluster, fresh("large"), partitions=1)
    flow.begin()
    count, note = 4_000, "x" * 1_000
    flow.batch([(f"k{key:04}", {"product": f"k{key:04}", "amount": 0, "note": note}) for key in range(count)])
    history = 500_000

    def write(number: int) -> None:
        """Before, within and behind what was told by then."""
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
                told = await anext(messages)
                copy.take(told)
                if told["type"] == "snapshot" and pages % 6 == 0:
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
    assert {key[0]: one["amount"] for key, one in copy.rows.items()} == {
        key: values[1] for key, values in flow.derived.rows.items()
    }
    assert [kind for kind, _ in copy.seen].count("hello") == 1
    # More was written meanwhile than is remembered.
    assert (flow.batches - 1) * 25 * 2_000 > 2 * history


async def _all(copy: Copy, messages: Any) -> None:
    while True:
        copy.take(await anext(messages))


def test_no_more_than_are_allowed_follow_and_the_silent_make_room(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    flow = FlowByHand(cluster, fresh("few"), partitions=1)
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
        said = b""
        while b"HR-SERVE-FIRST-MESSAGE" not in said:
            said += silent.recv(65_536)
        silent.close()
