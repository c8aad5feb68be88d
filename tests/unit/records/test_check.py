from __future__ import annotations

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from hypothesis import given
from hypothesis import strategies as st

from headrace.records import (
    CorruptRecords,
    InvalidRecords,
    RecordError,
    RecordLimits,
    RecordsTooLarge,
    UnknownCodec,
    build_batch,
    check_batch,
    read_header,
    read_records,
    recompress,
)
from headrace.records import batch as batch_module
from headrace.records import record as record_module
from headrace.records.batch import fast_validate
from headrace.records.record import WINDOW_BYTES_MAX

from .batches import (
    CODECS,
    INT64_MAX,
    INT64_MIN,
    ForgedRecord,
    batch_of,
    batches_of_contents,
    blob,
    built_by_kafka_python,
    forged_batch,
    sealed,
    stamped,
    varint,
)
from .oracle import DefaultRecordBatch

LIMITS = RecordLimits()


@pytest.fixture(scope="module", autouse=True, params=["in C", "in Python"])
def by(request):
    """Run every test of this module with the C part and without it."""
    with pytest.MonkeyPatch.context() as patch:
        assert fast_validate is not None, "the C part was not built: see the output of the set-up"
        if request.param == "in Python":
            patch.setattr(batch_module, "fast_validate", None)
            patch.setattr(record_module, "fast_read", None)
        yield


def plain(records):
    return [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in records]


@given(batches_of_contents, st.sampled_from(CODECS), st.integers(0, 2**60))
def test_a_built_batch_is_valid_and_readable(contents, codec, offset):
    batch = build_batch(contents, base_offset=offset, timestamp_ms=1234, codec=codec)
    checked = check_batch(batch, LIMITS)
    assert (checked.min_timestamp, checked.max_timestamp) == (1234, 1234)
    assert checked.has_null_key == any(key is None for key, _, _ in contents)
    assert plain(read_records(batch, LIMITS)) == [
        (offset + index, 1234, *content) for index, content in enumerate(contents)
    ]


@given(batches_of_contents)
def test_kafka_python_reads_built_batches(contents):
    batch = bytes(build_batch(contents, base_offset=5, timestamp_ms=1234, codec=1))
    their_batch = DefaultRecordBatch(batch)
    assert their_batch.validate_crc()
    assert plain(their_batch) == plain(read_records(batch, LIMITS))


@given(stamped(), st.sampled_from([0, 1]))
def test_batches_of_kafka_python_are_valid(records, codec):
    batch = built_by_kafka_python(records, codec)
    checked = check_batch(batch, LIMITS)
    assert checked.max_timestamp == max(timestamp for timestamp, _ in records)
    assert checked.min_timestamp == min(timestamp for timestamp, _ in records)
    assert plain(read_records(batch, LIMITS)) == plain(DefaultRecordBatch(batch))


@given(stamped(), st.sampled_from(CODECS))
def test_batches_of_aiokafka_are_valid(records, codec):
    builder = AiokafkaBuilder(2, codec, False, -1, -1, -1, 2**31)
    for index, (timestamp, (key, value, headers)) in enumerate(records):
        builder.append(index, timestamp, key, value, headers)
    batch = bytes(builder.build())
    checked = check_batch(memoryview(batch), LIMITS)
    assert checked.max_timestamp == max(timestamp for timestamp, _ in records)
    assert checked.min_timestamp == min(timestamp for timestamp, _ in records)
    assert checked.has_null_key == any(content[0] is None for _, content in records)
    assert [r[1:] for r in plain(read_records(batch, LIMITS))] == [
        (timestamp, *content) for timestamp, content in records
    ]


@given(stamped(), st.sampled_from(CODECS), st.sampled_from(CODECS))
def test_recompressing_changes_only_the_codec(records, old, new):
    batch = recompress(built_by_kafka_python(records), old, LIMITS)
    changed = recompress(batch, new, LIMITS)
    assert read_header(changed).codec == new
    assert check_batch(changed, LIMITS) == check_batch(batch, LIMITS)
    assert read_records(changed, LIMITS) == read_records(batch, LIMITS)
    same = read_header(batch)
    assert read_header(changed)._replace(length=same.length, crc=same.crc, attributes=same.attributes) == same
    if new == 0:
        assert changed == built_by_kafka_python(records)


