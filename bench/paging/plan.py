"""How much of everything a run of ``bench.page`` measures."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PagePlan"]


@dataclass(frozen=True, slots=True)
class PagePlan:
    rounds: int
    messages: int
    """Of the topic that is searched."""
    topics: int
    """In the list."""
    updates_s: float
    """How long updates count."""
    settle_s: float
    """How long a page is open before it counts whether it grows: it keeps the numbers of a quarter of an hour."""
    soak_s: float

    @classmethod
    def quick(cls) -> PagePlan:
        """Does it run at all?"""
        return cls(rounds=1, messages=2_000, topics=30, updates_s=1.0, settle_s=0.0, soak_s=2.0)

    @classmethod
    def full(cls, rounds: int, messages: int, soak_s: float) -> PagePlan:
        return cls(
            rounds=rounds, messages=messages, topics=1_000, updates_s=10.0, settle_s=960.0, soak_s=soak_s
        )
