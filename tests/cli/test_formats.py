"""Percent formats: printing, parsing, and round trips."""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.format.modifiers import InputError
from headrace.cli.format.printer import compile_printer
from headrace.cli.format.reader import compile_reader
from headrace.cli.format.source import Source
from headrace.cli.format.template import FormatError
from headrace.cli.record import Record

RECORD = Record(
    topic="orders",
    partition=2,
    offset=47,
    timestamp=1_794_735_000_123,
    timestamp_type=0,
    key=b"k1",
    value=b'{"n": 1}',
    headers=[("trace", b"\x00\xff"), ("empty", None)],
    leader_epoch=5,
    log_start=3,
    high_watermark=99,
)


def printed(template: str, record: Record = RECORD, count: int = 1) -> bytes:
    return compile_printer(template)(record, count)


def in_chunks(data: bytes, size: int = 7) -> Source:
    """Return a source whose bytes arrive a few at a time, as from a pipe."""
    chunks = iter([data[at : at + size] for at in range(0, len(data), size)])
    return Source(lambda: next(chunks, b""))


def read(template: str, data: bytes, chunk: int = 7) -> list[Record]:
    return list(compile_reader(template).read(in_chunks(data, chunk), topic="default"))


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("%t %p %o %e", b"orders 2 47 5"),
        ("%k=%v", b'k1={"n": 1}'),
        ("%T %K %V %H %i", b"6 2 8 2 1"),
        ("%[ %]", b"3 99"),
        (r"%%\t\n\r\\\x00\xff", b"%\t\n\r\\\x00\xff"),
        ("%{%k%}", b"{k1}"),
        ("%k{hex} %k{base64} %k{base64raw}", b"6b31 azE= azE"),
        ("%v{json}|%k{json}", b'{"n":1}|"k1"'),
        ("%h{[%k=%v{hex}]}", b"[trace=00ff][empty=]"),
        ("%h{%K:%V;}", b"5:2;5:0;"),
        ("%d %d{unix}", b"1794735000123 1794735000"),
        ("%d{iso}", b"2026-11-15T09:30:00.123Z"),
        ("%d{strftime[%F %T]}", b"2026-11-15 09:30:00"),
        ("%d{strftime### [%F] ###}", b" [2026-11-15] "),
        ("%d{strftime{{%H}}}", b"09"),
        ("%d{go[2006-01-02T15:04:05.000Z07:00]}", b"2026-11-15T09:30:00.123Z"),
        ("%d{go[Mon, 2 Jan 2006 03:04PM MST]}", b"Sun, 15 Nov 2026 09:30AM UTC"),
        ("%a{timestamp-type} %a{timestamp-type;bool}", b"0 false"),
        ("%o{hex8} %o{hex4} %H{bool}", b"2f f true"),
        ("ä%k", "äk1".encode()),
        (
            "%v{unpack[>B.s$]} %k{unpack[>h$]} %k{unpack[b$]} %k{unpack[q]}",
            b'123"n": 1} 27441 107(1 bytes left) (6 bytes short)',
        ),
    ],
)
def test_a_record_is_printed_by_the_format(template: str, expected: bytes) -> None:
    assert printed(template) == expected


def test_a_null_key_and_a_null_value_print_as_nothing() -> None:
    assert printed("<%k|%K|%v|%V>", Record("t")) == b"<|0||0>"


@pytest.mark.parametrize(
    "template",
    [
        "%",
        "%q",
        "\\",
        r"\q",
        r"\x1",
        "%v{",
        "%v{nope}",
        "%v{hex[1]}",
        "%K{big7}",
        "%h",
        "%h{%o}",
        "%d{strftime}",
        "%d{strftime[%F}",
        "%x",
        "%|",
        "%a{compression}",
        "%v{unpack[z]}",
    ],
)
def test_an_invalid_format_is_rejected_before_anything_is_printed(template: str) -> None:
    with pytest.raises(FormatError):
        compile_printer(template)


@given(st.text(max_size=20) | st.text("%\\{}[]#tkvhpodTKVHiex1n ", max_size=25))
def test_any_text_is_a_valid_format_or_an_error(template: str) -> None:
    for compile_it in (
        compile_printer,
        compile_reader,
    ):
        with suppress(FormatError):
            compile_it(template)


@given(st.integers(0, 2**63 - 1), st.sampled_from([8, 16, 32, 64]))
def test_numbers_print_as_the_bytes_of_struct_pack(number: int, bits: int) -> None:
    record = Record("t", offset=number)
    low = number % 2**bits
    code = {8: "B", 16: "H", 32: "I", 64: "Q"}[bits]
    assert printed(f"%o{{big{bits}}}", record) == struct.pack(f">{code}", low)
    assert printed(f"%o{{little{bits}}}", record) == struct.pack(f"<{code}", low)
    assert printed(f"%o{{hex{bits}}}", record) == f"{low:0{bits // 4}x}".encode()


@given(st.integers(0, 253_402_300_799_999))
def test_strftime_and_go_patterns_agree_with_the_calendar(ms: int) -> None:
    time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
    expected = time.strftime("%y-%m-%d %H:%M:%S")
    record = Record("t", timestamp=ms)
    assert printed("%d{strftime[%y-%m-%d %H:%M:%S]}", record).decode() == expected
    assert printed("%d{go[06-01-02 15:04:05]}", record).decode() == expected


def test_a_timestamp_beyond_the_calendar_is_printed_as_a_number() -> None:
    for ms in (-1, 2**62):
        assert printed("%d{strftime[%F]}", Record("t", timestamp=ms)) == str(ms).encode()


