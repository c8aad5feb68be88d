"""What compaction has done to a partition: how far it has come, and which deletions nobody can read any more.

Layout of the file ``compacted``, replaced whole, big-endian:

    0   8  magic "HRCOMP01"
    8   8  clean offset: below it no key has a newer record below it as well
    16  8  tombstones removed below: one past the last deletion that expired and was removed
    24  8  next horizon: when the next deletion expires, in ms of trusted time; -1 if there is none
    32  4  CRC-32C of bytes 0 to 31

A reader that has read everything below an offset P, stayed away and comes back to P has missed a deletion if, and only
if, one at or behind P was removed meanwhile: P is then below *tombstones removed below*. Such a reader must start anew.
A deletion that was removed because its key has a newer record does not count: that record tells the reader.

Invariant: the figure is durable before a deletion is removed, so it may say too much after a crash, never too little.
Without the file nothing was compacted. A file that fails its check is damage, not a crash: then every reader is told to
start anew, and all is compacted again.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from headrace.checksum import crc32c
from headrace.files import Files
from headrace.log.segment import write_whole

__all__ = ["COMPACTED_NAME", "Compacted", "load_compacted"]

COMPACTED_NAME = "compacted"
_MAGIC = b"HRCOMP01"
_BODY = struct.Struct(">8sqqq")
_CRC = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Compacted:
    clean_offset: int = 0
    tombstones_removed_below: int = 0
    next_horizon_ms: int = -1

    def write(self, files: Files, directory: Path) -> None:
        """Durable when this returns."""
        body = _BODY.pack(_MAGIC, self.clean_offset, self.tombstones_removed_below, self.next_horizon_ms)
        write_whole(files, directory / COMPACTED_NAME, body + _CRC.pack(crc32c(body)))
        files.sync_dir(directory)


def load_compacted(files: Files, directory: Path, end_offset: int) -> tuple[Compacted, str | None]:
    """What the file says, and what is wrong with it."""
    path = directory / COMPACTED_NAME
    if not files.exists(path):
        return Compacted(), None
    file = files.open(path)
    try:
        raw = file.pread(_BODY.size + _CRC.size + 1, 0)
    finally:
        file.close()
    if len(raw) == _BODY.size + _CRC.size:
        magic, clean, removed, horizon = _BODY.unpack_from(raw)
        if magic == _MAGIC and _CRC.unpack_from(raw, _BODY.size)[0] == crc32c(raw[: _BODY.size]):
            return Compacted(clean, removed, horizon), None
    return (
        Compacted(0, end_offset, -1),
        f"{path} does not read back; readers that were away are told to start anew from offset 0",
    )
