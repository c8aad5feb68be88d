"""One member of a group: who it is, what it can do, what it was assigned, and which of its requests are
parked."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from headrace.broker.groups.answers import DescribedMember, JoinAnswer, SyncAnswer
from headrace.broker.groups.timers import Timer
from headrace.broker.sizes import text_bytes
from headrace.wire.codes import ErrorCode

__all__ = ["Member", "Protocols", "member_bytes"]

Protocols = tuple[tuple[str, bytes], ...]

Answer = TypeVar("Answer")


# A member with its timer and its entry in the journal, and a protocol with its two objects.
_MEMBER_BYTES = 1_024
_PROTOCOL_BYTES = 192


def member_bytes(member_id: str, instance_id: str | None, client_id: str, protocols: Protocols) -> int:
    """What keeping a member costs without its assignment."""
    names = text_bytes(member_id) + text_bytes(instance_id) + text_bytes(client_id)
    return (
        _MEMBER_BYTES
        + names
        + sum(_PROTOCOL_BYTES + text_bytes(name) + len(metadata) for name, metadata in protocols)
    )


def _nothing() -> None:
    return None


class Member:
    """A parked request counts even when its connection is gone: only the time-outs can tell."""

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
        #: True until its first join is answered: until then it has no id to send heartbeats with.
        self.is_new = False
        self.session = Timer(_nothing)
        self._join: asyncio.Future[JoinAnswer] | None = None
        self._sync: asyncio.Future[SyncAnswer] | None = None

    @property
    def size_bytes(self) -> int:
        """What keeping it costs."""
        return member_bytes(self.id, self.instance_id, self.client_id, self.protocols) + len(self.assignment)

    @property
    def awaits_join(self) -> bool:
        return self._join is not None

    @property
    def awaits_sync(self) -> bool:
        return self._sync is not None

    @property
    def is_excused(self) -> bool:
        """A member whose request is parked here cannot be blamed for missing heartbeats."""
        return not self.is_new and (self.awaits_join or self.awaits_sync)

    def subscription(self, protocol: str | None) -> bytes:
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        return b""

    def park_join(self, waiter: asyncio.Future[JoinAnswer]) -> None:
        """Hold a join until the group is complete. One that its client gave up on is let go."""
        self.answer_join(JoinAnswer(ErrorCode.REBALANCE_IN_PROGRESS, self.id))
        self._join = waiter

    def park_sync(self, waiter: asyncio.Future[SyncAnswer]) -> None:
        self.answer_sync(SyncAnswer(ErrorCode.REBALANCE_IN_PROGRESS))
        self._sync = waiter

    def answer_join(self, answer: JoinAnswer) -> bool:
        waiter, self._join = self._join, None
        return _settle(waiter, answer)

    def answer_sync(self, answer: SyncAnswer) -> bool:
        waiter, self._sync = self._sync, None
        return _settle(waiter, answer)

    def describe(self, protocol: str | None) -> DescribedMember:
        return DescribedMember(
            self.id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.subscription(protocol),
            self.assignment,
        )


def _settle(waiter: asyncio.Future[Answer] | None, answer: Answer) -> bool:
    """True if there was a request to answer, whether or not its connection still is."""
    if waiter is None:
        return False
    if not waiter.done():
        waiter.set_result(answer)
    return True
