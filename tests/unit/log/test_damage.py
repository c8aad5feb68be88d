from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from headrace.errors import CorruptBatch, DamagedState
from headrace.log.partition import PartitionLog
from headrace.log.reader import LogReader
from tests.unit.log.conftest import NOW_MS, Desk, append, values_from

from .by_time import offset_for_time

Filled = Callable[..., PartitionLog]


@pytest.mark.parametrize("harm", ["flip", "zero", "header", "truncate"])
def test_damage_to_synced_data_is_reported_and_its_neighbours_stay_readable(
    filled: Filled, desk: Desk, harm: str
) -> None:
    log = filled()
    victim = log.segments[1]
    log.close()
    raw = bytearray(victim.path.read_bytes())
    if harm == "flip":
        raw[400] ^= 0x10
    elif harm == "zero":
        raw[300:900] = bytes(600)
    elif harm == "header":
        raw[8:12] = b"\x7f\xff\xff\xff"
    else:
        del raw[-100:]
    victim.path.write_bytes(raw)
    again = desk.open()
    reader = LogReader(again)
    readable, lost, named = set(), set(), set()
    for offset in range(120):
        try:
            reader.read(offset, 1)
            readable.add(offset)
        except CorruptBatch as error:
            named.add(error.path)
            lost.add(offset)
    assert named == {victim.path}
    assert lost, "the damage must be noticed"
    assert lost <= set(range(victim.base_offset, victim.end_offset)), "neighbours are untouched"
    assert len(lost) <= (9 if harm != "zero" else 27)
    assert append(again, b"on").base_offset == 120, "no offset is ever given out twice"


def test_a_file_shorter_than_its_mark_keeps_its_offsets_and_reports_the_loss(
    filled: Filled, desk: Desk
) -> None:
    log = filled()
    active = log.active
    log.close()
    os.truncate(active.path, active.size - 10)
    again = desk.open()
    assert again.report.damage
    assert again.end_offset == 120
    with pytest.raises(CorruptBatch) as raised:
        LogReader(again).read(119, 100)
    assert str(active.path) in str(raised.value)
    append(again, b"new")
    again.sync_now()
    assert values_from(desk.open(), 120) == {120: b"new"}


def test_a_lost_segment_file_is_an_error_for_its_offsets_only(filled: Filled, desk: Desk) -> None:
    log = filled()
    gone = log.segments[1]
    log.close()
    gone.path.unlink()
    again = desk.open()
    with pytest.raises(CorruptBatch):
        LogReader(again).read(gone.base_offset, 100)
    assert values_from(again, gone.end_offset)[119] == b"value-119"
    assert LogReader(again).read(0, 100).next_offset > 0


@pytest.mark.parametrize("harm", [b"", b"\x00" * 64, b"junk"])
def test_a_damaged_or_missing_index_is_made_again(filled: Filled, desk: Desk, harm: bytes) -> None:
    filled().close()
    for path in desk.directory.glob("*.index"):
        path.write_bytes(harm)
    again = desk.open()
    assert again.report.indexes_rebuilt == len(again.segments)
    assert values_from(again) == {offset: b"value-%d" % offset for offset in range(120)}
    assert offset_for_time(again, NOW_MS + 20) == (60, NOW_MS + 20)


def test_index_columns_that_rot_later_are_made_again_from_the_log(filled: Filled, desk: Desk) -> None:
    filled().close()
    for path in desk.directory.glob("*.index"):
        raw = bytearray(path.read_bytes())
        raw[-3] ^= 1
        path.write_bytes(raw)
    again = desk.open()
    assert again.report.indexes_rebuilt == 0
    assert values_from(again, 61)[61] == b"value-61"


@pytest.mark.parametrize("loss", ["unlink", "both slots"])
def test_data_without_a_readable_mark_is_refused(filled: Filled, desk: Desk, loss: str) -> None:
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


def test_one_torn_slot_of_the_mark_is_survived(filled: Filled, desk: Desk) -> None:
    filled()
    mark = desk.file("mark")
    for at in (0, 4096):
        raw = bytearray(mark.read_bytes())
        whole = bytes(raw)
        raw[at + 20] ^= 0xFF
        mark.write_bytes(raw)
        assert desk.open().end_offset == 120
        mark.write_bytes(whole)
