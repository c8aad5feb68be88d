"""What is done in C gives the verdict of the plain code on every input, and touches no byte outside of it."""

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
from headrace.records.quick_walk import quick_read, quick_walk
from headrace.records.record import BareRecord, read_bare_records, read_headers, walk_records

from .making import HEADER, INT64_MAX, INT64_MIN, Lie, made_by_kafka_python, stamped, varint

FUZZ = Path(__file__).with_name("fuzz_walk.py")
LIMITS = RecordLimits(headers_max=5)


def told(judge, *arguments):
    """What comes back, or the words of the refusal."""
    try:
        return judge(*arguments)
    except InvalidRecords as error:
        return error.message


def hold_together(payload, count):
    rule = told(walk_records, payload, 0, len(payload), range(count), LIMITS)
    # The refusal names the same record and the same fault, also where the C walk has gone on to the bad one.
    assert told(quick_walk, payload, 0, count, LIMITS) == rule
    walked, position, *_ = walk(payload, 0, count, LIMITS.headers_max)
    assert (walked == count) == (not isinstance(rule, str))
    assert 0 <= position <= len(payload)
    for bytes_max in (1, 30, 1 << 20):
        plain = told(read_bare_records, payload, 0, range(count), bytes_max)
        assert told(quick_read, payload, 0, range(count), bytes_max) == plain
        found, position = read(payload, 0, count, bytes_max, BareRecord)
        assert (found, position) == plain or isinstance(plain, str)
        assert walked <= len(found) or bytes_max < 1 << 20
    return rule


@given(stamped())
def test_both_agree_on_honest_records(records):
    payload = made_by_kafka_python(records)[HEADER.size :]
    assert not isinstance(hold_together(payload, len(records)), str)
    found, _ = read(payload, 0, len(records), 1 << 20, BareRecord)
    assert [(r.key, r.value) for r in found] == [content[:2] for _, content in records]
    headers = [read_headers(payload, r.headers_at) if r.headers_at else [] for r in found]
    assert headers == [content[2] for _, content in records]


@given(stamped(), st.data())
def test_neither_takes_what_the_other_refuses(records, data):
    payload = bytearray(made_by_kafka_python(records)[HEADER.size :])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(payload) - 1))
        what = data.draw(st.sampled_from(["flip", "set", "insert", "delete"]))
        if what == "flip":
            payload[at] ^= 1 << data.draw(st.integers(0, 7))
        elif what == "set":
            payload[at] = data.draw(st.sampled_from([0, 1, 2, 3, 0x7F, 0x80, 0x81, 0xFF]))
        elif what == "insert":
            payload[at:at] = data.draw(
                st.sampled_from([b"\x80", b"\x00", varint(-1), varint(2**31), varint(5, 6), varint(1, 5)])
            )
        elif len(payload) > 1:
            del payload[at]
    hold_together(bytes(payload), max(1, len(records) + data.draw(st.integers(-1, 1))))


@given(stamped(), st.data())
def test_records_that_are_cut_short_are_refused_by_both(records, data):
    payload = made_by_kafka_python(records)[HEADER.size :]
    cut = payload[: data.draw(st.integers(0, len(payload) - 1))]
    assert isinstance(hold_together(cut, len(records)), str)


@given(st.binary(max_size=40), st.integers(1, 4))
def test_both_agree_on_noise(payload, count):
    hold_together(payload, count)


@pytest.mark.parametrize("size", [-2, -3, -64, -65, -(2**31)])
def test_a_length_below_that_of_null_is_refused_by_both(size):
    """librdkafka, which takes it for no length at all, never gets past such a record."""
    lies = [
        Lie(key_part=varint(size)),
        Lie(value_part=varint(size)),
        Lie(header_part=varint(size)),
        Lie(header_part=varint(1) + varint(size) + varint(-1)),
        Lie(header_part=varint(1) + varint(0) + varint(size)),
    ]
    for lie in lies:
        assert isinstance(hold_together(lie.encode(), 1), str)
    null = Lie(key=None, value=None, headers=[(b"", None)])
    assert not isinstance(hold_together(null.encode(), 1), str)


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


def seen_by_another_thread(count, walks):
    """What a thread that wants to run finds, when it first can, of one that walks so many times.

    Nobody is made to give way meanwhile: it can run when a walk lets it, or when all walks are done. If they let it,
    it has them all to be woken in, so it does not matter when a busy machine does that.
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
        while (found := state[0]) == "ready":
            time.sleep(0.0001)
        state[0] = "seen"
    finally:
        sys.setswitchinterval(usual)
    thread.join()
    return found


def test_a_long_walk_lets_other_threads_run():
    assert seen_by_another_thread(30_000, walks=5_000) == "walking"


def test_a_short_walk_lets_nobody_run_which_shows_that_the_measure_can_tell():
    assert seen_by_another_thread(20_000, walks=300) == "done"


def test_it_takes_any_buffer_and_refuses_a_start_outside_of_it():
    payload = bytearray(b"xxx" + Lie(delta=-4, key=None).encode())
    for buffer in (payload, bytes(payload), memoryview(payload)):
        assert walk(buffer, 3, 1, 0) == (1, len(payload), -4, -4, True)
    for start in (-1, len(payload) + 1):
        with pytest.raises(ValueError, match="outside"):
            walk(payload, start, 1, 0)
        with pytest.raises(ValueError, match="outside"):
            read(payload, start, 1, 100, BareRecord)
    assert walk(b"", 0, 1, 0)[:2] == (0, 0)
    assert read(b"", 0, 1, 100, BareRecord) == ([], 0)


def test_it_makes_tuples_and_nothing_else():
    payload = Lie(delta=-4, key=None, headers=[(b"h", b"x")]).encode()
    (record,), behind = read(payload, 0, 5, 100, BareRecord)
    assert (type(record), record, behind) == (
        BareRecord,
        (0, -4, None, b"value", len(payload) - 5),
        len(payload),
    )
    assert read(payload, 0, 1, 100, tuple) == ([tuple(record)], behind)
    for kind in (list, object, int):
        with pytest.raises(TypeError, match="no kind of tuple"):
            read(payload, 0, 1, 100, kind)


def test_hostile_bytes_never_make_it_read_past_the_end():
    command = [sys.executable, FUZZ, "--cases", "8000", "--seed", "7"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
    assert run.returncode == 0, run.stderr
    assert "8000 cases" in run.stdout
    assert int(run.stdout.split()[2]) > 200, "too few cases got past the first record"
