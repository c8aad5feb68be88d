"""Which connections may stay: limits for all, for each address and for each token.

A connection that has not logged in is the first to go. So sockets that say nothing cannot keep others out: when there
is no room, the address with the most such connections loses its oldest one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

__all__ = ["Admission", "Refused"]

_SPARE = 20
"""Connections beyond the limit that have not logged in: one of them may be a cancel request."""


class Refused(Exception):
    """Too many connections: the message, and what to do about it."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


@dataclass(slots=True)
class _Connection:
    address: str
    token_id: str | None = None
    """None before the login; empty where no token is needed."""


class Admission:
    """Connections are numbered in the order in which they came. In one event loop."""

    def __init__(self, connections_max: int, per_address_max: int, per_token_max: int) -> None:
        self._connections_max = connections_max
        self._per_address_max = per_address_max
        self._per_token_max = per_token_max
        self._connections: dict[int, _Connection] = {}

    def connect(self, number: int, address: str) -> int | None:
        """The connection to drop for it, if there is no room otherwise. Raises where no connection can be dropped."""
        dropped = None
        if self._count(address) >= self._per_address_max:
            dropped = self._oldest_silent(address)
            if dropped is None:
                raise Refused(
                    f"too many connections from {address} (limit {self._per_address_max})",
                    "close some, or raise serve.pg_connections_per_address",
                )
        elif len(self._connections) >= self._connections_max + _SPARE:
            dropped = self._oldest_silent(self._most_silent_address())
        if dropped is not None:
            del self._connections[dropped]
        self._connections[number] = _Connection(address)
        return dropped

    def log_in(self, number: int, token_id: str) -> None:
        connection = self._connections.get(number)
        if connection is None:
            # Its login was on the way.
            raise Refused("the connection was dropped to make room for another", "connect again in a moment")
        logged_in = [one.token_id for one in self._connections.values() if one.token_id is not None]
        if len(logged_in) >= self._connections_max:
            raise Refused(
                f"too many connections (limit {self._connections_max})",
                "close some, or raise serve.pg_connections",
            )
        if token_id and logged_in.count(token_id) >= self._per_token_max:
            raise Refused(
                f"too many connections with this token (limit {self._per_token_max})",
                "close some, or raise serve.pg_connections_per_token",
            )
        connection.token_id = token_id

    def disconnect(self, number: int) -> None:
        self._connections.pop(number, None)

    def _count(self, address: str) -> int:
        return sum(one.address == address for one in self._connections.values())

    def _oldest_silent(self, address: str) -> int | None:
        silent = (
            number
            for number, one in self._connections.items()
            if one.address == address and one.token_id is None
        )
        return next(silent, None)

    def _most_silent_address(self) -> str:
        silent = Counter(one.address for one in self._connections.values() if one.token_id is None)
        return silent.most_common(1)[0][0]
