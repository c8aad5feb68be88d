"""The broker's sockets: who may connect, who was idle too long, and how everyone is let go."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from headrace.broker.connection import Connection

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

__all__ = ["Server"]

_log = logging.getLogger("headrace.broker")
_SWEEP_S = 30.0
_DRAIN_S = 5.0


class Server:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._connections: set[Connection] = set()
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
            lambda: Connection(self._broker, self), host, port, backlog=1024
        )
        self._sweeper = self._broker.loop.create_task(self._sweep())

    def admit(self, connection: Connection) -> bool:
        if len(self._connections) >= self._broker.limits.connections_max:
            return False
        self._connections.add(connection)
        return True

    def leave(self, connection: Connection) -> None:
        self._connections.discard(connection)

    async def _sweep(self) -> None:
        """Close connections on which nothing has come for too long."""
        idle_s_max = self._broker.limits.idle_ms_max / 1000
        while True:
            await asyncio.sleep(min(_SWEEP_S, idle_s_max))
            now = self._broker.clock.steady()
            for connection in list(self._connections):
                if now - connection.active_at > idle_s_max and connection.is_idle:
                    connection.close()

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
