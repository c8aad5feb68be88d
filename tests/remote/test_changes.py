"""Subscriptions of the Python client: no step is lost or repeated over broken connections."""

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

from faults.serve.http import Http
from headrace.app import App
from headrace.remote import Change, InvalidRequest, LiveRows, NotFound, Remote
from headrace.remote.columns import RowReader
from headrace.remote.errors import Unreachable
from headrace.remote.queries import RowQuery
from headrace.remote.subscription import EventStream, Subscription
from tests.remote.clients import new_async_remote, new_remote
from tests.remote.market import Fruit
from tests.remote.unreliable_network import Network


def _until(changes: Iterator[Change[Any]], live: LiveRows[Any], key: str, price: int) -> list[Change[Any]]:
    """Read steps until the row arrives."""
    seen = []
    for change in changes:
        seen.append(change)
        live.apply(change)
        row = live.get((key,))
        if row is not None and row["price"] == price:
            return seen
    raise AssertionError("the iterator ended before the row arrived")


def test_changes_start_with_all_rows_and_continue_after_the_cursor(remote: Remote, app: App) -> None:
    topic, view = remote.topic(app.topics[0].name), remote.view(app.views[0].name)
    topic.write(Fruit("sub1", Decimal(1)), Fruit("sub2", Decimal(2)))
    remote.view(app.views[0].name).get("sub1")
    live: LiveRows[dict[str, Any]] = LiveRows()
    request = {"filter": 'fruit_id startswith "sub"'}
    changes = view.changes(**request)
    (first,) = _until(changes, live, "sub2", 2)
    assert first.whole
    assert {key[0] for key in live} == {"sub1", "sub2"}
    topic.write(Fruit("sub2", Decimal(3)))
    topic.delete({"fruit_id": "sub1"})
    topic.write(Fruit("sub3", Decimal(4)))
    later = _until(changes, live, "sub3", 4)
    changes.close()
    assert list(changes) == []
    assert not any(change.whole for change in later)
    while ("sub1",) in live:
        _until(view.changes(cursor=live.cursor, **request), live, "sub3", 4)
    assert {key[0]: row["price"] for key, row in live.items()} == {"sub2": 3, "sub3": 4}
    topic.write(Fruit("sub2", Decimal(5)))
    again = view.changes(cursor=live.cursor, **request)
    assert not any(change.whole for change in _until(again, live, "sub2", 5))
    rows = view.rows(**request, after=None).all()
    assert {row["fruit_id"]: row for row in rows} == {key[0]: row for key, row in live.items()}


def test_the_first_rows_of_a_query_stay_current(remote: Remote, app: App) -> None:
    topic, view = remote.topic(app.topics[0].name), remote.view(app.views[0].name)
    topic.write(*(Fruit(f"top{number}", Decimal(number)) for number in range(5)))
    assert view.get("top4") is not None
    request: dict[str, Any] = {"filter": 'fruit_id startswith "top"', "sort": "-price", "limit": 2}
    live: LiveRows[dict[str, Any]] = LiveRows()
    with view.changes(**request) as changes:
        (first,) = _until(changes, live, "top3", 3)
        assert [row["fruit_id"] for row in first.rows] == ["top4", "top3"]
        topic.delete({"fruit_id": "top4"})
        _until(changes, live, "top2", 2)
        assert {key[0] for key in live} == {"top3", "top2"}
    topic.write(Fruit("top0", Decimal(9)))
    with view.changes(cursor=live.cursor, **request) as changes:
        assert not any(change.whole for change in _until(changes, live, "top0", 9))
    assert {key[0] for key in live} == {"top0", "top3"}
    with pytest.raises(InvalidRequest, match="1 to 1000"):
        next(view.changes(limit=1_001))


