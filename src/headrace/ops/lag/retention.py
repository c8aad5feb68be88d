"""What a topic keeps: by time, by bytes of each partition, or everything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Retention", "retention_of"]


@dataclass(frozen=True, slots=True)
class Retention:
    """None where there is no such limit: the topic is compacted, archived, or keeps everything."""

    kept_s: float | None = None
    kept_bytes: int | None = None


def retention_of(configs: Mapping[str, str | None]) -> Retention:
    deletes = "delete" in (configs.get("cleanup.policy") or "delete")
    if not deletes or configs.get("headrace.archive.enable") == "true":
        return Retention()
    kept_ms = _limit(configs.get("retention.ms"))
    return Retention(None if kept_ms is None else kept_ms / 1_000, _limit(configs.get("retention.bytes")))


def _limit(text: str | None) -> int | None:
    number = int(text) if text else -1
    return number if number >= 0 else None
