from __future__ import annotations

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