RECORDS = st.lists(
    st.builds(
        Record,
        topic=st.just("default"),
        key=st.binary(max_size=30),
        value=st.binary(max_size=60),
        headers=st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=9)), max_size=3),
        partition=st.integers(0, 1_000),
        timestamp=st.integers(0, 2**50),
    ),
    max_size=6,
)


@given(RECORDS, st.integers(1, 40))
def test_any_record_printed_with_lengths_parses_back(records: list[Record], chunk: int) -> None:
    template = "%K{big32}%k%V{little32}%v%H{byte}%h{%K{big16}%k%V{hex32}%v}%p{big16}%d{big64}"
    data = b"".join(printed(template, record) for record in records)
    assert read(template, data, chunk) == records


@given(RECORDS, st.sampled_from(["hex", "base64"]), st.integers(1, 40))
def test_any_record_printed_as_text_lines_parses_back(
    records: list[Record], encoding: str, chunk: int
) -> None:
    template = rf"%k{{{encoding}}},%v{{{encoding}}}\n"
    data = b"".join(printed(template, record) for record in records)
    back = [(record.key, record.value) for record in read(template, data, chunk)]
    assert back == [(record.key, record.value) for record in records]


@given(
    st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=20)), max_size=5),
    st.binary(min_size=1, max_size=3),
    st.binary(min_size=1, max_size=3),
    st.integers(1, 9),
)
def test_a_field_ends_at_the_first_delimiter(
    pairs: list[tuple[bytes, bytes]], between: bytes, after: bytes, chunk: int
) -> None:
    def escaped(text: bytes) -> str:
        return "".join(f"\\x{byte:02x}" for byte in text)

    data = b"".join(key + between + value + after for key, value in pairs)
    expected = []
    rest = data
    while rest:
        key, found, rest = rest.partition(between)
        value, _, rest = rest.partition(after)
        expected.append((key, value) if found else None)
    template = f"%k{escaped(between)}%v{escaped(after)}"
    if None in expected:
        with pytest.raises(InputError, match="the input ended inside the key"):
            read(template, data, chunk)
    else:
        assert [(record.key, record.value) for record in read(template, data, chunk)] == expected


def test_the_last_line_need_not_end_with_a_newline() -> None:
    assert [record.value for record in read(r"%v\n", b"a\n\nb")] == [b"a", b"", b"b"]
    assert [record.value for record in read(r"%V{1}%v\n", b"a\nb")] == [b"a", b"b"]


@pytest.mark.parametrize(
    ("template", "data", "message"),
    [
        (r"%k,%v\n", b"a,1\nb2\n", "record 2: the input ended inside the key"),
        ("%K{big32}%k", b"\0\0\0\x05ab", "record 1: the input ended inside the key"),
        ("%K%k", b"xab", "record 1: the length of the key b'' does not match the number type"),
        (r"%v{hex}\n", b"00\nzz\n", "record 2: b'zz' is not hexadecimal"),
        (r"%v{base64}\n", b"a!\n", "record 1: b'a!' is not base64"),
        ("%v{json}", b"{nope}", "record 1: b'{nope}' is not JSON"),
        ("<%V{1}%v>", b"<a><b)", r"record 2: expected b'>', found b'\)'"),
    ],
)
def test_the_error_for_invalid_input_has_the_record_number(template: str, data: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(template, data)


@pytest.mark.parametrize("template", ["", "nothing", "%k%v", "%o", "%h{%k}", "%v%v", r"%v{re#a#}\n", "%V{3}"])
def test_a_format_that_cannot_parse_input_is_rejected(template: str) -> None:
    with pytest.raises(FormatError):
        compile_reader(template)


def test_a_format_that_matches_zero_bytes_is_rejected() -> None:
    for template in ("%V{0}%v", "%H{0}%h{%k;}", "%p{3}"):
        with pytest.raises(InputError, match="matches zero bytes"):
            read(template, b"abc")


def test_json_values_need_no_delimiter() -> None:
    data = b' {"a": "}\\"", "b": [1, {}]}\n[1, 2] "x y" 12 true\n'
    assert [record.value for record in read("%v{json}", data, chunk=3)] == [
        b'{"a":"}\\"","b":[1,{}]}',
        b"[1,2]",
        b'"x y"',
        b"12",
        b"true",
    ]


def test_a_topic_in_the_input_wins_over_the_default() -> None:
    assert [record.topic for record in read(r"%t %v\n", b"a 1\nb 2\n")] == ["a", "b"]


def test_a_field_longer_than_the_limit_is_rejected_before_it_is_read_completely() -> None:
    bytes_read = 0

    def endless() -> bytes:
        nonlocal bytes_read
        bytes_read += 1_000
        return b"x" * 1_000

    reader = compile_reader(r"%v\n").read(Source(endless, field_bytes_max=10_000), topic="t")
    with pytest.raises(InputError, match="longer than 10000 bytes"):
        next(reader)
    assert bytes_read <= 12_000
    with pytest.raises(InputError, match="has 4294967295 headers"):
        read("%H{big32}%h{%K{0}%k}", b"\xff\xff\xff\xff")
    source = Source(lambda: b"\x7f\xff\xff\xff", field_bytes_max=10_000)
    with pytest.raises(InputError, match="a length of 2147483647 bytes"):
        next(compile_reader("%K{big32}%k").read(source, topic="t"))


@given(st.binary(max_size=40))
def test_text_modifiers_match_the_standard_library(value: bytes) -> None:
    forms: dict[str, Callable[[bytes], bytes]] = {
        "hex": lambda text: text.hex().encode(),
        "base64": base64.b64encode,
        "base64raw": lambda text: base64.b64encode(text).rstrip(b"="),
    }
    for name, form in forms.items():
        assert printed(f"%v{{{name}}}", Record("t", value=value)) == form(value)
