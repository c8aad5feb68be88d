"""Resuming with a cursor: no gap and no repeat; an expired cursor starts with a snapshot."""

from __future__ import annotations

import asyncio
import base64
import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from faults.serve.local_server import served
from faults.serve.shop_app import shop
from faults.serve.subscriber_copy import Copy, Ended, Rows, events, socket
from faults.views.follower_thread import following, produce
from faults.views.scripted_flow import Change, ScriptedFlow
from faults.wait import until
from headrace.client.cluster import Cluster
from headrace.client.declared_topics import ensure_declared
from headrace.serve.subscribe.query import ResumeCursor
from tests.views.scripted_realtime_flow import ScriptedRealtimeFlow

Fresh = Callable[[str], str]
NAMES = ("product", "amount", "note")
HasReached = Callable[[Copy], bool]


def row(product: str, amount: int = 1, note: str | None = None) -> Change:
    return product, {"product": product, "amount": amount, "note": note}


def random_changes(rng: random.Random, count: int = 5, keys: int = 20) -> list[Change]:
    products = [f"p{rng.randrange(keys)}" for _ in range(count)]
    return [
        (product, None) if rng.random() < 0.2 else row(product, rng.randrange(100)) for product in products
    ]


def rows_of(state: Mapping[str, tuple[Any, ...]], matches: Callable[[dict[str, Any]], bool]) -> Rows:
    rows = [dict(zip(NAMES, values, strict=True)) for values in state.values()]
    return {(row["product"],): row for row in rows if matches(row)}


async def follow_with_breaks(
    port: int, view: str, copy: Copy, rng: random.Random, has_reached: HasReached, **request: Any
) -> None:
    """Subscribe by a random transport; disconnect anywhere, even within a step, and resume with the last cursor."""
    while not has_reached(copy):
        transport: Any = rng.choice([socket, events])
        messages_left = rng.randrange(1, 12)
        copy.connected()
        try:
            async with transport(port, view, copy.cursor, **request) as (_, messages):
                async for entry in messages:
                    copy.take(entry)
                    messages_left -= 1
                    if messages_left < 0 or has_reached(copy):
                        break
                    if rng.random() < 0.1:
                        await asyncio.sleep(rng.random() / 20)
        except Ended:
            await asyncio.sleep(0.05)


