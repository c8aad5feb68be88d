"""The broker's sockets: who may connect, who was idle or slow too long, and how everyone is let go."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING

from headrace.broker.connection import Connection

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

__all__ = ["Server"]

_log = logging.getLogger("headrace.broker")
_SWEEP_S_MAX = 5.0
_SWEEP_S_MIN = 0.02
_SWEPT_AT_ONCE = 200
_AWAY_S_MIN = 2.0
_DRAIN_S = 5.0
# Also how many connections are accepted before anything else is done again.
_ACCEPT_QUEUE = 256


class Server:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._connections: set[Connection] = set()
        self._by_address: Counter[str] = Counter()
        self.accepted = 0
        self.idle_closed = 0
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def connections(self) -> int:
        return len(self._connections)

    async def listen(self, host: str, port: int) -> None:
        self._server = await self._broker.loop.create_server(
            lambda: Connection(self._broker, self), host, port, backlog=_ACCEPT_QUEUE
        )
        self._sweeper = self._broker.loop.create_task(self._sweep())
        self._sweeper.add_done_callback(_say_why)

    def admit(self, connection: Connection) -> str | None:
        """Count the connection in, or say why it cannot stay."""
        limits = self._broker.limits
        if len(self._connections) >= limits.connections_max:
            return f"max.connections is {limits.connections_max}, and as many are open"
        if self._by_address[connection.peer] >= limits.connections_per_address_max:
            return (
                f"max.connections.per.ip is {limits.connections_per_address_max}, and as many are open"
                " from this address"
            )
        self.accepted += 1
        self._connections.add(connection)
        self._by_address[connection.peer] += 1
        return None

    def leave(self, connection: Connection) -> None:
        if connection in self._connections:
            self._connections.remove(connection)
            self._by_address[connection.peer] -= 1
            if not self._by_address[connection.peer]:
                del self._by_address[connection.peer]

    async def _sweep(self) -> None:
        """Close connections that are idle or slow for too long."""
        limits = self._broker.limits
        pause_s = min(_SWEEP_S_MAX, limits.idle_ms_max / 4000, limits.slow_ms_max / 4000)
        pause_s = max(pause_s, _SWEEP_S_MIN)
        while True:
            slept_at = self._broker.clock.steady()
            await asyncio.sleep(pause_s)
            away_s = self._broker.clock.steady() - slept_at - pause_s
            if away_s > max(_AWAY_S_MIN, limits.slow_ms_max / 2000):
                # The process was stopped, or very busy: no client could have helped that.
                for connection in self._connections:
                    connection.put_off(away_s)
            for number, connection in enumerate(list(self._connections), 1):
                connection.sweep(self._broker.clock.steady())
                if number % _SWEPT_AT_ONCE == 0:
                    await asyncio.sleep(0)

    async def close(self) -> None:
        """Take no more connections, let requests under way be answered, then close."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._server is not None:
            self._server.close()
        deadline = self._broker.loop.time() + _DRAIN_S
        for connection in list(self._connections):
            connection.finish()
        while self._connections and self._broker.loop.time() < deadline:
            await asyncio.sleep(0.01)
        for connection in list(self._connections):
            connection.abort()


def _say_why(task: asyncio.Task[None]) -> None:
    """Nobody waits for the sweeper: that it failed must not go unnoticed."""
    if not task.cancelled() and task.exception() is not None:
        _log.error("slow and idle connections are no longer closed", exc_info=task.exception())
