"""What one partition's log is told: the topic's settings that act on bytes and files."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DEFAULT_LOG_CONFIG", "LogConfig"]

_WEEK_MS = 7 * 24 * 3600 * 1000
_HOUR_MS = 3600 * 1000
_DAY_MS = 24 * _HOUR_MS
_INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Limits that are -1 do not apply, as in Kafka."""

    segment_bytes: int = 1 << 30
    segment_ms: int = _WEEK_MS
    retention_ms: int = _WEEK_MS
    retention_bytes: int = -1
    max_message_bytes: int = (1 << 20) + 12
    timestamp_type: str = "CreateTime"
    timestamp_before_max_ms: int = _INT64_MAX
    timestamp_after_max_ms: int = _HOUR_MS
    compression_type: str = "producer"
    cleanup_policy: str = "delete"
    index_interval_bytes: int = 4096
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = _INT64_MAX
    min_cleanable_dirty_ratio: float = 0.5
    delete_retention_ms: int = _DAY_MS
    is_archived: bool = False
    """Old segments are moved to the archive instead of deleted."""

    @property
    def uses_append_time(self) -> bool:
        return self.timestamp_type == "LogAppendTime"

    @property
    def roll_ms(self) -> int:
        """The age at which a segment is sealed: a compacted topic's in time for its lag."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.is_compacted else self.segment_ms

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def is_trimmed(self) -> bool:
        return "delete" in self.cleanup_policy


DEFAULT_LOG_CONFIG = LogConfig()