@given(st.data(), st.sampled_from(CODECS))
def test_any_flipped_bit_covered_by_the_checksum_is_corruption(data, codec):
    batch = bytearray(
        build_batch([(b"key", bytes(range(50)), [("h", b"x")])] * 5, timestamp_ms=9, codec=codec)
    )
    bit = data.draw(st.integers(17 * 8, len(batch) * 8 - 1))
    batch[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptRecords, match="checksum"):
        check_batch(batch, LIMITS)


def test_a_batch_with_missing_or_extra_bytes_is_corrupt():
    batch = bytes(build_batch([(b"key", b"value", [])], timestamp_ms=9))
    for wrong in (batch[:-1], batch + b"\x00", batch + batch):
        with pytest.raises(CorruptRecords, match=f"got {len(wrong)}"):
            check_batch(wrong, LIMITS)


GOOD = ForgedRecord().encode()
LONG = bytes([0x80] * 9 + [0x01])


@pytest.mark.parametrize(
    "batch",
    {
        "no records": batch_of(b"", 0),
        "no records, but bytes": batch_of(GOOD, 0),
        "negative count": batch_of(GOOD, -1),
        "count above the records": batch_of(GOOD, 2),
        "count below the records": batch_of(GOOD + ForgedRecord(index=1).encode(), 1),
        "count and last delta differ": batch_of(GOOD, 1, last_offset_delta=1),
        "count of 2**31 - 1": batch_of(GOOD, 2**31 - 1, last_offset_delta=2**31 - 2),
        "offset delta too high": forged_batch(ForgedRecord(index=1)),
        "offset delta repeated": forged_batch(ForgedRecord(), ForgedRecord()),
        "offset delta negative": forged_batch(ForgedRecord(offset_delta=varint(-1))),
        "offset delta of 33 bits that wraps to the right one": forged_batch(
            ForgedRecord(offset_delta=varint(2**32))
        ),
        "trailing byte": batch_of(GOOD + b"\x00", 1),
        "trailing record": batch_of(GOOD + GOOD, 1),
        "length one short": forged_batch(ForgedRecord(length=varint(len(GOOD) - 2))),
        "length one long": forged_batch(ForgedRecord(length=varint(len(GOOD)))),
        "length zero": batch_of(b"\x00", 1),
        "length negative": forged_batch(ForgedRecord(length=varint(-1))),
        "length huge": forged_batch(ForgedRecord(length=varint(2**31 - 1))),
        "length in ten bytes": forged_batch(ForgedRecord(length=varint(len(GOOD) - 1, width=10))),
        "length in six bytes": forged_batch(ForgedRecord(length=varint(len(GOOD) - 1, width=6))),
        "length without an end": batch_of(b"\x80" * 12, 1),
        "key past the end": forged_batch(ForgedRecord(key_part=varint(1000) + b"k")),
        "key of 2**62 bytes": forged_batch(ForgedRecord(key_part=varint(2**62) + b"k")),
        "key of 2**63 - 1 bytes": forged_batch(ForgedRecord(key_part=varint(INT64_MAX) + b"k")),
        "key size of 33 bits that wraps to the right one": forged_batch(
            ForgedRecord(key_part=varint(2**32 + 1) + b"k")
        ),
        "key below null": forged_batch(ForgedRecord(key_part=varint(-2))),
        "key size in six bytes": forged_batch(ForgedRecord(key_part=varint(1, width=6) + b"k")),
        "value below null": forged_batch(ForgedRecord(value_part=varint(-2))),
        "value far below null": forged_batch(ForgedRecord(value_part=varint(-(2**31)))),
        "value past the end": forged_batch(ForgedRecord(value_part=varint(1000) + b"v")),
        "value into the next record": forged_batch(
            ForgedRecord(value_part=varint(9) + b"v"), ForgedRecord(index=1)
        ),
        "value size without an end": forged_batch(ForgedRecord(value_part=b"\xff" * 11)),
        "value size in six bytes": forged_batch(ForgedRecord(value_part=varint(-1, width=6))),
        "attributes as a varint of two bytes": forged_batch(ForgedRecord(attributes=b"\x80\x00")),
        "attributes with the top bit": forged_batch(ForgedRecord(attributes=b"\x80")),
        "timestamp in eleven bytes": forged_batch(ForgedRecord(attributes=b"\x00" + b"\x80" * 10)),
        "header count negative": forged_batch(ForgedRecord(header_part=varint(-1))),
        "header count far below none": forged_batch(ForgedRecord(header_part=varint(-(2**31)))),
        "header count above the headers": forged_batch(ForgedRecord(header_part=varint(1))),
        "header count below the headers": forged_batch(ForgedRecord(header_part=varint(1) + blob(b"h") * 4)),
        "header count huge": forged_batch(ForgedRecord(header_part=varint(2**31 - 1))),
        "header without a name": forged_batch(ForgedRecord(header_part=varint(1) + varint(-1) + blob(b"v"))),
        "header name below null": forged_batch(ForgedRecord(header_part=varint(1) + varint(-2) + blob(b"v"))),
        "header value below null": forged_batch(
            ForgedRecord(header_part=varint(1) + blob(b"h") + varint(-2))
        ),
        "header name past the end": forged_batch(ForgedRecord(header_part=varint(1) + varint(99) + b"h")),
        "header value past the end": forged_batch(
            ForgedRecord(header_part=varint(1) + blob(b"h") + varint(99))
        ),
        "header name that is not UTF-8": forged_batch(ForgedRecord(headers=[(b"\xff\xfe", b"v")])),
        "header count that ends outside": forged_batch(ForgedRecord(header_part=b"\x82")),
        "nothing but zeros": batch_of(bytes(200), 20),
        "not even one record": batch_of(b"", 1),
        "timestamp above 64 bits": batch_of(ForgedRecord(delta=1).encode(), 1, base_timestamp=INT64_MAX),
        "timestamp below 64 bits": batch_of(ForgedRecord(delta=-1).encode(), 1, base_timestamp=INT64_MIN),
        "timestamp that wraps": batch_of(ForgedRecord(delta=INT64_MAX).encode(), 1, base_timestamp=INT64_MAX),
    }.items(),
    ids=lambda case: case[0],
)
def test_an_inconsistent_batch_is_invalid(batch):
    _, octets = batch
    with pytest.raises((InvalidRecords, RecordsTooLarge)):
        check_batch(octets, LIMITS)
    if read_header(octets).count > 0:
        compressed = bytearray(octets)
        compressed[21:23] = b"\x00\x01"
        with pytest.raises(RecordError):
            check_batch(sealed(compressed), LIMITS)


