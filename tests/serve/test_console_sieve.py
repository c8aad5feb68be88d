"""The sieve of a search: it tests bytes before the evaluation and never drops a record that matches."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from headrace.serve.console.expression import parse_condition
from headrace.serve.console.sieve import sieve_of
from headrace.serve.console.where import WHERE_CHARS_MAX, Where
from headrace.serve.errors import InvalidExpression


@dataclass(frozen=True)
class Record:
    """A record with the methods of the Kafka client's records."""

    raw_key: bytes | None
    raw_value: bytes | None
    raw_headers: tuple[tuple[str, bytes | None], ...] = ()

    def key(self) -> bytes | None:
        return self.raw_key

    def value(self) -> bytes | None:
        return self.raw_value

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return [*self.raw_headers] or None

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_767_225_600_000

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return 7


_NAMES = st.sampled_from(["a", "b", "id", "Größe"])
_WORDS = st.one_of(
    st.sampled_from(["", "x", "ab", 'say "x"', "back\\slash", "ß", "🎈", "a\nb", "true", "42", "null", "é"]),
    st.text(max_size=4),
)
_NUMBERS = st.one_of(
    st.sampled_from(
        [0, 1, -1, 42, 42.0, 4.5, -0.0, 10**9, 10**9 + 1, 2**53, 2**53 + 1, 0.1, 1e-7, 1e21, 10**25]
    ),
    st.integers(-(10**6), 10**6),
    st.floats(-1e12, 1e12, allow_nan=False),
)


@st.composite
def _json_text(draw: st.DrawFn, value: Any) -> str:
    """Write the value as JSON in any valid spelling: with optional escapes and spaces, and numbers in any spelling."""
    if isinstance(value, dict):
        pairs = [
            f"{draw(_json_text(name))}{_space(draw)}:{_space(draw)}{draw(_json_text(item))}"
            for name, item in value.items()
        ]
        return "{" + _space(draw) + ",".join(pairs) + _space(draw) + "}"
    if isinstance(value, list):
        return "[" + ",".join(draw(_json_text(item)) for item in value) + "]"
    if isinstance(value, str):
        text = json.dumps(value, ensure_ascii=draw(st.booleans()))
        if value and draw(st.integers(0, 4)) == 0 and value.isascii() and value.isalnum():
            text = '"' + "".join(f"\\u{ord(item):04x}" for item in value) + '"'
        return text
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    text = repr(value)
    spelling = draw(st.integers(0, 5))
    if spelling == 1 and isinstance(value, int):
        return f"{value}.0"
    if spelling == 2 and isinstance(value, int):
        return f"{value}0e-1"
    if spelling == 3 and "e" not in text and "." in text:
        return text + "000"
    if spelling == 4 and isinstance(value, int) and abs(value) < 10**9 and value > 0:
        return f"{value - 1}.{'9' * 25}"
    if spelling == 5 and isinstance(value, int):
        return f"{value}E0"
    return text


def _space(draw: st.DrawFn) -> str:
    return draw(st.sampled_from(["", "", " ", "\n\t"]))


_DOCUMENTS = st.recursive(
    st.one_of(_WORDS, _NUMBERS, st.booleans(), st.none()),
    lambda inner: st.one_of(st.dictionaries(_NAMES, inner, max_size=3), st.lists(inner, max_size=2)),
    max_leaves=6,
)
_VALUES = st.one_of(
    st.dictionaries(_NAMES, _DOCUMENTS, max_size=4).flatmap(_json_text).map(str.encode),
    _DOCUMENTS.flatmap(_json_text).map(str.encode),
    _WORDS.map(str.encode),
    st.binary(max_size=6),
    st.none(),
)
_RECORDS = st.builds(
    Record,
    st.one_of(_WORDS.map(str.encode), st.binary(max_size=4), st.none()),
    _VALUES,
    st.lists(
        st.tuples(_NAMES, st.one_of(st.none(), _WORDS.map(str.encode), st.binary(max_size=3))), max_size=2
    ).map(tuple),
)


def _literal(value: Any) -> str:
    return json.dumps(value) if not isinstance(value, float) else f"{value:.17f}".rstrip("0") + "0"


_PATHS = st.lists(st.sampled_from([".a", ".b", ".id", '["a"]', '["Größe"]', "[0]"]), max_size=2).map("".join)
_ROOTS = st.one_of(
    st.sampled_from(["key", "text", "value", 'headers["a"]', "headers.id"]),
    _PATHS.map(lambda text: f"value{text}"),
)
_LITERALS = st.one_of(
    _WORDS,
    st.integers(-(2**60), 2**60),
    _NUMBERS.filter(lambda text: abs(text) < 2**60),
    st.booleans(),
    st.none(),
).map(_literal)


@st.composite
def _atom(draw: st.DrawFn) -> str:
    root = draw(_ROOTS)
    if draw(st.booleans()):
        method = draw(st.sampled_from(["contains", "startsWith", "endsWith"]))
        return f"{root}.{method}({json.dumps(draw(_WORDS), ensure_ascii=False)})"
    operator = draw(st.sampled_from(["==", "==", "==", "!=", "<", "<=", ">", ">="]))
    sides = [root, draw(_LITERALS)]
    return f" {operator} ".join(sides if draw(st.booleans()) else reversed(sides))


