from __future__ import annotations

import pytest

from headrace.errors import CorruptBatch
from headrace.log.reader import LogReader
from tests.unit.log.conftest import Desk, append, values_from


@pytest.mark.parametrize("bit", [3, 17, 31])
def test_a_leader_epoch_that_has_not_been_yet_is_damage(desk: Desk, bit: int) -> None:
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
