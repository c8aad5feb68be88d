"""The context that all connections in PostgreSQL's protocol share: services, metrics, and a memory quota.

Prepared statements and unsent rows stay in memory between messages, and the client decides how many. So each connection
has a limit, and all connections together have a second limit.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass

from headrace.broker.metrics.exposition import Exposition
from headrace.broker.net.client_limits import Account, Holder
from headrace.serve.errors import SqlLimitExceeded
from headrace.serve.http.context import ServeContext
from headrace.serve.http.tokens import TokenVerifier
from headrace.serve.sql.service import SqlService

__all__ = ["MemoryQuota", "SharedQuota", "WireContext", "WireMetrics"]


class SharedQuota:
    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0


class MemoryQuota:
    """The quota of one connection. If the name exists, ``put`` replaces the size of that entry."""

    def __init__(self, shared: SharedQuota, bytes_max: int, count_max: int) -> None:
        self._shared = shared
        self._bytes_max = bytes_max
        self._count_max = count_max
        self._sizes: dict[tuple[str, str], int] = {}
        self._bytes = 0

    def put(self, kind: str, name: str, size: int) -> None:
        self.drop(kind, name)
        if len(self._sizes) >= self._count_max:
            raise SqlLimitExceeded(
                f"too many statements and portals on this connection (limit {self._count_max})",
                hint="close some statements or portals",
            )
        if self._bytes + size > self._bytes_max:
            raise SqlLimitExceeded(
                f"the statements and unsent rows of this connection exceed {self._bytes_max} bytes",
                hint="fetch the rows, or close portals",
            )
        if self._shared.bytes + size > self._shared.bytes_max:
            raise SqlLimitExceeded(
                f"the statements and unsent rows of all connections exceed {self._shared.bytes_max} bytes",
                hint="retry in a moment, or run the statement without a cursor",
            )
        self._sizes[kind, name] = size
        self._bytes += size
        self._shared.bytes += size

    def drop(self, kind: str, name: str) -> None:
        size = self._sizes.pop((kind, name), 0)
        self._bytes -= size
        self._shared.bytes -= size

    def clear(self) -> None:
        self._shared.bytes -= self._bytes
        self._bytes = 0
        self._sizes.clear()


_MEMORY_BYTES_MAX = 256 << 20
_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class WireMetrics:
    def __init__(self) -> None:
        self.connections = 0
        self.under_way = 0
        """Running statements."""
        self.memory = SharedQuota(_MEMORY_BYTES_MAX)
        self.accepted = 0
        self.cancels = 0
        self.ended: Counter[str] = Counter()
        """Connections that the server closed, by reason."""
        self.errors: Counter[str] = Counter()
        """Errors sent, by SQLSTATE."""
        self.statements = 0
        self._rows = 0
        self._times = [0] * (len(_BUCKETS_S) + 1)
        self._seconds = 0.0

    def note_evicted(self) -> None:
        self.ended["unread"] += 1

    def note(self, took_s: float, rows: int) -> None:
        """Count a statement that finished, with rows or an error."""
        self.statements += 1
        self._rows += rows
        self._seconds += took_s
        self._times[bisect_left(_BUCKETS_S, took_s)] += 1

    def write(self, out: Exposition) -> None:
        for short, kind, text, value in (
            ("connections", "gauge", "Open connections in PostgreSQL's protocol.", self.connections),
            ("under_way", "gauge", "Statements that run or wait for a process.", self.under_way),
            ("kept_bytes", "gauge", "Bytes of statements and unsent rows in memory.", self.memory.bytes),
            ("connections_total", "counter", "Connections accepted.", self.accepted),
            ("cancels_total", "counter", "Requests to cancel a statement.", self.cancels),
            ("statements_total", "counter", "Statements finished.", self.statements),
            ("rows_total", "counter", "Rows sent.", self._rows),
        ):
            out.single(f"headrace_pg_{short}", kind, text, value)
        out.family("headrace_pg_errors_total", "counter", "Errors sent, by SQLSTATE.")
        for state, count in sorted(self.errors.items()):
            out.sample("headrace_pg_errors_total", {"state": state}, count)
        out.family("headrace_pg_closed_total", "counter", "Connections that the server closed, by reason.")
        for why, count in sorted(self.ended.items()):
            out.sample("headrace_pg_closed_total", {"why": why}, count)
        name = "headrace_pg_statement_seconds"
        out.family(name, "histogram", "Time from statement to result.")
        total = 0
        for limit, count in zip((*map(str, _BUCKETS_S), "+Inf"), self._times, strict=True):
            total += count
            out.sample(f"{name}_bucket", {"le": limit}, total)
        out.sample(f"{name}_sum", {}, self._seconds)
        out.sample(f"{name}_count", {}, total)


@dataclass(frozen=True, slots=True)
class WireContext:
    serve: ServeContext
    tokens: TokenVerifier
    service: SqlService
    unsent: Account[Holder]
    """Counts the bytes that clients have not read yet."""
    metrics: WireMetrics

    def report(self, error: BaseException) -> None:
        self.serve.report("in the PostgreSQL protocol", error)
