"""Reads letters at chosen offsets of a dead-letter topic, and the headers of their original records.

A flow does not read headers, so its letters do not have them. The original record has them while it is in the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from headrace.client.cluster import Cluster
from headrace.client.errors import MissingTopic
from headrace.client.records import read
from headrace.ops.dead.errors import NoSuchLetter
from headrace.ops.dead.letter import Header, Letter, build_record_of, own_headers

__all__ = ["letters_at", "original_headers"]

_GAP_MAX = 300
"""Up to this distance in offsets, it is cheaper to read the records between two letters than to send a request."""


def letters_at(cluster: Cluster, topic: str, coordinates: Sequence[tuple[int, int]]) -> Iterator[Letter]:
    """Return the letters at these partitions and offsets, sorted. Raise ``NoSuchLetter`` if a letter is missing."""
    starts, ends = cluster.starts(topic), cluster.ends(topic)
    by_partition: dict[int, set[int]] = {}
    for partition, offset in coordinates:
        if partition not in ends or not starts[partition] <= offset < ends[partition]:
            existing = (
                f"partition {partition} starts at {starts[partition]} and ends at {ends[partition]}"
                if partition in ends
                else f"the topic has {len(ends)} partitions"
            )
            raise NoSuchLetter(f"topic {topic!r} has no letter at {partition}/{offset}: {existing}")
        by_partition.setdefault(partition, set()).add(offset)
    for partition, offsets in sorted(by_partition.items()):
        for begin, end in _ranges_of(sorted(offsets)):
            wanted = {offset for offset in offsets if begin <= offset < end}
            for message in read(cluster, topic, {partition: (begin, end)}):
                if message.offset() in wanted and build_record_of(message) is None:
                    wanted.discard(message.offset() or 0)
                    yield Letter.of(message)
            if wanted:
                raise NoSuchLetter(f"topic {topic!r} has no letter at {partition}/{min(wanted)}")


def original_headers(cluster: Cluster, letters: Iterable[Letter]) -> dict[bytes, tuple[Header, ...]]:
    """Return the original headers by the letter's id, without letters whose record was deleted or replaced."""
    wanted: dict[tuple[str, int], dict[int, Letter]] = {}
    for letter in letters:
        origin = letter.origin
        if origin is not None and origin.partition is not None and origin.offset is not None:
            wanted.setdefault((origin.topic, origin.partition), {})[origin.offset] = letter
    headers: dict[bytes, tuple[Header, ...]] = {}
    for (topic, partition), by_offset in wanted.items():
        try:
            starts, ends = cluster.starts(topic), cluster.ends(topic)
        except MissingTopic:
            continue
        low, high = starts.get(partition, 0), ends.get(partition, 0)
        for begin, end in _ranges_of([offset for offset in sorted(by_offset) if low <= offset < high]):
            for message in read(cluster, topic, {partition: (begin, end)}):
                letter = by_offset.get(message.offset() or 0)  # type: ignore[assignment]
                if letter is not None and (message.key(), message.value()) == (letter.key, letter.value):
                    headers[letter.id] = own_headers(message)
    return headers


def _ranges_of(offsets: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Return ranges that contain these sorted offsets. After a large gap, a new range begins."""
    begin = 0
    for index, offset in enumerate(offsets):
        if index + 1 == len(offsets) or offsets[index + 1] - offset > _GAP_MAX:
            yield offsets[begin], offset + 1
            begin = index + 1
