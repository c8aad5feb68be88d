"""The responses to the oracle's requests, as plain values."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Fetched", "Joined", "ProduceAnswer", "TopicSeen"]


@dataclass(frozen=True, slots=True)
class ProduceAnswer:
    partition: int
    error: int
    base_offset: int
    log_start_offset: int


@dataclass(frozen=True, slots=True)
class Fetched:
    error: int
    high_watermark: int
    log_start_offset: int
    records: bytes


@dataclass(frozen=True, slots=True)
class TopicSeen:
    error: int
    name: str
    id: bytes
    partitions: int


@dataclass(frozen=True, slots=True)
class Joined:
    error: int
    generation: int
    leader: str
    member_id: str
    members: tuple[str, ...]


# Records
