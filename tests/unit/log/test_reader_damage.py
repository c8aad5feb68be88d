from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from headrace.errors import CorruptBatch
from headrace.log.reader import LogReader
from tests.unit.log.conftest import PartitionFixture, append, values_from


@pytest.mark.parametrize("bit", [3, 17, 31])
def test_a_batch_with_a_future_leader_epoch_is_damaged(desk: PartitionFixture, bit: int) -> None:
    log = desk.open(leader_epoch=2)
    for number in range(3):
        append(log, b"value-%d" % number)
    log.close()
    path = desk.file("*.log")
    content = bytearray(path.read_bytes())
    size = len(content) // 3
    content[size + 15 - bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    log = desk.open(leader_epoch=3)
    assert values_from(log, 2) == {2: b"value-2"}
    with pytest.raises(CorruptBatch) as raised:
        LogReader(log).read(1, 1)
    assert (raised.value.path, raised.value.position) == (path, size)


def test_batches_after_a_damaged_length_field_are_readable(desk: PartitionFixture) -> None:
    log = desk.open()
    for number in range(6):
        append(log, b"value-%d" % number)
    log.close()
    path = desk.file("*.log")
    content = bytearray(path.read_bytes())
    size = len(content) // 6
    # Damage the length of the second batch, so that it seems to end inside the fourth.
    content[size + 8 : size + 12] = (2 * size).to_bytes(4, "big")
    path.write_bytes(content)
    log = desk.open()
    assert values_from(log, 2) == {number: b"value-%d" % number for number in range(2, 6)}
    with pytest.raises(CorruptBatch):
        LogReader(log).read(1, 1)


@pytest.mark.parametrize("at", range(61), ids="byte-{}".format)
def test_every_flipped_bit_in_a_batch_header_leaves_the_other_batches_readable(
    desk: PartitionFixture, at: int
) -> None:
    log = desk.open()
    for number in range(0, 12, 2):
        append(log, b"value-%d" % number, b"value-%d" % (number + 1))
    log.close()
    path = desk.file("*.log")
    content = path.read_bytes()
    size = len(content) // 6
    for bit in range(8):
        damaged = bytearray(content)
        damaged[2 * size + at] ^= 1 << bit
        path.write_bytes(damaged)
        log = desk.open()
        reader = LogReader(log)
        for offset in (0, 1, 2, 3, 6, 7, 8, 9, 10, 11):
            read_slice = reader.read(offset, 1)
            assert read_slice.next_offset == offset - offset % 2 + 2, bit
        log.close()


def test_a_batch_before_a_damaged_base_offset_is_readable_from_each_of_its_offsets(
    desk: PartitionFixture,
) -> None:
    log = desk.open()
    for number in range(0, 6, 2):
        append(log, b"value-%d" % number, b"value-%d" % (number + 1))
    log.close()
    path = desk.file("*.log")
    content = bytearray(path.read_bytes())
    content[len(content) // 3 + 7] ^= 1
    path.write_bytes(content)
    log = desk.open()
    assert LogReader(log).read(1, 1).next_offset == 2


@pytest.mark.parametrize("at", range(61), ids="byte-{}".format)
def test_every_flipped_bit_in_an_unsynced_header_leaves_only_readable_batches(
    desk: PartitionFixture, tmp_path: Path, at: int
) -> None:
    log = desk.open(leader_epoch=2)
    append(log, b"value-0")
    log.sync_mark()
    for number in range(1, 4):
        append(log, b"value-%d" % number)
    content = desk.file("*.log").read_bytes()
    size = len(content) // 4
    for bit in (0, 4, 7):
        killed = tmp_path / f"killed-{bit}"
        shutil.copytree(desk.directory, killed)
        damaged = bytearray(content)
        damaged[2 * size + at] ^= 1 << bit
        next(killed.glob("*.log")).write_bytes(damaged)
        reopened = PartitionFixture(killed).open(leader_epoch=3)
        values = values_from(reopened)
        assert values == {number: b"value-%d" % number for number in range(reopened.end_offset)}, bit
        assert reopened.end_offset >= 2
        reopened.close()
    log.close()
