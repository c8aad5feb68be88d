"""Members of a group, and pending member ids.

Pending member ids: from JoinGroup version 4 on, the coordinator first assigns an id to a client, and the client then
joins with that id. Until the client joins, the id is pending. The id expires after the session timeout (at most half an
hour) or when the client's connection closes. A client that joins with an expired id gets an error and requests a new
id. The pending ids of all groups have their own limit in bytes, so that they do not use the memory budget of the
members.

Subscriptions: a member sends its subscription as bytes. For groups of protocol type ``consumer``, the bytes begin in
all versions with an int16 version and an array of topic names. The coordinator parses only these names, because
offset retention does not delete offsets of subscribed topics. Bytes that cannot be parsed are not an error: the
subscribed topics are then unknown (``None``).
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from headrace.broker.groups.results import DescribedMember, JoinResult, SyncResult
from headrace.broker.groups.timers import Timer, Timers
from headrace.broker.limits import text_bytes
from headrace.wire.codes import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.groups.group import Group

__all__ = [
    "CONSUMER_PROTOCOL_TYPE",
    "Member",
    "PendingMember",
    "PendingMembers",
    "Protocols",
    "member_bytes",
    "subscribed_topics",
]

Protocols = tuple[tuple[str, bytes], ...]

Result = TypeVar("Result")


# Estimated memory of a member with its timer and its journal entry, and of a protocol with its name and metadata.
_MEMBER_BYTES = 1_024
_PROTOCOL_BYTES = 192


def member_bytes(member_id: str, instance_id: str | None, client_id: str, protocols: Protocols) -> int:
    """Return the estimated memory of a member, without its assignment."""
    names = text_bytes(member_id) + text_bytes(instance_id) + text_bytes(client_id)
    return (
        _MEMBER_BYTES
        + names
        + sum(_PROTOCOL_BYTES + text_bytes(name) + len(metadata) for name, metadata in protocols)
    )


def _no_action() -> None:
    return None


class Member:
    """A member of a group.

    A JoinGroup or SyncGroup request that waits for the other members is parked here. If its connection closes, the
    request remains parked: only timeouts remove the member.
    """

    __slots__ = (
        "_join",
        "_sync",
        "assignment",
        "client_host",
        "client_id",
        "id",
        "instance_id",
        "is_new",
        "protocols",
        "rebalance_timeout_ms",
        "session",
        "session_timeout_ms",
    )

    def __init__(
        self,
        member_id: str,
        *,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocols: Protocols,
        assignment: bytes = b"",
    ) -> None:
        self.id = member_id
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocols = protocols
        self.assignment = assignment
        #: True until the response to the first join. Before that, the member cannot send heartbeats: it has no id.
        self.is_new = False
        self.session = Timer(_no_action)
        self._join: asyncio.Future[JoinResult] | None = None
        self._sync: asyncio.Future[SyncResult] | None = None

    @property
    def size_bytes(self) -> int:
        """The estimated memory of the member."""
        return member_bytes(self.id, self.instance_id, self.client_id, self.protocols) + len(self.assignment)

    @property
    def awaits_join(self) -> bool:
        return self._join is not None

    @property
    def awaits_sync(self) -> bool:
        return self._sync is not None

    @property
    def needs_no_heartbeat(self) -> bool:
        """Whether the member need not send heartbeats because one of its requests is parked."""
        return not self.is_new and (self.awaits_join or self.awaits_sync)

    def subscription(self, protocol: str | None) -> bytes:
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        return b""

    def park_join(self, waiter: asyncio.Future[JoinResult]) -> None:
        """Park the join until all members have joined. An earlier parked join of this member fails."""
        self.resolve_join(JoinResult(ErrorCode.REBALANCE_IN_PROGRESS, self.id))
        self._join = waiter

    def park_sync(self, waiter: asyncio.Future[SyncResult]) -> None:
        self.resolve_sync(SyncResult(ErrorCode.REBALANCE_IN_PROGRESS))
        self._sync = waiter

    def resolve_join(self, result: JoinResult) -> bool:
        waiter, self._join = self._join, None
        return _resolve(waiter, result)

    def resolve_sync(self, result: SyncResult) -> bool:
        waiter, self._sync = self._sync, None
        return _resolve(waiter, result)

    def describe(self, protocol: str | None) -> DescribedMember:
        return DescribedMember(
            self.id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.subscription(protocol),
            self.assignment,
        )


def _resolve(waiter: asyncio.Future[Result] | None, result: Result) -> bool:
    """Resolve the parked request, if any. Returns whether a request was parked, even if its connection is closed."""
    if waiter is None:
        return False
    if not waiter.done():
        waiter.set_result(result)
    return True


CONSUMER_PROTOCOL_TYPE = "consumer"

_VERSION_AND_COUNT = struct.Struct(">hi")
_LENGTH = struct.Struct(">h")


def subscribed_topics(subscription: bytes, names_max: int) -> list[str] | None:
    """Return the topic names in order, or ``None`` if the bytes are invalid or have more than ``names_max`` names."""
    try:
        version, count = _VERSION_AND_COUNT.unpack_from(subscription)
        # A name takes at least two bytes. So this rejects an impossible count before the loop starts.
        if version < 0 or not 0 <= count <= names_max or count * _LENGTH.size > len(subscription):
            return None
        topics: list[str] = []
        position = _VERSION_AND_COUNT.size
        for _ in range(count):
            (length,) = _LENGTH.unpack_from(subscription, position)
            position += _LENGTH.size
            end = position + length
            if length < 0 or end > len(subscription):
                return None
            topics.append(subscription[position:end].decode())
            position = end
    except (struct.error, UnicodeDecodeError):
        return None
    return topics


# Estimated memory of a pending id: its timer, the timer's heap entry, and three dictionary entries.
_ENTRY_BYTES = 1_024


class PendingMember(NamedTuple):
    timer: Timer
    connection: object | None
    """The connection with which the id expires. ``None`` means that only the timeout removes the id."""


class PendingMembers:
    """The pending member ids of all groups. Invariant: ``used_bytes`` is the sum of their sizes."""

    def __init__(self, timers: Timers, bytes_max: int) -> None:
        self.used_bytes = 0
        self._timers = timers
        self._bytes_max = bytes_max
        self._by_connection: dict[object, dict[str, Group]] = {}

    def has_room(self, member_id: str) -> bool:
        return self.used_bytes + _size(member_id) <= self._bytes_max

    def add(
        self,
        group: Group,
        member_id: str,
        timeout_ms: int,
        connection: object | None,
        expire: Callable[[], None],
    ) -> None:
        """Add a pending id. ``expire`` runs when the timeout is over, and must remove the id."""
        timer = Timer(expire)
        group.pending[member_id] = PendingMember(timer, connection)
        self.used_bytes += _size(member_id)
        if connection is not None:
            self._by_connection.setdefault(connection, {})[member_id] = group
        self._timers.start(timer, timeout_ms)

    def remove(self, group: Group, member_id: str) -> None:
        pending = group.pending.pop(member_id)
        self._timers.stop(pending.timer)
        self.used_bytes -= _size(member_id)
        if (ids := self._by_connection.get(pending.connection)) is not None:
            del ids[member_id]
            if not ids:
                del self._by_connection[pending.connection]

    def of_connection(self, connection: object) -> list[tuple[Group, str]]:
        return [(group, member_id) for member_id, group in self._by_connection.get(connection, {}).items()]


def _size(member_id: str) -> int:
    return _ENTRY_BYTES + text_bytes(member_id)
