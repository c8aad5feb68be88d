"""How much of everything a run of ``bench.flow`` measures."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Plan"]


@dataclass(frozen=True, slots=True)
class Plan:
    rounds: int
    events: int
    """In the topic that most parts read."""
    at_once: int
    """Events in a batch."""
    partitions: int
    rate: int
    """Events per second where they come slowly."""
    warm_s: float
    seconds: float
    """How long they come, and count."""
    small_s: float
    """The same, where many settings are tried."""
    store_rows: int
    state_keys: tuple[int, ...]
    """Sizes of state, from small to large; the first is what the others are held against."""
    state_memory_keys: int
    """The largest of them that is tried in memory too."""
    state_events: int
    """At each size."""
    state_at_once: int
    flows: int
    """In one app."""
    flow_events: int
    """For each of them."""
    format_events: int
    memory_s: float
    """How long an app runs until its memory counts, and as long again while it does."""
    is_quick: bool = False

    @classmethod
    def quick(cls) -> Plan:
        """Does it run at all?"""
        return cls(
            rounds=1,
            events=2_000,
            at_once=1_000,
            partitions=2,
            rate=50,
            warm_s=0.5,
            seconds=1.0,
            small_s=1.5,
            store_rows=2_000,
            state_keys=(1_000, 2_000, 4_000),
            state_memory_keys=2_000,
            state_events=1_500,
            state_at_once=500,
            flows=3,
            flow_events=2_000,
            format_events=2_000,
            memory_s=5.0,
            is_quick=True,
        )

    @classmethod
    def full(cls, rounds: int, scale: float) -> Plan:
        return cls(
            rounds=rounds,
            events=max(10_000, round(2_000_000 * scale)),
            at_once=100_000,
            partitions=2,
            rate=100,
            warm_s=max(2.0, 20.0 * scale),
            seconds=max(2.0, 60.0 * scale),
            small_s=max(2.0, 20.0 * scale),
            store_rows=max(10_000, round(500_000 * scale)),
            state_keys=tuple(round(keys * scale) for keys in (100_000, 1_000_000, 10_000_000)),
            state_memory_keys=round(1_000_000 * scale),
            state_events=max(10_000, round(400_000 * scale)),
            state_at_once=max(1_000, round(20_000 * min(1.0, scale))),
            flows=20,
            flow_events=max(10_000, round(300_000 * scale)),
            format_events=max(10_000, round(1_000_000 * scale)),
            memory_s=max(10.0, 90.0 * scale),
        )
