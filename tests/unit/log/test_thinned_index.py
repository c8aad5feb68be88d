"""An index with only some of its entries finds the same batches, with longer scans."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from headrace.files import SystemFiles
from headrace.log import index as indexing
from headrace.log.index import SparseIndex, read_thinned

BASE = 1_000


def written(directory: Path, entries: int) -> tuple[SparseIndex, Path]:
    chance = random.Random(entries)
    index = SparseIndex(BASE, BASE)
    position = offset = 0
    for _ in range(entries):
        records, size = chance.randrange(1, 9), chance.randrange(100, 200)
        index.add(BASE + offset, BASE + offset + records, position, size, chance.randrange(10**6), 0)
        offset, position = offset + records, position + size
    path = directory / "index"
    path.write_bytes(index.dump())
    return index, path


@pytest.mark.parametrize("entries", [0, 1, 7, 8, 9, 100, 1_000])
def test_a_thinned_index_respects_the_entry_limit_and_never_skips_the_searched_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entries: int
) -> None:
    monkeypatch.setattr(indexing, "_ENTRIES_PER_READ", 13)
    whole, path = written(tmp_path, entries)
    thinned = read_thinned(SystemFiles().open(path), BASE, 8)
    assert thinned is not None
    assert thinned.loaded
    assert len(thinned.offsets) == len(thinned.positions) == len(thinned.timestamps) <= 8
    assert (thinned.end_offset, thinned.size, thinned.max_timestamp) == (
        whole.end_offset,
        whole.size,
        whole.max_timestamp,
    )
    index_entries = set(zip(whole.offsets, whole.positions, strict=True)) | {(BASE, 0)}
    for offset in range(BASE, whole.end_offset, 3):
        assert thinned.floor(offset) in index_entries
        assert thinned.floor(offset) <= whole.floor(offset)
    for timestamp in range(0, 10**6, 9_999):
        assert thinned.floor_time(timestamp) in index_entries
        assert thinned.floor_time(timestamp) <= whole.floor_time(timestamp)


def test_an_index_below_the_entry_limit_keeps_all_entries(tmp_path: Path) -> None:
    whole, path = written(tmp_path, 100)
    assert read_thinned(SystemFiles().open(path), BASE, 100) == SparseIndex(
        BASE,
        whole.end_offset,
        whole.size,
        whole.max_timestamp,
        whole.max_timestamp_offset,
        whole.offsets,
        whole.positions,
        whole.timestamps,
        whole.size,
    )


@pytest.mark.parametrize("at", [0, 50, 64, 500, -1])
def test_any_changed_byte_is_detected_even_in_omitted_entries(tmp_path: Path, at: int) -> None:
    _, path = written(tmp_path, 100)
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)
    assert read_thinned(SystemFiles().open(path), BASE, 8) is None
    path.write_bytes(raw[:-8])
    assert read_thinned(SystemFiles().open(path), BASE, 8) is None
