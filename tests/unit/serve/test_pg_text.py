"""PostgreSQL's protocol without a connection: where statements end, and arrays and numbers as it writes them."""

from __future__ import annotations

import contextlib
import struct
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.serve.pgwire.arrays import array_binary, array_text
from headrace.serve.pgwire.cursor import Declared, Fetched, declared, fetched
from headrace.serve.pgwire.parameters import value_of
from headrace.serve.pgwire.rows import row_bytes
from headrace.serve.pgwire.splitting import bare, pieces_of, statements_of
from headrace.serve.pgwire.turning import turned_text
from headrace.serve.sql.errors import SqlUnfit

_WHOLE = st.sampled_from(
    [
        "'a;b'",
        "'it''s;'",
        '"q;""x"',
        "$$;$$",
        "$t$;$$;$t$",
        "/* ; */",
        "-- ;\n",
        "E'\\';'",
        "x",
        " ",
        "1",
        "a$b",
        "-",
        "/",
    ]
)


@given(statements=st.lists(st.lists(_WHOLE, max_size=6).map(" ".join), min_size=1, max_size=4))
def test_statements_end_where_their_semicolons_stand_alone(statements: list[str]) -> None:
    assert [*statements_of(";".join(statements))] == statements


@given(text=st.text(alphabet="'\"$;/*-eE\\\n a1", max_size=60))
def test_no_letter_is_lost_whatever_the_text(text: str) -> None:
    assert "".join(piece for piece, _ in pieces_of(text)) == text
    assert ";".join(statements_of(text)) == text
    assert bare(text) in text


@pytest.mark.parametrize(
    "text", ["/*" * 50_000, "$a" * 50_000, "$a$" * 33_333, "'" * 99_999, "-- \n" * 25_000, "E'\\" * 33_333]
)
def test_a_text_made_to_be_slow_is_read_in_one_pass(text: str) -> None:
    """Otherwise this would take minutes."""
    assert ";".join(statements_of(text)) == text
    assert turned_text(f"{text} pg_catalog") != ""
    assert len(bare(text)) <= len(text)


def test_words_are_turned_only_where_they_are_no_names() -> None:
    for sql, turned in (
        (
            'SELECT current_user, "user", t.user, x AS user',
            'SELECT current_user(), "user", t.user, x AS user',
        ),
        ("SELECT USER, 'user', user(), $$user$$", "SELECT USER(), 'user', user(), $$user$$"),
        ("c::pg_catalog.text OPERATOR(pg_catalog.~) '::pg_catalog.'", "c::text ~ '::pg_catalog.'"),
        ('a COLLATE pg_catalog."default" -- pg_catalog', "a  -- pg_catalog"),
    ):
        assert turned_text(sql) == turned


_TEXTS = st.lists(
    st.none() | st.text(alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
)


@given(values=_TEXTS)
def test_an_array_of_texts_comes_back_as_it_was(values: list[str | None]) -> None:
    assert value_of(array_text(values, str.encode), 1009, binary=False) == values
    assert value_of(array_binary(values, 25, str.encode), 1009, binary=True) == values


@pytest.mark.parametrize(
    "text", ["", "{", "}", "{a", "a}", "{a,}", "{,}", "{{1}}", '{"a}', "{a}b", "{ " * 9_999, '{"a"b}']
)
def test_what_is_no_array_is_refused(text: str) -> None:
    with pytest.raises(SqlUnfit):
        value_of(text.encode(), 1007, binary=False)


@given(
    raw=st.binary(max_size=60),
    oid=st.sampled_from([16, 17, 20, 23, 701, 1007, 1009, 1082, 1184, 1231, 1700, 2950]),
)
def test_binary_of_any_bytes_is_a_value_or_refused(raw: bytes, oid: int) -> None:
    with contextlib.suppress(SqlUnfit, UnicodeDecodeError):
        value_of(raw, oid, binary=True)


@given(value=st.decimals(-(10**30), 10**30, allow_nan=False, allow_infinity=False, places=6))
def test_a_number_sent_as_binary_is_read_as_the_same_number(value: Decimal) -> None:
    table = pa.table({"a": pa.array([value], pa.decimal128(38, 6))})
    _, made = row_bytes(table.to_reader(), ["DECIMAL(38,6)"], [True], 1, 10_000)
    (length,) = struct.unpack_from(">i", made, 7)
    told = value_of(made[11 : 11 + length], 1700, binary=True)
    assert isinstance(told, str)
    assert Decimal(told) == value


def test_cursors_are_read_forward() -> None:
    text = 'DECLARE "a ""b" BINARY NO SCROLL CURSOR WITH HOLD FOR SELECT 1'
    assert declared(text) == Declared('a "b', "SELECT 1", binary=True, hold=True)
    assert declared("declare C cursor for select 1") == Declared("c", "select 1", binary=False, hold=False)
    assert fetched("FETCH FORWARD 10 FROM c") == Fetched("c", 10, moves=False)
    assert fetched("fetch all in C") == Fetched("c", 0, moves=False)
    assert fetched("MOVE c") == Fetched("c", 1, moves=True)
    assert fetched("FETCH BACKWARD 1 FROM c") is None
    assert fetched("FETCH 0 FROM c") is None
