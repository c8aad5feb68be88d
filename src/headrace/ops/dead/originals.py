"""The headers of records as they came. A flow does not read headers, so its letters do not have them; the record that
a letter is about has, for as long as it is in the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from headrace.client.cluster import Cluster
from headrace.client.errors import TopicMissing
from headrace.client.reading import read
from headrace.ops.dead.letter import Header, Letter, own_headers

__all__ = ["original_headers"]

_NEAR = 200
"""Offsets between two records for which one goes on reading, rather than asking anew."""


def original_headers(cluster: Cluster, letters: Iterable[Letter]) -> dict[bytes, tuple[Header, ...]]:
    """By the letter's id; without those whose record is gone, or is another one by now."""
    wanted: dict[tuple[str, int], dict[int, Letter]] = {}
    for letter in letters:
        origin = letter.origin
        if origin is not None and origin.partition is not None and origin.offset is not None:
            wanted.setdefault((origin.topic, origin.partition), {})[origin.offset] = letter
    found: dict[bytes, tuple[Header, ...]] = {}
    for (topic, partition), by_offset in wanted.items():
        try:
            starts, ends = cluster.starts(topic), cluster.ends(topic)
        except TopicMissing:
            continue
        here = [at for at in sorted(by_offset) if starts.get(partition, 0) <= at < ends.get(partition, 0)]
        for begin, end in _stretches(here):
            for message in read(cluster, topic, {partition: (begin, end)}):
                letter = by_offset.get(message.offset() or 0)  # type: ignore[assignment]
                if letter is not None and (message.key(), message.value()) == (letter.key, letter.value):
                    found[letter.id] = own_headers(message)
    return found


def _stretches(offsets: Sequence[int]) -> Iterator[tuple[int, int]]:
    begin = 0
    for number, at in enumerate(offsets):
        if number + 1 == len(offsets) or offsets[number + 1] - at > _NEAR:
            yield offsets[begin], at + 1
            begin = number + 1
