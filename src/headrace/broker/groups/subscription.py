"""Which topics a consumer's subscription names.

Members hand the coordinator opaque bytes. For groups of protocol type ``consumer`` their beginning is fixed
for all versions (int16 version, then an array of topic names), and the coordinator reads that much and no
more: it decides whose offsets retention must leave alone. Bytes that do not read so are a member's own
affair, hence ``None`` and no error.
"""

from __future__ import annotations

import struct

__all__ = ["CONSUMER_PROTOCOL_TYPE", "subscribed_topics"]

CONSUMER_PROTOCOL_TYPE = "consumer"

_VERSION_AND_COUNT = struct.Struct(">hi")
_LENGTH = struct.Struct(">h")


def subscribed_topics(subscription: bytes, names_max: int) -> list[str] | None:
    """The names as they come; ``None`` also for more than ``names_max``."""
    try:
        version, count = _VERSION_AND_COUNT.unpack_from(subscription)
        # Each name takes two bytes at least, so an absurd count is refused before anything is built.
        if version < 0 or not 0 <= count <= names_max or count * _LENGTH.size > len(subscription):
            return None
        topics: list[str] = []
        position = _VERSION_AND_COUNT.size
        for _ in range(count):
            (length,) = _LENGTH.unpack_from(subscription, position)
            position += _LENGTH.size
            end = position + length
            if length < 0 or end > len(subscription):
                return None
            topics.append(subscription[position:end].decode())
            position = end
    except (struct.error, UnicodeDecodeError):
        return None
    return topics
