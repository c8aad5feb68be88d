"""Following views: the rows at a position, then every batch once, through disconnects, generations and slow readers."""

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

from bench.faults.flow_by_hand import Change, FlowByHand
from headrace.client.cluster import Cluster
from headrace.client.declaring import ensure_declared
from tests.serve.copying import Copy, Ended, Rows, events, socket
from tests.serve.http import Http
from tests.serve.serving import served
from tests.serve.shop import shop
from tests.support.waiting import until
from tests.views.seeing import following, produce

Fresh = Callable[[str], str]
NAMES = ("product", "amount", "note")


def row(product: str, amount: int = 1, note: str | None = None) -> Change:
    return product, {"product": product, "amount": amount, "note": note}


def some(rng: random.Random, count: int = 5, keys: int = 20) -> list[Change]:
    products = [f"p{rng.randrange(keys)}" for _ in range(count)]
    return [(one, None) if rng.random() < 0.2 else row(one, rng.randrange(100)) for one in products]


def rows_of(state: dict[str, tuple[Any, ...]], fits: Callable[[dict[str, Any]], bool]) -> Rows:
    made = [dict(zip(NAMES, values, strict=True)) for values in state.values()]
    return {(one["product"],): one for one in made if fits(one)}


CARRIERS = pytest.mark.parametrize("carrier", [socket, events], ids=["websocket", "events"])


@CARRIERS
def test_the_rows_come_first_and_then_every_batch_whole(
    carrier: Any, cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    flow = FlowByHand(cluster, fresh("sub"))
    flow.begin()
    flow.batch([row(f"p{number:04}", number) for number in range(1_200)])
    states = flow.derived.states

    def check(position: dict[str, Any], rows: Rows) -> None:
        assert rows == rows_of(states[position["batch"] + 1], lambda one: True)

    async def follow(port: int) -> None:
        copy = Copy(check)
        async with carrier(port, flow.view.name) as (_, messages):
            async for told in messages:
                copy.take(told)
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
        told = http.get("/metrics").body.decode()
        assert "headrace_subscription_begun_total" in told
        assert f'headrace_subscribed_view_queries{{view="{flow.view.name}"}}' in told


def test_a_query_is_told_what_fits_it_and_what_does_so_no_more(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    app = shop(fresh("query"))
    view, topic = app.views[1].name, app.topics[1].name
    ensure_declared(cluster, app.topics[1], topic, 3)

    def order(number: int, product: str, pieces: int) -> tuple[bytes, bytes]:
        told = {"order_id": f"o{number}", "product_id": product, "pieces": pieces}
        return f"o{number}".encode(), json.dumps(told).encode()

    async def copied(copy: Copy, messages: Any, rows: dict[tuple[str, str], int]) -> None:
        while {key: one["pieces"] for key, one in copy.rows.items()} != rows or copy.position is None:
            copy.take(await anext(messages))

    async def follow(http: Http) -> None:
        asked: dict[str, Any] = {"filter": "pieces >= 5", "prefix": json.dumps({"product_id": "a"})}
        copy, other = Copy(), Copy()
        async with (
            socket(http.port, view, **asked) as (_, messages),
            events(http.port, view, from_=json.dumps({"product_id": "b"})) as (_, others),
        ):
            await copied(copy, messages, {("a", "o1"): 5})
            await copied(other, others, {("b", "o2"): 9})
            produce(
                cluster, topic, [order(1, "a", 4), order(3, "a", 6), order(4, "b", 6), (b"o9", b"poison")]
            )
            await copied(copy, messages, {("a", "o3"): 6})
            await copied(other, others, {("b", "o2"): 9, ("b", "o4"): 6})
        # The same cursor, with another question.
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
            async with connect(f"ws://127.0.0.1:{http.port}/v1/views/{view}/changes") as made:
                await made.send(wrong)
                with contextlib.suppress(ConnectionClosed):
                    while True:
                        await made.recv()
            assert made.close_code == (1009 if len(wrong) > 65_536 else 4400), wrong

    with following(cluster, app.views[1], app.flows, tmp_path), served(app, cluster, tmp_path) as http:
        produce(cluster, topic, [order(1, "a", 5), order(2, "b", 9), order(5, "a", 1)])
        http_until_rows(http, view, 3)
        asyncio.run(asyncio.wait_for(follow(http), 60))


def test_who_sends_nonsense_is_closed_and_others_hear_nothing_of_it(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    """In the middle of what is told to it; what is no fault of the server's is not noted as one."""
    flow = FlowByHand(cluster, fresh("nonsense"), partitions=1)
    flow.begin()
    flow.batch([row("a", 1, "n" * 30_000)])
    wrong = {
        "a kind of frame that there is not": b"\x83\x80\0\0\0\0",
        "no mask": b"\x81\x01x",
        "a size that is none": b"\x81\xff" + b"\xff" * 12,
        "half a text": b"\x81\x81\0\0\0\0\xff",
        "another message": b"\x81\x82\0\0\0\0{}",
        "an end": b"",
    }

    async def one(port: int, sent: bytes) -> int | None:
        address = f"ws://127.0.0.1:{port}/v1/views/{flow.view.name}/changes"
        async with connect(address, max_size=None, close_timeout=1) as made:
            await made.send('{"type": "subscribe"}')
            for _ in range(3):
                await made.recv()
            if sent:
                made.transport.write(sent)
            else:
                made.transport.abort()
            with contextlib.suppress(ConnectionClosed):
                while True:
                    await made.recv()
        return made.close_code

    async def run(port: int) -> None:
        good, last = Copy(), flow.batches + 24
        stop = asyncio.Event()

        async def write() -> None:
            while not stop.is_set() or flow.batches < last:
                await asyncio.to_thread(flow.batch, [row("a", flow.batches, "n" * 30_000)])

        async with socket(port, flow.view.name) as (_, messages):
            writing = asyncio.create_task(write())
            codes = await asyncio.gather(*(one(port, sent) for sent in wrong.values() for _ in range(4)))
            stop.set()
            await writing
            while good.position is None or good.position["batch"] < flow.batches - 1:
                good.take(await anext(messages))
        told = dict(zip(wrong, codes[::4], strict=True))
        assert told == {
            "a kind of frame that there is not": 1002,
            "no mask": 1002,
            "a size that is none": told["a size that is none"],
            "half a text": 1007,
            "another message": 4400,
            "an end": 1006,
        }
        assert good.resumed == 0

    with (
        following(cluster, flow.view, [flow.flow], tmp_path) as followed,
        served(flow.app, cluster, tmp_path, frame_ms=1) as http,
    ):
        followed.expect(flow.derived.rows)
        asyncio.run(asyncio.wait_for(run(http.port), 60))


def http_until_rows(http: Http, view: str, count: int) -> None:
    def there() -> bool:
        reply = http.get(f"/v1/views/{view}/rows")
        return reply.status == 200 and len(reply.json["rows"]) == count

    until(there, f"{count} rows")
