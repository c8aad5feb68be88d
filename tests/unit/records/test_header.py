from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.records import (
    HEADER_SIZE,
    BatchHeader,
    CorruptRecords,
    InvalidRecords,
    RecordError,
    build_batch,
    crc_ok,
    iter_headers,
    read_header,
)

from .batches import HEADER
from .oracle import DefaultRecordBatch

int16, int32, int64 = (st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (16, 32, 64))
BATCH = bytes(build_batch([(b"k", b"v", [])] * 3, base_offset=70, timestamp_ms=5))


@given(
    st.tuples(
        int64,
        st.integers(49, 2**31 - 1),
        int32,
        st.just(2),
        st.integers(0, 2**32 - 1),
        int16,
        int32,
        int64,
        int64,
        int64,
        int16,
        int32,
        int32,
    ),
    st.integers(0, 5),
)
def test_a_header_is_decoded_like_by_kafka_python(fields, before):
    packed = bytes(before) + HEADER.pack(*fields)
    header = read_header(packed, before)
    assert tuple(header) == fields
    their_batch = DefaultRecordBatch(packed[before:])
    assert header.base_offset == their_batch.base_offset
    assert header.magic == their_batch.magic
    assert header.crc == their_batch.crc
    assert header.attributes == their_batch.attributes
    assert header.last_offset_delta == their_batch.last_offset_delta
    assert header.base_timestamp == their_batch.first_timestamp
    assert header.max_timestamp == their_batch.max_timestamp
    assert header.producer_id == their_batch.producer_id
    assert header.producer_epoch == their_batch.producer_epoch
    assert header.base_sequence == their_batch.base_sequence
    assert header.count == their_batch.records_count
    assert header.codec == their_batch.compression_type
    assert header.is_transactional == bool(their_batch.is_transactional)
    assert header.is_control == bool(their_batch.is_control_batch)
    assert header.uses_append_time == bool(their_batch.timestamp_type)
    assert header.next_offset == their_batch.next_offset
    assert header.last_offset == header.base_offset + header.last_offset_delta
    assert header.size == fields[1] + 12


def test_a_header_is_decoded_from_any_kind_of_buffer():
    assert read_header(BATCH) == read_header(bytearray(BATCH)) == read_header(memoryview(BATCH))


@pytest.mark.parametrize("size", [0, 1, 12, 17, HEADER_SIZE - 1])
def test_fewer_bytes_than_a_header_are_refused(size):
    with pytest.raises(CorruptRecords, match=f"{size} bytes at 0"):
        read_header(BATCH[:size])


@pytest.mark.parametrize("magic", [0, 1, 3, 0xFF])
def test_other_formats_are_refused(magic):
    with pytest.raises(InvalidRecords, match="format"):
        read_header(BATCH[:16] + bytes([magic]) + BATCH[17:])


@pytest.mark.parametrize("length", [0, 48, -1, -(2**31)])
def test_a_length_smaller_than_the_header_is_refused(length):
    with pytest.raises(CorruptRecords, match=str(length)):
        read_header(BATCH[:8] + length.to_bytes(4, "big", signed=True) + BATCH[12:])


@pytest.mark.parametrize(
    ("base", "delta", "last"),
    [(0, 0, 0), (5, 4, 9), (2**31 - 1, 0, 2**31 - 1), (2**31 - 1, 1, 0), (2**31 - 3, 5, 2), (-1, 9, -1)],
)
def test_sequences_wrap_around_after_the_maximum(base, delta, last):
    header = read_header(BATCH)._replace(base_sequence=base, last_offset_delta=delta)
    assert header.last_sequence == last


def test_the_delete_horizon_is_bit_six():
    header = read_header(BATCH)
    assert not header.has_delete_horizon
    assert header._replace(attributes=0x40).has_delete_horizon


@given(st.lists(st.integers(1, 5), max_size=5), st.integers(0, 200))
def test_iter_headers_stops_at_an_incomplete_batch(counts, tail):
    batches = [bytes(build_batch([(None, b"v", [])] * count, timestamp_ms=0)) for count in counts]
    last = bytes(build_batch([(b"key", bytes(150), [])], timestamp_ms=0))
    complete = b"".join(batches)
    headers_found = list(iter_headers(complete + last[: min(tail, len(last) - 1)]))
    assert [header.count for _, header in headers_found] == counts
    positions = [sum(map(len, batches[:i])) for i in range(len(batches))]
    assert [position for position, _ in headers_found] == positions


def test_junk_between_batches_is_an_error():
    headers = iter_headers(BATCH + bytes(100))
    assert next(headers)[0] == 0
    with pytest.raises(RecordError):
        next(headers)


def test_a_checksum_is_valid_only_for_a_complete_batch():
    around = b"xx" + BATCH + b"yy"
    assert crc_ok(around, 2, len(BATCH))
    assert crc_ok(memoryview(around), 2, len(BATCH))
    assert not crc_ok(around, 2, len(BATCH) + 1)
    assert not crc_ok(around, 2, len(BATCH) - 1)
    assert not crc_ok(around, 1, len(BATCH))
    assert not crc_ok(BATCH, 0, len(BATCH) + 1)
    assert not crc_ok(BATCH, 0, HEADER_SIZE - 1)
    assert not crc_ok(b"", 0, 0)


def test_a_header_uses_no_more_memory_than_a_tuple():
    assert not hasattr(read_header(BATCH), "__dict__")
    assert isinstance(read_header(BATCH), BatchHeader)
