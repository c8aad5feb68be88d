"""The possible values of things that the oracle tracks, such as the settings of a topic or a committed offset.

After a request with a response, one value is possible. After a request without a response, the old and the new value
are possible, until the next start shows one of them. From then on that value must stay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["ANY_ID", "PossibleValues", "TopicFact"]

T = TypeVar("T")

ANY_ID = b""
"""The id of a topic whose creation got no response."""


@dataclass(frozen=True, slots=True)
class TopicFact:
    id: bytes
    partitions: int
    max_message_bytes: int

    def fits(self, observed: TopicFact) -> bool:
        return (
            self.id in (ANY_ID, observed.id)
            and self.partitions == observed.partitions
            and self.max_message_bytes == observed.max_message_bytes
        )


class PossibleValues(Generic[T]):
    def __init__(self, value: T) -> None:
        self.values = [value]

    @property
    def confirmed(self) -> T | None:
        """The value, if it is certain."""
        return self.values[0] if len(self.values) == 1 else None

    def add_possible(self, value: T) -> None:
        if value not in self.values:
            self.values.append(value)

    def confirm(self, value: T) -> None:
        self.values = [value]

    def observe(self, observed: T) -> bool:
        """Accept the value that a start shows. Return False if it is impossible."""
        fits = any(_fit(value, observed) for value in self.values)
        self.values = [observed]
        return fits


def _fit(value: object, observed: object) -> bool:
    if isinstance(value, TopicFact) and isinstance(observed, TopicFact):
        return value.fits(observed)
    return value == observed
