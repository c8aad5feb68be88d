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
from headrace.records import check as check_module
from headrace.records import reading as reading_module
from headrace.records.quick_walk import quick_walk
from headrace.records.reading import WINDOW_BYTES_MAX

from .making import (
    CODECS,
    INT64_MAX,
    INT64_MIN,
    Lie,
    batch_of,
    batches_of_contents,
    blob,
    lying_batch,
    made_by_kafka_python,
    sealed,
    stamped,
    varint,
)
from .oracle import DefaultRecordBatch

LIMITS = RecordLimits()


@pytest.fixture(scope="module", autouse=True, params=["in C", "in Python"])
def by(request):
    """Everything here holds with the C part and without it."""
    with pytest.MonkeyPatch.context() as patch:
        assert quick_walk is not None, "the C part was not built: see what the set-up said"
        if request.param == "in Python":
            patch.setattr(check_module, "quick_walk", None)
            patch.setattr(reading_module, "quick_read", None)
        yield


def plain(records):
    return [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in records]


@given(batches_of_contents, st.sampled_from(CODECS), st.integers(0, 2**60))
def test_what_is_built_is_valid_and_reads_back(contents, codec, offset):
    batch = build_batch(contents, base_offset=offset, timestamp_ms=1234, codec=codec)
    checked = check_batch(batch, LIMITS)
    assert (checked.min_timestamp, checked.max_timestamp) == (1234, 1234)
    assert checked.has_null_key == any(key is None for key, _, _ in contents)
    assert plain(read_records(batch, LIMITS)) == [
        (offset + index, 1234, *content) for index, content in enumerate(contents)
    ]


@given(batches_of_contents)
def test_kafka_python_reads_what_is_built(contents):
    batch = bytes(build_batch(contents, base_offset=5, timestamp_ms=1234, codec=1))
    theirs = DefaultRecordBatch(batch)
    assert theirs.validate_crc()
    assert plain(theirs) == plain(read_records(batch, LIMITS))


@given(stamped(), st.sampled_from([0, 1]))
def test_batches_of_kafka_python_are_valid(records, codec):
    batch = made_by_kafka_python(records, codec)
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
def test_recompressing_changes_the_codec_and_nothing_else(records, old, new):
    batch = recompress(made_by_kafka_python(records), old, LIMITS)
    changed = recompress(batch, new, LIMITS)
    assert read_header(changed).codec == new
    assert check_batch(changed, LIMITS) == check_batch(batch, LIMITS)
    assert read_records(changed, LIMITS) == read_records(batch, LIMITS)
    same = read_header(batch)
    assert read_header(changed)._replace(length=same.length, crc=same.crc, attributes=same.attributes) == same
    if new == 0:
        assert changed == made_by_kafka_python(records)


@given(st.data(), st.sampled_from(CODECS))
def test_any_flipped_bit_under_the_checksum_is_corruption(data, codec):
    batch = bytearray(
        build_batch([(b"key", bytes(range(50)), [("h", b"x")])] * 5, timestamp_ms=9, codec=codec)
    )
    bit = data.draw(st.integers(17 * 8, len(batch) * 8 - 1))
    batch[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptRecords, match="checksum"):
        check_batch(batch, LIMITS)


def test_a_batch_that_is_not_all_there_or_more_is_corrupt():
    batch = bytes(build_batch([(b"key", b"value", [])], timestamp_ms=9))
    for wrong in (batch[:-1], batch + b"\x00", batch + batch):
        with pytest.raises(CorruptRecords, match=f"{len(wrong)} came"):
            check_batch(wrong, LIMITS)


GOOD = Lie().encode()
LONG = bytes([0x80] * 9 + [0x01])


