"""The buffer of dead letters."""

from __future__ import annotations

import contextlib

from headrace.flow.rejected import DeadLetterSpool, RejectedRecord
from headrace.model.rejection import Reason


def test_a_spool_larger_than_its_memory_returns_all_records_in_order_on_each_read() -> None:
    records = [
        RejectedRecord(
            "log", 0, number, None if number % 2 else b"k", b"\x00\xff" * 3_000, Reason.SCHEMA, "", None
        )
        for number in range(1_000)
    ]
    with contextlib.closing(DeadLetterSpool()) as spool:
        spool.extend(records[:600])
        assert list(spool) == records[:600]
        spool.extend(records[600:])
        assert len(spool) == 1_000
        assert [list(spool), list(spool)] == [records, records]


def test_a_cleared_spool_is_empty_and_takes_new_records() -> None:
    record = RejectedRecord("log", 0, 7, b"k", b"v", Reason.TIME, "message", None)
    with contextlib.closing(DeadLetterSpool()) as spool:
        spool.extend([record] * 3)
        spool.clear()
        assert (len(spool), list(spool)) == (0, [])
        spool.extend([record])
        assert list(spool) == [record]
