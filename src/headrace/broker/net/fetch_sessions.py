"""Fetch sessions. A consumer sends all its partitions once, and later only changes. Responses, too, have only changes.

Sessions are in memory only. If the broker has dropped a session (restart, eviction), the client gets an error and sends
all its partitions again. All sessions together have a limit in bytes. If a session exceeds the limit or has an
unknown topic, the broker closes the session and responds with session id 0.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.broker.limits import text_bytes
from headrace.clock import Clock
from headrace.wire.codes import ErrorCode

__all__ = ["FetchSession", "FetchSessions", "FetchedPartition", "SessionRefused"]

_INITIAL_EPOCH = 0
_FINAL_EPOCH = -1
_IDLE_S = 120.0
_SESSIONS_SINCE = 7
_IDS_SINCE = 13
# Estimated memory of a ``FetchedPartition`` with its fields, its key and its entry in the session.
_PARTITION_BYTES = 400
_SESSION_BYTES = 1_024

Key = tuple[bytes | str, int]


class SessionRefused(Exception):
    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


# The garbage collector can skip these objects, because they do not refer to each other.
class FetchedPartition(msgspec.Struct, gc=False):
    """A partition that a consumer fetches, with the offsets of the last response to the consumer."""

    topic: bytes | str
    partition: int
    fetch_offset: int
    max_bytes: int
    leader_epoch: int
    last_fetched_epoch: int
    sent_high_watermark: int = -1
    sent_start_offset: int = -1

    @property
    def key(self) -> Key:
        return self.topic, self.partition

    @property
    def size_bytes(self) -> int:
        return _PARTITION_BYTES + (text_bytes(self.topic) if isinstance(self.topic, str) else len(self.topic))


@dataclass(slots=True)
class FetchSession:
    """A fetch session. If ``id`` is 0, the client must send all its partitions in the next request."""

    id: int
    partitions: OrderedDict[Key, FetchedPartition]
    epoch: int = 1
    used_at: float = 0.0
    incremental: bool = False
    by_id: bool = False
    size_bytes: int = _SESSION_BYTES


class FetchSessions:
    """All fetch sessions, at most ``limit`` with ``bytes_max`` in total. A new session can replace idle sessions."""

    def __init__(self, clock: Clock, *, bytes_max: int, limit: int = 1000) -> None:
        self.used_bytes = 0
        self._clock = clock
        self._limit = limit
        self._bytes_max = bytes_max
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, version: int, message: Any) -> FetchSession:
        """Return the request's session, updated from the request. A request without a session gets one with id 0."""
        if version < _SESSIONS_SINCE or message.session_epoch == _FINAL_EPOCH:
            self._forget(message.session_id)
            return FetchSession(0, _partitions_of(version, message))
        if message.session_epoch == _INITIAL_EPOCH:
            self._forget(message.session_id)
            return self._create(_partitions_of(version, message), by_id=version >= _IDS_SINCE)
        session = self._sessions.get(message.session_id)
        if session is None:
            raise SessionRefused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if message.session_epoch != session.epoch:
            raise SessionRefused(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.by_id != (version >= _IDS_SINCE):
            raise SessionRefused(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        session.epoch = 1 if session.epoch == 2**31 - 1 else session.epoch + 1
        session.used_at = self._clock.steady()
        session.incremental = True
        self._sessions.move_to_end(session.id)
        self._update(session, version, message)
        return session

    def close(self, session: FetchSession) -> None:
        """Drop the session. The client notices this by session id 0 in the response."""
        self._forget(session.id)
        session.id = 0

    def _forget(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self.used_bytes -= session.size_bytes

    def _create(self, partitions: OrderedDict[Key, FetchedPartition], *, by_id: bool) -> FetchSession:
        now = self._clock.steady()
        size = _SESSION_BYTES + sum(partition.size_bytes for partition in partitions.values())
        if not self._make_room(now, size):
            return FetchSession(0, partitions)
        session_id = 0
        while session_id == 0 or session_id in self._sessions:
            session_id = secrets.randbelow(2**31)
        session = FetchSession(session_id, partitions, used_at=now, by_id=by_id, size_bytes=size)
        self._sessions[session_id] = session
        self.used_bytes += size
        return session

    def _make_room(self, now: float, size: int) -> bool:
        """Drop idle sessions if necessary. Returns whether a session of ``size`` bytes fits into the limit."""
        if size > self._bytes_max:
            return False
        while len(self._sessions) >= self._limit or self.used_bytes + size > self._bytes_max:
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or now - oldest.used_at < _IDLE_S:
                return False
            self._forget(oldest.id)
        return True

    def _update(self, session: FetchSession, version: int, message: Any) -> None:
        previous_bytes = session.size_bytes
        for key, new in _partitions_of(version, message).items():
            previous = session.partitions.get(key)
            if previous is None:
                session.size_bytes += new.size_bytes
            else:
                new.sent_high_watermark, new.sent_start_offset = (
                    previous.sent_high_watermark,
                    previous.sent_start_offset,
                )
            session.partitions[key] = new
        for topic in message.forgotten_topics_data:
            for partition in topic.partitions:
                key = (topic.topic_id if version >= _IDS_SINCE else topic.topic, partition)
                forgotten = session.partitions.pop(key, None)
                if forgotten is not None:
                    session.size_bytes -= forgotten.size_bytes
        self.used_bytes += session.size_bytes - previous_bytes
        if self.used_bytes > self._bytes_max and session.size_bytes > previous_bytes:
            self.close(session)


def _partitions_of(version: int, message: Any) -> OrderedDict[Key, FetchedPartition]:
    partitions: OrderedDict[Key, FetchedPartition] = OrderedDict()
    for topic in message.topics:
        name = topic.topic_id if version >= _IDS_SINCE else topic.topic
        for partition in topic.partitions:
            partitions[name, partition.partition] = FetchedPartition(
                name,
                partition.partition,
                partition.fetch_offset,
                partition.partition_max_bytes,
                partition.current_leader_epoch,
                partition.last_fetched_epoch,
            )
    return partitions