@pytest.mark.parametrize(
    "batch",
    {
        "no records": batch_of(b"", 0),
        "no records, but bytes": batch_of(GOOD, 0),
        "negative count": batch_of(GOOD, -1),
        "count above the records": batch_of(GOOD, 2),
        "count below the records": batch_of(GOOD + Lie(index=1).encode(), 1),
        "count and last delta differ": batch_of(GOOD, 1, last_offset_delta=1),
        "count of 2**31 - 1": batch_of(GOOD, 2**31 - 1, last_offset_delta=2**31 - 2),
        "offset delta too high": lying_batch(Lie(index=1)),
        "offset delta repeated": lying_batch(Lie(), Lie()),
        "offset delta negative": lying_batch(Lie(offset_delta=varint(-1))),
        "offset delta of 33 bits that wraps to the right one": lying_batch(Lie(offset_delta=varint(2**32))),
        "trailing byte": batch_of(GOOD + b"\x00", 1),
        "trailing record": batch_of(GOOD + GOOD, 1),
        "length one short": lying_batch(Lie(length=varint(len(GOOD) - 2))),
        "length one long": lying_batch(Lie(length=varint(len(GOOD)))),
        "length zero": batch_of(b"\x00", 1),
        "length negative": lying_batch(Lie(length=varint(-1))),
        "length huge": lying_batch(Lie(length=varint(2**31 - 1))),
        "length in ten bytes": lying_batch(Lie(length=varint(len(GOOD) - 1, width=10))),
        "length in six bytes": lying_batch(Lie(length=varint(len(GOOD) - 1, width=6))),
        "length without an end": batch_of(b"\x80" * 12, 1),
        "key past the end": lying_batch(Lie(key_part=varint(1000) + b"k")),
        "key of 2**62 bytes": lying_batch(Lie(key_part=varint(2**62) + b"k")),
        "key of 2**63 - 1 bytes": lying_batch(Lie(key_part=varint(INT64_MAX) + b"k")),
        "key size of 33 bits that wraps to the right one": lying_batch(
            Lie(key_part=varint(2**32 + 1) + b"k")
        ),
        "key below null": lying_batch(Lie(key_part=varint(-2))),
        "key size in six bytes": lying_batch(Lie(key_part=varint(1, width=6) + b"k")),
        "value below null": lying_batch(Lie(value_part=varint(-2))),
        "value far below null": lying_batch(Lie(value_part=varint(-(2**31)))),
        "value past the end": lying_batch(Lie(value_part=varint(1000) + b"v")),
        "value into the next record": lying_batch(Lie(value_part=varint(9) + b"v"), Lie(index=1)),
        "value size without an end": lying_batch(Lie(value_part=b"\xff" * 11)),
        "value size in six bytes": lying_batch(Lie(value_part=varint(-1, width=6))),
        "attributes as a varint of two bytes": lying_batch(Lie(attributes=b"\x80\x00")),
        "attributes with the top bit": lying_batch(Lie(attributes=b"\x80")),
        "timestamp in eleven bytes": lying_batch(Lie(attributes=b"\x00" + b"\x80" * 10)),
        "header count negative": lying_batch(Lie(header_part=varint(-1))),
        "header count far below none": lying_batch(Lie(header_part=varint(-(2**31)))),
        "header count above the headers": lying_batch(Lie(header_part=varint(1))),
        "header count below the headers": lying_batch(Lie(header_part=varint(1) + blob(b"h") * 4)),
        "header count huge": lying_batch(Lie(header_part=varint(2**31 - 1))),
        "header without a name": lying_batch(Lie(header_part=varint(1) + varint(-1) + blob(b"v"))),
        "header name below null": lying_batch(Lie(header_part=varint(1) + varint(-2) + blob(b"v"))),
        "header value below null": lying_batch(Lie(header_part=varint(1) + blob(b"h") + varint(-2))),
        "header name past the end": lying_batch(Lie(header_part=varint(1) + varint(99) + b"h")),
        "header value past the end": lying_batch(Lie(header_part=varint(1) + blob(b"h") + varint(99))),
        "header name that is not UTF-8": lying_batch(Lie(headers=[(b"\xff\xfe", b"v")])),
        "header count that ends outside": lying_batch(Lie(header_part=b"\x82")),
        "nothing but zeros": batch_of(bytes(200), 20),
        "not even one record": batch_of(b"", 1),
        "timestamp above 64 bits": batch_of(Lie(delta=1).encode(), 1, base_timestamp=INT64_MAX),
        "timestamp below 64 bits": batch_of(Lie(delta=-1).encode(), 1, base_timestamp=INT64_MIN),
        "timestamp that wraps": batch_of(Lie(delta=INT64_MAX).encode(), 1, base_timestamp=INT64_MAX),
    }.items(),
    ids=lambda case: case[0],
)
def test_a_batch_that_contradicts_itself_is_invalid(batch):
    _, octets = batch
    with pytest.raises((InvalidRecords, RecordsTooLarge)):
        check_batch(octets, LIMITS)
    if read_header(octets).count > 0:
        compressed = bytearray(octets)
        compressed[21:23] = b"\x00\x01"
        with pytest.raises(RecordError):
            check_batch(sealed(compressed), LIMITS)


