"""A buffer for dead letters that moves to a temporary file when it grows.

A table is read between batches and may contain any number of invalid values. They wait here until a batch commits
them; a retried batch reads them again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator

import msgspec

from headrace.flow.left_out import LeftOut

__all__ = ["DeadLetterSpool"]

_MEMORY_BYTES_MAX = 4 << 20
_LENGTH_BYTES = 8


class DeadLetterSpool:
    """Not for concurrent use: records must not be added during an iteration."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=_MEMORY_BYTES_MAX)  # noqa: SIM115 - closed by close()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def extend(self, records: Iterable[LeftOut]) -> None:
        self._file.seek(0, 2)
        for record in records:
            encoded = msgspec.msgpack.encode(record)
            self._file.write(len(encoded).to_bytes(_LENGTH_BYTES, "big"))
            self._file.write(encoded)
            self._count += 1

    def __iter__(self) -> Iterator[LeftOut]:
        self._file.seek(0)
        while length := self._file.read(_LENGTH_BYTES):
            encoded = self._file.read(int.from_bytes(length, "big"))
            yield msgspec.msgpack.decode(encoded, type=LeftOut)

    def clear(self) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._count = 0

    def close(self) -> None:
        self._file.close()
