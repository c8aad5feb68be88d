"""Places in a log as people write them, and where they are in each partition.

start, end     the oldest record there is; the place of the next one to come
47             exactly offset 47
+10, -10       ten after the start; ten before the end
@MOMENT        the first record at or after a moment (see ``moments``)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from headrace.client.moments import read_moment

__all__ = [
    "PLACES",
    "Bounds",
    "Kind",
    "Move",
    "Partition",
    "Place",
    "moves_to",
    "offsets_of",
    "read_place",
    "read_simple",
]

Partition = tuple[str, int]
"""Topic and number."""
PLACES = "start, end, 47, +10 (after the start), -10 (before the end) or @-1h"
_OFFSET_MAX = 2**63 - 1
_START = frozenset({"start", "oldest", "earliest", "beginning"})
_END = frozenset({"end", "newest", "latest"})


class Kind(Enum):
    START = "start"
    END = "end"
    EXACT = "exact"
    AFTER_START = "after start"
    BEFORE_END = "before end"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Place:
    kind: Kind
    value: int = 0
    """An offset, a count of records or milliseconds since 1970, as the kind says."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """A partition holds ``start`` up to, and not including, ``end``."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Move:
    """Of what a group reads next."""

    topic: str
    partition: int
    old: int | None
    """None where nothing is committed."""
    new: int
    bounds: Bounds

    @property
    def fits(self) -> bool:
        return self.bounds.start <= self.new <= self.bounds.end

    def row(self) -> dict[str, object]:
        return {
            "topic": self.topic,
            "partition": self.partition,
            "old": self.old,
            "new": self.new,
            "moved": None if self.old is None else self.new - self.old,
        }


def read_place(text: str, now_ms: int) -> Place | None:
    """None if the text is no place."""
    if not text.startswith("@"):
        return read_simple(text)
    moment = read_moment(text[1:], now_ms)
    return None if moment is None else Place(Kind.TIME, moment.ms)


def _number(text: str) -> int | None:
    if not (text.isascii() and text.isdecimal()):
        return None
    value = int(text)
    return value if value <= _OFFSET_MAX else None


def read_simple(text: str) -> Place | None:
    if text in _START:
        return Place(Kind.START)
    if text in _END:
        return Place(Kind.END)
    if text[:1] in ("+", "-"):
        count = _number(text[1:])
        kind = Kind.AFTER_START if text[0] == "+" else Kind.BEFORE_END
        return None if count is None else Place(kind, count)
    offset = _number(text)
    return None if offset is None else Place(Kind.EXACT, offset)


def offsets_of(
    place: Place,
    bounds: Mapping[Partition, Bounds],
    first_since: Callable[[int], Mapping[Partition, int]],
) -> dict[Partition, int]:
    """Where a place is in each partition. An exact offset is returned as it is, in range or not. ``first_since`` says
    which offset is the first at or after a time, in milliseconds; below 0 where there is none.
    """
    match place.kind:
        case Kind.START:
            return {one: limits.start for one, limits in bounds.items()}
        case Kind.END:
            return {one: limits.end for one, limits in bounds.items()}
        case Kind.EXACT:
            return dict.fromkeys(bounds, place.value)
        case Kind.AFTER_START:
            return {one: min(limits.start + place.value, limits.end) for one, limits in bounds.items()}
        case Kind.BEFORE_END:
            return {one: max(limits.end - place.value, limits.start) for one, limits in bounds.items()}
        case Kind.TIME:
            # No record that late: the next one to come is the first.
            return {
                one: offset if offset >= 0 else bounds[one].end
                for one, offset in first_since(place.value).items()
            }


def moves_to(
    targets: Mapping[Partition, int], committed: Mapping[Partition, int], bounds: Mapping[Partition, Bounds]
) -> list[Move]:
    return [
        Move(topic, number, committed.get((topic, number)), offset, bounds[topic, number])
        for (topic, number), offset in targets.items()
    ]
