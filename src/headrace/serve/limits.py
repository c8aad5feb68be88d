"""How much a caller may ask for, and how long anything may take."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.settings import ServeSettings

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    head_bytes_max: int = 32 * 1024
    """Of a request's first line and headers."""
    body_bytes_max: int = 1024 * 1024
    receive_s: float = 10.0
    """From a request's first byte, or a connection's begin, to its last byte."""
    send_s: float = 30.0
    """For whoever takes an answer."""
    idle_s: int = 60
    """Between two requests."""
    connections_max: int = 1_000
    rows_max: int = 10_000
    rows_default: int = 100
    answer_bytes_max: int = 16 * 1024 * 1024
    records_max: int = 1_000
    """Of one request to write."""
    read_s: float = 10.0
    """For a store, or the log, to answer."""
    write_s: float = 30.0
    wait_s_max: float = 30.0
    wait_s_default: float = 2.0
    threads: int = 8
    queue_max: int = 200
    """Questions that wait for a thread."""
    cached_bytes_max: int = 64 * 1024 * 1024
    """Of answers that are kept, of all views together."""
    drain_s: int = 10
    subscribers_max: int = 1_000
    frame_s: float = 0.1
    """Between two frames to a subscriber, at least."""
    history_bytes: int = 16 * 1024 * 1024
    """Of a view's changes, for subscribers that are behind."""
    heartbeat_s: int = 15
    sql_s: float = 10.0
    """For a statement."""
    sql_rows_max: int = 100_000
    sql_memory_bytes: int = 512 << 20
    sql_processes: int = 2
    pg_connections_max: int = 100
    pg_per_address_max: int = 75
    pg_per_token_max: int = 50
    pg_idle_s: float = 1_800.0
    """Between two messages in PostgreSQL's protocol."""
    token_share_percent: int = 50
    """Of statements, searches and subscriptions at a time, for one token."""
    sql_queue_max: int = 50
    """Statements that wait for a process."""

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
