"""The JSON documents about the log's topics, records and consumer groups."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

__all__ = [
    "GroupDetail",
    "GroupList",
    "GroupMember",
    "GroupPartition",
    "GroupSummary",
    "LogRecord",
    "LogTopicDetail",
    "LogTopicList",
    "LogTopicSummary",
    "OffsetMoves",
    "Seek",
    "TopicUser",
]

PartitionNumber = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class LogTopicSummary(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    internal: bool
    partitions: int
    offline: Annotated[int, Meta(description="Partitions without a leader.")]
    replicas: int
    records: int
    bytes: int | None
    per_s: Annotated[float | None, Meta(description="Records per second since the last request.")]
    cleanup: str | None
    retention_s: float | None
    retention_bytes: int | None
    kind: str | None


class LogTopicList(msgspec.Struct, frozen=True):
    topics: list[LogTopicSummary]


class TopicConfig(msgspec.Struct, frozen=True):
    config: str
    value: str | None
    source: str


class LogPartition(msgspec.Struct, frozen=True, kw_only=True):
    partition: int
    start: int
    end: int
    records: int
    bytes: int | None
    leader: int | UnsetType | None = UNSET
    replicas: list[int] | UnsetType = UNSET
    in_sync: list[int] | UnsetType = UNSET


class TopicUser(msgspec.Struct, frozen=True):
    """A writer or reader of a topic: a flow, a view or a consumer group."""

    kind: str
    name: str


class LogTopicDetail(LogTopicSummary, frozen=True, kw_only=True):
    configs: list[TopicConfig]
    partition_list: list[LogPartition]
    written_by: list[TopicUser]
    read_by: list[TopicUser]
    size_bytes: int | None
    records_per_s: float
    bytes_per_s: float | None
    retention_ms: int | None
    lost_after_ms: float | None
    lost_by: str | None
    disk_full_in_ms: int | None
    volatile: bool
    archived: bool
    writable: bool
    declared: bool


class LogRecord(msgspec.Struct, frozen=True):
    topic: str
    record: Annotated[
        dict[str, Any],
        Meta(
            extra_json_schema={
                "required": ["partition", "offset", "at_ms", "key", "value", "headers"],
                "properties": {
                    "partition": {"type": "integer"},
                    "offset": {"type": "integer"},
                    "at_ms": {"type": ["number", "null"]},
                    "key": {"type": ["object", "null"]},
                    "value": {"type": ["object", "null"]},
                    "headers": {"type": "array", "items": {"type": "object"}},
                },
            }
        ),
    ]


class _GroupLag(msgspec.Struct, frozen=True, kw_only=True):
    lag: int | None
    lag_bytes: int | None
    lag_s: float | None
    gone: Annotated[int, Meta(description="Records that were deleted before the group read them.")]
    time_to_loss_s: float | None


class GroupSummary(_GroupLag, frozen=True, kw_only=True):
    group: str
    state: str
    type: str
    members: int | None
    topics: list[str]


class GroupList(msgspec.Struct, frozen=True):
    groups: list[GroupSummary]


class GroupMember(msgspec.Struct, frozen=True):
    member: str
    client: str
    host: str
    instance: str | None
    partitions: int


class GroupPartition(_GroupLag, frozen=True, kw_only=True):
    topic: str
    partition: int
    committed: int | None
    start: int | None
    end: int | None
    member: str | None
    host: str | None


class GroupDetail(_GroupLag, frozen=True, kw_only=True):
    group: str
    state: str
    type: str
    assignor: str | None
    members: list[GroupMember]
    partitions: list[GroupPartition]


class Seek(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    to: Annotated[str, Meta(min_length=1, max_length=100)]
    topic: Annotated[str, Meta(min_length=1, max_length=249)] | None = None
    partitions: Annotated[list[PartitionNumber], Meta(max_length=10_000)] | None = None
    dry_run: bool = True


class OffsetMoves(msgspec.Struct, frozen=True):
    group: str
    dry_run: bool
    moves: list[dict[str, Any]]
    at_work: Annotated[list[str], Meta(description="Active members. They would overwrite the moved offsets.")]