def test_a_connection_that_breaks_repeatedly_loses_and_repeats_nothing(
    remote: Remote, app: App, server: Http, network: Network
) -> None:
    topic, view = remote.topic(app.topics[0].name), app.views[0].name
    stop = threading.Event()

    def write() -> None:
        for number in range(15):
            topic.write(Fruit(f"cut{number % 3}", Decimal(number)))
        topic.write(Fruit("cut", Decimal(99)))

    def failure() -> None:
        chance = random.Random(7)
        for _ in range(4):
            if stop.wait(chance.uniform(0.2, 0.6)):
                break
            network.set_mode("cut")
            stop.wait(0.05)
            network.set_mode("open")

    threads = [threading.Thread(target=write), threading.Thread(target=failure)]
    for thread in threads:
        thread.start()
    live: LiveRows[dict[str, Any]] = LiveRows()
    with new_remote(server, network) as follower:
        steps = _until(follower.view(view).changes(prefix="cut"), live, "cut", 99)
        stop.set()
    for thread in threads:
        thread.join()
    assert [step.whole for step in steps].count(True) == 1
    ends = [sum(step.position.offsets.values()) for step in steps]
    assert ends == sorted(set(ends))
    assert {row["fruit_id"]: row for row in remote.view(view).rows(prefix="cut")} == {
        key[0]: row for key, row in live.items()
    }


def test_a_permanent_error_is_raised(remote: Remote, app: App) -> None:
    with pytest.raises(NotFound):
        next(remote.view("no such view").changes())
    with pytest.raises(InvalidRequest):
        next(remote.view(app.views[0].name).changes(filter="price >"))


async def test_the_asyncio_client_follows_changes(server: Http, app: App) -> None:
    async with new_async_remote(server) as remote:
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


def test_a_snapshot_is_yielded_when_complete_and_a_partial_step_is_discarded() -> None:
    subscription = Subscription(RowQuery("v"), RowReader(None), None)
    assert "cursor" not in subscription.request().path
    pages = HELLO % b"false" + SNAPSHOT % (b'[{"k":"a","n":1},{"k":"b","n":2}]', b"[]", b"false", b"")
    assert list(subscription.parse(pages)) == []
    (change,) = subscription.parse(
        SNAPSHOT % (b'[{"k":"b","n":3}]', b'[{"k":"a"}]', b"true", _end(5)) + b"event: chan"
    )
    assert (change.whole, change.rows, change.gone) == (True, [{"k": "b", "n": 3}], [])
    assert subscription.cursor == "c5"
    # The stream breaks in the middle of a step: the partial step is discarded.
    assert subscription.pause_before_retry(Unreachable("x")) >= 0
    assert subscription.request().path.endswith("cursor=c5")
    (change,) = subscription.parse(HELLO % b"true" + _changes(5, 7))
    assert (change.whole, change.rows) == (False, [{"k": "a", "n": 7}])


def test_a_gap_between_two_steps_causes_a_new_snapshot() -> None:
    subscription = Subscription(RowQuery("v"), RowReader(None), None)
    subscription.request()
    list(subscription.parse(HELLO % b"false" + SNAPSHOT % (b"[]", b"[]", b"true", _end(5))))
    with pytest.raises(Exception, match="does not start where") as gap:
        list(subscription.parse(_changes(6, 7)))
    assert subscription.pause_before_retry(gap.value) > 0
    assert "cursor" not in subscription.request().path
    # A reset message of the server also causes a new snapshot.
    (change,) = subscription.parse(
        b'data: {"type":"reset","status":409}\n\n'
        + HELLO % b"false"
        + SNAPSHOT % (b"[]", b"[]", b"true", _end(9))
    )
    assert change.whole


@given(st.lists(st.integers(1, 30)), st.sampled_from([b"\n", b"\r\n"]))
@settings(max_examples=100)
def test_events_parse_the_same_in_pieces_of_any_size(sizes: list[int], line: bytes) -> None:
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
    stream, events, at = EventStream(), [], 0
    for size in [*sizes, len(whole)]:
        events += stream.parse(whole[at : at + size])
        at += size
    assert [(entry.name, entry.data) for entry in events] == [("a", b"1\n2"), ("message", b"\xc3\xa4")]
