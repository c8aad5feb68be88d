"""What the coordinator needs to know of topics."""

from __future__ import annotations

from typing import Protocol

__all__ = ["TopicNames"]


class TopicNames(Protocol):
    def has_partition(self, name: str, index: int) -> bool: ...
    def name_of(self, topic_id: bytes) -> str | None: ...
    def id_of(self, name: str) -> bytes | None: ...
