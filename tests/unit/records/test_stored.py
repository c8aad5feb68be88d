from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.records import (
    CorruptRecords,
    RecordLimits,
    build_batch,
    cover_batch,
    crc_ok,
    empty_batch,
    open_batch,
    read_header,
    read_records,
    read_stored,
    stretch_batch,
    thin_batch,
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
def test_what_is_kept_of_a_batch_is_as_it_was(
    records: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]],
    codec: int,
    data: st.DataObject,
) -> None:
    batch = build_batch(records, base_offset=100, timestamp_ms=NOW_MS, codec=codec)
    kept = data.draw(st.lists(st.sampled_from([0, 1]), min_size=len(records), max_size=len(records)))
    kept[data.draw(st.integers(0, len(kept) - 1))] = 1
    horizon = data.draw(st.none() | st.integers(0, 2 * NOW_MS))
    thinned = thin_batch(open_batch(batch, LIMITS), kept, horizon)
    wanted = [record for record, keep in zip(read_records(batch, LIMITS), kept, strict=True) if keep]
    assert crc_ok(thinned, 0, len(thinned))
    header = read_header(thinned)
    assert (header.base_offset, header.last_offset_delta) == (100, len(records) - 1)
    assert (header.count, header.codec) == (len(wanted), codec)
    assert header.has_delete_horizon == (horizon is not None)
    assert header.max_timestamp == NOW_MS
    found = open_batch(thinned, LIMITS).records
    assert [(100 + r.offset, r.key, r.value) for r in found] == [(r.offset, r.key, r.value) for r in wanted]
    assert list(read_stored(thinned, LIMITS)) == [(r.offset, r.timestamp) for r in wanted]


@pytest.mark.parametrize("sizes", [[10, 900_000, 900_000, 10], [3_000_000, 5], [5, 2_000_000]])
def test_a_batch_larger_than_a_window_is_thinned_like_any_other(sizes: list[int]) -> None:
    records = [(b"%d" % index, b"v" * size, [("h", b"x")]) for index, size in enumerate(sizes)]
    batch = build_batch(records, timestamp_ms=NOW_MS, codec=3)
    stored = open_batch(batch, LIMITS)
    assert [(r.offset, r.key, r.value) for r in stored.records] == [
        (index, key, value) for index, (key, value, _) in enumerate(records)
    ]
    kept = [index % 2 for index in range(len(sizes))]
    found = open_batch(thin_batch(stored, kept, NOW_MS + 5), LIMITS)
    assert [r.offset for r in found.records] == [index for index, keep in enumerate(kept) if keep]


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
    stretch_batch(batch, header, 1000)
    stretched = read_header(batch)
    assert (stretched.next_offset, stretched.last_sequence) == (1000, header.last_sequence)
    assert list(read_stored(batch, LIMITS)) == records
    wrapped = header._replace(base_sequence=0)
    assert wrapped.last_sequence == 1


def test_an_emptied_batch_tells_of_its_producer_and_of_no_transaction() -> None:
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
    shell = read_header(empty_batch(header))
    assert list(read_stored(empty_batch(header), LIMITS)) == []
    assert (shell.producer_id, shell.producer_epoch, shell.last_sequence) == (7, 2, 7)
    assert (shell.last_offset_delta, shell.is_transactional, shell.codec, shell.size) == (2, False, 0, 61)


def test_a_cover_belongs_to_nobody() -> None:
    cover = cover_batch(10, 25, 3, -1)
    header = read_header(cover)
    assert (header.base_offset, header.next_offset, header.count, header.producer_id) == (10, 25, 0, -1)
    assert list(read_stored(cover, LIMITS)) == []


def test_a_stored_batch_that_fails_its_check_is_not_opened() -> None:
    batch = build_batch([(b"k", b"v", ())], timestamp_ms=NOW_MS)
    batch[-3] ^= 1
    with pytest.raises(CorruptRecords):
        open_batch(batch, LIMITS)
    lying = empty_batch(read_header(build_batch([(b"k", b"v", ())], timestamp_ms=NOW_MS)))
    lying[57:61] = (9).to_bytes(4, "big")
    with pytest.raises(CorruptRecords):
        open_batch(lying, LIMITS)
