"""The walk in C gives the verdict of the plain walk on every input, and touches no byte outside of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.records import InvalidRecords, RecordLimits
from headrace.records._walk import walk
from headrace.records.parser import SLACK, parse_facts, plain_header
from headrace.records.quick_walk import quick_walk
from headrace.records.record import walk_records

from .making import HEADER, INT64_MAX, INT64_MIN, Lie, made_by_kafka_python, stamped, varint

FUZZ = Path(__file__).with_name("fuzz_parser.py")
LIMITS = RecordLimits(headers_max=5)


def rule_of(payload, count):
    """What the plain walk says: facts, or the words of its refusal."""
    try:
        return walk_records(payload, 0, len(payload), range(count), LIMITS)
    except InvalidRecords as error:
        return error.message


def quick_of(payload, count):
    try:
        return quick_walk(payload, 0, count, LIMITS)
    except InvalidRecords as error:
        return error.message


def parsed(payload, count):
    whole = plain_header(len(payload), count) + payload + SLACK
    return parse_facts(memoryview(whole)[: -len(SLACK)], 0, LIMITS)


def hold_together(payload, count):
    rule = rule_of(payload, count)
    # The refusal names the same record and the same fault, also where the C walk has gone on to the bad one.
    assert quick_of(payload, count) == rule
    walked, position, *_ = walk(payload, 0, count, LIMITS.headers_max)
    assert (walked == count) == (not isinstance(rule, str))
    assert 0 <= position <= len(payload)
    proven = parsed(payload, count)
    if proven is not None:
        assert proven == rule


@given(stamped())
def test_all_three_agree_on_honest_records(records):
    payload = made_by_kafka_python(records)[HEADER.size :]
    hold_together(payload, len(records))
    assert not isinstance(quick_of(payload, len(records)), str)


@given(stamped(), st.data())
def test_none_of_the_three_proves_what_another_refuses(records, data):
    payload = bytearray(made_by_kafka_python(records)[HEADER.size :])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(payload) - 1))
        what = data.draw(st.sampled_from(["flip", "set", "insert", "delete"]))
        if what == "flip":
            payload[at] ^= 1 << data.draw(st.integers(0, 7))
        elif what == "set":
            payload[at] = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0x81, 0xFF]))
        elif what == "insert":
            payload[at:at] = data.draw(
                st.sampled_from([b"\x80", b"\x00", varint(-1), varint(2**31), varint(5, 6), varint(1, 5)])
            )
        elif len(payload) > 1:
            del payload[at]
    hold_together(bytes(payload), max(1, len(records) + data.draw(st.integers(-1, 1))))


@given(st.binary(max_size=40), st.integers(1, 4))
def test_all_three_agree_on_noise(payload, count):
    hold_together(payload, count)


numbers = st.integers(INT64_MIN, INT64_MAX) | st.sampled_from(
    [sign * 2**bits + more for bits in (6, 7, 13, 31, 32, 62) for sign in (1, -1) for more in (-1, 0, 1)]
)


@given(numbers, st.integers(0, 11))
@example(INT64_MIN, 0)
@example(INT64_MAX, 10)
def test_numbers_of_any_width_and_padding_are_judged_alike(number, width):
    padded = varint(number, width)
    body = b"\x00" + padded + varint(0) + varint(-1) + varint(-1) + varint(0)
    hold_together(varint(len(body)) + body, 1)
    hold_together(Lie(offset_delta=padded).encode(), 1)
    hold_together(Lie(length=padded).encode(), 1)
    hold_together(Lie(key_part=padded).encode(), 1)
    hold_together(Lie(header_part=padded).encode(), 1)


# The edges of every range of UTF-8: overlong forms, surrogates, the last code point, cut off in the middle.
leads = st.sampled_from([0x00, 0x7F, 0x80, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xEC, 0xED, 0xEE, 0xEF])
higher = st.sampled_from([0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFF])
trails = st.lists(st.sampled_from([0x00, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0]), max_size=4)


@given(st.binary(max_size=6) | st.builds(lambda a, b, c: bytes([a, *b, *c]), leads | higher, trails, trails))
def test_header_names_are_utf8_as_python_reads_it(name):
    hold_together(Lie(headers=[(name, b"v"), (b"ok", None)]).encode(), 1)


def test_the_last_record_counts_only_if_it_ends_where_the_bytes_do():
    payload = Lie().encode() + Lie(index=1).encode()
    assert walk(payload, 0, 2, 0)[:2] == (2, len(payload))
    assert walk(payload + b"\x00", 0, 2, 0)[:2] == (1, len(payload) // 2)
    assert walk(payload, 0, 1, 0)[:2] == (0, 0)


def test_it_takes_any_buffer_and_refuses_a_start_outside_of_it():
    payload = bytearray(b"xxx" + Lie(delta=-4, key=None).encode())
    for buffer in (payload, bytes(payload), memoryview(payload)):
        assert walk(buffer, 3, 1, 0) == (1, len(payload), -4, -4, True)
    for start in (-1, len(payload) + 1):
        with pytest.raises(ValueError, match="outside"):
            walk(payload, start, 1, 0)
    assert walk(b"", 0, 1, 0)[:2] == (0, 0)


def test_hostile_bytes_never_make_it_read_past_the_end():
    command = [sys.executable, FUZZ, "--parser", "own", "--cases", "8000", "--slack", "0", "--seed", "7"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert run.returncode == 0, run.stderr
    assert "8000 cases" in run.stdout
    assert int(run.stdout.split()[2]) > 200, "too few cases got past the first record"
