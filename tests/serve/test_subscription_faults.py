"""Subscriptions while the log is unreachable, and after it was trimmed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from faults.serve.http import Http
from faults.serve.local_server import served
from faults.serve.subscriber_copy import Copy, events, socket
from faults.servers.broker_process import BrokerProcess
from faults.views.follower_thread import following
from faults.views.scripted_flow import Change, ScriptedFlow
from faults.wait import until
from headrace.client.cluster import Cluster
from headrace.serve.subscribe import subscriptions


def row(product: str, amount: int) -> Change:
    return product, {"product": product, "amount": amount, "note": None}


async def until_batch(copy: Copy, messages: Any, batch: int) -> None:
    while copy.position is None or copy.position["batch"] < batch:
        copy.take(await anext(messages))


async def until_kind(copy: Copy, messages: Any, kind: str) -> None:
    while True:
        result = await anext(messages)
        copy.take(result)
        if result["type"] == kind:
            return


def amounts(copy: Copy) -> dict[str, int]:
    return {key[0]: row["amount"] for key, row in copy.rows.items()}


def test_subscriptions_survive_an_unreachable_log(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "log", forked=True) as broker:
        broker.start()
        cluster = Cluster(broker.bootstrap, timeout_s=1.0)
        flow = ScriptedFlow(cluster, "gone", partitions=1)
        flow.begin()
        flow.batch([row("a", 1)])
        view = flow.view.name

        async def run(http: Http, other: Callable[[], int]) -> None:
            copies = [Copy() for _ in range(4)]
            async with socket(http.port, view) as (_, first), events(http.port, view) as (_, second):
                for copy, messages in zip(copies, (first, second), strict=False):
                    await until_batch(copy, messages, 0)
                await asyncio.to_thread(broker.kill)
                for copy, messages in zip(copies, (first, second), strict=False):
                    await until_kind(copy, messages, "heartbeat")
                # A new subscriber gets the rows of the store, because the feed knows its position.
                async with (
                    socket(http.port, view) as (_, three),
                    events(http.port, view, copies[1].cursor) as (status, four),
                ):
                    assert status == 200
                    await until_batch(copies[2], three, 0)
                    copies[3].rows, copies[3].position = dict(copies[1].rows), copies[1].position
                    await until_kind(copies[3], four, "hello")
                    await expect_refusal(other())
                    await asyncio.to_thread(broker.start)
                    await asyncio.to_thread(flow.settle, [])
                    await asyncio.to_thread(flow.batch, [row("b", 2), ("a", None)])
                    for copy, messages in zip(copies, (first, second, three, four), strict=True):
                        await until_batch(copy, messages, flow.batches - 1)
                        assert amounts(copy) == {"b": 2}
                        assert [kind for kind, _ in copy.seen].count("hello") == 1

        async def expect_refusal(port: int) -> None:
            """A server that has not read the log before cannot know which changes it will send."""

            async def by_socket() -> tuple[int, int]:
                async with socket(port, view) as (_, messages):
                    result = await anext(messages)
                    return result["close"], result["retry_ms"]

            async def by_events() -> int:
                async with events(port, view) as (status, _):
                    return status

            close, status = await asyncio.gather(by_socket(), by_events())
            assert close == (4503, 1_000)
            assert status in (503, 504)

        with (
            following(cluster, flow.view, [flow.flow], tmp_path) as followed,
            served(flow.app, cluster, tmp_path, heartbeat_s=1, read_ms=4_000) as http,
            served(flow.app, cluster, tmp_path, read_ms=1_000) as other,
        ):
            followed.expect(flow.derived.rows)
            asyncio.run(asyncio.wait_for(run(http, lambda: other.port), 80))


def test_a_subscriber_behind_a_trimmed_log_restarts_with_a_snapshot(
    cluster: Cluster, fresh: Callable[[str], str], tmp_path: Path
) -> None:
    flow = ScriptedFlow(cluster, fresh("trimmed"), partitions=1)
    flow.begin()
    for number in range(4):
        flow.batch([row(f"p{number}", number)])
    view = flow.view.name

    def trim() -> None:
        # The marker of the last transaction stays; it may be written shortly after the response to the commit.
        end = flow.ends[0]
        until(lambda: cluster.ends(flow.output)[0] == end + 1, "the end of the transaction")
        request = cluster.admin().delete_records([TopicPartition(flow.output, 0, end)])
        for future in request.values():
            future.result(10)
        until(lambda: cluster.starts(flow.output)[0] == end, "the log to begin later")

    async def read_rows(port: int) -> Copy:
        copy = Copy()
        async with socket(port, view) as (_, messages):
            await until_batch(copy, messages, 3)
        return copy

    async def resume_behind_the_log(port: int, known: Copy) -> None:
        old = known.cursor
        async with events(port, view, old) as (status, _):
            assert status == 409
        # The subscriber has sent nothing.
        known.connected()
        restarted = Copy()
        async with (
            socket(port, view, old) as (_, messages),
            events(port, view, headers={"Last-Event-ID": old or ""}) as (status, others),
        ):
            assert status == 200
            for copy, entry in ((known, messages), (restarted, others)):
                copy.position = None
                await until_batch(copy, entry, flow.batches - 1)
                assert amounts(copy) == {key: values[1] for key, values in flow.derived.rows.items()}
                kinds = [kind for kind, _ in copy.seen]
                at = kinds.index("reset")
                assert kinds[at : at + 3] == ["reset", "hello", "snapshot"]
            # A subscriber continues when the log is trimmed up to its position.
            await asyncio.to_thread(trim)
            await asyncio.to_thread(flow.batch, [row("p0", 100)])
            for copy, entry in ((known, messages), (restarted, others)):
                await until_batch(copy, entry, flow.batches - 1)
                assert amounts(copy)["p0"] == 100
                assert [kind for kind, _ in copy.seen].count("reset") == 1

    with following(cluster, flow.view, [flow.flow], tmp_path) as followed:
        followed.expect(flow.derived.rows)
        with served(flow.app, cluster, tmp_path) as http:
            copy = asyncio.run(asyncio.wait_for(read_rows(http.port), 40))
        for number in range(4):
            flow.batch([row(f"q{number}", number), (f"p{number}", None)])
        followed.expect(flow.derived.rows)
        trim()
        with served(flow.app, cluster, tmp_path) as http:
            asyncio.run(asyncio.wait_for(resume_behind_the_log(http.port, copy), 40))
    # Without a follower that rebuilds the view, no changes can be sent.
    flow.batch([row("p0", 101)])
    trim()

    async def expect_unavailable(port: int) -> None:
        async with events(port, view) as (status, _):
            assert status == 503

    with served(flow.app, cluster, tmp_path) as http:
        asyncio.run(asyncio.wait_for(expect_unavailable(http.port), 40))


def test_a_head_request_leaves_no_feed_running(
    cluster: Cluster, fresh: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = ScriptedFlow(cluster, fresh("head"), partitions=1)
    flow.begin()
    flow.batch([("a", {"product": "a", "amount": 0, "note": None})])
    name = flow.view.name
    with (
        following(cluster, flow.view, flow.app.flows, tmp_path),
        served(flow.app, cluster, tmp_path) as http,
    ):
        until(lambda: http.get(f"/v1/views/{name}/rows").status == 200, "the view")
        assert http.request("HEAD", f"/v1/views/{name}/changes").status == 200
        followed = f'headrace_subscribed_view_followers{{view="{name}"}}'.encode()
        assert followed in http.get("/metrics").body
        monkeypatch.setattr(subscriptions, "_IDLE_S", 0.0)
        until(lambda: followed not in http.get("/metrics").body, "the feed to end")
