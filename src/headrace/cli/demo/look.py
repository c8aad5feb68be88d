"""One look at the running demo, as numbers; how they are shown is for ``display``."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["GroupLook", "Look", "TopicLook"]


@dataclass(frozen=True, slots=True)
class TopicLook:
    name: str
    end_offsets: list[int]
    records: int
    records_per_s: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class GroupLook:
    name: str
    members: int
    topics: list[str]
    lag: int
    records_per_s: float


@dataclass(frozen=True, slots=True)
class Look:
    at_s: float
    topics: list[TopicLook]
    groups: list[GroupLook]
    acknowledged: int
    rss_bytes: int | None
    latency_p50_ms: float | None
    latency_p99_ms: float | None
