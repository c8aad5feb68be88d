"""The C code has the same results as the Python code on every input, and reads no byte outside of it."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.records import InvalidRecords, RecordLimits, build_batch
from headrace.records._walk import read, walk
from headrace.records.batch import fast_validate
from headrace.records.record import BareRecord, fast_read, read_bare_records, read_headers, validate_records

from .batches import HEADER, INT64_MAX, INT64_MIN, ForgedRecord, built_by_kafka_python, stamped, varint

FUZZ = Path(__file__).with_name("fuzz_walk.py")
LIMITS = RecordLimits(headers_max=5)


def result_of(function, *arguments):
    """The result, or the message of the error."""
    try:
        return function(*arguments)
    except InvalidRecords as error:
        return error.message


def expect_same_result(payload, count):
    rule = result_of(validate_records, payload, 0, len(payload), range(count), LIMITS)
    # The error names the same record and the same fault, even if the C code validated the records before it.
    assert result_of(fast_validate, payload, 0, count, LIMITS) == rule
    walked, position, *_ = walk(payload, 0, count, LIMITS.headers_max)
    assert (walked == count) == (not isinstance(rule, str))
    assert 0 <= position <= len(payload)
    for bytes_max in (1, 30, 1 << 20):
        plain = result_of(read_bare_records, payload, 0, range(count), bytes_max)
        assert result_of(fast_read, payload, 0, range(count), bytes_max) == plain
        records_read, position = read(payload, 0, count, bytes_max, BareRecord)
        assert (records_read, position) == plain or isinstance(plain, str)
        assert walked <= len(records_read) or bytes_max < 1 << 20
    return rule


@given(stamped())
def test_c_and_python_agree_on_valid_records(records):
    payload = built_by_kafka_python(records)[HEADER.size :]
    assert not isinstance(expect_same_result(payload, len(records)), str)
    records_read, _ = read(payload, 0, len(records), 1 << 20, BareRecord)
    assert [(r.key, r.value) for r in records_read] == [content[:2] for _, content in records]
    headers = [read_headers(payload, r.headers_at) if r.headers_at else [] for r in records_read]
    assert headers == [content[2] for _, content in records]


@given(stamped(), st.data())
def test_c_and_python_accept_the_same_batches(records, data):
    payload = bytearray(built_by_kafka_python(records)[HEADER.size :])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(payload) - 1))
        change = data.draw(st.sampled_from(["flip", "set", "insert", "delete"]))
        if change == "flip":
            payload[at] ^= 1 << data.draw(st.integers(0, 7))
        elif change == "set":
            payload[at] = data.draw(st.sampled_from([0, 1, 2, 3, 0x7F, 0x80, 0x81, 0xFF]))
        elif change == "insert":
            payload[at:at] = data.draw(
                st.sampled_from([b"\x80", b"\x00", varint(-1), varint(2**31), varint(5, 6), varint(1, 5)])
            )
        elif len(payload) > 1:
            del payload[at]
    expect_same_result(bytes(payload), max(1, len(records) + data.draw(st.integers(-1, 1))))


@given(stamped(), st.data())
def test_c_and_python_refuse_truncated_records(records, data):
    payload = built_by_kafka_python(records)[HEADER.size :]
    cut = payload[: data.draw(st.integers(0, len(payload) - 1))]
    assert isinstance(expect_same_result(cut, len(records)), str)


@given(st.binary(max_size=40), st.integers(1, 4))
def test_c_and_python_agree_on_random_bytes(payload, count):
    expect_same_result(payload, count)


@pytest.mark.parametrize("size", [-2, -3, -64, -65, -(2**31)])
def test_c_and_python_refuse_a_length_below_minus_one(size):
    """librdkafka cannot parse such a length, and never continues after the record."""
    forged = [
        ForgedRecord(key_part=varint(size)),
        ForgedRecord(value_part=varint(size)),
        ForgedRecord(header_part=varint(size)),
        ForgedRecord(header_part=varint(1) + varint(size) + varint(-1)),
        ForgedRecord(header_part=varint(1) + varint(0) + varint(size)),
    ]
    for forged_record in forged:
        assert isinstance(expect_same_result(forged_record.encode(), 1), str)
    null = ForgedRecord(key=None, value=None, headers=[(b"", None)])
    assert not isinstance(expect_same_result(null.encode(), 1), str)


numbers = st.integers(INT64_MIN, INT64_MAX) | st.sampled_from(
    [sign * 2**bits + more for bits in (6, 7, 13, 31, 32, 62) for sign in (1, -1) for more in (-1, 0, 1)]
)


@given(numbers, st.integers(0, 11))
@example(INT64_MIN, 0)
@example(INT64_MAX, 10)
def test_c_and_python_agree_on_numbers_of_any_width_and_padding(number, width):
    padded = varint(number, width)
    body = b"\x00" + padded + varint(0) + varint(-1) + varint(-1) + varint(0)
    expect_same_result(varint(len(body)) + body, 1)
    expect_same_result(ForgedRecord(offset_delta=padded).encode(), 1)
    expect_same_result(ForgedRecord(length=padded).encode(), 1)
    expect_same_result(ForgedRecord(key_part=padded).encode(), 1)
    expect_same_result(ForgedRecord(header_part=padded).encode(), 1)


# The edges of every range of UTF-8: overlong forms, surrogates, the last code point, cut off in the middle.
lead_bytes = st.sampled_from(
    [0x00, 0x7F, 0x80, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xEC, 0xED, 0xEE, 0xEF]
)
higher = st.sampled_from([0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFF])
trail_bytes = st.lists(st.sampled_from([0x00, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0]), max_size=4)


@given(
    st.binary(max_size=6)
    | st.builds(lambda a, b, c: bytes([a, *b, *c]), lead_bytes | higher, trail_bytes, trail_bytes)
)
def test_c_accepts_the_same_utf8_header_names_as_python(name):
    expect_same_result(ForgedRecord(headers=[(name, b"v"), (b"ok", None)]).encode(), 1)


def test_the_last_record_is_valid_only_if_it_ends_with_the_bytes():
    payload = ForgedRecord().encode() + ForgedRecord(index=1).encode()
    assert walk(payload, 0, 2, 0)[:2] == (2, len(payload))
    assert walk(payload + b"\x00", 0, 2, 0)[:2] == (1, len(payload) // 2)
    assert walk(payload, 0, 1, 0)[:2] == (0, 0)


def thread_state_seen_by_another(count, walks):
    """Validate in a thread, many times; return the state of that thread when the calling thread first runs again.

    The switch interval is very long. So the calling thread runs only when a validation releases the GIL, or when all
    are done. It may wake up during any of the validations, so a busy machine does not matter.
    """
    payload = build_batch([(None, None, ())] * count, timestamp_ms=0)[HEADER.size :]
    state = ["ready"]

    def work() -> None:
        state[0] = "walking"
        for _ in range(walks):
            if state[0] == "seen":
                return
            walk(payload, 0, count, 0)
        state[0] = "done"

    thread = threading.Thread(target=work)
    usual = sys.getswitchinterval()
    sys.setswitchinterval(100_000)
    try:
        thread.start()
        while (records_read := state[0]) == "ready":
            time.sleep(0.0001)
        state[0] = "seen"
    finally:
        sys.setswitchinterval(usual)
    thread.join()
    return records_read


def test_a_long_validation_releases_the_gil():
    assert thread_state_seen_by_another(30_000, walks=5_000) == "walking"


def test_a_short_validation_does_not_release_the_gil():
    assert thread_state_seen_by_another(20_000, walks=300) == "done"


def test_any_buffer_is_accepted_but_a_start_outside_of_it_is_refused():
    payload = bytearray(b"xxx" + ForgedRecord(delta=-4, key=None).encode())
    for buffer in (payload, bytes(payload), memoryview(payload)):
        assert walk(buffer, 3, 1, 0) == (1, len(payload), -4, -4, True)
    for start in (-1, len(payload) + 1):
        with pytest.raises(ValueError, match="outside"):
            walk(payload, start, 1, 0)
        with pytest.raises(ValueError, match="outside"):
            read(payload, start, 1, 100, BareRecord)
    assert walk(b"", 0, 1, 0)[:2] == (0, 0)
    assert read(b"", 0, 1, 100, BareRecord) == ([], 0)


def test_the_c_reader_accepts_only_tuple_classes():
    payload = ForgedRecord(delta=-4, key=None, headers=[(b"h", b"x")]).encode()
    (record,), end_position = read(payload, 0, 5, 100, BareRecord)
    assert (type(record), record, end_position) == (
        BareRecord,
        (0, -4, None, b"value", len(payload) - 5),
        len(payload),
    )
    assert read(payload, 0, 1, 100, tuple) == ([tuple(record)], end_position)
    for kind in (list, object, int):
        with pytest.raises(TypeError, match="tuple"):
            read(payload, 0, 1, 100, kind)


def test_hostile_bytes_never_cause_a_read_beyond_the_buffer():
    command = [sys.executable, FUZZ, "--cases", "8000", "--seed", "7"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
    assert run.returncode == 0, run.stderr
    assert "8000 cases" in run.stdout
    assert int(run.stdout.split()[2]) > 200, "too few cases reached the second record"
