"""What the coordinator is asked and what it answers, free of message versions; handlers translate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.wire.codes import ErrorCode

__all__ = [
    "DescribedGroup",
    "DescribedMember",
    "ExpiredOffset",
    "JoinAnswer",
    "JoinAsk",
    "LeaveAsk",
    "ListedGroup",
    "SyncAnswer",
    "SyncAsk",
]


@dataclass(frozen=True, slots=True)
class JoinAsk:
    group_id: str
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    #: From version 4 a client must come back with the id it is given before it counts as a member.
    id_required: bool = True
    #: From version 9 a leader can be told that no new assignment is wanted.
    can_skip_assignment: bool = True
    #: What stands for the connection of the client; an id that it is given ends with it.
    connection: object | None = None


@dataclass(frozen=True, slots=True)
class JoinAnswer:
    error: ErrorCode = ErrorCode.NONE
    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    #: For the leader only: member id, instance id and subscription of each.
    members: tuple[tuple[str, str | None, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class SyncAsk:
    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SyncAnswer:
    error: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class LeaveAsk:
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
    """An offset that retention dropped, so that whoever asked for the clean-up can say so."""

    group_id: str
    topic: str
    partition: int
    offset: int
