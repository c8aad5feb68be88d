"""Reads dead letters: pages of the newest letters, letters at chosen offsets, or all letters from the oldest.

``original_headers`` reads the headers of rejected records. A flow does not read headers, so its letters do not have
them. The original record has them while it is in the log.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from headrace.client.cluster import Cluster
from headrace.client.errors import MissingTopic
from headrace.client.records import read
from headrace.ops.dead.errors import NoSuchLetter
from headrace.ops.dead.letter import Header, Letter, own_headers

__all__ = ["LetterPage", "letters_at", "letters_between", "newest_letters", "original_headers"]

_WIDEN_FACTOR = 8
_BYTES_MAX = 64 << 20
_GAP_MAX = 300
"""Up to this distance in offsets, it is cheaper to read the records between two letters than to send a request."""


@dataclass(frozen=True, slots=True)
class LetterPage:
    letters: list[Letter]
    before: Mapping[int, int]
    """Per partition, the offset before which the next page reads."""
    at_end: bool
    """Whether no older letters exist."""


def newest_letters(
    cluster: Cluster,
    topic: str,
    limit: int,
    before: Mapping[int, int] | None = None,
    bytes_max: int = _BYTES_MAX,
) -> LetterPage:
    """Return the newest letters, at most ``bytes_max`` in total. They are ordered by the log's timestamp, and
    within a partition by offset.
    """
    starts, ends = cluster.starts(topic), cluster.ends(topic)
    bounds = {number: min(end, (before or ends).get(number, end)) for number, end in ends.items()}
    page: list[Letter] = []
    range_size = limit
    while len(page) < limit and any(bounds[number] > starts[number] for number in bounds):
        ranges = {
            number: (max(starts[number], bound - range_size), bound) for number, bound in bounds.items()
        }
        read_letters: dict[int, deque[Letter]] = {number: deque() for number in ranges}
        truncated: set[int] = set()
        read_bytes = sum(letter.size_bytes for letter in page)
        for message in read(cluster, topic, ranges):
            letter = Letter.of(message)
            read_letters[letter.record_id.partition].append(letter)
            read_bytes += letter.size_bytes
            while read_bytes > bytes_max:
                number, letters = max(read_letters.items(), key=lambda item: len(item[1]))
                if len(letters) == 1:
                    break
                read_bytes -= letters.popleft().size_bytes
                truncated.add(number)
        newest = _newest(read_letters, limit - len(page))
        page += newest
        for number, (low, _) in ranges.items():
            offsets = [letter.record_id.offset for letter in newest if letter.record_id.partition == number]
            # Letters that were read but not returned are on the next page.
            returned_all = number not in truncated and len(offsets) == len(read_letters[number])
            bounds[number] = low if returned_all else min(offsets, default=bounds[number])
        if truncated:
            break
        if not newest:
            # The range had only transaction markers, and more can follow.
            range_size *= _WIDEN_FACTOR
    return LetterPage(page, bounds, all(bounds[number] <= starts[number] for number in bounds))


def _newest(by_partition: Mapping[int, Sequence[Letter]], limit: int) -> list[Letter]:
    heap = [(-letters[-1].at_ms, number) for number, letters in by_partition.items() if letters]
    heapq.heapify(heap)
    newest: list[Letter] = []
    remaining = {number: len(letters) for number, letters in by_partition.items()}
    while heap and len(newest) < limit:
        _, number = heapq.heappop(heap)
        remaining[number] -= 1
        newest.append(by_partition[number][remaining[number]])
        if remaining[number]:
            heapq.heappush(heap, (-by_partition[number][remaining[number] - 1].at_ms, number))
    return newest


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
                if message.offset() in wanted:
                    wanted.discard(message.offset() or 0)
                    yield Letter.of(message)
            if wanted:
                raise NoSuchLetter(f"topic {topic!r} has no letter at {partition}/{min(wanted)}")


def letters_between(cluster: Cluster, topic: str, ranges: Mapping[int, tuple[int, int]]) -> Iterator[Letter]:
    return (Letter.of(message) for message in read(cluster, topic, ranges))


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