@pytest.mark.parametrize(
    "forged",
    [
        ForgedRecord(key_part=varint(3, width=5) + b"key"),
        ForgedRecord(value_part=varint(-1, width=5)),
        ForgedRecord(offset_delta=varint(0, width=3)),
        ForgedRecord(length=varint(len(GOOD) - 1, width=5)),
        ForgedRecord(attributes=b"\x01"),
        ForgedRecord(attributes=b"\x7f"),
        ForgedRecord(headers=[(b"", None), (b"", b"")]),
        ForgedRecord(delta=-5),
    ],
)
def test_an_unusual_batch_that_every_client_can_read_is_valid(forged):
    batch = forged_batch(forged)
    checked = check_batch(batch, LIMITS)
    assert checked.max_timestamp == forged.delta
    assert plain(read_records(batch, LIMITS)) == plain(DefaultRecordBatch(batch))


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codecs_are_refused(codec):
    with pytest.raises(UnknownCodec, match=f"codec {codec} "):
        check_batch(batch_of(GOOD, 1, attributes=codec), LIMITS)


def test_the_minimum_and_the_maximum_timestamp_are_valid():
    low = batch_of(ForgedRecord(delta=INT64_MIN).encode(), 1)
    high = batch_of(
        ForgedRecord(delta=0).encode() + ForgedRecord(index=1, delta=1).encode(),
        2,
        base_timestamp=INT64_MAX - 1,
    )
    assert check_batch(low, LIMITS).min_timestamp == INT64_MIN
    assert check_batch(high, LIMITS)[:2] == (INT64_MAX, INT64_MAX - 1)