@pytest.mark.parametrize(
    "lie",
    [
        Lie(key_part=varint(3, width=5) + b"key"),
        Lie(value_part=varint(-1, width=5)),
        Lie(offset_delta=varint(0, width=3)),
        Lie(length=varint(len(GOOD) - 1, width=5)),
        Lie(attributes=b"\x01"),
        Lie(attributes=b"\x7f"),
        Lie(headers=[(b"", None), (b"", b"")]),
        Lie(delta=-5),
    ],
)
def test_what_is_odd_but_readable_by_every_client_is_valid(lie):
    batch = lying_batch(lie)
    checked = check_batch(batch, LIMITS)
    assert checked.max_timestamp == lie.delta
    assert plain(read_records(batch, LIMITS)) == plain(DefaultRecordBatch(batch))


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_codecs_that_nobody_defined_are_told_apart(codec):
    with pytest.raises(UnknownCodec, match=f"codec {codec} "):
        check_batch(batch_of(GOOD, 1, attributes=codec), LIMITS)


def test_timestamps_at_the_very_ends_are_valid():
    low = batch_of(Lie(delta=INT64_MIN).encode(), 1)
    high = batch_of(Lie(delta=0).encode() + Lie(index=1, delta=1).encode(), 2, base_timestamp=INT64_MAX - 1)
    assert check_batch(low, LIMITS).min_timestamp == INT64_MIN
    assert check_batch(high, LIMITS)[:2] == (INT64_MAX, INT64_MAX - 1)


def test_the_records_tell_the_timestamps_not_the_header():
    payload = b"".join(Lie(index=i, delta=d).encode() for i, d in enumerate([5, -3, 40]))
    checked = check_batch(batch_of(payload, 3, base_timestamp=1000, max_timestamp=9), LIMITS)
    assert (checked.min_timestamp, checked.max_timestamp) == (997, 1040)


def test_limits_hold_for_headers_records_and_bytes():
    batch = bytes(build_batch([(b"k", bytes(1000), [("h", b"")] * 4)] * 10, timestamp_ms=0, codec=4))
    unpacked = len(recompress(batch, 0, LIMITS)) - 61
    exact = RecordLimits(unpacked_bytes_max=unpacked, records_max=10, headers_max=4)
    assert check_batch(batch, exact) == check_batch(batch, LIMITS)
    with pytest.raises(InvalidRecords, match="4 headers"):
        check_batch(batch, RecordLimits(headers_max=3))
    with pytest.raises(RecordsTooLarge, match="10 records"):
        check_batch(batch, RecordLimits(records_max=9))
    for codec in CODECS[1:]:
        with pytest.raises(RecordsTooLarge, match="unpack to more"):
            check_batch(recompress(batch, codec, LIMITS), RecordLimits(unpacked_bytes_max=unpacked - 1))


@pytest.mark.parametrize("codec", [0, 3])
def test_batches_larger_than_a_window_are_walked_and_read_like_others(codec):
    sizes = [100] * 9000 + [3 * WINDOW_BYTES_MAX] + [0, 50, 200] * 3000 + [WINDOW_BYTES_MAX - 20] * 2
    contents = [(None if index == 17_000 else b"k", bytes(size), []) for index, size in enumerate(sizes)]
    batch = bytes(build_batch(contents, timestamp_ms=77, codec=codec))
    assert check_batch(batch, LIMITS) == (77, 77, True)
    found = [(r.offset, r.key, len(r.value or b"")) for r in read_records(batch, LIMITS)]
    assert found == [(index, key, len(value)) for index, (key, value, _) in enumerate(contents)]
    plain_batch = bytearray(recompress(batch, 0, LIMITS))
    offset_delta_at = plain_batch.index(varint(16_000) + blob(b"k"))
    plain_batch[offset_delta_at] ^= 2
    with pytest.raises(InvalidRecords, match="record 16000 has offset delta 16001"):
        check_batch(recompress_lie(plain_batch, codec), LIMITS)
    with pytest.raises(InvalidRecords):
        check_batch(recompress_lie(plain_batch[:-1], codec), LIMITS)
    with pytest.raises(InvalidRecords):
        check_batch(recompress_lie(plain_batch + b"\x00", codec), LIMITS)


def recompress_lie(batch, codec):
    from headrace.records.codecs import pack

    count = read_header(batch).count
    return batch_of(pack(codec, bytes(batch[61:])), count, attributes=codec)


def test_errors_name_the_record():
    payload = b"".join(Lie(index=i).encode() for i in range(7)) + Lie(index=9).encode()
    with pytest.raises(InvalidRecords, match="record 7 has offset delta 9") as caught:
        check_batch(batch_of(payload, 8), LIMITS)
    assert caught.value.code == "HR-RECORD-INVALID"
