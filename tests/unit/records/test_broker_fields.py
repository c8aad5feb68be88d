from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.records import RecordLimits, build_batch, read_header, read_records, set_broker_fields

from .batches import CODECS, batches_of_contents
from .oracle import DefaultRecordBatch

LIMITS = RecordLimits()


@given(
    batches_of_contents,
    st.sampled_from(CODECS),
    st.integers(0, 2**62),
    st.integers(0, 2**31 - 1),
    st.none() | st.integers(0, 2**45),
    st.integers(0, 9),
)
def test_set_broker_fields_sets_the_offset_and_keeps_the_checksum_valid(
    contents, codec, offset, epoch, now, before
):
    batch = build_batch(contents, timestamp_ms=1000, codec=codec)
    buf = bytearray(before) + batch + b"next"
    set_broker_fields(buf, before, offset, epoch, now)
    assert buf[:before] == bytes(before)
    assert buf[before + len(batch) :] == b"next"
    placed = bytes(buf[before : before + len(batch)])
    assert DefaultRecordBatch(placed).validate_crc()
    header = read_header(placed)
    assert (header.base_offset, header.leader_epoch) == (offset, epoch)
    records = read_records(placed, LIMITS)
    assert [r.offset for r in records] == list(range(offset, offset + len(contents)))
    assert {r.timestamp for r in records} == {1000 if now is None else now}
    assert [(r.key, r.value, r.headers) for r in records] == contents


def test_without_append_time_only_the_offset_and_the_epoch_change():
    batch = build_batch([(b"k", b"v", [])], timestamp_ms=7)
    placed = bytearray(batch)
    set_broker_fields(placed, 0, 2**40, 9, None)
    assert placed[8:12] == batch[8:12]
    assert placed[16:] == batch[16:]


def test_append_time_changes_only_its_bit_and_the_maximum_timestamp():
    batch = build_batch([(b"k", b"v", [])], timestamp_ms=7, codec=4, transactional=True)
    placed = bytearray(batch)
    set_broker_fields(placed, 0, 0, 0, 99)
    before, after = read_header(batch), read_header(placed)
    assert after.attributes == before.attributes | 0x08
    assert after.max_timestamp == 99
    assert after._replace(attributes=before.attributes, max_timestamp=7, crc=before.crc) == before
    assert placed[61:] == batch[61:]


def test_set_broker_fields_accepts_a_memoryview():
    batch = build_batch([(b"k", b"v", [])], timestamp_ms=7)
    set_broker_fields(memoryview(batch), 0, 12, 3, 50)
    assert DefaultRecordBatch(bytes(batch)).validate_crc()
    batch += b"the buffer can grow again: nothing holds a view of it"
