"""Subscriptions: the rows at a position, then every batch once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from faults.serve.http import Http
from faults.serve.local_server import served
from faults.serve.shop_app import shop
from faults.serve.subscriber_copy import Copy, Ended, Rows, events, socket
from faults.views.follower_thread import following, produce
from faults.views.scripted_flow import Change, ScriptedFlow
from faults.wait import until
from headrace.client.cluster import Cluster
from headrace.client.declared_topics import ensure_declared

Fresh = Callable[[str], str]
NAMES = ("product", "amount", "note")


def row(product: str, amount: int = 1, note: str | None = None) -> Change:
    return product, {"product": product, "amount": amount, "note": note}


def random_changes(rng: random.Random, count: int = 5, keys: int = 20) -> list[Change]:
    products = [f"p{rng.randrange(keys)}" for _ in range(count)]
    return [
        (product, None) if rng.random() < 0.2 else row(product, rng.randrange(100)) for product in products
    ]


def rows_of(state: dict[str, tuple[Any, ...]], matches: Callable[[dict[str, Any]], bool]) -> Rows:
    rows = [dict(zip(NAMES, values, strict=True)) for values in state.values()]
    return {(row["product"],): row for row in rows if matches(row)}


TRANSPORTS = pytest.mark.parametrize("transport", [socket, events], ids=["websocket", "events"])


@TRANSPORTS
def test_a_subscription_starts_with_all_rows_and_continues_with_whole_batches(
    transport: Any, cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    flow = ScriptedFlow(cluster, fresh("sub"))
    flow.begin()
    flow.batch([row(f"p{number:04}", number) for number in range(1_200)])
    states = flow.derived.states

    def check(position: dict[str, Any], rows: Rows) -> None:
        assert rows == rows_of(states[position["batch"] + 1], lambda row: True)

    async def follow(port: int) -> None:
        copy = Copy(check)
        async with transport(port, flow.view.name) as (_, messages):
            async for result in messages:
                copy.take(result)
                if copy.position is not None and copy.position["batch"] == flow.batches - 1:
                    if flow.batches == 1:
                        assert [kind for kind, _ in copy.seen] == [
                            "hello",
                            *["snapshot"] * (len(copy.seen) - 1),
                        ]
                        assert len(copy.seen) > 3
                        await asyncio.to_thread(flow.batch, [row("p0001", 7), ("p0002", None), row("new")])
                        await asyncio.to_thread(flow.batch, [])
                    elif flow.batches == 3:
                        await asyncio.to_thread(flow.abort, [row("p0003", 9)])
                        await asyncio.to_thread(
                            flow.batch, [row(f"x{number}", 1, "n" * 300) for number in range(600)]
                        )
                    else:
                        break
        assert copy.frames >= 2
        assert copy.resumed == 0

    with (
        following(cluster, flow.view, [flow.flow], tmp_path) as followed,
        served(flow.app, cluster, tmp_path) as http,
    ):
        followed.expect(flow.derived.rows)
        asyncio.run(asyncio.wait_for(follow(http.port), 60))
        result = http.get("/metrics").body.decode()
        assert "headrace_subscription_begun_total" in result
        assert f'headrace_subscribed_view_queries{{view="{flow.view.name}"}}' in result


def test_a_query_subscription_gets_rows_that_enter_and_leave_its_result(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    app = shop(fresh("query"))
    view, topic = app.views[1].name, app.topics[1].name
    ensure_declared(cluster, app.topics[1], topic, 3)

    def order(number: int, product: str, pieces: int) -> tuple[bytes, bytes]:
        result = {"order_id": f"o{number}", "product_id": product, "pieces": pieces}
        return f"o{number}".encode(), json.dumps(result).encode()

    async def until_rows_are(copy: Copy, messages: Any, rows: dict[tuple[str, str], int]) -> None:
        while {key: row["pieces"] for key, row in copy.rows.items()} != rows or copy.position is None:
            copy.take(await anext(messages))

    async def follow(http: Http) -> None:
        request: dict[str, Any] = {"filter": "pieces >= 5", "prefix": json.dumps({"product_id": "a"})}
        copy, other = Copy(), Copy()
        async with (
            socket(http.port, view, **request) as (_, messages),
            events(http.port, view, from_=json.dumps({"product_id": "b"})) as (_, others),
        ):
            await until_rows_are(copy, messages, {("a", "o1"): 5})
            await until_rows_are(other, others, {("b", "o2"): 9})
            produce(
                cluster, topic, [order(1, "a", 4), order(3, "a", 6), order(4, "b", 6), (b"o9", b"poison")]
            )
            await until_rows_are(copy, messages, {("a", "o3"): 6})
            await until_rows_are(other, others, {("b", "o2"): 9, ("b", "o4"): 6})
        # The same cursor with another query.
        with pytest.raises(Ended) as ended:
            async with socket(http.port, view, copy.cursor, filter="pieces >= 6") as (_, messages):
                copy.take(await anext(messages))
        assert (ended.value.args[0]["close"], ended.value.args[0]["retry_ms"]) == (4400, None)
        async with events(http.port, view, copy.cursor, filter="pieces >= 6") as (status, _):
            assert status == 400
        async with events(http.port, view, filter="nothing = 1") as (status, _):
            assert status == 400
        async with events(http.port, "not-there") as (status, _):
            assert status == 404
        for wrong in ("[]", "{}", '{"type": "subscribe", "sort": "a"}', "x" * 70_000):
            async with connect(f"ws://127.0.0.1:{http.port}/v1/views/{view}/changes") as connection:
                await connection.send(wrong)
                with contextlib.suppress(ConnectionClosed):
                    while True:
                        await connection.recv()
            assert connection.close_code == (1009 if len(wrong) > 65_536 else 4400), wrong

    with following(cluster, app.views[1], app.flows, tmp_path), served(app, cluster, tmp_path) as http:
        produce(cluster, topic, [order(1, "a", 5), order(2, "b", 9), order(5, "a", 1)])
        http_until_rows(http, view, 3)
        asyncio.run(asyncio.wait_for(follow(http), 60))


def test_a_client_that_sends_invalid_frames_is_closed_without_effect_on_others(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    """The client breaks the rules in the middle of the stream. The server does not log such errors as its own."""
    flow = ScriptedFlow(cluster, fresh("nonsense"), partitions=1)
    flow.begin()
    flow.batch([row("a", 1, "n" * 30_000)])
    wrong = {
        "an unknown opcode": b"\x83\x80\0\0\0\0",
        "no mask": b"\x81\x01x",
        "an invalid size": b"\x81\xff" + b"\xff" * 12,
        "invalid UTF-8": b"\x81\x81\0\0\0\0\xff",
        "another message": b"\x81\x82\0\0\0\0{}",
        "the end of the connection": b"",
    }

    async def close_code(port: int, sent: bytes) -> int | None:
        address = f"ws://127.0.0.1:{port}/v1/views/{flow.view.name}/changes"
        async with connect(address, max_size=None, close_timeout=1) as connection:
            await connection.send('{"type": "subscribe"}')
            for _ in range(3):
                await connection.recv()
            if sent:
                connection.transport.write(sent)
            else:
                connection.transport.abort()
            with contextlib.suppress(ConnectionClosed):
                while True:
                    await connection.recv()
        return connection.close_code

    async def run(port: int) -> None:
        good, last = Copy(), flow.batches + 24
        stop = asyncio.Event()

        async def write() -> None:
            while not stop.is_set() or flow.batches < last:
                await asyncio.to_thread(flow.batch, [row("a", flow.batches, "n" * 30_000)])

        async with socket(port, flow.view.name) as (_, messages):
            writing = asyncio.create_task(write())
            codes = await asyncio.gather(
                *(close_code(port, sent) for sent in wrong.values() for _ in range(4))
            )
            stop.set()
            await writing
            while good.position is None or good.position["batch"] < flow.batches - 1:
                good.take(await anext(messages))
        result = dict(zip(wrong, codes[::4], strict=True))
        assert result == {
            "an unknown opcode": 1002,
            "no mask": 1002,
            "an invalid size": result["an invalid size"],
            "invalid UTF-8": 1007,
            "another message": 4400,
            "the end of the connection": 1006,
        }
        assert good.resumed == 0

    with (
        following(cluster, flow.view, [flow.flow], tmp_path) as followed,
        served(flow.app, cluster, tmp_path, frame_ms=1) as http,
    ):
        followed.expect(flow.derived.rows)
        asyncio.run(asyncio.wait_for(run(http.port), 60))


def http_until_rows(http: Http, view: str, count: int) -> None:
    def has_rows() -> bool:
        reply = http.get(f"/v1/views/{view}/rows")
        return reply.status == 200 and len(reply.json["rows"]) == count

    until(has_rows, f"{count} rows")