_EXPRESSIONS = st.recursive(
    _atom(),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(" && ".join),
        st.tuples(inner, inner).map(lambda both: f"({both[0]} || {both[1]})"),
        inner.map(lambda text: f"({text})"),
        inner.map(lambda text: f"!({text})"),
        st.tuples(inner, inner).map(lambda both: f"({both[0]} ? true : {both[1]})"),
        inner.map(lambda text: f"({text}) == false"),
    ),
    max_leaves=4,
)


@settings(max_examples=150, deadline=None)
@given(_EXPRESSIONS, st.lists(_RECORDS, min_size=1, max_size=8))
@example("value.a == 42", [Record(None, b'{"a": 41.99999999999999999999999}')])
@example("value.a == 1000000000", [Record(None, b'{"a": 999999999.99999995}')])
@example('value.a == "x"', [Record(None, b'{"\\u0061":"\\u0078"}')])
@example("value.a > 9007199254740992", [Record(None, b'{"a":9007199254740993}')])
@example("value.a == 0.5 && value.b == null", [Record(None, b'{"b" : null, "a":5E-1}')])
@example('value == "say"', [Record(None, b"say"), Record(None, b'"say"')])
@example('value.a == "x" == false', [Record(None, b'{"a":"y"}')])
def test_the_sieve_passes_every_record_that_matches_the_expression(text: str, records: list[Record]) -> None:
    try:
        where = Where(text)
    except InvalidExpression:
        assume(False)
        raise
    sieve = sieve_of(text)
    if sieve is None:
        return
    matches = [record for record in records if where.matches(record)]
    assert [record for record in records if sieve(record) and where.matches(record)] == matches


@pytest.mark.parametrize(
    ("text", "skipped"),
    [
        ('key == "x"', Record(b"y", b"")),
        ('value.a == "x"', Record(b"y", b'{"a":"y"}')),
        ("value.a == 5", Record(b"y", b'{"a":55,"b":5}')),
        ("value.a > 5 && size > 1", Record(b"y", b'{"a":4,"b":50}')),
        ('text.contains("x") && value.a.b.all(one, one > 1)', Record(b"y", b'{"a":"y"}')),
        ('(value.a == true || key == "z")', Record(b"y", b'{"a":false,"b":true}')),
        ('headers["a"] == "x"', Record(b"y", b"", (("a", b"y"),))),
    ],
)
def test_a_comparison_with_a_literal_skips_records_without_evaluation(text: str, skipped: Record) -> None:
    sieve = sieve_of(text)
    assert sieve is not None
    assert not sieve(skipped)


@pytest.mark.parametrize(
    "text",
    [
        "value.a == b'x'",
        "value.a == r'x'",
        "1 == 1",
        "value.a in [1]",
        "value.a",
        '"""x""" == key',
        "key // ==",
        "(((" * 40,
    ],
)
def test_the_sieve_does_not_skip_records_if_it_does_not_understand_the_expression(text: str) -> None:
    assert parse_condition(text) is None
    assert sieve_of(text) is None


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("value.a ==", 1, 11, "mismatched"),
        ("key == 'a' &&\n  vlaue.b > 1", 2, 3, "unknown name 'vlaue'"),
        ("key.lower() == 'a'", 1, 5, "unknown function 'lower'"),
        ("x" * (WHERE_CHARS_MAX + 1), None, None, "characters"),
    ],
)
def test_an_invalid_expression_is_refused_with_the_position_of_the_error(
    text: str, line: int | None, column: int | None, message: str
) -> None:
    with pytest.raises(InvalidExpression, match=message) as refused:
        Where(text)
    assert (refused.value.members.get("line"), refused.value.members.get("column")) == (line, column)


def test_an_expression_on_a_missing_or_unsuitable_field_has_no_result() -> None:
    where = Where("value.a.b > 1")
    assert where.matches(Record(None, b'{"a":{"b":2}}')) is True
    assert where.matches(Record(None, b'{"a":{"b":1}}')) is False
    for raw in (b'{"a":{}}', b'{"a":1}', b"no json", b"\xff", None, b'{"a":{"b":"2"}}'):
        assert where.matches(Record(None, raw)) is None
    assert Where("1 + 1").matches(Record(None, b"")) is None


def test_an_expression_sees_key_value_headers_time_partition_and_offset() -> None:
    record = Record("k€y".encode(), b'{"n": [1, 2]}', (("h", b"v"), ("raw", b"\xff")))
    for text in (
        'key == "k€y"',
        "value.n.exists(one, one == 2) && size(value.n) == 2",
        'headers.h == "v" && headers["raw"] == b"\\xff"',
        'time == timestamp("2026-01-01T00:00:00Z") && timestamp == time',
        "partition == 0 && offset == 7 && size == 13",
        'text == "{\\"n\\": [1, 2]}" && text.matches("(?i)N")',
        "type(value) == map && time.getFullYear() == 2026",
    ):
        assert Where(text).matches(record) is True, text
