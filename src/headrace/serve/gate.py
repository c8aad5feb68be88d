"""How many connections there are, and how long each may take: who is slow or idle goes, so that others find a place.

uvicorn has no deadline for receiving a request, and none for sending an answer. So one sweep a second looks at every
connection. When there are too many, the one that has been without a whole request for longest makes room: a caller that
does its part has that for milliseconds. What callers have not taken of their answers is in one account for all, with
those in PostgreSQL's protocol: when it is overdrawn, who has held some longest is closed.
"""

from __future__ import annotations

from typing import Protocol

from headrace.broker.pressure import Account, Holder
from headrace.clock import Clock
from headrace.serve.counts import Counts
from headrace.serve.limits import Limits

__all__ = ["Gate", "Guest"]


class Guest(Holder, Protocol):
    """A connection."""

    incomplete_since: float | None
    """Since when a request is awaited or being received; None while one is being answered."""
    unsent_since: float | None
    """Since when there is something that the other side has not taken."""

    def unsent_bytes(self) -> int: ...

    def is_receiving(self) -> bool:
        """Whether a request has begun, or none has come yet at all; otherwise it rests between two."""

    def drop(self) -> None: ...


class Gate:
    def __init__(
        self, limits: Limits, counts: Counts, clock: Clock, unsent: Account[Holder] | None = None
    ) -> None:
        self.limits = limits
        self.counts = counts
        self.clock = clock
        self._unsent = unsent or Account("answers", limits.unsent_bytes_max)
        self._guests: set[Guest] = set()

    @property
    def count(self) -> int:
        return len(self._guests)

    def enter(self, guest: Guest) -> bool:
        """False if there is no place, and none can be made."""
        if len(self._guests) >= self.limits.connections_max:
            idle = [one for one in self._guests if one.incomplete_since is not None]
            if not idle:
                self.counts.closed["full"] += 1
                return False
            self._drop(min(idle, key=lambda one: one.incomplete_since or 0.0), "made room")
        self._guests.add(guest)
        return True

    def leave(self, guest: Guest) -> None:
        self._unsent.hold(guest, 0)
        self._guests.discard(guest)

    def note_unsent(self, guest: Guest) -> None:
        """It has taken some of what was written for it, or less than was written."""
        self._unsent.hold(guest, guest.unsent_bytes())

    def sweep(self) -> None:
        now = self.clock.steady()
        for guest in [*self._guests]:
            since = guest.incomplete_since
            if since is not None and guest.is_receiving() and now - since > self.limits.receive_s:
                self._drop(guest, "slow to send")
                continue
            self.note_unsent(guest)
            if guest.unsent_bytes() == 0:
                guest.unsent_since = None
            elif guest.unsent_since is None:
                guest.unsent_since = now
            elif now - guest.unsent_since > self.limits.send_s:
                self._drop(guest, "slow to read")

    def _drop(self, guest: Guest, why: str) -> None:
        self.counts.closed[why] += 1
        self._guests.discard(guest)
        guest.drop()
