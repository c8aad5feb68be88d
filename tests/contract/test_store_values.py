"""The contract of a store for values: it returns a value unchanged, also as a key, or rejects it before the write."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faults.stores.port import StoreFixture
from headrace.model.errors import ValueDoesNotFit
from headrace.model.kinds import Digits, Field, Kind, Scalar
from headrace.stores.position import ViewSchema
from headrace.stores.rows import Row
from headrace.stores.writer import StoreWriter
from tests.contract.store_driver import EVERY_KIND, ROWS, StoreDriver, changes
from tests.contract.store_writer import SCHEMA


def test_every_accepted_value_reads_back_unchanged(backend: StoreFixture, driver: StoreDriver) -> None:
    @settings(max_examples=10 if backend.is_slow else 30)
    @given(rows=st.lists(ROWS, max_size=18 if backend.is_slow else 6, unique_by=lambda row: row[0]))
    def holds(rows: list[Row]) -> None:
        driver.serve(EVERY_KIND)
        rows = [row for row in rows if not is_rejected(driver.store, EVERY_KIND, row)]
        driver.apply(changes(EVERY_KIND, *rows))
        found = sorted(driver.store.rows(), key=lambda row: str(row[0]))
        rows.sort(key=lambda row: str(row[0]))
        assert found == rows
        assert [list(map(type, row)) for row in found] == [list(map(type, row)) for row in rows]

    holds()


def is_rejected(store: StoreWriter, schema: ViewSchema, row: Row) -> bool:
    limits = store.limits(schema)
    try:
        if limits is not None:
            limits.check_row(row)
    except ValueDoesNotFit:
        return True
    return False


@pytest.mark.parametrize(
    "text",
    ["", " ", "\t\n\r\\", "\\N", "\\.", "\x01\x1f\x7f", "ä€😀", "\ufeff\ufffe\uffff", "'\"{},", "NULL"],
)
def test_text_equal_to_a_format_marker_is_stored_unchanged(driver: StoreDriver, text: str) -> None:
    driver.serve(EVERY_KIND)
    row: Row = (text, None, None, None, None, text.encode())
    driver.apply(changes(EVERY_KIND, row, (text + "x", 1, 2.0, False, "-0.000001", b"")))
    assert next(iter(driver.store.rows())) == row
    driver.apply(changes(EVERY_KIND, deleted=((text,),)))
    assert [row[0] for row in driver.store.rows()] == [text + "x"]


def test_a_key_that_is_rejected_in_a_row_is_rejected_in_a_deletion(driver: StoreDriver) -> None:
    """A deletion of such a key must raise ``ValueDoesNotFit``. An error of the store would stop the follower."""
    limits = driver.store.limits(SCHEMA)
    for key in ("a\0b", "\0", "x" * 100_000):
        row: Row = (key, 1)
        if limits is not None and is_rejected(driver.store, SCHEMA, row):
            with pytest.raises(ValueDoesNotFit):
                limits.check_key((key,))
        else:
            driver.serve()
            driver.apply(changes(SCHEMA, row))
            assert list(driver.store.rows()) == [row]


KEYS: dict[str, tuple[Kind, list[Any]]] = {
    "float": (Scalar("float"), [-1e308, 0.0, 5e-324, float("inf"), float("-inf")]),
    "int": (Scalar("int"), [-(2**63), 0, 2**63 - 1]),
    "bool": (Scalar("bool"), [False, True]),
    "digits": (Digits(20, 4), ["-9999999999999999.9999", "0.0000", "9007199254740993.0001"]),
    "time": (Scalar("time"), ["0001-01-01T00:00:00.000001Z", "2026-01-31T12:00:00.999999Z"]),
    "date": (Scalar("date"), ["0001-01-01", "9999-12-31"]),
    "bytes": (Scalar("bytes"), [b"", b"\0", b"\xff" * 80]),
    "text": (Scalar("text"), ["x" * 100 + "a", "x" * 100 + "b", "\U0010ffff" * 40]),
}


@pytest.mark.parametrize("kind", list(KEYS))
def test_a_key_of_any_kind_can_be_put_replaced_and_deleted(driver: StoreDriver, kind: str) -> None:
    schema = ViewSchema((Field("at", KEYS[kind][0], False), Field("n", Scalar("int"), True)), ("at",))
    keys = [key for key in KEYS[kind][1] if not is_rejected(driver.store, schema, (key, 1))]
    assert keys
    driver.serve(schema)
    for number in range(2):
        driver.apply(changes(schema, *((key, number) for key in keys)))
    assert sorted(driver.store.rows(), key=str) == sorted(((key, 1) for key in keys), key=str)
    driver.apply(changes(schema, deleted=tuple((key,) for key in keys[1:])))
    assert list(driver.store.rows()) == [(keys[0], 1)]


def test_rows_are_deleted_by_all_columns_of_a_composite_key(driver: StoreDriver) -> None:
    schema = ViewSchema((Field("a", Scalar("text"), False), Field("b", Scalar("int"), False)), ("b", "a"))
    driver.serve(schema)
    driver.apply(changes(schema, ("x", 1), ("x", 2), ("y", 1)))
    driver.apply(changes(schema, deleted=((1, "x"),)))
    assert list(driver.store.rows()) == [("y", 1), ("x", 2)]


@pytest.mark.parametrize("invalid_row", [("b", 2**63), ("b\ud800", 1)], ids=["2**63", "lone surrogate"])
def test_a_batch_with_a_row_that_the_store_refuses_changes_nothing(
    backend: StoreFixture, driver: StoreDriver, invalid_row: Row
) -> None:
    driver.serve()
    driver.apply(changes(SCHEMA, ("a", 1)))
    with pytest.raises((OverflowError, UnicodeEncodeError)):
        driver.apply(changes(SCHEMA, ("a", 2), invalid_row, deleted=(("c",),)))
    assert backend.read() == (0, [("a", 1)])
    driver.apply(changes(SCHEMA, ("a", 3)))
    assert backend.read() == (1, [("a", 3)])
