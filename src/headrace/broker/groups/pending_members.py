"""Member ids that were given out, and whose owners have not joined with them yet.

From version 4 of JoinGroup a client is given an id first, and joins with it then. An id is good for a session time-out,
at most half an hour, and until the connection closes over which it was given: a client that names it on another one is
told that it is not known, and asks for a new one. The ids of all groups together have a limit in bytes of their own, so
that they take nothing from members.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from headrace.broker.groups.timers import Timer, Timers
from headrace.broker.sizes import text_bytes

if TYPE_CHECKING:
    from headrace.broker.groups.group import Group

__all__ = ["PendingMember", "PendingMembers"]

# The timer with its action and its place in the heap, and the entries of three dictionaries.
_ENTRY_BYTES = 1_024


class PendingMember(NamedTuple):
    timer: Timer
    connection: object | None
    """Whatever stands for the connection over which the id was given; None keeps it for the whole time-out."""


class PendingMembers:
    """Invariant: ``used_bytes`` is the sum over the pending members of all groups."""

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
        """``expire`` is called when the time-out has passed; it must remove the id."""
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
        if (given := self._by_connection.get(pending.connection)) is not None:
            del given[member_id]
            if not given:
                del self._by_connection[pending.connection]

    def of_connection(self, connection: object) -> list[tuple[Group, str]]:
        return [(group, member_id) for member_id, group in self._by_connection.get(connection, {}).items()]


def _size(member_id: str) -> int:
    return _ENTRY_BYTES + text_bytes(member_id)
