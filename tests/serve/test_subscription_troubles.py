"""A log that is gone for a while, and one that was trimmed: who follows is told, and goes on or begins anew."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from bench.faults.flow_by_hand import Change, FlowByHand
from bench.faults.process import BrokerProcess
from headrace.client.cluster import Cluster
from headrace.serve.subscriptions import subscriptions
from tests.serve.copying import Copy, events, socket
from tests.serve.http import Http
from tests.serve.serving import served
from tests.support.waiting import until
from tests.views.seeing import following


def row(product: str, amount: int) -> Change:
    return product, {"product": product, "amount": amount, "note": None}


async def until_batch(copy: Copy, messages: Any, batch: int) -> None:
    while copy.position is None or copy.position["batch"] < batch:
        copy.take(await anext(messages))


async def until_kind(copy: Copy, messages: Any, kind: str) -> None:
    while True:
        told = await anext(messages)
        copy.take(told)
        if told["type"] == kind:
            return


def amounts(copy: Copy) -> dict[str, int]:
    return {key[0]: one["amount"] for key, one in copy.rows.items()}


def test_while_the_log_is_gone_connections_stay_and_then_go_on(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "log", forked=True) as broker:
        broker.start()
        cluster = Cluster(broker.bootstrap, timeout_s=1.0)
        flow = FlowByHand(cluster, "gone", partitions=1)
        flow.begin()
        flow.batch([row("a", 1)])
        view = flow.view.name

        async def run(http: Http, other: Callable[[], int]) -> None:
            copies = [Copy() for _ in range(4)]
            async with socket(http.port, view) as (_, one), events(http.port, view) as (_, two):
                for copy, messages in zip(copies, (one, two), strict=False):
                    await until_batch(copy, messages, 0)
                await asyncio.to_thread(broker.kill)
                for copy, messages in zip(copies, (one, two), strict=False):
                    await until_kind(copy, messages, "heartbeat")
                # Who comes meanwhile is told what the store has, since the others' place in the log is known.
                async with (
                    socket(http.port, view) as (_, three),
                    events(http.port, view, copies[1].cursor) as (status, four),
                ):
                    assert status == 200
                    await until_batch(copies[2], three, 0)
                    copies[3].rows, copies[3].position = dict(copies[1].rows), copies[1].position
                    await until_kind(copies[3], four, "hello")
                    await nobody_yet(other())
                    await asyncio.to_thread(broker.start)
                    await asyncio.to_thread(flow.settle, [])
                    await asyncio.to_thread(flow.batch, [row("b", 2), ("a", None)])
                    for copy, messages in zip(copies, (one, two, three, four), strict=True):
                        await until_batch(copy, messages, flow.batches - 1)
                        assert amounts(copy) == {"b": 2}
                        assert [kind for kind, _ in copy.seen].count("hello") == 1

        async def nobody_yet(port: int) -> None:
            """A server that has not read the log before cannot say which changes it will tell."""

            async def by_socket() -> tuple[int, int]:
                async with socket(port, view) as (_, messages):
                    told = await anext(messages)
                    return told["close"], told["retry_ms"]

            async def by_events() -> int:
                async with events(port, view) as (status, _):
                    return status

            found, status = await asyncio.gather(by_socket(), by_events())
            assert found == (4503, 1_000)
            assert status in (503, 504)

        with (
            following(cluster, flow.view, [flow.flow], tmp_path) as followed,
            served(flow.app, cluster, tmp_path, heartbeat_s=1, read_ms=4_000) as http,
            served(flow.app, cluster, tmp_path, read_ms=1_000) as other,
        ):
            followed.expect(flow.derived.rows)
            asyncio.run(asyncio.wait_for(run(http, lambda: other.port), 80))


def test_behind_a_trimmed_log_whoever_comes_again_begins_anew(
    cluster: Cluster, fresh: Callable[[str], str], tmp_path: Path
) -> None:
    flow = FlowByHand(cluster, fresh("trimmed"), partitions=1)
    flow.begin()
    for number in range(4):
        flow.batch([row(f"p{number}", number)])
    view = flow.view.name

    def trim() -> None:
        # The end of the last transaction stays; it may come a moment after its commit was answered.
        end = flow.ends[0]
        until(lambda: cluster.ends(flow.output)[0] == end + 1, "the end of the transaction")
        asked = cluster.admin().delete_records([TopicPartition(flow.output, 0, end)])
        for one in asked.values():
            one.result(10)
        until(lambda: cluster.starts(flow.output)[0] == end, "the log to begin later")

    async def early(port: int) -> Copy:
        copy = Copy()
        async with socket(port, view) as (_, messages):
            await until_batch(copy, messages, 3)
        return copy

    async def again(port: int, known: Copy) -> None:
        old = known.cursor
        async with events(port, view, old) as (status, _):
            assert status == 409
        # By itself: without a word from whoever follows.
        known.connected()
        healed = Copy()
        async with (
            socket(port, view, old) as (_, messages),
            events(port, view, headers={"Last-Event-ID": old or ""}) as (status, others),
        ):
            assert status == 200
            for copy, told in ((known, messages), (healed, others)):
                copy.position = None
                await until_batch(copy, told, flow.batches - 1)
                assert amounts(copy) == {key: values[1] for key, values in flow.derived.rows.items()}
                kinds = [kind for kind, _ in copy.seen]
                at = kinds.index("reset")
                assert kinds[at : at + 3] == ["reset", "hello", "snapshot"]
            # Who is there goes on when the log is trimmed up to where it is.
            await asyncio.to_thread(trim)
            await asyncio.to_thread(flow.batch, [row("p0", 100)])
            for copy, told in ((known, messages), (healed, others)):
                await until_batch(copy, told, flow.batches - 1)
                assert amounts(copy)["p0"] == 100
                assert [kind for kind, _ in copy.seen].count("reset") == 1

    with following(cluster, flow.view, [flow.flow], tmp_path) as followed:
        followed.expect(flow.derived.rows)
        with served(flow.app, cluster, tmp_path) as http:
            copy = asyncio.run(asyncio.wait_for(early(http.port), 40))
        for number in range(4):
            flow.batch([row(f"q{number}", number), (f"p{number}", None)])
        followed.expect(flow.derived.rows)
        trim()
        with served(flow.app, cluster, tmp_path) as http:
            asyncio.run(asyncio.wait_for(again(http.port, copy), 40))
    # With nobody left who could build the view again, no changes can be told.
    flow.batch([row("p0", 101)])
    trim()

    async def never(port: int) -> None:
        async with events(port, view) as (status, _):
            assert status == 503

    with served(flow.app, cluster, tmp_path) as http:
        asyncio.run(asyncio.wait_for(never(http.port), 40))


def test_what_was_begun_for_somebody_who_only_asked_for_the_head_is_let_go(
    cluster: Cluster, fresh: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = FlowByHand(cluster, fresh("head"), partitions=1)
    flow.begin()
    flow.batch([("a", {"product": "a", "amount": 0, "note": None})])
    name = flow.view.name
    with (
        following(cluster, flow.view, flow.app.flows, tmp_path),
        served(flow.app, cluster, tmp_path) as http,
    ):
        until(lambda: http.get(f"/v1/views/{name}/rows").status == 200, "the view")
        assert http.ask("HEAD", f"/v1/views/{name}/changes").status == 200
        followed = f'headrace_subscribed_view_followers{{view="{name}"}}'.encode()
        assert followed in http.get("/metrics").body
        monkeypatch.setattr(subscriptions, "_IDLE_S", 0.0)
        until(lambda: followed not in http.get("/metrics").body, "the feed to end")
