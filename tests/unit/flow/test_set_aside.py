"""What is set aside comes back as often as it is asked for, however much it is."""

from __future__ import annotations

import contextlib

from headrace.flow.left_out import LeftOut
from headrace.flow.set_aside import SetAside


def test_records_come_back_in_their_order_until_they_are_cleared() -> None:
    records = [
        LeftOut("log", 0, number, None if number % 2 else b"k", b"\x00\xff" * 3_000, "reason", None)
        for number in range(1_000)
    ]
    with contextlib.closing(SetAside()) as aside:
        assert list(aside) == []
        aside.extend(records[:600])
        assert list(aside) == records[:600]
        aside.extend(records[600:])
        assert len(aside) == 1_000
        assert [list(aside), list(aside)] == [records, records]
        aside.clear()
        assert (len(aside), list(aside)) == (0, [])
        aside.extend(records[:1])
        assert list(aside) == records[:1]
