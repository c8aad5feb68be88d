"""How much of everything a run of ``bench.serve`` measures."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ServePlan"]


@dataclass(frozen=True, slots=True)
class ServePlan:
    rounds: int
    rows: int
    """Of a view that is read by key."""
    lake_rows: int
    """The same in Delta, where each read looks at all of them."""
    connections: int
    warm_s: float
    seconds: float
    """How long points are read, and count."""
    crowds: tuple[int, int, int]
    """How many follow a view: few, more, and as many as the server takes."""
    changes: int
    """Of that view, per second."""
    crowd_s: float
    writers: int
    """At a time, of those who read what they have written."""
    own_s: float
    is_quick: bool = False

    @classmethod
    def quick(cls) -> ServePlan:
        """Does it run at all?"""
        return cls(
            rounds=1,
            rows=200,
            lake_rows=200,
            connections=2,
            warm_s=0.1,
            seconds=0.4,
            crowds=(2, 4, 8),
            changes=50,
            crowd_s=0.8,
            writers=2,
            own_s=1.0,
            is_quick=True,
        )

    @classmethod
    def full(cls, rounds: int, scale: float) -> ServePlan:
        return cls(
            rounds=rounds,
            rows=max(1_000, round(100_000 * scale)),
            lake_rows=max(1_000, round(10_000 * scale)),
            connections=8,
            warm_s=max(0.5, 2.0 * scale),
            seconds=max(1.0, 6.0 * scale),
            crowds=(10, 100, 1_000),
            changes=100,
            crowd_s=max(3.0, 20.0 * scale),
            writers=4,
            own_s=max(5.0, 60.0 * scale),
        )
