"""Coming back with a cursor: no gap and no repeat, wherever it broke off; and what is too old begins anew."""

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

from bench.faults.flow_by_hand import Change, FlowByHand
from headrace.client.cluster import Cluster
from headrace.client.declaring import ensure_declared
from headrace.serve.subscriptions.bookmark import Bookmark
from tests.serve.copying import Copy, Ended, Rows, events, socket
from tests.serve.serving import served
from tests.serve.shop import shop
from tests.support.waiting import until
from tests.views.realtime_by_hand import RealtimeByHand
from tests.views.seeing import following, produce

Fresh = Callable[[str], str]
NAMES = ("product", "amount", "note")
Reached = Callable[[Copy], bool]


def row(product: str, amount: int = 1, note: str | None = None) -> Change:
    return product, {"product": product, "amount": amount, "note": note}


def some(rng: random.Random, count: int = 5, keys: int = 20) -> list[Change]:
    products = [f"p{rng.randrange(keys)}" for _ in range(count)]
    return [(one, None) if rng.random() < 0.2 else row(one, rng.randrange(100)) for one in products]


def rows_of(state: Mapping[str, tuple[Any, ...]], fits: Callable[[dict[str, Any]], bool]) -> Rows:
    made = [dict(zip(NAMES, values, strict=True)) for values in state.values()]
    return {(one["product"],): one for one in made if fits(one)}


async def follow_with_breaks(
    port: int, view: str, copy: Copy, rng: random.Random, reached: Reached, **asked: Any
) -> None:
    """By either carrier, breaking off anywhere, half-way through a step too, and coming back with the last cursor."""
    while not reached(copy):
        carrier: Any = rng.choice([socket, events])
        stays = rng.randrange(1, 12)
        copy.connected()
        try:
            async with carrier(port, view, copy.cursor, **asked) as (_, messages):
                async for told in messages:
                    copy.take(told)
                    stays -= 1
                    if stays < 0 or reached(copy):
                        break
                    if rng.random() < 0.1:
                        await asyncio.sleep(rng.random() / 20)
        except Ended:
            await asyncio.sleep(0.05)


