"""Names that a request repeats, each once and in the order of their first mention.

Apache Kafka answers a repeated name each time. Here an answer costs more than its name does, so it is given once.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TypeVar

__all__ = ["partitions_once"]

Name = TypeVar("Name", bound=Hashable)


def partitions_once(topics: Iterable[tuple[Name, Iterable[int]]]) -> dict[Name, list[int]]:
    """The partitions of each topic, each once, also where several items name the same topic."""
    named: dict[Name, dict[int, None]] = {}
    for name, indexes in topics:
        named.setdefault(name, {}).update(dict.fromkeys(indexes))
    return {name: list(indexes) for name, indexes in named.items()}
