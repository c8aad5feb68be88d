"""The contract of a store, as to values: what goes in comes out, also as a key, or is refused beforehand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.model.errors import ValueDoesNotFit
from headrace.model.kinds import Digits, Field, Kind, Plain
from headrace.views.position import Shape
from headrace.views.rows import Row
from headrace.views.store import Store
from tests.contract.see import See
from tests.contract.store_hand import EVERYTHING, ROWS, Hand, changes
from tests.contract.store_writer import SHAPE


def test_every_value_that_is_not_refused_comes_back_as_it_was_put_in(see: See, hand: Hand) -> None:
    @settings(max_examples=20 if see.dear else 60)
    @given(rows=st.lists(ROWS, max_size=18 if see.dear else 6, unique_by=lambda row: row[0]))
    def holds(rows: list[Row]) -> None:
        hand.serve(EVERYTHING)
        rows = [row for row in rows if not is_refused(hand.store, EVERYTHING, row)]
        hand.apply(changes(EVERYTHING, *rows))
        found = sorted(hand.store.rows(), key=lambda row: str(row[0]))
        rows.sort(key=lambda row: str(row[0]))
        assert found == rows
        assert [list(map(type, row)) for row in found] == [list(map(type, row)) for row in rows]

    holds()


def is_refused(store: Store, shape: Shape, row: Row) -> bool:
    refusals = store.refusals(shape)
    try:
        if refusals is not None:
            refusals.row(row)
    except ValueDoesNotFit:
        return True
    return False


@pytest.mark.parametrize(
    "text",
    ["", " ", "\t\n\r\\", "\\N", "\\.", "\x01\x1f\x7f", "ä€😀", "\ufeff\ufffe\uffff", "'\"{},", "NULL"],
)
def test_texts_that_formats_have_a_meaning_for_are_texts(hand: Hand, text: str) -> None:
    hand.serve(EVERYTHING)
    row: Row = (text, None, None, None, None, text.encode())
    hand.apply(changes(EVERYTHING, row, (text + "x", 1, 2.0, False, "-0.000001", b"")))
    assert next(iter(hand.store.rows())) == row
    hand.apply(changes(EVERYTHING, gone=((text,),)))
    assert [one[0] for one in hand.store.rows()] == [text + "x"]


def test_a_row_that_is_refused_is_refused_by_its_key_as_well(hand: Hand) -> None:
    """So that a deletion of what was never there stops nothing."""
    refusals = hand.store.refusals(SHAPE)
    for key in ("a\0b", "\0", "x" * 100_000):
        row: Row = (key, 1)
        if refusals is not None and is_refused(hand.store, SHAPE, row):
            with pytest.raises(ValueDoesNotFit):
                refusals.key((key,))
        else:
            hand.serve()
            hand.apply(changes(SHAPE, row))
            assert list(hand.store.rows()) == [row]


KEYS: dict[str, tuple[Kind, list[Any]]] = {
    "float": (Plain("float"), [-1e308, 0.0, 5e-324, float("inf"), float("-inf")]),
    "int": (Plain("int"), [-(2**63), 0, 2**63 - 1]),
    "bool": (Plain("bool"), [False, True]),
    "digits": (Digits(20, 4), ["-9999999999999999.9999", "0.0000", "9007199254740993.0001"]),
    "time": (Plain("time"), ["0001-01-01T00:00:00.000001Z", "2026-01-31T12:00:00.999999Z"]),
    "date": (Plain("date"), ["0001-01-01", "9999-12-31"]),
    "bytes": (Plain("bytes"), [b"", b"\0", b"\xff" * 80]),
    "text": (Plain("text"), ["x" * 100 + "a", "x" * 100 + "b", "\U0010ffff" * 40]),
}


@pytest.mark.parametrize("kind", list(KEYS))
def test_a_key_of_any_kind_is_put_replaced_and_deleted(hand: Hand, kind: str) -> None:
    shape = Shape((Field("at", KEYS[kind][0], False), Field("n", Plain("int"), True)), ("at",))
    keys = [key for key in KEYS[kind][1] if not is_refused(hand.store, shape, (key, 1))]
    assert keys
    hand.serve(shape)
    for number in range(2):
        hand.apply(changes(shape, *((key, number) for key in keys)))
    assert sorted(hand.store.rows(), key=str) == sorted(((key, 1) for key in keys), key=str)
    hand.apply(changes(shape, gone=tuple((key,) for key in keys[1:])))
    assert list(hand.store.rows()) == [(keys[0], 1)]


def test_a_key_of_several_columns_is_one_key(hand: Hand) -> None:
    shape = Shape((Field("a", Plain("text"), False), Field("b", Plain("int"), False)), ("b", "a"))
    hand.serve(shape)
    hand.apply(changes(shape, ("x", 1), ("x", 2), ("y", 1)))
    hand.apply(changes(shape, gone=((1, "x"),)))
    assert list(hand.store.rows()) == [("y", 1), ("x", 2)]


@pytest.mark.parametrize("unfit", [("b", 2**63), ("b\ud800", 1)], ids=["2**63", "lone surrogate"])
def test_a_batch_with_a_row_that_the_store_refuses_changes_nothing(see: See, hand: Hand, unfit: Row) -> None:
    hand.serve()
    hand.apply(changes(SHAPE, ("a", 1)))
    with pytest.raises((OverflowError, UnicodeEncodeError)):
        hand.apply(changes(SHAPE, ("a", 2), unfit, gone=(("c",),)))
    assert see.look() == (0, [("a", 1)])
    hand.apply(changes(SHAPE, ("a", 3)))
    assert see.look() == (1, [("a", 3)])
