"""PostgreSQL's protocol without a connection: statements are split, arrays and numbers are encoded and decoded."""

from __future__ import annotations

import contextlib
import struct
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.serve.errors import SqlInvalid
from headrace.serve.sql.wire.command import (
    DeclareCursor,
    FetchCursor,
    parse_declare,
    parse_fetch,
    split_literals,
    split_statements,
    strip_comments,
)
from headrace.serve.sql.wire.dialect import translate_text
from headrace.serve.sql.wire.parameters import array_binary, array_text, decode_parameter
from headrace.serve.sql.wire.rows import row_bytes

_PIECES = st.sampled_from(
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


@given(statements=st.lists(st.lists(_PIECES, max_size=6).map(" ".join), min_size=1, max_size=4))
def test_statements_end_at_semicolons_outside_literals_and_comments(statements: list[str]) -> None:
    assert [*split_statements(";".join(statements))] == statements


@given(text=st.text(alphabet="'\"$;/*-eE\\\n a1", max_size=60))
def test_splitting_any_text_loses_no_character(text: str) -> None:
    assert "".join(piece for piece, _ in split_literals(text)) == text
    assert ";".join(split_statements(text)) == text
    assert strip_comments(text) in text


@pytest.mark.parametrize(
    "text", ["/*" * 50_000, "$a" * 50_000, "$a$" * 33_333, "'" * 99_999, "-- \n" * 25_000, "E'\\" * 33_333]
)
def test_a_text_built_to_be_slow_is_split_in_one_pass(text: str) -> None:
    """With a quadratic parser this test would take minutes."""
    assert ";".join(split_statements(text)) == text
    assert translate_text(f"{text} pg_catalog") != ""
    assert len(strip_comments(text)) <= len(text)


def test_functions_without_parentheses_are_rewritten_unless_they_are_names() -> None:
    for sql, translated in (
        (
            'SELECT current_user, "user", t.user, x AS user',
            'SELECT current_user(), "user", t.user, x AS user',
        ),
        ("SELECT USER, 'user', user(), $$user$$", "SELECT USER(), 'user', user(), $$user$$"),
        ("c::pg_catalog.text OPERATOR(pg_catalog.~) '::pg_catalog.'", "c::text ~ '::pg_catalog.'"),
        ('a COLLATE pg_catalog."default" -- pg_catalog', "a  -- pg_catalog"),
    ):
        assert translate_text(sql) == translated


_TEXTS = st.lists(
    st.none() | st.text(alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
)


@given(values=_TEXTS)
def test_an_array_of_texts_survives_encoding_and_decoding(values: list[str | None]) -> None:
    assert decode_parameter(array_text(values, str.encode), 1009, binary=False) == values
    assert decode_parameter(array_binary(values, 25, str.encode), 1009, binary=True) == values


@pytest.mark.parametrize(
    "text", ["", "{", "}", "{a", "a}", "{a,}", "{,}", "{{1}}", '{"a}', "{a}b", "{ " * 9_999, '{"a"b}']
)
def test_a_text_that_is_not_an_array_is_refused(text: str) -> None:
    with pytest.raises(SqlInvalid):
        decode_parameter(text.encode(), 1007, binary=False)


@given(
    raw=st.binary(max_size=60),
    oid=st.sampled_from([16, 17, 20, 23, 701, 1007, 1009, 1082, 1184, 1231, 1700, 2950]),
)
def test_any_bytes_as_a_binary_value_are_decoded_or_refused(raw: bytes, oid: int) -> None:
    with contextlib.suppress(SqlInvalid, UnicodeDecodeError):
        decode_parameter(raw, oid, binary=True)


@given(value=st.decimals(-(10**30), 10**30, allow_nan=False, allow_infinity=False, places=6))
def test_a_binary_number_decodes_to_the_same_number(value: Decimal) -> None:
    table = pa.table({"a": pa.array([value], pa.decimal128(38, 6))})
    _, encoded = row_bytes(table.to_reader(), ["DECIMAL(38,6)"], [True], 1, 10_000)
    (length,) = struct.unpack_from(">i", encoded, 7)
    decoded = decode_parameter(encoded[11 : 11 + length], 1700, binary=True)
    assert isinstance(decoded, str)
    assert Decimal(decoded) == value


def test_cursor_statements_parse_and_only_move_forward() -> None:
    text = 'DECLARE "a ""b" BINARY NO SCROLL CURSOR WITH HOLD FOR SELECT 1'
    assert parse_declare(text) == DeclareCursor('a "b', "SELECT 1", binary=True, hold=True)
    assert parse_declare("declare C cursor for select 1") == DeclareCursor(
        "c", "select 1", binary=False, hold=False
    )
    assert parse_fetch("FETCH FORWARD 10 FROM c") == FetchCursor("c", 10, moves=False)
    assert parse_fetch("fetch all in C") == FetchCursor("c", 0, moves=False)
    assert parse_fetch("MOVE c") == FetchCursor("c", 1, moves=True)
    assert parse_fetch("FETCH BACKWARD 1 FROM c") is None
    assert parse_fetch("FETCH 0 FROM c") is None
