"""The group coordinator's requests and results. The handlers convert them from and to Kafka's message versions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.wire.codes import ErrorCode

__all__ = [
    "DescribedGroup",
    "DescribedMember",
    "ExpiredOffset",
    "JoinRequest",
    "JoinResult",
    "LeavingMember",
    "ListedGroup",
    "SyncRequest",
    "SyncResult",
]


@dataclass(frozen=True, slots=True)
class JoinRequest:
    group_id: str
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    #: From version 4 on, a client first receives a member id, and then joins with that id.
    id_required: bool = True
    #: From version 9 on, the response can instruct a leader to skip the assignment.
    can_skip_assignment: bool = True
    #: Identifies the client's connection. A pending member id expires when its connection closes.
    connection: object | None = None


@dataclass(frozen=True, slots=True)
class JoinResult:
    error: ErrorCode = ErrorCode.NONE
    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    #: Member id, instance id and subscription of each member. Only the leader receives them.
    members: tuple[tuple[str, str | None, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class SyncRequest:
    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SyncResult:
    error: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class LeavingMember:
    member_id: str
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class ListedGroup:
    group_id: str
    protocol_type: str
    state: str


@dataclass(frozen=True, slots=True)
class DescribedMember:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class DescribedGroup:
    group_id: str
    state: str
    protocol_type: str
    protocol: str
    members: tuple[DescribedMember, ...]


@dataclass(frozen=True, slots=True)
class ExpiredOffset:
    """An offset that retention removed."""

    group_id: str
    topic: str
    partition: int
    offset: int
