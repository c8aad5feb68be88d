from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.records import (
    CorruptRecords,
    RecordLimits,
    build_batch,
    crc_ok,
    empty_batch,
    empty_batch_for_offsets,
    extend_last_offset,
    open_batch,
    read_header,
    read_records,
    read_stored,
    remove_records,
)

LIMITS = RecordLimits()
NOW_MS = 1_700_000_000_000

fields = st.none() | st.binary(max_size=300)
contents = st.lists(
    st.tuples(fields, fields, st.lists(st.tuples(st.text(max_size=5), fields), max_size=2)),
    min_size=1,
    max_size=30,
)


@given(contents, st.integers(0, 4), st.data())
def test_the_remaining_records_of_a_batch_are_unchanged(
    records: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]],
    codec: int,
    data: st.DataObject,
) -> None:
    batch = build_batch(records, base_offset=100, timestamp_ms=NOW_MS, codec=codec)
    kept = data.draw(st.lists(st.sampled_from([0, 1]), min_size=len(records), max_size=len(records)))
    kept[data.draw(st.integers(0, len(kept) - 1))] = 1
    horizon = data.draw(st.none() | st.integers(0, 2 * NOW_MS))
    thinned = remove_records(open_batch(batch, LIMITS), kept, horizon)
    expected = [record for record, keep in zip(read_records(batch, LIMITS), kept, strict=True) if keep]
    assert crc_ok(thinned, 0, len(thinned))
    header = read_header(thinned)
    assert (header.base_offset, header.last_offset_delta) == (100, len(records) - 1)
    assert (header.count, header.codec) == (len(expected), codec)
    assert header.has_delete_horizon == (horizon is not None)
    assert header.max_timestamp == NOW_MS
    remaining = open_batch(thinned, LIMITS).records
    assert [(100 + r.offset, r.key, r.value) for r in remaining] == [
        (r.offset, r.key, r.value) for r in expected
    ]
    assert list(read_stored(thinned, LIMITS)) == [(r.offset, r.timestamp) for r in expected]


@pytest.mark.parametrize("sizes", [[10, 900_000, 900_000, 10], [3_000_000, 5], [5, 2_000_000]])
def test_records_are_removed_from_a_batch_larger_than_a_window(sizes: list[int]) -> None:
    records = [(b"%d" % index, b"v" * size, [("h", b"x")]) for index, size in enumerate(sizes)]
    batch = build_batch(records, timestamp_ms=NOW_MS, codec=3)
    stored = open_batch(batch, LIMITS)
    assert [(r.offset, r.key, r.value) for r in stored.records] == [
        (index, key, value) for index, (key, value, _) in enumerate(records)
    ]
    kept = [index % 2 for index in range(len(sizes))]
    remaining = open_batch(remove_records(stored, kept, NOW_MS + 5), LIMITS)
    assert [r.offset for r in remaining.records] == [index for index, keep in enumerate(kept) if keep]


def test_a_stretched_batch_keeps_its_records_and_its_last_sequence() -> None:
    batch = build_batch(
        [(b"k", b"v", ()), (b"l", b"w", ())],
        timestamp_ms=NOW_MS,
        producer_id=7,
        producer_epoch=0,
        base_sequence=3,
    )
    header = read_header(batch)
    records = list(read_stored(batch, LIMITS))
    extend_last_offset(batch, header, 1000)
    stretched = read_header(batch)
    assert (stretched.next_offset, stretched.last_sequence) == (1000, header.last_sequence)
    assert list(read_stored(batch, LIMITS)) == records
    wrapped = header._replace(base_sequence=0)
    assert wrapped.last_sequence == 1


def test_an_empty_batch_keeps_its_producer_and_is_not_transactional() -> None:
    batch = build_batch(
        [(b"k", b"v", ())] * 3,
        timestamp_ms=NOW_MS,
        codec=4,
        producer_id=7,
        producer_epoch=2,
        base_sequence=5,
        transactional=True,
    )
    header = read_header(batch)
    empty = read_header(empty_batch(header))
    assert list(read_stored(empty_batch(header), LIMITS)) == []
    assert (empty.producer_id, empty.producer_epoch, empty.last_sequence) == (7, 2, 7)
    assert (
        empty.last_offset_delta,
        empty.is_transactional,
        empty.codec,
        empty.size,
    ) == (2, False, 0, 61)


def test_a_cover_batch_has_no_producer() -> None:
    cover = empty_batch_for_offsets(10, 25, 3, -1)
    header = read_header(cover)
    assert (header.base_offset, header.next_offset, header.count, header.producer_id) == (10, 25, 0, -1)
    assert list(read_stored(cover, LIMITS)) == []


def test_a_stored_batch_with_a_wrong_checksum_is_not_opened() -> None:
    batch = build_batch([(b"k", b"v", ())], timestamp_ms=NOW_MS)
    batch[-3] ^= 1
    with pytest.raises(CorruptRecords):
        open_batch(batch, LIMITS)
    damaged = empty_batch(read_header(build_batch([(b"k", b"v", ())], timestamp_ms=NOW_MS)))
    damaged[57:61] = (9).to_bytes(4, "big")
    with pytest.raises(CorruptRecords):
        open_batch(damaged, LIMITS)
