"""Giving a batch its place in the log: the only bytes of it that the broker ever writes."""

from __future__ import annotations

from struct import Struct

from headrace.checksum import crc32c
from headrace.records.header import APPEND_TIME_BIT, CRC, CRC_AT, CRC_START, LENGTH_END

__all__ = ["place_batch", "seal"]

_OFFSET = Struct(">q")
_EPOCH = Struct(">i")
_ATTRIBUTES = Struct(">h")
_LENGTH_AT = 8
_EPOCH_AT = 12
_ATTRIBUTES_AT = 21
_MAX_TIMESTAMP_AT = 35


def place_batch(
    buf: bytearray | memoryview, pos: int, base_offset: int, leader_epoch: int, append_time_ms: int | None
) -> None:
    """Write offset and epoch into the batch at ``pos``, in place; its CRC stays valid.

    With ``append_time_ms`` all its records take that timestamp, which does change the CRC's range.
    """
    _OFFSET.pack_into(buf, pos, base_offset)
    _EPOCH.pack_into(buf, pos + _EPOCH_AT, leader_epoch)
    if append_time_ms is not None:
        (attributes,) = _ATTRIBUTES.unpack_from(buf, pos + _ATTRIBUTES_AT)
        _ATTRIBUTES.pack_into(buf, pos + _ATTRIBUTES_AT, attributes | APPEND_TIME_BIT)
        _OFFSET.pack_into(buf, pos + _MAX_TIMESTAMP_AT, append_time_ms)
        seal(buf, pos)


def seal(buf: bytearray | memoryview, pos: int) -> None:
    """Write the CRC that fits the batch at ``pos``."""
    (length,) = _EPOCH.unpack_from(buf, pos + _LENGTH_AT)
    with memoryview(buf) as view:
        checked = view[pos + CRC_START : pos + LENGTH_END + length]
        crc = crc32c(checked)
        checked.release()
    CRC.pack_into(buf, pos + CRC_AT, crc)
