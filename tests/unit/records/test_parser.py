"""The C parser is private to aiokafka: these are the facts about it that the check relies on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from aiokafka.errors import CorruptRecordException
from aiokafka.record._crecords.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st

from headrace.records import InvalidRecords, RecordLimits
from headrace.records.parser import SLACK, parse_facts, plain_header
from headrace.records.record import walk_records

from .making import HEADER, Lie, batch_of, made_by_kafka_python, stamped, varint

FUZZ = Path(__file__).with_name("fuzz_parser.py")
LIMITS = RecordLimits(headers_max=5)


def under_plain_header(payload, count):
    whole = plain_header(len(payload), count) + payload + SLACK
    return memoryview(whole)[: -len(SLACK)]


def verdicts(payload, count, first=0):
    view = under_plain_header(payload, count)
    try:
        rule = walk_records(view, HEADER.size, len(view), range(first, first + count), LIMITS)
    except InvalidRecords:
        rule = None
    return parse_facts(view, first, LIMITS), rule


@given(stamped())
def test_parser_and_walk_agree_on_honest_records(records):
    payload = made_by_kafka_python(records)[HEADER.size :]
    parsed, rule = verdicts(payload, len(records))
    assert parsed == rule
    assert rule is not None


@given(stamped(), st.data())
def test_the_parser_never_proves_what_the_walk_refuses(records, data):
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
                st.sampled_from([b"\x80", b"\x00", varint(-1), varint(2**31), varint(5, 6)])
            )
        elif len(payload) > 1:
            del payload[at]
    count = max(1, len(records) + data.draw(st.integers(-1, 1)))
    parsed, rule = verdicts(bytes(payload), count)
    if parsed is not None:
        assert parsed == rule


@pytest.mark.parametrize("first", [0, 1, 60, 63, 64, 8190, 8192, 2**20 - 2])
def test_windows_that_start_anywhere_are_proven(first):
    lies = [Lie(index=first + i, value=bytes(i % 70)) for i in range(80)]
    parsed, rule = verdicts(b"".join(lie.encode() for lie in lies), len(lies), first)
    assert parsed == rule == (0, 0, False)


@pytest.mark.parametrize("size", [0, 1, 63, 64, 8191, 8192, 2**20])
@pytest.mark.parametrize("delta", [0, 63, 64, 8191, 8192, 2**62, -1, -64, -65, -8193, -(2**63)])
def test_sizes_at_the_edges_are_proven(size, delta):
    lies = [Lie(key=None, delta=delta), Lie(index=1, value=bytes(size))]
    parsed, rule = verdicts(b"".join(lie.encode() for lie in lies), 2)
    assert parsed == rule == (min(0, delta), max(0, delta), True)


def test_it_checks_bounds_counts_and_trailing_bytes():
    good = Lie().encode()
    for payload, count in [(good[:-1], 1), (good, 2), (good + b"\x00", 1), (good + good, 1)]:
        with pytest.raises(CorruptRecordException):
            list(DefaultRecordBatch(batch_of(payload, count)))


def test_it_adds_deltas_to_the_base_of_the_header_that_it_is_given():
    (record,) = DefaultRecordBatch(
        batch_of(Lie(delta=-7, index=3).encode(), 1, base_offset=100, base_timestamp=50)
    )
    assert (record.offset, record.timestamp) == (103, 43)
    assert (record.key, record.value, record.headers) == (b"key", b"value", [])


def test_it_knows_the_shortest_size_of_key_value_and_headers():
    for lie in (
        Lie(),
        Lie(key=None, value=None),
        Lie(value=bytes(70), headers=[("ü".encode(), None), (b"", b"x" * 64)]),
    ):
        headers = [(name.decode(), value) for name, value in lie.headers]
        fixed = 3 + len(varint(len(lie.encode()) - 2))
        size = DefaultRecordBatchBuilder.size_of(lie.key, lie.value, headers)
        assert size + fixed == len(lie.encode())


def run_fuzz(*arguments):
    return subprocess.run(
        [sys.executable, FUZZ, *map(str, arguments)], capture_output=True, text=True, timeout=240, check=False
    )


def test_hostile_bytes_never_make_it_read_past_the_slack():
    run = run_fuzz("--cases", 4000, "--slack", len(SLACK))
    assert run.returncode == 0, run.stderr
    assert "4000 cases" in run.stdout
    assert int(run.stdout.split()[2]) > 100, "too few cases got past the first record"


def test_without_the_slack_it_does_read_past_the_end():
    assert run_fuzz("--cases", 1, "--slack", 0, "--known").returncode == -11
    assert run_fuzz("--cases", 1, "--slack", len(SLACK), "--known").returncode == 0