def test_whoever_breaks_off_and_comes_back_sees_every_batch_once(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    """Each step is held against what the batches up to it come to; the copy itself holds them against each other."""
    flow, rng = FlowByHand(cluster, fresh("breaks")), random.Random(11)
    flow.begin()
    flow.batch(some(rng, 60))
    questions: list[tuple[str | None, Callable[[dict[str, Any]], bool]]] = [
        (None, lambda one: True),
        ("amount >= 50", lambda one: one["amount"] >= 50),
        (
            'product startswith "p1" and amount < 80',
            lambda one: one["product"][:2] == "p1" and one["amount"] < 80,
        ),
    ]
    batches = 50

    async def run(port: int) -> list[Copy]:
        copies = []
        tasks = []
        for number in range(9):
            text, fits = questions[number % 3]

            def check(position: dict[str, Any], rows: Rows, fits: Any = fits) -> None:
                # Its rows may be told before whoever writes them has been told so himself.
                assert position["batch"] <= flow.batches
                if position["batch"] < flow.batches:
                    assert rows == rows_of(flow.derived.states[position["batch"] + 1], fits)

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
                    await asyncio.to_thread(flow.abort, some(rng))
                changes = (
                    []
                    if number % 11 == 5
                    else some(rng, 2_000 if number == 25 else 5, 900 if number == 25 else 20)
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
        assert copy.rows == rows_of(flow.derived.rows, questions[number % 3][1])
    assert sum(copy.resumed for copy in copies) > 20
    assert not any(kind == "reset" for copy in copies for kind, _ in copy.seen)


def test_a_topic_that_no_flow_writes_is_followed_by_its_offsets(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    """Of several partitions, in no order among them; the server is another one half-way."""
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
                return  # Not noted yet here.
            for key, value in records[:end]:
                state.pop(key, None)
                if value is not None:
                    state[key] = {"price": value["price"]}
        assert {key[0]: {"price": one["price"]} for key, one in rows.items()} == state

    copies = [Copy(check) for _ in range(4)]

    async def run(port: int, count: int) -> None:
        total = sum(map(len, written.values())) + count

        def reached(copy: Copy) -> bool:
            return copy.position is not None and sum(copy.position["offsets"].values()) >= total

        writing = asyncio.to_thread(write, count)
        tasks = [
            follow_with_breaks(port, view.name, copy, random.Random(number), reached)
            for number, copy in enumerate(copies)
        ]
        await asyncio.gather(writing, *tasks)

    write(20)
    with following(cluster, view, [], tmp_path) as followed:
        until(lambda: followed.look() is not None, "the view")
        for count in (60, 40):
            with served(app, cluster, tmp_path, frame_ms=5) as http:
                asyncio.run(asyncio.wait_for(run(http.port, count), 60))
            write(10)
    assert [copy.position for copy in copies] == [copies[0].position] * len(copies)
    assert all(copy.resumed > 1 for copy in copies)


def test_a_new_generation_resets_whoever_follows_and_old_or_forged_cursors_are_refused(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    flow = FlowByHand(cluster, fresh("swap"))
    flow.begin()
    flow.batch([row("a", 1), row("b", 2)])

    async def at(copy: Copy, messages: Any, generation: int, batch: int) -> None:
        def there() -> bool:
            told = copy.position
            return told is not None and (told["generation"], told["batch"]) == (generation, batch)

        while not there():
            copy.take(await anext(messages))
        assert copy.rows == rows_of(flow.derived.rows, lambda one: True)

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
            for one, told in ((copy, messages), (other, others)):
                await at(one, told, 2, 0)
                assert [kind for kind, _ in one.seen if kind != "snapshot"].count("reset") == 1
            await asyncio.to_thread(flow.batch, [("a", None)])
            await at(copy, messages, 2, 1)
        # By a WebSocket and by Last-Event-ID it heals by itself; a GET with a cursor is told.
        healed = Copy()
        async with socket(port, view, old) as (_, messages):
            await at(healed, messages, 2, 1)
        assert [kind for kind, _ in healed.seen][:2] == ["reset", "hello"]
        healed = Copy()
        async with events(port, view, headers={"Last-Event-ID": old}) as (status, messages):
            assert status == 200
            await at(healed, messages, 2, 1)
        async with events(port, view, old) as (status, _):
            assert status == 409
        return copy.cursor or ""

    with (
        following(cluster, flow.view, [flow.flow], tmp_path) as followed,
        served(flow.app, cluster, tmp_path) as http,
    ):
        followed.expect(flow.derived.rows)
        cursor = asyncio.run(asyncio.wait_for(follow(http.port), 60))
    forged(cluster, flow, tmp_path, cursor)


def forged(cluster: Cluster, flow: FlowByHand, home: Path, cursor: str) -> None:
    """Whoever makes cursors up is told so, or harms himself alone: others are told what the log has."""
    for number in range(20):
        flow.batch([row(f"k{number}", number)])
    mark = _decode(cursor)

    def changed(**more: Any) -> str:
        return _encode(msgspec.structs.replace(mark, **more))

    wrong = [
        changed(progress_offset=mark.progress_offset + 4),
        changed(progress_offset=0),
        changed(progress_offset=2**62),
        changed(batch=mark.batch + 3),
        changed(offsets={one: at + 1 for one, at in mark.offsets.items()}),
        changed(offsets=dict.fromkeys(mark.offsets, 2**62)),
    ]
    unfit = [changed(offsets={}), changed(offsets={0: 1}), changed(version=2), cursor[:-5], "x", ""]

    async def ask(port: int) -> None:
        for text in wrong:
            async with events(port, flow.view.name, text) as (status, _):
                assert status in (200, 409), _decode(text)
        for text in unfit[:-1]:
            async with events(port, flow.view.name, text) as (status, _):
                assert status == 400, text
        copy = Copy(
            lambda position, rows: _equal(
                rows, rows_of(flow.derived.states[position["batch"] + 1], lambda one: True)
            )
        )
        copy.rows, copy.cursor = rows_of(flow.derived.states[mark.batch + 1], lambda one: True), cursor
        copy.position = {
            "generation": 2,
            "batch": mark.batch,
            "offsets": {str(one): at for one, at in mark.offsets.items()},
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
        asyncio.run(asyncio.wait_for(ask(http.port), 60))
    # More than the server may remember cannot be told again.
    with served(flow.app, cluster, home, history_bytes=1_000) as http:

        async def too_much() -> None:
            async with events(http.port, flow.view.name, cursor) as (status, _):
                assert status == 409

        asyncio.run(asyncio.wait_for(too_much(), 60))


def _equal(left: object, right: object) -> None:
    assert left == right


def _decode(cursor: str) -> Bookmark:
    padded = cursor + "=" * (-len(cursor) % 4)
    return msgspec.msgpack.decode(base64.urlsafe_b64decode(padded), type=Bookmark)


def _encode(bookmark: Bookmark) -> str:
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(bookmark)).rstrip(b"=").decode()


def test_a_flow_in_real_time_is_followed_row_by_row_without_repeats(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    flow = RealtimeByHand(cluster, fresh("instant"))
    flow.begin()
    flow.rows([(0, number, row(f"p{number % 5}", number)) for number in range(20)])

    async def follow(port: int) -> None:
        copy = Copy()
        wanted = {f"p{number}": 15 + number for number in range(5)}

        async def reach(messages: Any) -> None:
            while {key[0]: one["amount"] for key, one in copy.rows.items()} != wanted:
                copy.take(await anext(messages))

        async with socket(port, flow.view.name) as (_, messages):
            await reach(messages)
            # Once more, and then what comes next.
            await asyncio.to_thread(
                flow.rows, [(0, number, row(f"p{number % 5}", number)) for number in range(10, 20)]
            )
            await asyncio.to_thread(flow.rows, [(0, 20, row("p0", 20))])
            wanted["p0"] = 20
            await reach(messages)
            assert copy.frames >= 1
            assert all(one["amount"] >= 15 for one in copy.rows.values())
        copy.connected()
        async with socket(port, flow.view.name, copy.cursor) as (_, messages):
            await asyncio.to_thread(flow.rows, [(0, 21, ("p1", None))])
            del wanted["p1"]
            await reach(messages)
        assert copy.resumed == 1

    with (
        following(cluster, flow.view, [flow.flow], tmp_path) as followed,
        served(flow.app, cluster, tmp_path) as http,
    ):
        until(lambda: (seen := followed.look()) is not None and len(seen.rows) == 5, "the view")
        asyncio.run(asyncio.wait_for(follow(http.port), 60))


def test_a_view_whose_rows_have_no_order_cannot_be_followed(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
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
        until(lambda: followed.look() is not None, "the view")
        asyncio.run(asyncio.wait_for(follow(http.port), 60))
