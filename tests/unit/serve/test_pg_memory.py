"""What a connection in PostgreSQL's protocol keeps is counted in bytes of memory."""

from __future__ import annotations

import sys

import pytest

from headrace.serve.errors import ServeError
from headrace.serve.pgwire.kept import Kept, KeptByAll
from headrace.serve.pgwire.portal import Portal, Prepared
from headrace.serve.pgwire.shelf import NAME_BYTES_MAX, Shelf
from headrace.serve.pgwire.sql_state import Troubled
from headrace.serve.sql.messages import Answered, Column
from headrace.serve.sql.statement import expect_short

_BYTES_MAX = 1 << 20
_WIDE = "\N{BALLOON}" + "x" * 20_000
"""One wide character makes each of the others four bytes wide."""


@pytest.fixture
def all_of_them() -> KeptByAll:
    return KeptByAll(8 * _BYTES_MAX)


@pytest.fixture
def shelf(all_of_them: KeptByAll) -> Shelf:
    return Shelf(Kept(all_of_them, _BYTES_MAX, 400))


@pytest.mark.parametrize("name", ["n" * 64, "\N{BALLOON}" * 16])
def test_a_name_of_more_than_63_bytes_is_refused(shelf: Shelf, all_of_them: KeptByAll, name: str) -> None:
    prepared = Prepared("SELECT 1", [])
    for put in (
        lambda: shelf.put_statement(name, prepared),
        lambda: shelf.put_portal(name, Portal(prepared, [], [], name)),
    ):
        with pytest.raises(Troubled) as refused:
            put()
        assert refused.value.trouble.state == "42622"
        assert "64 bytes (limit 63)" in refused.value.trouble.message
    assert all_of_them.bytes == 0
    shelf.put_statement("n" * NAME_BYTES_MAX, prepared)


def _fill(shelf: Shelf, put: object) -> int:
    """How many were taken before one was refused."""
    assert callable(put)
    for number in range(400):
        try:
            put(f"{number}")
        except ServeError:
            return number
    return 400


def test_a_wide_statement_counts_with_the_memory_it_takes(shelf: Shelf, all_of_them: KeptByAll) -> None:
    count = _fill(shelf, lambda name: shelf.put_statement(name, Prepared(_WIDE + name, [])))
    assert 0 < count * sys.getsizeof(_WIDE) <= _BYTES_MAX
    assert all_of_them.bytes <= _BYTES_MAX


def test_types_of_parameters_count_with_the_memory_they_take(shelf: Shelf) -> None:
    oids = [*range(1_000, 6_000)]
    count = _fill(shelf, lambda name: shelf.put_statement(name, Prepared("SELECT 1", [*oids])))
    assert 0 < count * (sys.getsizeof(oids) + 28 * len(oids)) <= _BYTES_MAX


def test_a_portal_counts_with_its_statement_which_may_have_been_closed(shelf: Shelf) -> None:
    count = _fill(shelf, lambda name: shelf.put_portal(name, Portal(Prepared(_WIDE + name, []), [], [])))
    assert 0 < count * sys.getsizeof(_WIDE) <= _BYTES_MAX


def test_values_formats_and_columns_of_a_portal_are_counted() -> None:
    bare = Portal(Prepared("SELECT 1", []), [], [])
    full = Portal(Prepared("SELECT 1", []), ["v" * 500, ["a" * 300, None]], [0] * 100)
    full.is_answered(Answered([Column("c" * 700, "INTEGER")], [], 0, b"x" * 900))
    assert full.size_bytes - bare.size_bytes > 500 + 300 + 800 + 700 + 900


def test_a_statement_that_is_refused_leaves_nothing_behind_that_is_not_counted(
    shelf: Shelf, all_of_them: KeptByAll
) -> None:
    shelf.put_statement("s", Prepared("SELECT 1", []))
    with pytest.raises(ServeError):
        shelf.put_statement("s", Prepared("x" * 2 * _BYTES_MAX, []))
    assert all_of_them.bytes == 0
    with pytest.raises(Troubled):
        shelf.statement("s")


def test_rows_in_portions_take_no_more_memory_than_the_answer() -> None:
    row = b"D\0\0\0\x0a\0\1\0\0\0\0"
    portal = Portal(Prepared("SELECT 1", []), [], [])
    portal.is_answered(Answered([Column("c", "TEXT")], [], 5, row * 5))
    before = portal.size_bytes
    assert portal.some(2) == (row * 2, 2)
    assert portal.size_bytes == before
    assert portal.some(2) == (row * 2, 2)
    assert not portal.done
    assert portal.some(0) == (row, 1)
    assert portal.done
    assert portal.some(0) == (b"", 0)
    assert portal.size_bytes == before - len(row) * 5


def test_sql_has_a_limit_in_bytes() -> None:
    expect_short("x" * 100_000)
    for sql in ("x" * 100_001, "\N{BALLOON}" * 25_001):
        with pytest.raises(ServeError, match="limit 100000"):
            expect_short(sql)
