"""Top-n views after every step, compared with the sorted and limited query."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faults.views.scripted_flow import Sale
from headrace.model.schema import schema_of
from headrace.serve.errors import CursorExpired, LimitTooLarge, SlowReader
from headrace.serve.subscribe.history import History
from headrace.serve.subscribe.log_position import Change, Epoch, LogPosition, Step
from headrace.serve.subscribe.messages import Message
from headrace.serve.subscribe.query import SubscriptionQuery
from headrace.serve.subscribe.query_view import Frame
from headrace.serve.subscribe.ranked_rows import RankedRow
from headrace.serve.subscribe.top_n_view import TopNView, TopRows
from headrace.stores.position import Position, ViewSchema, ViewState
from headrace.stores.rows import Row
from headrace.testing.clock import DrivenClock

_SCHEMA = ViewSchema(schema_of(Sale).fields, ("product",))
_EPOCH = Epoch("out", "id", 1, "progress", 1, _SCHEMA.to_json(), by_batch=True)
_PRODUCTS = [f"p{number:02}" for number in range(12)]

State = dict[str, int]
Batch = list[tuple[str, int | None]]


def _position(batch: int) -> LogPosition:
    return LogPosition({0: batch + 1}, batch, batch + 2, by_batch=True)


def _ranked(product: str, amount: int, note: str) -> RankedRow:
    row: Row = (product, amount, note or None)
    result = {"product": product, "amount": amount, "note": note or None}
    return RankedRow(json.dumps({"product": product}).encode(), row, json.dumps(result).encode())


class _Shop:
    """A view whose store may be behind the log, or ahead of the reader; ``store`` is the number of its batch."""

    def __init__(self, query: SubscriptionQuery, *, note: str = "", history_bytes: int = 1_000_000) -> None:
        self.history = History(_position(-1), history_bytes)
        self.epoch = _EPOCH
        self.states: list[State] = [{}]
        self.store = -1
        self.unread: list[Step] = []
        """Steps in the log that the reader has not reached."""
        self._query = query
        self._note = note
        self.window = TopNView(query, self, _SCHEMA, DrivenClock(), self._read)

    def batch(self, changes: Batch, *, read: bool = True) -> None:
        number = len(self.states) - 1
        new_changes = []
        state = dict(self.states[-1])
        for product, amount in changes:
            row = _ranked(product, amount or 0, self._note)
            is_deleted = amount is None
            values = None if is_deleted else row.values
            new_changes.append(
                Change(row.key, (product,), None if is_deleted else row.row, values, 0, number)
            )
            state.pop(product, None)
            if amount is not None:
                state[product] = amount
        self.states.append(state)
        self.unread.append(Step(_position(number - 1), _position(number), new_changes))
        if read:
            self.read_log()

    def read_log(self) -> None:
        for step in self.unread:
            self.history.append(step)
        self.unread.clear()

    async def reach(self, log_position: LogPosition) -> None:
        self.read_log()
        assert self.history.end.covers(log_position)

    async def resume(self, log_position: LogPosition, known_ms: int) -> None:
        if not log_position.covers(self.history.begin):
            raise CursorExpired("the history does not reach back")

    async def _read(self, count: int) -> TopRows:
        batch = self.store
        position = Position("out", "id", {0: batch + 1}, 1, batch, "progress", batch + 2)
        rows = self._sorted(self.states[batch + 1])
        ranked = [_ranked(product, amount, self._note) for product, amount in rows]
        return TopRows(ViewState(_SCHEMA, position, 0, ""), ranked[:count], len(ranked) > count)

    def _sorted(self, state: State) -> list[tuple[str, int]]:
        fitting = [
            (key, amount) for key, amount in state.items() if self._query.filter is None or amount >= 3
        ]
        if self._query.sort == "-amount":
            return sorted(fitting, key=lambda pair: (-pair[1], pair[0]))
        return sorted(fitting)

    def first(self, number: int) -> State:
        return dict(self._sorted(self.states[number])[: self._query.limit])


def _apply(rows: State, messages: list[Message]) -> State:
    new_rows = dict(rows)
    for message in messages:
        document = json.loads(message.data)
        new_rows.update((row["product"], row["amount"]) for row in document["rows"])
        for key in document["gone"]:
            new_rows.pop(key["product"], None)
    return new_rows


_amounts = st.none() | st.none() | st.integers(0, 9)
_batches = st.lists(
    st.lists(st.tuples(st.sampled_from(_PRODUCTS), _amounts), max_size=6), min_size=1, max_size=10
)
_queries = st.builds(
    SubscriptionQuery,
    st.just("v"),
    filter=st.sampled_from([None, "amount >= 3"]),
    sort=st.sampled_from([None, "-amount"]),
    limit=st.integers(1, 5),
)


@settings(max_examples=100, deadline=None)
@given(_queries, _batches, st.data())
def test_the_top_n_view_equals_the_query_at_every_step_even_after_a_resume(
    query: SubscriptionQuery, batches: list[Batch], data: st.DataObject
) -> None:
    """This holds for any position of the store and any number of spare rows."""
    asyncio.run(_check(query, batches, data))


async def _check(query: SubscriptionQuery, batches: list[Batch], data: st.DataObject) -> None:
    shop = _Shop(query)
    window = shop.window
    shop.batch([(product, number % 7) for number, product in enumerate(_PRODUCTS)])
    followers: list[tuple[State, int]] = []
    with pytest.MonkeyPatch.context() as patch:
        # No spare rows, so that the store is read often.
        patch.setattr("headrace.serve.subscribe.top_n_view._SPARE_ROWS", -(query.limit or 0))
        for changes in batches:
            shop.batch(changes, read=data.draw(st.booleans()))
            shop.store = data.draw(st.integers(max(0, shop.store), len(shop.states) - 2))
            for number, (rows, at) in enumerate(followers):
                if data.draw(st.booleans()) and at < shop.history.next:
                    frame = await window.frame(at, shop.history.next)
                    followers[number] = (_expect(shop, rows, frame, at), frame.next)
            if data.draw(st.booleans()):
                messages, at = await window.first(shop.history.next)
                rows = _apply({}, messages)
                assert rows == shop.first(at)
                # The rows arrive in order, for a client that only displays them.
                assert [*rows] == [*shop.first(at)]
                followers.append((rows, at))
            if data.draw(st.booleans()):
                # A subscriber that resumes from any step, with the rows of the query there.
                begin = data.draw(st.integers(1, shop.history.next))
                frame = await window.since(shop.history.border(begin), 0)
                followers.append((_expect(shop, shop.first(begin), frame, begin), frame.next))


def _expect(shop: _Shop, rows: State, frame: Frame, at: int) -> State:
    assert frame.next >= at
    new_rows = _apply(rows, frame.messages)
    assert new_rows == shop.first(frame.next)
    document: dict[str, Any] = json.loads(frame.messages[-1].data)
    assert (document["since"]["batch"], document["position"]["batch"]) == (at - 1, frame.next - 1)
    return new_rows


async def test_changes_outside_the_top_n_are_neither_sent_nor_read_from_the_store() -> None:
    shop = _Shop(SubscriptionQuery("v", sort="-amount", limit=2))
    shop.batch([(f"p{number:04}", number) for number in range(400)])
    shop.store = 0
    _, at = await shop.window.first(1)
    for number in range(50):
        shop.batch([(f"q{number}", 1), ("p0399", 400 + number)])
        frame = await shop.window.frame(at, shop.history.next)
        document = json.loads(frame.messages[0].data)
        assert ([row["product"] for row in document["rows"]], document["gone"]) == (["p0399"], [])
        at = frame.next
    assert shop.window.reads == 1
    # A spare row replaces a row that leaves.
    shop.batch([("p0399", None)])
    document = json.loads((await shop.window.frame(at, shop.history.next)).messages[0].data)
    assert ([row["product"] for row in document["rows"]], document["gone"]) == (
        ["p0397"],
        [{"product": "p0399"}],
    )
    assert shop.window.reads == 1


async def test_the_store_is_read_when_all_known_rows_leave_the_top_n() -> None:
    shop = _Shop(SubscriptionQuery("v", limit=1))
    shop.batch([(f"p{number:03}", 1) for number in range(100)])
    shop.store = 0
    _, at = await shop.window.first(1)
    # This row sorts after the known rows, where unknown rows follow.
    shop.batch([("p100", 1)])
    shop.batch([(f"p{number:03}", None) for number in range(60)])
    frame = await shop.window.frame(at, shop.history.next)
    assert _apply({"p000": 1}, frame.messages) == {"p060": 1}
    assert shop.window.reads > 1


async def test_a_resume_sends_few_rows_after_few_changes_and_a_snapshot_after_many() -> None:
    shop = _Shop(SubscriptionQuery("v", sort="-amount", limit=100))
    shop.batch([(f"p{number:04}", number) for number in range(2_500)])
    shop.store = 0
    shop.batch([("p0000", 5_000)])
    frame = await shop.window.since(shop.history.border(1), 0)
    document = json.loads(frame.messages[0].data)
    assert [row["product"] for row in document["rows"]] == ["p0000", "p2401"]
    assert document["gone"] == [{"product": "p2400"}]
    shop.batch([(f"p{number:04}", 1) for number in range(2_400)])
    for send in (shop.window.since(shop.history.border(1), 0), _check_resumable(shop, 1)):
        with pytest.raises(CursorExpired, match="2400 rows changed"):
            await send


async def _check_resumable(shop: _Shop, at: int) -> None:
    shop.window.check_resumable(shop.history.border(at))


async def test_the_history_is_bounded_in_bytes_and_a_subscriber_behind_it_is_closed() -> None:
    shop = _Shop(SubscriptionQuery("v", limit=50), note="n" * 100_000, history_bytes=100_000_000)
    shop.batch([(f"p{number:02}", number) for number in range(50)])
    shop.store = 0
    with pytest.raises(LimitTooLarge, match="the first 50 rows"):
        await shop.window.first(1)
    shop = _Shop(SubscriptionQuery("v", limit=2), note="n" * 100_000, history_bytes=100_000_000)
    shop.batch([(f"p{number:02}", number) for number in range(50)])
    shop.store = 0
    rows, at = await shop.window.first(1)
    for number in range(20):
        shop.batch([("p00", number + 100)])
        await shop.window.first(shop.history.next)
    with pytest.raises(SlowReader):
        await shop.window.frame(at, shop.history.next)
    frame = await shop.window.since(shop.history.border(at), 0)
    assert _apply(_apply({}, rows), frame.messages) == shop.first(len(shop.states) - 1)