def test_the_timestamp_range_is_computed_from_the_records_not_from_the_header():
    payload = b"".join(ForgedRecord(index=i, delta=d).encode() for i, d in enumerate([5, -3, 40]))
    checked = check_batch(batch_of(payload, 3, base_timestamp=1000, max_timestamp=9), LIMITS)
    assert (checked.min_timestamp, checked.max_timestamp) == (997, 1040)


def test_headers_records_and_bytes_are_limited():
    batch = bytes(build_batch([(b"k", bytes(1000), [("h", b"")] * 4)] * 10, timestamp_ms=0, codec=4))
    unpacked = len(recompress(batch, 0, LIMITS)) - 61
    exact = RecordLimits(unpacked_bytes_max=unpacked, records_max=10, headers_max=4)
    assert check_batch(batch, exact) == check_batch(batch, LIMITS)
    with pytest.raises(InvalidRecords, match="number of headers: 4"):
        check_batch(batch, RecordLimits(headers_max=3))
    with pytest.raises(RecordsTooLarge, match="10 records"):
        check_batch(batch, RecordLimits(records_max=9))
    for codec in CODECS[1:]:
        with pytest.raises(RecordsTooLarge, match="decompress to more"):
            check_batch(recompress(batch, codec, LIMITS), RecordLimits(unpacked_bytes_max=unpacked - 1))


@pytest.mark.parametrize("codec", [0, 3])
def test_batches_larger_than_a_window_are_validated_and_read(codec):
    sizes = [100] * 9000 + [3 * WINDOW_BYTES_MAX] + [0, 50, 200] * 3000 + [WINDOW_BYTES_MAX - 20] * 2
    contents = [(None if index == 17_000 else b"k", bytes(size), []) for index, size in enumerate(sizes)]
    batch = bytes(build_batch(contents, timestamp_ms=77, codec=codec))
    assert check_batch(batch, LIMITS) == (77, 77, True)
    fields_read = [(r.offset, r.key, len(r.value or b"")) for r in read_records(batch, LIMITS)]
    assert fields_read == [(index, key, len(value)) for index, (key, value, _) in enumerate(contents)]
    plain_batch = bytearray(recompress(batch, 0, LIMITS))
    offset_delta_at = plain_batch.index(varint(16_000) + blob(b"k"))
    plain_batch[offset_delta_at] ^= 2
    with pytest.raises(InvalidRecords, match="record 16000 has the wrong offset delta 16001"):
        check_batch(recompress_forged(plain_batch, codec), LIMITS)
    with pytest.raises(InvalidRecords):
        check_batch(recompress_forged(plain_batch[:-1], codec), LIMITS)
    with pytest.raises(InvalidRecords):
        check_batch(recompress_forged(plain_batch + b"\x00", codec), LIMITS)


def recompress_forged(batch, codec):
    from headrace.records.codecs import pack

    count = read_header(batch).count
    return batch_of(pack(codec, bytes(batch[61:])), count, attributes=codec)


def test_errors_name_the_record():
    payload = b"".join(ForgedRecord(index=i).encode() for i in range(7)) + ForgedRecord(index=9).encode()
    with pytest.raises(InvalidRecords, match="record 7 has the wrong offset delta 9") as caught:
        check_batch(batch_of(payload, 8), LIMITS)
    assert caught.value.code == "HR-RECORD-INVALID"
