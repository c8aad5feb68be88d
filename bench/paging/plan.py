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
    soak_s: float

    @classmethod
    def quick(cls) -> PagePlan:
        """Does it run at all?"""
        return cls(rounds=1, messages=2_000, topics=30, updates_s=1.0, soak_s=2.0)

    @classmethod
    def full(cls, rounds: int, messages: int, soak_s: float) -> PagePlan:
        return cls(rounds=rounds, messages=messages, topics=1_000, updates_s=10.0, soak_s=soak_s)
