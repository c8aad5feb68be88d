"""Query views that combine several steps into one frame, compared with applying the changes one by one."""

from __future__ import annotations

import json
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faults.views.scripted_flow import Sale
from headrace.model.schema import schema_of
from headrace.serve.subscribe.history import History
from headrace.serve.subscribe.log_position import Change, Epoch, LogPosition, Step
from headrace.serve.subscribe.query import SubscriptionQuery
from headrace.serve.subscribe.query_view import Frame, QueryView
from headrace.stores.position import ViewSchema
from headrace.testing.clock import DrivenClock

_SCHEMA = ViewSchema(schema_of(Sale).fields, ("product",))
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
    for message in frame.messages:
        document = json.loads(message.data)
        rows.update((row["product"], row["amount"]) for row in document["rows"])
        for key in document["gone"]:
            rows.pop(key["product"], None)


def _run_without_waiting(pending_frame: Coroutine[Any, Any, Frame]) -> Frame:
    """Run a coroutine to its end. It never waits, because no query in this module matches words."""
    with pytest.raises(StopIteration) as done:
        pending_frame.send(None)
    frame: Frame = done.value.value
    return frame


@settings(max_examples=100, deadline=None)
@given(
    st.lists(_changes, min_size=1, max_size=12),
    st.sampled_from([*_FILTERS]),
    st.sampled_from([*_KEYS]),
    st.data(),
)
def test_any_combination_of_steps_results_in_the_rows_of_the_query(
    batches: list[list[tuple[str, int | None]]],
    text: str | None,
    keys: tuple[str | None, str | None, str | None],
    data: st.DataObject,
) -> None:
    epoch = Epoch("out", "id", 1, "progress", 1, _SCHEMA.to_json(), by_batch=True)
    start = LogPosition({0: 0}, -1, 1, by_batch=True)
    history = History(start, 1_000_000)
    query_view = QueryView(SubscriptionQuery("v", text, *keys), epoch, _SCHEMA, history, DrivenClock())
    matches, matches_key = _FILTERS[text], _KEYS[keys]
    rows: dict[str, int] = {}
    state: dict[str, int] = {}
    states = [{}]
    at, before, offset = 0, start, 0
    for number, changes in enumerate(batches):
        new_changes = [_change(*change, offset + index) for index, change in enumerate(changes)]
        offset += len(changes)
        after = LogPosition({0: offset}, number, number + 2, by_batch=True)
        history.append(Step(before, after, new_changes))
        before = after
        for product, amount in changes:
            state.pop(product, None)
            if amount is not None:
                state[product] = amount
        states.append(
            {product: amount for product, amount in state.items() if matches(amount) and matches_key(product)}
        )
        # A slow subscriber gets several steps in one frame.
        if data.draw(st.booleans()) or number == len(batches) - 1:
            end = data.draw(st.integers(at, number + 1)) if number < len(batches) - 1 else number + 1
            while at < end:
                frame = _run_without_waiting(query_view.frame(at, end))
                assert at < frame.next <= end
                _apply(rows, frame)
                at = frame.next
                assert rows == states[at]
                assert json.loads(frame.messages[-1].data)["batches"]["last"] == at - 1
    # A subscriber may resume from any batch.
    begin = data.draw(st.integers(0, len(batches)))
    resumed_rows = dict(states[begin])
    changes_since, number = history.align(history.border(begin))
    assert (changes_since, number) == ([], begin)
    while number < len(batches):
        frame = _run_without_waiting(query_view.frame(number, len(batches)))
        _apply(resumed_rows, frame)
        number = frame.next
    assert resumed_rows == states[-1]