def test_a_subscriber_that_reconnects_sees_every_batch_once(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    """Compare the rows after each step with the rows of all batches so far. ``Copy`` checks that steps have no gap."""
    flow, rng = ScriptedFlow(cluster, fresh("breaks")), random.Random(11)
    flow.begin()
    flow.batch(random_changes(rng, 60))
    queries: list[tuple[str | None, Callable[[dict[str, Any]], bool]]] = [
        (None, lambda row: True),
        ("amount >= 50", lambda row: row["amount"] >= 50),
        (
            'product startswith "p1" and amount < 80',
            lambda row: row["product"][:2] == "p1" and row["amount"] < 80,
        ),
    ]
    batches = 50

    async def run(port: int) -> list[Copy]:
        copies = []
        tasks = []
        for number in range(9):
            text, matches = queries[number % 3]

            def check(position: dict[str, Any], rows: Rows, matches: Any = matches) -> None:
                # Subscribers may get the rows before the writer gets its acknowledgement.
                assert position["batch"] <= flow.batches
                if position["batch"] < flow.batches:
                    assert rows == rows_of(flow.derived.states[position["batch"] + 1], matches)

            copy = Copy(check)
            copies.append(copy)
            tasks.append(
                follow_with_breaks(
                    *(port, flow.view.name, copy, random.Random(number)),
                    lambda copy: copy.position is not None and copy.position["batch"] >= batches,
                    filter=text,
                )
            )

        async def write() -> None:
            for number in range(batches):
                if number % 9 == 4:
                    await asyncio.to_thread(flow.abort, random_changes(rng))
                changes = (
                    []
                    if number % 11 == 5
                    else random_changes(rng, 2_000 if number == 25 else 5, 900 if number == 25 else 20)
                )
                await asyncio.to_thread(flow.batch, changes)
                if flow.batches % 10 == 0:
                    await asyncio.to_thread(flow.restart)

        await asyncio.gather(write(), *tasks)
        return copies

    with (
        following(cluster, flow.view, [flow.flow], tmp_path) as followed,
        served(flow.app, cluster, tmp_path, frame_ms=5) as http,
    ):
        followed.expect(flow.derived.rows)
        copies = asyncio.run(asyncio.wait_for(run(http.port), 120))
        followed.expect(flow.derived.rows)
    assert flow.batches == batches + 1
    for number, copy in enumerate(copies):
        assert copy.rows == rows_of(flow.derived.rows, queries[number % 3][1])
    assert sum(copy.resumed for copy in copies) > 20
    assert not any(kind == "reset" for copy in copies for kind, _ in copy.seen)


def test_a_view_of_a_plain_topic_resumes_by_offsets(cluster: Cluster, fresh: Fresh, tmp_path: Path) -> None:
    """The topic has several partitions without an order between them, and the server is replaced half-way."""
    app, rng = shop(fresh("offsets")), random.Random(5)
    topic, view = app.topics[0], app.views[0]
    ensure_declared(cluster, topic, topic.name, 3)
    written: dict[int, list[tuple[str, dict[str, Any] | None]]] = {0: [], 1: [], 2: []}
    producer = cluster.producer({"linger.ms": 0})

    def write(count: int) -> None:
        for _ in range(count):
            number = rng.randrange(12)
            key, partition = f"p{number}", number % 3
            value = (
                None if rng.random() < 0.2 else {"product_id": key, "name": "n", "price": rng.randrange(9)}
            )
            text = None if value is None else json.dumps(value).encode()
            producer.produce(topic.name, key=key.encode(), value=text, partition=partition)
            assert producer.flush(30) == 0
            written[partition].append((key, value))

    def check(position: dict[str, Any], rows: Rows) -> None:
        state: dict[str, Any] = {}
        for partition, records in written.items():
            end = position["offsets"][str(partition)]
            if end > len(records):
                return  # The test has not recorded this write yet.
            for key, value in records[:end]:
                state.pop(key, None)
                if value is not None:
                    state[key] = {"price": value["price"]}
        assert {key[0]: {"price": row["price"]} for key, row in rows.items()} == state

    copies = [Copy(check) for _ in range(4)]

    async def run(port: int, count: int) -> None:
        total = sum(map(len, written.values())) + count

        def has_reached(copy: Copy) -> bool:
            return copy.position is not None and sum(copy.position["offsets"].values()) >= total

        writing = asyncio.to_thread(write, count)
        tasks = [
            follow_with_breaks(port, view.name, copy, random.Random(number), has_reached)
            for number, copy in enumerate(copies)
        ]
        await asyncio.gather(writing, *tasks)

    write(20)
    with following(cluster, view, [], tmp_path) as followed:
        until(lambda: followed.read() is not None, "the view")
        for count in (60, 40):
            with served(app, cluster, tmp_path, frame_ms=5) as http:
                asyncio.run(asyncio.wait_for(run(http.port, count), 60))
            write(10)
    assert [copy.position for copy in copies] == [copies[0].position] * len(copies)
    assert all(copy.resumed > 1 for copy in copies)


def test_a_new_generation_resets_subscribers_and_old_or_forged_cursors_are_refused(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    flow = ScriptedFlow(cluster, fresh("swap"))
    flow.begin()
    flow.batch([row("a", 1), row("b", 2)])

    async def at(copy: Copy, messages: Any, generation: int, batch: int) -> None:
        def present() -> bool:
            result = copy.position
            return result is not None and (result["generation"], result["batch"]) == (generation, batch)

        while not present():
            copy.take(await anext(messages))
        assert copy.rows == rows_of(flow.derived.rows, lambda row: True)

    async def follow(port: int) -> str:
        copy, other = Copy(), Copy()
        view = flow.view.name
        async with socket(port, view) as (_, messages), events(port, view) as (_, others):
            await at(copy, messages, 1, 0)
            await at(other, others, 1, 0)
            old = copy.cursor
            assert old is not None
            await asyncio.to_thread(flow.begin)
            await asyncio.to_thread(flow.batch, [row("a", 5), row("c", 6)])
            for copied, result in ((copy, messages), (other, others)):
                await at(copied, result, 2, 0)
                assert [kind for kind, _ in copied.seen if kind != "snapshot"].count("reset") == 1
            await asyncio.to_thread(flow.batch, [("a", None)])
            await at(copy, messages, 2, 1)
        # A WebSocket and Last-Event-ID restart with a snapshot; a GET with a cursor gets an error.
        restarted = Copy()
        async with socket(port, view, old) as (_, messages):
            await at(restarted, messages, 2, 1)
        assert [kind for kind, _ in restarted.seen][:2] == ["reset", "hello"]
        restarted = Copy()
        async with events(port, view, headers={"Last-Event-ID": old}) as (status, messages):
            assert status == 200
            await at(restarted, messages, 2, 1)
        async with events(port, view, old) as (status, _):
            assert status == 409
        return copy.cursor or ""

    with (
        following(cluster, flow.view, [flow.flow], tmp_path) as followed,
        served(flow.app, cluster, tmp_path) as http,
    ):
        followed.expect(flow.derived.rows)
        cursor = asyncio.run(asyncio.wait_for(follow(http.port), 60))
    check_forged_cursors(cluster, flow, tmp_path, cursor)


def check_forged_cursors(cluster: Cluster, flow: ScriptedFlow, home: Path, cursor: str) -> None:
    """Check that a forged cursor is refused, or affects only its sender: other subscribers get the rows of the log."""
    for number in range(20):
        flow.batch([row(f"k{number}", number)])
    resume_cursor = _decode(cursor)

    def cursor_with(**changes: Any) -> str:
        return _encode(msgspec.structs.replace(resume_cursor, **changes))

    wrong = [
        cursor_with(progress_offset=resume_cursor.progress_offset + 4),
        cursor_with(progress_offset=0),
        cursor_with(progress_offset=2**62),
        cursor_with(batch=resume_cursor.batch + 3),
        cursor_with(offsets={offset: at + 1 for offset, at in resume_cursor.offsets.items()}),
        cursor_with(offsets=dict.fromkeys(resume_cursor.offsets, 2**62)),
    ]
    invalid = [
        cursor_with(offsets={}),
        cursor_with(offsets={0: 1}),
        cursor_with(version=2),
        cursor[:-5],
        "x",
        "",
    ]

    async def send(port: int) -> None:
        for text in wrong:
            async with events(port, flow.view.name, text) as (status, _):
                assert status in (200, 409), _decode(text)
        for text in invalid[:-1]:
            async with events(port, flow.view.name, text) as (status, _):
                assert status == 400, text
        copy = Copy(
            lambda position, rows: _equal(
                rows, rows_of(flow.derived.states[position["batch"] + 1], lambda row: True)
            )
        )
        copy.rows, copy.cursor = (
            rows_of(flow.derived.states[resume_cursor.batch + 1], lambda row: True),
            cursor,
        )
        copy.position = {
            "generation": 2,
            "batch": resume_cursor.batch,
            "offsets": {str(offset): at for offset, at in resume_cursor.offsets.items()},
        }
        async with socket(port, flow.view.name, cursor) as (_, messages):
            while copy.position["batch"] != flow.batches - 1:
                copy.take(await anext(messages))
        assert copy.resumed == 1

    with (
        following(cluster, flow.view, [flow.flow], home) as followed,
        served(flow.app, cluster, home) as http,
    ):
        followed.expect(flow.derived.rows)
        asyncio.run(asyncio.wait_for(send(http.port), 60))
    # The history of the server is too short for a resume.
    with served(flow.app, cluster, home, history_bytes=1_000) as http:

        async def resume_beyond_the_history() -> None:
            async with events(http.port, flow.view.name, cursor) as (status, _):
                assert status == 409

        asyncio.run(asyncio.wait_for(resume_beyond_the_history(), 60))


def _equal(left: object, right: object) -> None:
    assert left == right


def _decode(cursor: str) -> ResumeCursor:
    padded = cursor + "=" * (-len(cursor) % 4)
    return msgspec.msgpack.decode(base64.urlsafe_b64decode(padded), type=ResumeCursor)


def _encode(cursor: ResumeCursor) -> str:
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(cursor)).rstrip(b"=").decode()


def test_a_subscriber_of_a_real_time_flow_gets_each_row_once(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    flow = ScriptedRealtimeFlow(cluster, fresh("instant"))
    flow.begin()
    flow.rows([(0, number, row(f"p{number % 5}", number)) for number in range(20)])

    async def follow(port: int) -> None:
        copy = Copy()
        query = {f"p{number}": 15 + number for number in range(5)}

        async def reach(messages: Any) -> None:
            while {key[0]: row["amount"] for key, row in copy.rows.items()} != query:
                copy.take(await anext(messages))

        async with socket(port, flow.view.name) as (_, messages):
            await reach(messages)
            # Write rows that the flow has already written, then a new row.
            await asyncio.to_thread(
                flow.rows, [(0, number, row(f"p{number % 5}", number)) for number in range(10, 20)]
            )
            await asyncio.to_thread(flow.rows, [(0, 20, row("p0", 20))])
            query["p0"] = 20
            await reach(messages)
            assert copy.frames >= 1
            assert all(row["amount"] >= 15 for row in copy.rows.values())
        copy.connected()
        async with socket(port, flow.view.name, copy.cursor) as (_, messages):
            await asyncio.to_thread(flow.rows, [(0, 21, ("p1", None))])
            del query["p1"]
            await reach(messages)
        assert copy.resumed == 1

    with (
        following(cluster, flow.view, [flow.flow], tmp_path) as followed,
        served(flow.app, cluster, tmp_path) as http,
    ):
        until(lambda: (contents := followed.read()) is not None and len(contents.rows) == 5, "the view")
        asyncio.run(asyncio.wait_for(follow(http.port), 60))


def test_a_view_of_unordered_rows_cannot_be_followed(cluster: Cluster, fresh: Fresh, tmp_path: Path) -> None:
    app = shop(fresh("order"))
    orders = app.topics[1]
    view = app.view(f"{orders.name}-last", orders, key="product_id")
    ensure_declared(cluster, orders, orders.name, 2)
    value = json.dumps({"order_id": "o", "product_id": "p", "pieces": 1}).encode()
    produce(cluster, orders.name, [(b"o", value)])

    async def follow(port: int) -> None:
        async with events(port, view.name) as (status, _):
            assert status == 422
        with pytest.raises(Ended) as ended:
            async with socket(port, view.name) as (_, messages):
                Copy().take(await anext(messages))
        assert ended.value.args[0]["close"] == 4422

    with following(cluster, view, [], tmp_path) as followed, served(app, cluster, tmp_path) as http:
        until(lambda: followed.read() is not None, "the view")
        asyncio.run(asyncio.wait_for(follow(http.port), 60))
