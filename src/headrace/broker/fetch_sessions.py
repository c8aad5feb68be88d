"""Fetch sessions: a consumer names its partitions once, then only what changes; the answers, too, tell only
what changed.

A session lives in memory alone. When the broker forgets one (restart, eviction), the client is told so by the
protocol's error and begins anew with all its partitions. All sessions together have a limit in bytes. One that grows
past it, or that names a topic which is not known, is closed by the response, which then carries id 0.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.broker.sizes import text_bytes
from headrace.clock import Clock
from headrace.wire.codes import ErrorCode

__all__ = ["FetchSession", "FetchSessions", "SessionRefused", "Wanted"]

_INITIAL_EPOCH = 0
_FINAL_EPOCH = -1
_IDLE_S = 120.0
_SESSIONS_FROM = 7
_IDS_FROM = 13
# A ``Wanted`` with its numbers, its key and its place in the session.
_WANTED_BYTES = 400
_SESSION_BYTES = 1_024

Key = tuple[bytes | str, int]


class SessionRefused(Exception):
    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


# There may be many, and they hold numbers and a name: the garbage collector need not look at them.
class Wanted(msgspec.Struct, gc=False):
    """One partition that a consumer reads, and what it was last told of it."""

    topic: bytes | str
    partition: int
    fetch_offset: int
    max_bytes: int
    leader_epoch: int
    last_fetched_epoch: int
    told_high_watermark: int = -1
    told_start_offset: int = -1

    @property
    def key(self) -> Key:
        return self.topic, self.partition

    @property
    def size_bytes(self) -> int:
        return _WANTED_BYTES + (text_bytes(self.topic) if isinstance(self.topic, str) else len(self.topic))


@dataclass(slots=True)
class FetchSession:
    """``id`` is 0 if the client has to name all its partitions again, next time."""

    id: int
    wanted: OrderedDict[Key, Wanted]
    epoch: int = 1
    used_at: float = 0.0
    incremental: bool = False
    by_id: bool = False
    size_bytes: int = _SESSION_BYTES


class FetchSessions:
    """At most ``limit`` sessions, and at most ``bytes_max`` over all of them; those that are idle make room for a new
    one.
    """

    def __init__(self, clock: Clock, *, bytes_max: int, limit: int = 1000) -> None:
        self.used_bytes = 0
        self._clock = clock
        self._limit = limit
        self._bytes_max = bytes_max
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, version: int, message: Any) -> FetchSession:
        """The session that a request belongs to, brought up to date by it; id 0 for a request that stands
        alone.
        """
        if version < _SESSIONS_FROM or message.session_epoch == _FINAL_EPOCH:
            self._forget(message.session_id)
            return FetchSession(0, _wanted(version, message))
        if message.session_epoch == _INITIAL_EPOCH:
            self._forget(message.session_id)
            return self._create(_wanted(version, message), by_id=version >= _IDS_FROM)
        session = self._sessions.get(message.session_id)
        if session is None:
            raise SessionRefused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if message.session_epoch != session.epoch:
            raise SessionRefused(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.by_id != (version >= _IDS_FROM):
            raise SessionRefused(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        session.epoch = 1 if session.epoch == 2**31 - 1 else session.epoch + 1
        session.used_at = self._clock.steady()
        session.incremental = True
        self._sessions.move_to_end(session.id)
        self._update(session, version, message)
        return session

    def close(self, session: FetchSession) -> None:
        """Forget a session; the response to its client says so."""
        self._forget(session.id)
        session.id = 0

    def _forget(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self.used_bytes -= session.size_bytes

    def _create(self, wanted: OrderedDict[Key, Wanted], *, by_id: bool) -> FetchSession:
        now = self._clock.steady()
        size = _SESSION_BYTES + sum(one.size_bytes for one in wanted.values())
        if not self._make_room(now, size):
            return FetchSession(0, wanted)
        session_id = 0
        while session_id == 0 or session_id in self._sessions:
            session_id = secrets.randbelow(2**31)
        session = FetchSession(session_id, wanted, used_at=now, by_id=by_id, size_bytes=size)
        self._sessions[session_id] = session
        self.used_bytes += size
        return session

    def _make_room(self, now: float, size: int) -> bool:
        """Forget idle sessions as far as that is needed; false if it is not enough."""
        while len(self._sessions) >= self._limit or self.used_bytes + size > self._bytes_max:
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or now - oldest.used_at < _IDLE_S:
                return False
            self._forget(oldest.id)
        return True

    def _update(self, session: FetchSession, version: int, message: Any) -> None:
        before = session.size_bytes
        for key, new in _wanted(version, message).items():
            old = session.wanted.get(key)
            if old is None:
                session.size_bytes += new.size_bytes
            else:
                new.told_high_watermark, new.told_start_offset = (
                    old.told_high_watermark,
                    old.told_start_offset,
                )
            session.wanted[key] = new
        for topic in message.forgotten_topics_data:
            for partition in topic.partitions:
                key = (topic.topic_id if version >= _IDS_FROM else topic.topic, partition)
                forgotten = session.wanted.pop(key, None)
                if forgotten is not None:
                    session.size_bytes -= forgotten.size_bytes
        self.used_bytes += session.size_bytes - before
        if self.used_bytes > self._bytes_max and session.size_bytes > before:
            self.close(session)


def _wanted(version: int, message: Any) -> OrderedDict[Key, Wanted]:
    wanted: OrderedDict[Key, Wanted] = OrderedDict()
    for topic in message.topics:
        name = topic.topic_id if version >= _IDS_FROM else topic.topic
        for p in topic.partitions:
            wanted[name, p.partition] = Wanted(
                name,
                p.partition,
                p.fetch_offset,
                p.partition_max_bytes,
                p.current_leader_epoch,
                p.last_fetched_epoch,
            )
    return wanted
