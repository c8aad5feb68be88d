"""Subscriptions of the Python client: steps without a gap or a repeat, whatever becomes of the connection."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.app import App
from headrace.remote import Change, LiveRows, NotThere, Remote, Unfit
from headrace.remote.errors import Unreachable
from headrace.remote.event_stream import EventStream
from headrace.remote.reading import Question
from headrace.remote.reading_as import Read
from headrace.remote.subscription import Subscription
from tests.remote.asking import asking, asking_async
from tests.remote.cutting import Network
from tests.remote.market import Fruit
from tests.serve.http import Http


def _until(changes: Iterator[Change[Any]], live: LiveRows[Any], key: str, price: int) -> list[Change[Any]]:
    """Takes steps until the row is there."""
    seen = []
    for change in changes:
        seen.append(change)
        live.apply(change)
        row = live.get((key,))
        if row is not None and row["price"] == price:
            return seen
    raise AssertionError("it ended")


def test_rows_come_first_and_then_every_step_also_for_who_comes_again(remote: Remote, app: App) -> None:
    topic, view = remote.topic(app.topics[0].name), remote.view(app.views[0].name)
    topic.write(Fruit("sub1", Decimal(1)), Fruit("sub2", Decimal(2)))
    remote.view(app.views[0].name).get("sub1")
    live: LiveRows[dict[str, Any]] = LiveRows()
    asked = {"filter": 'fruit_id startswith "sub"'}
    changes = view.changes(**asked)
    (first,) = _until(changes, live, "sub2", 2)
    assert first.whole
    assert {key[0] for key in live} == {"sub1", "sub2"}
    topic.write(Fruit("sub2", Decimal(3)))
    topic.delete({"fruit_id": "sub1"})
    topic.write(Fruit("sub3", Decimal(4)))
    later = _until(changes, live, "sub3", 4)
    changes.close()
    assert list(changes) == []
    assert not any(one.whole for one in later)
    while ("sub1",) in live:
        _until(view.changes(cursor=live.cursor, **asked), live, "sub3", 4)
    assert {key[0]: row["price"] for key, row in live.items()} == {"sub2": 3, "sub3": 4}
    topic.write(Fruit("sub2", Decimal(5)))
    again = view.changes(cursor=live.cursor, **asked)
    assert not any(one.whole for one in _until(again, live, "sub2", 5))
    rows = view.rows(**asked, after=None).all()
    assert {row["fruit_id"]: row for row in rows} == {key[0]: row for key, row in live.items()}


def test_the_first_rows_are_followed_as_they_change(remote: Remote, app: App) -> None:
    topic, view = remote.topic(app.topics[0].name), remote.view(app.views[0].name)
    topic.write(*(Fruit(f"top{number}", Decimal(number)) for number in range(5)))
    assert view.get("top4") is not None
    asked: dict[str, Any] = {"filter": 'fruit_id startswith "top"', "sort": "-price", "limit": 2}
    live: LiveRows[dict[str, Any]] = LiveRows()
    with view.changes(**asked) as changes:
        (first,) = _until(changes, live, "top3", 3)
        assert [row["fruit_id"] for row in first.rows] == ["top4", "top3"]
        topic.delete({"fruit_id": "top4"})
        _until(changes, live, "top2", 2)
        assert {key[0] for key in live} == {"top3", "top2"}
    topic.write(Fruit("top0", Decimal(9)))
    with view.changes(cursor=live.cursor, **asked) as changes:
        assert not any(one.whole for one in _until(changes, live, "top0", 9))
    assert {key[0] for key in live} == {"top0", "top3"}
    with pytest.raises(Unfit, match="1 to 1000"):
        next(view.changes(limit=1_001))


def test_a_connection_that_breaks_again_and_again_loses_and_repeats_nothing(
    remote: Remote, app: App, server: Http, network: Network
) -> None:
    topic, view = remote.topic(app.topics[0].name), app.views[0].name
    over = threading.Event()

    def write() -> None:
        for number in range(15):
            topic.write(Fruit(f"cut{number % 3}", Decimal(number)))
        topic.write(Fruit("cut", Decimal(99)))

    def trouble() -> None:
        chance = random.Random(7)
        for _ in range(4):
            if over.wait(chance.uniform(0.2, 0.6)):
                break
            network.be("cut")
            over.wait(0.05)
            network.be("open")

    threads = [threading.Thread(target=write), threading.Thread(target=trouble)]
    for one in threads:
        one.start()
    live: LiveRows[dict[str, Any]] = LiveRows()
    with asking(server, network) as follower:
        steps = _until(follower.view(view).changes(prefix="cut"), live, "cut", 99)
        over.set()
    for one in threads:
        one.join()
    assert [one.whole for one in steps].count(True) == 1
    ends = [sum(one.position.offsets.values()) for one in steps]
    assert ends == sorted(set(ends))
    assert {row["fruit_id"]: row for row in remote.view(view).rows(prefix="cut")} == {
        key[0]: row for key, row in live.items()
    }


def test_what_does_not_heal_is_raised(remote: Remote, app: App) -> None:
    with pytest.raises(NotThere):
        next(remote.view("no such view").changes())
    with pytest.raises(Unfit):
        next(remote.view(app.views[0].name).changes(filter="price >"))


async def test_an_event_loop_follows_as_well(server: Http, app: App) -> None:
    async with asking_async(server) as remote:
        live: LiveRows[Fruit] = LiveRows()

        async def follow() -> None:
            async for change in remote.view(app.views[0].name, Fruit).changes(prefix="loop"):
                live.apply(change)
                if len(live) == 3:
                    return

        task = asyncio.create_task(follow())
        for number in range(3):
            await remote.topic(app.topics[0].name).write(Fruit(f"loop{number}", Decimal(number)))
        await asyncio.wait_for(task, 30)
        assert live[("loop1",)] == Fruit("loop1", Decimal(1))


HELLO = (
    b'event: hello\ndata: {"type":"hello","key":["k"],"columns":[{"name":"k","kind":"text","optional":false},'
    b'{"name":"n","kind":"int","optional":true}],"resumed":%s}\n\n'
)
SNAPSHOT = b'data: {"type":"snapshot","rows":%s,"gone":%s,"last":%s%s}\n\n'


def _end(at: int) -> bytes:
    return b',"position":{"token":"t","topic":"x","offsets":{"0":%d}},"cursor":"c%d"' % (at, at)


def _changes(since: int, at: int) -> bytes:
    return (
        b'data: {"type":"changes","rows":[{"k":"a","n":%d}],"gone":[],"last":true,"since":{"offsets":{"0":%d}}%s}\n\n'
        % (at, since, _end(at))
    )


def test_pages_of_a_snapshot_count_together_and_half_a_step_never() -> None:
    subscription = Subscription(Question("v"), Read(None), None)
    assert "cursor" not in subscription.request().path
    pages = HELLO % b"false" + SNAPSHOT % (b'[{"k":"a","n":1},{"k":"b","n":2}]', b"[]", b"false", b"")
    assert list(subscription.take(pages)) == []
    (change,) = subscription.take(
        SNAPSHOT % (b'[{"k":"b","n":3}]', b'[{"k":"a"}]', b"true", _end(5)) + b"event: chan"
    )
    assert (change.whole, change.rows, change.gone) == (True, [{"k": "b", "n": 3}], [])
    assert subscription.cursor == "c5"
    # The stream breaks in the middle of a step: what had come of it is forgotten.
    assert subscription.broken(Unreachable("x")) >= 0
    assert subscription.request().path.endswith("cursor=c5")
    (change,) = subscription.take(HELLO % b"true" + _changes(5, 7))
    assert (change.whole, change.rows) == (False, [{"k": "a", "n": 7}])


def test_a_step_that_leaves_a_gap_costs_a_fresh_snapshot() -> None:
    subscription = Subscription(Question("v"), Read(None), None)
    subscription.request()
    list(subscription.take(HELLO % b"false" + SNAPSHOT % (b"[]", b"[]", b"true", _end(5))))
    with pytest.raises(Exception, match="does not begin where") as gap:
        list(subscription.take(_changes(6, 7)))
    assert subscription.broken(gap.value) > 0
    assert "cursor" not in subscription.request().path
    # So does a reset, by the server's own word.
    (change,) = subscription.take(
        b'data: {"type":"reset","status":409}\n\n'
        + HELLO % b"false"
        + SNAPSHOT % (b"[]", b"[]", b"true", _end(9))
    )
    assert change.whole


@given(st.lists(st.integers(1, 30)), st.sampled_from([b"\n", b"\r\n"]))
@settings(max_examples=100)
def test_events_are_the_same_in_whatever_pieces_they_come(sizes: list[int], line: bytes) -> None:
    lines = [
        b"event: a",
        b"data: 1",
        b"data:2",
        b"id: 7",
        b"",
        b": nothing",
        b"",
        b"data: \xc3\xa4",
        b"",
        b"data: half",
    ]
    whole = line.join(lines)
    stream, found, at = EventStream(), [], 0
    for size in [*sizes, len(whole)]:
        found += stream.take(whole[at : at + size])
        at += size
    assert [(one.name, one.data) for one in found] == [("a", b"1\n2"), ("message", b"\xc3\xa4")]
