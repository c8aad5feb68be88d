"""The records of unpacked bytes, a window at a time: what is held at once is bounded, however many there are.

A record of seven bytes becomes objects of two hundred, and a batch may unpack to a hundred megabytes.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace.records.errors import CorruptRecords, InvalidRecords
from headrace.records.quick_walk import quick_read
from headrace.records.record import BareRecord, read_bare_records

__all__ = ["WINDOW_BYTES_MAX", "BareRecords"]

WINDOW_BYTES_MAX = 1024 * 1024


class BareRecords:
    """Exactly ``count`` records, which can be gone over more than once; one that does not read is damage."""

    def __init__(self, plain: memoryview, count: int) -> None:
        self._plain = plain
        self._count = count

    def __iter__(self) -> Iterator[BareRecord]:
        read = quick_read or read_bare_records
        plain, position, left = self._plain, 0, range(self._count)
        while left:
            try:
                found, position = read(plain, position, left, WINDOW_BYTES_MAX)
            except InvalidRecords as error:
                raise CorruptRecords(f"stored records do not read: {error.message}") from error
            yield from found
            left = left[len(found) :]
        if position != len(plain):
            raise CorruptRecords(
                f"{len(plain) - position} bytes are left after the last of {self._count} records"
            )
