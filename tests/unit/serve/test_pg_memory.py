"""The memory that a connection in PostgreSQL's protocol holds is counted in bytes."""

from __future__ import annotations

import sys

import pytest

from headrace.serve.errors import ServeError
from headrace.serve.sql.messages import Column, QueryResponse
from headrace.serve.sql.statement import check_length
from headrace.serve.sql.wire.context import MemoryQuota, SharedQuota
from headrace.serve.sql.wire.frames import StatementFailed
from headrace.serve.sql.wire.prepared_statements import NAME_BYTES_MAX, Portal, Prepared, PreparedStatements

_BYTES_MAX = 1 << 20
_WIDE = "\N{BALLOON}" + "x" * 20_000
"""One character outside ASCII makes every character four bytes wide in memory."""


@pytest.fixture
def shared_quota() -> SharedQuota:
    return SharedQuota(8 * _BYTES_MAX)


@pytest.fixture
def statements(shared_quota: SharedQuota) -> PreparedStatements:
    return PreparedStatements(MemoryQuota(shared_quota, _BYTES_MAX, 400))


@pytest.mark.parametrize("name", ["n" * 64, "\N{BALLOON}" * 16])
def test_a_name_of_more_than_63_bytes_is_refused(
    statements: PreparedStatements, shared_quota: SharedQuota, name: str
) -> None:
    prepared = Prepared("SELECT 1", [])
    for put in (
        lambda: statements.put_statement(name, prepared),
        lambda: statements.put_portal(name, Portal(prepared, [], [], name)),
    ):
        with pytest.raises(StatementFailed) as refused:
            put()
        assert refused.value.pg_error.state == "42622"
        assert "64 bytes (limit 63)" in refused.value.pg_error.message
    assert shared_quota.bytes == 0
    statements.put_statement("n" * NAME_BYTES_MAX, prepared)


def _fill(statements: PreparedStatements, put: object) -> int:
    """The number of accepted puts before the first refusal."""
    assert callable(put)
    for number in range(400):
        try:
            put(f"{number}")
        except ServeError:
            return number
    return 400


def test_a_statement_with_wide_characters_counts_by_its_memory(
    statements: PreparedStatements, shared_quota: SharedQuota
) -> None:
    count = _fill(statements, lambda name: statements.put_statement(name, Prepared(_WIDE + name, [])))
    assert 0 < count * sys.getsizeof(_WIDE) <= _BYTES_MAX
    assert shared_quota.bytes <= _BYTES_MAX


def test_types_of_parameters_count_by_their_memory(statements: PreparedStatements) -> None:
    oids = [*range(1_000, 6_000)]
    count = _fill(statements, lambda name: statements.put_statement(name, Prepared("SELECT 1", [*oids])))
    assert 0 < count * (sys.getsizeof(oids) + 28 * len(oids)) <= _BYTES_MAX


def test_a_portal_counts_its_statement_even_after_the_statement_is_closed(
    statements: PreparedStatements,
) -> None:
    count = _fill(
        statements, lambda name: statements.put_portal(name, Portal(Prepared(_WIDE + name, []), [], []))
    )
    assert 0 < count * sys.getsizeof(_WIDE) <= _BYTES_MAX


def test_values_formats_and_columns_of_a_portal_are_counted() -> None:
    bare = Portal(Prepared("SELECT 1", []), [], [])
    full = Portal(Prepared("SELECT 1", []), ["v" * 500, ["a" * 300, None]], [0] * 100)
    full.set_response(QueryResponse([Column("c" * 700, "INTEGER")], [], 0, b"x" * 900))
    assert full.size_bytes - bare.size_bytes > 500 + 300 + 800 + 700 + 900


def test_a_refused_statement_leaves_no_uncounted_memory(
    statements: PreparedStatements, shared_quota: SharedQuota
) -> None:
    statements.put_statement("s", Prepared("SELECT 1", []))
    with pytest.raises(ServeError):
        statements.put_statement("s", Prepared("x" * 2 * _BYTES_MAX, []))
    assert shared_quota.bytes == 0
    with pytest.raises(StatementFailed):
        statements.statement("s")


def test_rows_sent_in_portions_need_no_more_memory_than_the_result() -> None:
    row = b"D\0\0\0\x0a\0\1\0\0\0\0"
    portal = Portal(Prepared("SELECT 1", []), [], [])
    portal.set_response(QueryResponse([Column("c", "TEXT")], [], 5, row * 5))
    before = portal.size_bytes
    assert portal.take_rows(2) == (row * 2, 2)
    assert portal.size_bytes == before
    assert portal.take_rows(2) == (row * 2, 2)
    assert not portal.done
    assert portal.take_rows(0) == (row, 1)
    assert portal.done
    assert portal.take_rows(0) == (b"", 0)
    assert portal.size_bytes == before - len(row) * 5


def test_the_text_of_a_statement_has_a_limit_in_bytes() -> None:
    check_length("x" * 100_000)
    for sql in ("x" * 100_001, "\N{BALLOON}" * 25_001):
        with pytest.raises(ServeError, match="limit 100000"):
            check_length(sql)
