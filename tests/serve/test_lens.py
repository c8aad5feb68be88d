"""What a question sees of a view's steps, however they are taken together: held against a plain fold of the changes."""

from __future__ import annotations

import json
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.faults.flow_by_hand import Sale
from headrace.model.schema import schema_of
from headrace.serve.subscriptions.epoch import Epoch
from headrace.serve.subscriptions.history import History
from headrace.serve.subscriptions.lens import Frame, Lens
from headrace.serve.subscriptions.place import Place
from headrace.serve.subscriptions.step import Change, Step
from headrace.serve.subscriptions.wanted import Wanted
from headrace.testing.faulty_clock import DrivenClock
from headrace.views.position import Shape

_SHAPE = Shape(schema_of(Sale).fields, ("product",))
_PRODUCTS = ("a", "aa", "ab", "b", "c")
_FILTERS = {
    None: lambda amount: True,
    "amount >= 5": lambda amount: amount >= 5,
    "not (amount = 3 or amount > 7)": lambda amount: not (amount == 3 or amount > 7),
}
_KEYS: dict[tuple[str | None, str | None, str | None], Any] = {
    (None, None, None): lambda product: True,
    ("a", None, None): lambda product: product.startswith("a"),
    (None, "aa", "b"): lambda product: "aa" <= product < "b",
    ("a", "ab", None): lambda product: product.startswith("a") and product >= "ab",
}
_changes = st.lists(st.tuples(st.sampled_from(_PRODUCTS), st.none() | st.integers(0, 9)), max_size=5)


def _change(product: str, amount: int | None, offset: int) -> Change:
    key = json.dumps({"product": product}).encode()
    if amount is None:
        return Change(key, (product,), None, None, 0, offset)
    row = json.dumps({"product": product, "amount": amount, "note": None}).encode()
    return Change(key, (product,), row, (product, amount, None), 0, offset)


def _apply(rows: dict[str, int], frame: Frame) -> None:
    for one in frame.messages:
        told = json.loads(one.data)
        rows.update((row["product"], row["amount"]) for row in told["rows"])
        for key in told["gone"]:
            rows.pop(key["product"], None)


def _at_once(made: Coroutine[Any, Any, Frame]) -> Frame:
    """Where there are no words, nothing is waited for."""
    with pytest.raises(StopIteration) as done:
        made.send(None)
    found: Frame = done.value.value
    return found


@settings(max_examples=100, deadline=None)
@given(
    st.lists(_changes, min_size=1, max_size=12),
    st.sampled_from([*_FILTERS]),
    st.sampled_from([*_KEYS]),
    st.data(),
)
def test_steps_taken_together_in_any_way_come_to_the_rows_that_fit(
    batches: list[list[tuple[str, int | None]]],
    text: str | None,
    keys: tuple[str | None, str | None, str | None],
    data: st.DataObject,
) -> None:
    epoch = Epoch("out", "id", 1, "progress", 1, _SHAPE.tell(), by_batch=True)
    start = Place({0: 0}, -1, 1, by_batch=True)
    history = History(start, 1_000_000)
    lens = Lens(Wanted("v", text, *keys), epoch, _SHAPE, history, DrivenClock())
    fits, fits_key = _FILTERS[text], _KEYS[keys]
    rows: dict[str, int] = {}
    state: dict[str, int] = {}
    states = [{}]
    at, before, offset = 0, start, 0
    for number, changes in enumerate(batches):
        made = [_change(*one, offset + place) for place, one in enumerate(changes)]
        offset += len(changes)
        after = Place({0: offset}, number, number + 2, by_batch=True)
        history.append(Step(before, after, made))
        before = after
        for product, amount in changes:
            state.pop(product, None)
            if amount is not None:
                state[product] = amount
        states.append(
            {product: amount for product, amount in state.items() if fits(amount) and fits_key(product)}
        )
        # Who is slow takes several together.
        if data.draw(st.booleans()) or number == len(batches) - 1:
            end = data.draw(st.integers(at, number + 1)) if number < len(batches) - 1 else number + 1
            while at < end:
                frame = _at_once(lens.frame(at, end))
                assert at < frame.next <= end
                _apply(rows, frame)
                at = frame.next
                assert rows == states[at]
                assert json.loads(frame.messages[-1].data)["batches"]["last"] == at - 1
    # Somebody who comes with a cursor, from any batch on.
    begin = data.draw(st.integers(0, len(batches)))
    copied = dict(states[begin])
    changes_since, number = history.joint(history.border(begin))
    assert (changes_since, number) == ([], begin)
    while number < len(batches):
        frame = _at_once(lens.frame(number, len(batches)))
        _apply(copied, frame)
        number = frame.next
    assert copied == states[-1]
