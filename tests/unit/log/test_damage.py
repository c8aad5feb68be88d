from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from headrace.errors import CorruptBatch, DamagedState
from headrace.log.partition import PartitionLog
from headrace.log.reader import LogReader
from tests.unit.log.conftest import NOW_MS, PartitionFixture, append, values_from

from .by_time import offset_for_time

Filled = Callable[..., PartitionLog]


@pytest.mark.parametrize("damage", ["flip", "zero", "header", "truncate"])
def test_damage_to_synced_data_is_reported_and_other_batches_stay_readable(
    filled: Filled, desk: PartitionFixture, damage: str
) -> None:
    log = filled()
    damaged_segment = log.segments[1]
    log.close()
    raw = bytearray(damaged_segment.path.read_bytes())
    if damage == "flip":
        raw[400] ^= 0x10
    elif damage == "zero":
        raw[300:900] = bytes(600)
    elif damage == "header":
        raw[8:12] = b"\x7f\xff\xff\xff"
    else:
        del raw[-100:]
    damaged_segment.path.write_bytes(raw)
    reopened = desk.open()
    reader = LogReader(reopened)
    readable, unreadable, reported_paths = set(), set(), set()
    for offset in range(120):
        try:
            reader.read(offset, 1)
            readable.add(offset)
        except CorruptBatch as error:
            reported_paths.add(error.path)
            unreadable.add(offset)
    assert reported_paths == {damaged_segment.path}
    assert unreadable, "no read reported the damage"
    assert unreadable <= set(range(damaged_segment.base_offset, damaged_segment.end_offset)), (
        "a read outside the damaged segment failed"
    )
    assert len(unreadable) <= (9 if damage != "zero" else 27)
    assert append(reopened, b"on").base_offset == 120, "an offset was assigned twice"


def test_a_file_shorter_than_its_mark_is_reported_and_its_offsets_are_not_reused(
    filled: Filled, desk: PartitionFixture
) -> None:
    log = filled()
    active = log.active
    log.close()
    os.truncate(active.path, active.size - 10)
    reopened = desk.open()
    assert reopened.report.damage
    assert reopened.end_offset == 120
    with pytest.raises(CorruptBatch) as raised:
        LogReader(reopened).read(119, 100)
    assert str(active.path) in str(raised.value)
    append(reopened, b"new")
    reopened.sync_now()
    assert values_from(desk.open(), 120) == {120: b"new"}


def test_a_lost_segment_file_fails_only_reads_of_its_offsets(filled: Filled, desk: PartitionFixture) -> None:
    log = filled()
    lost_segment = log.segments[1]
    log.close()
    lost_segment.path.unlink()
    reopened = desk.open()
    with pytest.raises(CorruptBatch):
        LogReader(reopened).read(lost_segment.base_offset, 100)
    assert values_from(reopened, lost_segment.end_offset)[119] == b"value-119"
    assert LogReader(reopened).read(0, 100).next_offset > 0


@pytest.mark.parametrize("damage", [b"", b"\x00" * 64, b"junk"])
def test_a_damaged_or_missing_index_is_rebuilt(filled: Filled, desk: PartitionFixture, damage: bytes) -> None:
    filled().close()
    for path in desk.directory.glob("*.index"):
        path.write_bytes(damage)
    reopened = desk.open()
    assert reopened.report.indexes_rebuilt == len(reopened.segments)
    assert values_from(reopened) == {offset: b"value-%d" % offset for offset in range(120)}
    assert offset_for_time(reopened, NOW_MS + 20) == (60, NOW_MS + 20)


def test_damaged_index_columns_are_rebuilt_from_the_log(filled: Filled, desk: PartitionFixture) -> None:
    filled().close()
    for path in desk.directory.glob("*.index"):
        raw = bytearray(path.read_bytes())
        raw[-3] ^= 1
        path.write_bytes(raw)
    reopened = desk.open()
    assert reopened.report.indexes_rebuilt == 0
    assert values_from(reopened, 61)[61] == b"value-61"


@pytest.mark.parametrize("loss", ["unlink", "both slots"])
def test_a_log_with_data_but_no_readable_mark_does_not_open(
    filled: Filled, desk: PartitionFixture, loss: str
) -> None:
    filled().close()
    mark = desk.file("mark")
    if loss == "unlink":
        mark.unlink()
    else:
        mark.write_bytes(bytes(8192))
    before = {path.name: path.read_bytes() for path in desk.directory.iterdir()}
    with pytest.raises(DamagedState):
        desk.open()
    assert before == {path.name: path.read_bytes() for path in desk.directory.iterdir()}


def test_a_log_opens_with_one_torn_slot_of_the_mark(filled: Filled, desk: PartitionFixture) -> None:
    filled()
    mark = desk.file("mark")
    for at in (0, 4096):
        raw = bytearray(mark.read_bytes())
        intact = bytes(raw)
        raw[at + 20] ^= 0xFF
        mark.write_bytes(raw)
        assert desk.open().end_offset == 120
        mark.write_bytes(intact)
