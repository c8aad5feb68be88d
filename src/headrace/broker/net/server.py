"""The broker's server. It accepts connections, closes idle and slow connections, and finishes requests at stop."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING

from headrace.broker.net.connection import Connection

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

__all__ = ["Server"]

_log = logging.getLogger("headrace.broker")
_SWEEP_S_MAX = 5.0
_SWEEP_S_MIN = 0.02
_CONNECTIONS_PER_YIELD = 200
_STALL_S_MIN = 2.0
_DRAIN_S = 5.0
# asyncio also accepts up to this many connections in one iteration of the event loop.
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
        self._sweeper.add_done_callback(_log_failure)

    def admit(self, connection: Connection) -> str | None:
        """Register the connection, or return the reason to refuse it."""
        limits = self._broker.limits
        if len(self._connections) >= limits.connections_max:
            return f"too many connections (max.connections is {limits.connections_max})"
        if self._by_address[connection.peer] >= limits.connections_per_address_max:
            return (
                "too many connections from this address"
                f" (max.connections.per.ip is {limits.connections_per_address_max})"
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
        """Close connections whose clients have been idle or slow for too long."""
        limits = self._broker.limits
        pause_s = min(_SWEEP_S_MAX, limits.idle_ms_max / 4000, limits.slow_ms_max / 4000)
        pause_s = max(pause_s, _SWEEP_S_MIN)
        while True:
            slept_at = self._broker.clock.steady()
            await asyncio.sleep(pause_s)
            stalled_s = self._broker.clock.steady() - slept_at - pause_s
            if stalled_s > max(_STALL_S_MIN, limits.slow_ms_max / 2000):
                # The process was suspended or very busy. Extend the timers, because this was not the fault of the
                # clients.
                for connection in self._connections:
                    connection.extend_timeouts(stalled_s)
            for count, connection in enumerate(list(self._connections), 1):
                connection.sweep(self._broker.clock.steady())
                if count % _CONNECTIONS_PER_YIELD == 0:
                    await asyncio.sleep(0)

    async def close(self) -> None:
        """Stop accepting connections, finish the requests in progress, then close all connections."""
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


def _log_failure(task: asyncio.Task[None]) -> None:
    """Log a failure of the sweeper, because no task awaits it."""
    if not task.cancelled() and task.exception() is not None:
        _log.error(
            "the check for slow and idle connections failed: such connections stay open until the next start",
            exc_info=task.exception(),
        )
