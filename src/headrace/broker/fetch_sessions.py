"""Fetch sessions: a consumer names its partitions once, then only what changes; the answers, too, tell only
what changed.

A session lives in memory alone. When the broker forgets one (restart, eviction), the client is told so by the
protocol's error and begins anew with all its partitions.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from headrace.clock import Clock
from headrace.wire.codes import ErrorCode

__all__ = ["FetchSession", "FetchSessions", "SessionRefused", "Wanted"]

_INITIAL_EPOCH = 0
_FINAL_EPOCH = -1
_IDLE_S = 120.0
_SESSIONS_FROM = 7
_IDS_FROM = 13

Key = tuple[bytes | str, int]


class SessionRefused(Exception):
    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


@dataclass(slots=True)
class Wanted:
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


@dataclass(slots=True)
class FetchSession:
    id: int
    wanted: OrderedDict[Key, Wanted]
    epoch: int = 1
    used_at: float = 0.0
    incremental: bool = False
    by_id: bool = False


class FetchSessions:
    """At most ``limit`` sessions of at most ``partitions_max`` partitions each; one that is idle makes room
    for a new one.
    """

    def __init__(self, clock: Clock, *, limit: int = 1000, partitions_max: int = 10_000) -> None:
        self._clock = clock
        self._limit = limit
        self._partitions_max = partitions_max
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, version: int, message: Any) -> FetchSession:
        """The session that a request belongs to, brought up to date by it; id 0 for a request that stands
        alone.
        """
        if version < _SESSIONS_FROM or message.session_epoch == _FINAL_EPOCH:
            self._sessions.pop(message.session_id, None)
            return FetchSession(0, _wanted(version, message))
        if message.session_epoch == _INITIAL_EPOCH:
            self._sessions.pop(message.session_id, None)
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

    def _create(self, wanted: OrderedDict[Key, Wanted], *, by_id: bool) -> FetchSession:
        now = self._clock.steady()
        if len(wanted) > self._partitions_max or not self._has_room(now):
            return FetchSession(0, wanted)
        session_id = 0
        while session_id == 0 or session_id in self._sessions:
            session_id = secrets.randbelow(2**31)
        session = FetchSession(session_id, wanted, used_at=now, by_id=by_id)
        self._sessions[session_id] = session
        return session

    def _has_room(self, now: float) -> bool:
        if len(self._sessions) < self._limit:
            return True
        oldest = next(iter(self._sessions.values()))
        if now - oldest.used_at < _IDLE_S:
            return False
        del self._sessions[oldest.id]
        return True

    def _update(self, session: FetchSession, version: int, message: Any) -> None:
        for key, new in _wanted(version, message).items():
            old = session.wanted.get(key)
            if old is not None:
                new.told_high_watermark, new.told_start_offset = (
                    old.told_high_watermark,
                    old.told_start_offset,
                )
            session.wanted[key] = new
        for topic in message.forgotten_topics_data:
            for partition in topic.partitions:
                session.wanted.pop((topic.topic_id if version >= _IDS_FROM else topic.topic, partition), None)
        if len(session.wanted) > self._partitions_max:
            del self._sessions[session.id]
            raise SessionRefused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)


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
