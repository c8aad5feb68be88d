"""The topic settings that the log of a partition applies."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["DEFAULT_LOG_CONFIG", "LogConfig"]

_WEEK_MS = 7 * 24 * 3600 * 1000
_HOUR_MS = 3600 * 1000
_DAY_MS = 24 * _HOUR_MS
_INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class LogConfig:
    """A limit of -1 means no limit, as in Kafka."""

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
    """Retention moves old segments to the archive instead of deleting them."""
    min_insync_replicas: int = 1

    # Derived from the settings above once, because every append needs them.
    uses_append_time: bool = field(init=False, compare=False, repr=False)
    is_compacted: bool = field(init=False, compare=False, repr=False)
    has_delete_policy: bool = field(init=False, compare=False, repr=False)
    """Whether ``cleanup.policy`` contains ``delete``: retention then deletes old segments, or archives them."""
    roll_ms: int = field(init=False, compare=False, repr=False)
    """The age in milliseconds at which the active segment is sealed. For a compacted topic, at most
    ``max_compaction_lag_ms``.
    """

    def __post_init__(self) -> None:
        is_compacted = "compact" in self.cleanup_policy
        object.__setattr__(self, "uses_append_time", self.timestamp_type == "LogAppendTime")
        object.__setattr__(self, "is_compacted", is_compacted)
        object.__setattr__(self, "has_delete_policy", "delete" in self.cleanup_policy)
        roll_ms = min(self.segment_ms, self.max_compaction_lag_ms) if is_compacted else self.segment_ms
        object.__setattr__(self, "roll_ms", roll_ms)


DEFAULT_LOG_CONFIG = LogConfig()
