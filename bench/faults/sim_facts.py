"""What the oracle knows of things that have one value at a time: a topic, a committed offset.

A request that was answered leaves one possible value. One that was not leaves two, until the next start shows which it
is: from then on that one must stay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["ANY_ID", "Maybe", "TopicFact"]

T = TypeVar("T")

ANY_ID = b""
"""The id of a topic whose creation was not answered."""


@dataclass(frozen=True, slots=True)
class TopicFact:
    id: bytes
    partitions: int
    max_message_bytes: int

    def fits(self, seen: TopicFact) -> bool:
        return (
            self.id in (ANY_ID, seen.id)
            and self.partitions == seen.partitions
            and self.max_message_bytes == seen.max_message_bytes
        )


class Maybe(Generic[T]):
    def __init__(self, value: T) -> None:
        self.values = [value]

    @property
    def sure(self) -> T | None:
        """The value, if it is known."""
        return self.values[0] if len(self.values) == 1 else None

    def perhaps(self, value: T) -> None:
        if value not in self.values:
            self.values.append(value)

    def surely(self, value: T) -> None:
        self.values = [value]

    def settle(self, seen: T) -> bool:
        """Take what a start shows; ``False`` if it cannot be."""
        fits = any(_fit(value, seen) for value in self.values)
        self.values = [seen]
        return fits


def _fit(value: object, seen: object) -> bool:
    if isinstance(value, TopicFact) and isinstance(seen, TopicFact):
        return value.fits(seen)
    return value == seen
