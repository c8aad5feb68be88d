"""Letters of a topic: the newest first in pages, those at some places, or all of them from the oldest on."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from headrace.client.cluster import Cluster
from headrace.client.reading import read
from headrace.ops.dead.errors import NoSuchLetter
from headrace.ops.dead.letter import Letter

__all__ = ["LetterPage", "letters_at", "letters_between", "newest_letters"]

_WIDER = 8
_BYTES_MAX = 64 << 20
_NEAR = 500
"""Offsets between two letters for which one goes on reading, rather than asking anew."""


@dataclass(frozen=True, slots=True)
class LetterPage:
    letters: list[Letter]
    before: Mapping[int, int]
    """Per partition, behind the newest letter that is not on this page or on one before it."""
    at_end: bool
    """Whether there is nothing older."""


def newest_letters(
    cluster: Cluster,
    topic: str,
    limit: int,
    before: Mapping[int, int] | None = None,
    bytes_max: int = _BYTES_MAX,
) -> LetterPage:
    """The newest ones by the log's time, and within a partition by their place. Where so many would be more than
    ``bytes_max``, the page ends earlier.
    """
    starts, ends = cluster.starts(topic), cluster.ends(topic)
    bounds = {one: min(ends[one], (before or ends).get(one, ends[one])) for one in ends}
    found: list[Letter] = []
    reach = limit
    while len(found) < limit and any(bounds[one] > starts[one] for one in bounds):
        ranges = {one: (max(starts[one], bounds[one] - reach), bounds[one]) for one in bounds}
        piled: dict[int, deque[Letter]] = {one: deque() for one in ranges}
        cut: set[int] = set()
        held = sum(one.size_bytes for one in found)
        for message in read(cluster, topic, ranges):
            letter = Letter.of(message)
            piled[letter.place.partition].append(letter)
            held += letter.size_bytes
            while held > bytes_max:
                number, pile = max(piled.items(), key=lambda one: len(one[1]))
                if len(pile) == 1:
                    break
                held -= pile.popleft().size_bytes
                cut.add(number)
        taken = _newest(piled, limit - len(found))
        found += taken
        for one, (low, _) in ranges.items():
            mine = [letter.place.offset for letter in taken if letter.place.partition == one]
            # What was read and not taken comes with the next page.
            whole = one not in cut and len(mine) == len(piled[one])
            bounds[one] = low if whole else min(mine, default=bounds[one])
        if cut:
            break
        if not taken:
            # Nothing but ends of transactions: they may be many.
            reach *= _WIDER
    return LetterPage(found, bounds, all(bounds[one] <= starts[one] for one in bounds))


def _newest(piled: Mapping[int, Sequence[Letter]], limit: int) -> list[Letter]:
    heap = [(-pile[-1].at_ms, one) for one, pile in piled.items() if pile]
    heapq.heapify(heap)
    found: list[Letter] = []
    left = {one: len(pile) for one, pile in piled.items()}
    while heap and len(found) < limit:
        _, one = heapq.heappop(heap)
        left[one] -= 1
        found.append(piled[one][left[one]])
        if left[one]:
            heapq.heappush(heap, (-piled[one][left[one] - 1].at_ms, one))
    return found


def letters_at(cluster: Cluster, topic: str, places: Sequence[tuple[int, int]]) -> Iterator[Letter]:
    """Those at these partitions and offsets, in their order; raises for one that is not there."""
    starts, ends = cluster.starts(topic), cluster.ends(topic)
    for partition, offset in places:
        if partition not in ends or not starts[partition] <= offset < ends[partition]:
            held = (
                f"partition {partition} holds {starts[partition]} to {ends[partition]}"
                if partition in ends
                else f"there are {len(ends)} partitions"
            )
            raise NoSuchLetter(f"topic {topic!r} has no letter at {partition}/{offset}: {held}")
    for partition, stretch in _stretches(places):
        wanted = set(stretch)
        for message in read(cluster, topic, {partition: (min(stretch), max(stretch) + 1)}):
            if message.offset() in wanted:
                wanted.discard(message.offset() or 0)
                yield Letter.of(message)
        if wanted:
            raise NoSuchLetter(f"topic {topic!r} has no letter at {partition}/{min(wanted)}")


def _stretches(places: Sequence[tuple[int, int]]) -> Iterator[tuple[int, list[int]]]:
    held: list[int] = []
    number = -1
    for partition, offset in sorted(set(places)):
        if held and (partition != number or offset - held[-1] > _NEAR):
            yield number, held
            held = []
        number = partition
        held.append(offset)
    if held:
        yield number, held


def letters_between(cluster: Cluster, topic: str, ranges: Mapping[int, tuple[int, int]]) -> Iterator[Letter]:
    return (Letter.of(message) for message in read(cluster, topic, ranges))
