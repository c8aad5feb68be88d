"""The first rows of a query, step by step, against the query itself: sorted and cut where each step ends."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.faults.flow_by_hand import Sale
from headrace.model.schema import schema_of
from headrace.serve.subscriptions.epoch import Epoch
from headrace.serve.subscriptions.errors import CursorOld, SlowReader, WindowLarge
from headrace.serve.subscriptions.history import History
from headrace.serve.subscriptions.lens import Frame
from headrace.serve.subscriptions.message import Message
from headrace.serve.subscriptions.place import Place
from headrace.serve.subscriptions.ranking import Ranked
from headrace.serve.subscriptions.step import Change, Step
from headrace.serve.subscriptions.wanted import Wanted
from headrace.serve.subscriptions.window import FirstRows, Window
from headrace.testing.faulty_clock import DrivenClock
from headrace.views.position import Position, Shape, Standing
from headrace.views.rows import Row

_SHAPE = Shape(schema_of(Sale).fields, ("product",))
_EPOCH = Epoch("out", "id", 1, "progress", 1, _SHAPE.tell(), by_batch=True)
_PRODUCTS = [f"p{number:02}" for number in range(12)]

State = dict[str, int]
Batch = list[tuple[str, int | None]]


def _place(batch: int) -> Place:
    return Place({0: batch + 1}, batch, batch + 2, by_batch=True)


def _ranked(product: str, amount: int, note: str) -> Ranked:
    row: Row = (product, amount, note or None)
    told = {"product": product, "amount": amount, "note": note or None}
    return Ranked(json.dumps({"product": product}).encode(), row, json.dumps(told).encode())


class _Shop:
    """A view whose store may be behind the log, or before what is read of it: ``store`` says at which batch it is."""

    def __init__(self, wanted: Wanted, *, note: str = "", history_bytes: int = 1_000_000) -> None:
        self.history = History(_place(-1), history_bytes)
        self.epoch = _EPOCH
        self.states: list[State] = [{}]
        self.store = -1
        self.unread: list[Step] = []
        """What the log has and its reader has not come to."""
        self._wanted = wanted
        self._note = note
        self.window = Window(wanted, self, _SHAPE, DrivenClock(), self._read)

    def batch(self, changes: Batch, *, read: bool = True) -> None:
        number = len(self.states) - 1
        made = []
        state = dict(self.states[-1])
        for product, amount in changes:
            one = _ranked(product, amount or 0, self._note)
            gone = amount is None
            values = None if gone else one.values
            made.append(Change(one.key, (product,), None if gone else one.row, values, 0, number))
            state.pop(product, None)
            if amount is not None:
                state[product] = amount
        self.states.append(state)
        self.unread.append(Step(_place(number - 1), _place(number), made))
        if read:
            self.read_on()

    def read_on(self) -> None:
        for one in self.unread:
            self.history.append(one)
        self.unread.clear()

    async def reach(self, place: Place) -> None:
        self.read_on()
        assert self.history.end.covers(place)

    async def resume(self, place: Place, known_ms: int) -> None:
        if not place.covers(self.history.begin):
            raise CursorOld("it is forgotten")

    async def _read(self, count: int) -> FirstRows:
        batch = self.store
        position = Position("out", "id", {0: batch + 1}, 1, batch, "progress", batch + 2)
        rows = self._sorted(self.states[batch + 1])
        found = [_ranked(product, amount, self._note) for product, amount in rows]
        return FirstRows(Standing(_SHAPE, position, 0, ""), found[:count], len(found) > count)

    def _sorted(self, state: State) -> list[tuple[str, int]]:
        fitting = [
            (one, amount) for one, amount in state.items() if self._wanted.filter is None or amount >= 3
        ]
        if self._wanted.sort == "-amount":
            return sorted(fitting, key=lambda one: (-one[1], one[0]))
        return sorted(fitting)

    def first(self, number: int) -> State:
        return dict(self._sorted(self.states[number])[: self._wanted.limit])


def _apply(rows: State, messages: list[Message]) -> State:
    found = dict(rows)
    for one in messages:
        told = json.loads(one.data)
        found.update((row["product"], row["amount"]) for row in told["rows"])
        for key in told["gone"]:
            found.pop(key["product"], None)
    return found


_amounts = st.none() | st.none() | st.integers(0, 9)
_batches = st.lists(
    st.lists(st.tuples(st.sampled_from(_PRODUCTS), _amounts), max_size=6), min_size=1, max_size=10
)
_wanted = st.builds(
    Wanted,
    st.just("v"),
    filter=st.sampled_from([None, "amount >= 3"]),
    sort=st.sampled_from([None, "-amount"]),
    limit=st.integers(1, 5),
)


@settings(max_examples=100, deadline=None)
@given(_wanted, _batches, st.data())
def test_the_window_is_the_query_at_every_step_for_all_who_follow_and_all_who_come_back(
    wanted: Wanted, batches: list[Batch], data: st.DataObject
) -> None:
    """Wherever the store is, and however few rows are kept beyond those that are told."""
    asyncio.run(_check(wanted, batches, data))


async def _check(wanted: Wanted, batches: list[Batch], data: st.DataObject) -> None:
    shop = _Shop(wanted)
    window = shop.window
    shop.batch([(product, number % 7) for number, product in enumerate(_PRODUCTS)])
    followers: list[tuple[State, int]] = []
    with pytest.MonkeyPatch.context() as patch:
        # No more than are told, so that the store is asked often.
        patch.setattr("headrace.serve.subscriptions.window._MORE", -(wanted.limit or 0))
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
                # In order, for whoever only shows them.
                assert [*rows] == [*shop.first(at)]
                followers.append((rows, at))
            if data.draw(st.booleans()):
                # Somebody who was anywhere, with what the query gave there.
                begin = data.draw(st.integers(1, shop.history.next))
                frame = await window.behind(shop.history.border(begin), 0)
                followers.append((_expect(shop, shop.first(begin), frame, begin), frame.next))


def _expect(shop: _Shop, rows: State, frame: Frame, at: int) -> State:
    assert frame.next >= at
    found = _apply(rows, frame.messages)
    assert found == shop.first(frame.next)
    told: dict[str, Any] = json.loads(frame.messages[-1].data)
    assert (told["since"]["batch"], told["position"]["batch"]) == (at - 1, frame.next - 1)
    return found


async def test_rows_that_come_behind_it_are_not_told_and_the_store_is_left_alone() -> None:
    shop = _Shop(Wanted("v", sort="-amount", limit=2))
    shop.batch([(f"p{number:04}", number) for number in range(400)])
    shop.store = 0
    _, at = await shop.window.first(1)
    for number in range(50):
        shop.batch([(f"q{number}", 1), ("p0399", 400 + number)])
        frame = await shop.window.frame(at, shop.history.next)
        told = json.loads(frame.messages[0].data)
        assert ([row["product"] for row in told["rows"]], told["gone"]) == (["p0399"], [])
        at = frame.next
    assert shop.window.reads == 1
    # One that leaves is followed by the next, from what is kept.
    shop.batch([("p0399", None)])
    told = json.loads((await shop.window.frame(at, shop.history.next)).messages[0].data)
    assert ([row["product"] for row in told["rows"]], told["gone"]) == (["p0397"], [{"product": "p0399"}])
    assert shop.window.reads == 1


async def test_when_all_that_are_known_leave_the_next_ones_are_read() -> None:
    shop = _Shop(Wanted("v", limit=1))
    shop.batch([(f"p{number:03}", 1) for number in range(100)])
    shop.store = 0
    _, at = await shop.window.first(1)
    # Behind what is known, where others are that are not.
    shop.batch([("p100", 1)])
    shop.batch([(f"p{number:03}", None) for number in range(60)])
    frame = await shop.window.frame(at, shop.history.next)
    assert _apply({"p000": 1}, frame.messages) == {"p060": 1}
    assert shop.window.reads > 1


async def test_a_cursor_costs_few_rows_where_little_has_changed_and_a_snapshot_where_much_has() -> None:
    shop = _Shop(Wanted("v", sort="-amount", limit=100))
    shop.batch([(f"p{number:04}", number) for number in range(2_500)])
    shop.store = 0
    shop.batch([("p0000", 5_000)])
    frame = await shop.window.behind(shop.history.border(1), 0)
    told = json.loads(frame.messages[0].data)
    assert [row["product"] for row in told["rows"]] == ["p0000", "p2401"]
    assert told["gone"] == [{"product": "p2400"}]
    shop.batch([(f"p{number:04}", 1) for number in range(2_400)])
    for ask in (shop.window.behind(shop.history.border(1), 0), _near(shop, 1)):
        with pytest.raises(CursorOld, match="2400 rows have changed"):
            await ask


async def _near(shop: _Shop, at: int) -> None:
    shop.window.expect_near(shop.history.border(at))


async def test_what_is_kept_is_bounded_by_bytes_and_who_is_behind_that_is_sent_away() -> None:
    shop = _Shop(Wanted("v", limit=50), note="n" * 100_000, history_bytes=100_000_000)
    shop.batch([(f"p{number:02}", number) for number in range(50)])
    shop.store = 0
    with pytest.raises(WindowLarge, match="the first 50 rows"):
        await shop.window.first(1)
    shop = _Shop(Wanted("v", limit=2), note="n" * 100_000, history_bytes=100_000_000)
    shop.batch([(f"p{number:02}", number) for number in range(50)])
    shop.store = 0
    rows, at = await shop.window.first(1)
    for number in range(20):
        shop.batch([("p00", number + 100)])
        await shop.window.first(shop.history.next)
    with pytest.raises(SlowReader):
        await shop.window.frame(at, shop.history.next)
    frame = await shop.window.behind(shop.history.border(at), 0)
    assert _apply(_apply({}, rows), frame.messages) == shop.first(len(shop.states) - 1)
