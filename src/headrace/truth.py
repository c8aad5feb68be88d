"""Checks whether a topic can be a source of truth, from which other data is derived.

A volatile topic is empty after a restart of its broker. So nothing that was derived from it (a view, event-sourced
state, a capture) can be rebuilt. Code that derives data from a topic first runs this check on the topic's configs from
DescribeConfigs. On Apache Kafka no topic is volatile.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.errors import HeadraceError

__all__ = ["VOLATILE_CONFIG", "NotASourceOfTruth", "expect_source_of_truth", "is_volatile"]

VOLATILE_CONFIG = "headrace.volatile"


class NotASourceOfTruth(HeadraceError):
    code = "HR-TOPIC-VOLATILE"

    def __init__(self, topic: str, purpose: str) -> None:
        super().__init__(
            f"topic {topic!r} is volatile and cannot be the source of {purpose}",
            detail="its records are in memory only, and a restart of its broker deletes them",
            hint=f"write to a topic without {VOLATILE_CONFIG}, and derive from that topic",
        )


def is_volatile(configs: Mapping[str, str | None]) -> bool:
    return configs.get(VOLATILE_CONFIG) == "true"


def expect_source_of_truth(topic: str, configs: Mapping[str, str | None], purpose: str) -> None:
    """Raise ``NotASourceOfTruth`` if the topic is volatile. ``purpose`` names what would be derived from the topic."""
    if is_volatile(configs):
        raise NotASourceOfTruth(topic, purpose)
