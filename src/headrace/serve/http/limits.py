"""The limits of a server: sizes, counts, timeouts, and the share of a resource that one token may use."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.serve.errors import TokenQuotaExceeded
from headrace.settings import ServeSettings

__all__ = ["Limits", "TokenQuota", "share_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    head_bytes_max: int = 32 * 1024
    """Maximum size of the request line and headers together."""
    body_bytes_max: int = 1024 * 1024
    receive_s: float = 10.0
    """Maximum time to receive a request. It starts when the connection opens, or with the first byte of a later
    request.
    """
    send_s: float = 30.0
    """Maximum time for which a client may leave a response unread."""
    unsent_bytes_max: int = 256 * 1024 * 1024
    """Maximum response bytes that clients have not read, for all connections together."""
    idle_s: int = 60
    """Maximum idle time between two requests of a connection."""
    connections_max: int = 1_000
    rows_max: int = 10_000
    rows_default: int = 100
    answer_bytes_max: int = 16 * 1024 * 1024
    records_max: int = 1_000
    """Maximum records in one write request."""
    read_s: float = 10.0
    """Timeout for a query of a store or the log."""
    write_s: float = 30.0
    wait_s_max: float = 30.0
    wait_s_default: float = 2.0
    threads: int = 8
    queue_max: int = 200
    """Maximum operations that wait for a thread."""
    cached_bytes_max: int = 64 * 1024 * 1024
    """Maximum size of the cached responses of all views together."""
    drain_s: int = 10
    subscribers_max: int = 1_000
    frame_s: float = 0.1
    """Minimum interval between two frames to a subscriber."""
    history_bytes: int = 16 * 1024 * 1024
    """Maximum size of the recent changes that the server retains per view for slow subscribers."""
    heartbeat_s: int = 15
    sql_s: float = 10.0
    """Timeout for a SQL statement."""
    sql_rows_max: int = 100_000
    sql_memory_bytes: int = 512 << 20
    sql_processes: int = 2
    pg_connections_max: int = 100
    pg_per_address_max: int = 75
    pg_per_token_max: int = 50
    pg_idle_s: float = 1_800.0
    """Maximum idle time of a connection of the PostgreSQL protocol."""
    token_share_percent: int = 50
    """Share of the concurrent statements, searches and subscriptions that one token may use."""
    sql_queue_max: int = 50
    """Maximum statements that wait for a process."""

    @classmethod
    def of(cls, serve: ServeSettings) -> Limits:
        return cls(
            body_bytes_max=serve.body_bytes_max,
            receive_s=serve.receive_ms / 1_000,
            connections_max=serve.connections,
            rows_max=serve.rows_max,
            read_s=serve.read_ms / 1_000,
            wait_s_max=serve.wait_ms_max / 1_000,
            threads=serve.threads,
            cached_bytes_max=serve.cached_bytes_max,
            unsent_bytes_max=serve.unsent_bytes_max,
            drain_s=serve.drain_s,
            subscribers_max=serve.subscribers,
            frame_s=serve.frame_ms / 1_000,
            history_bytes=serve.history_bytes,
            heartbeat_s=serve.heartbeat_s,
            sql_s=serve.sql_ms / 1_000,
            sql_rows_max=serve.sql_rows_max,
            sql_memory_bytes=serve.sql_memory_mb << 20,
            sql_processes=serve.sql_processes,
            token_share_percent=serve.token_share_percent,
            pg_connections_max=serve.pg_connections,
            pg_per_address_max=serve.pg_connections_per_address,
            pg_per_token_max=serve.pg_connections_per_token,
            pg_idle_s=serve.pg_idle_ms / 1_000,
        )


def share_of(total: int, percent: int) -> int:
    return max(1, total * percent // 100)


class TokenQuota:
    """Limits the share of a resource that one token may use, so that other tokens can use the rest.

    If the server requires no tokens, one client may use the whole resource. ``what`` names the resource in errors. Use
    it in one event loop.
    """

    def __init__(self, what: str, total: int, percent: int) -> None:
        self.total = total
        self._what = what
        self._per_token = share_of(total, percent)
        self._used: Counter[str] = Counter()

    @property
    def count(self) -> int:
        return self._used.total()

    @property
    def is_full(self) -> bool:
        return self.count >= self.total

    def expect_share(self, token_id: str) -> None:
        if token_id and self._used[token_id] >= self._per_token:
            raise TokenQuotaExceeded(
                f"too many {self._what} with this token (limit {self._per_token})",
                hint="wait until one ends, or raise serve.token_share_percent",
            )

    def take(self, token_id: str) -> None:
        self._used[token_id] += 1

    def give_back(self, token_id: str) -> None:
        self._used[token_id] -= 1
        if not self._used[token_id]:
            del self._used[token_id]

    @contextlib.contextmanager
    def held(self, token_id: str) -> Iterator[None]:
        self.take(token_id)
        try:
            yield
        finally:
            self.give_back(token_id)
