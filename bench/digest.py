"""What a topic holds, as one number: two topics that hold the same records, in whatever order, have the same."""

from __future__ import annotations

import zlib

from headrace.client.cluster import Cluster
from headrace.client.reading import read

__all__ = ["digest"]


def digest(cluster: Cluster, topic: str) -> tuple[int, int]:
    """How many records a reader of committed ones finds, and the sum of their checksums."""
    starts, ends = cluster.starts(topic), cluster.ends(topic)
    count = total = 0
    for message in read(cluster, topic, {number: (starts[number], end) for number, end in ends.items()}):
        count += 1
        total += zlib.crc32(message.value() or b"", zlib.crc32(message.key() or b""))
    return count, total
