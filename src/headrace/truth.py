"""Whether a topic may be what everything else is derived from.

A volatile topic is empty when its broker restarts, so nothing may be rebuilt from it: no view, no event-sourced state,
no capture. Whatever derives something from a topic asks here first, with the topic's configs as DescribeConfigs gives
them; the answer holds for any Kafka, where nothing is volatile.
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
            detail="its records are in memory only, and gone when its broker restarts",
            hint=f"write to a topic without {VOLATILE_CONFIG}, and derive from that one",
        )


def is_volatile(configs: Mapping[str, str | None]) -> bool:
    return configs.get(VOLATILE_CONFIG) == "true"


def expect_source_of_truth(topic: str, configs: Mapping[str, str | None], purpose: str) -> None:
    """Raises ``NotASourceOfTruth`` if what ``purpose`` names could not be derived again from the topic."""
    if is_volatile(configs):
        raise NotASourceOfTruth(topic, purpose)
