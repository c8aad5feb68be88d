"""Values of tables that do not fit, until the batch that tells of them is written.

A table is read between batches, and may have any number of them. They wait in a temporary file, of which a little is in
memory, and are read from there as often as the batch is tried.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator

import msgspec

from headrace.flow.left_out import LeftOut

__all__ = ["SetAside"]

_IN_MEMORY_BYTES = 4 << 20
_LENGTH_BYTES = 8


class SetAside:
    """To be closed. Nothing may be added while it is read."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES)  # noqa: SIM115 - closed by close()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def extend(self, records: Iterable[LeftOut]) -> None:
        self._file.seek(0, 2)
        for record in records:
            written = msgspec.msgpack.encode(record)
            self._file.write(len(written).to_bytes(_LENGTH_BYTES, "big"))
            self._file.write(written)
            self._count += 1

    def __iter__(self) -> Iterator[LeftOut]:
        self._file.seek(0)
        while head := self._file.read(_LENGTH_BYTES):
            yield msgspec.msgpack.decode(self._file.read(int.from_bytes(head, "big")), type=LeftOut)

    def clear(self) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._count = 0

    def close(self) -> None:
        self._file.close()
