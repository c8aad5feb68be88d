"""What is counted of PostgreSQL's protocol, for Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

from headrace.broker.exposition import Exposition
from headrace.serve.pgwire.kept import KeptByAll

__all__ = ["WireCounts"]

_KEPT_BYTES_MAX = 256 << 20
_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class WireCounts:
    """In one event loop."""

    def __init__(self) -> None:
        self.connections = 0
        self.under_way = 0
        """Statements that wait for an answer."""
        self.kept = KeptByAll(_KEPT_BYTES_MAX)
        self.came = 0
        self.cancels = 0
        self.ended: Counter[str] = Counter()
        """Connections that we ended, by why."""
        self.errors: Counter[str] = Counter()
        """By PostgreSQL's state."""
        self.statements = 0
        self._rows = 0
        self._times = [0] * (len(_BUCKETS_S) + 1)
        self._seconds = 0.0

    def note_evicted(self) -> None:
        self.ended["unread"] += 1

    def note(self, took_s: float, rows: int) -> None:
        """A statement that was answered, with rows or an error."""
        self.statements += 1
        self._rows += rows
        self._seconds += took_s
        self._times[bisect_left(_BUCKETS_S, took_s)] += 1

    def page(self, out: Exposition) -> None:
        for short, kind, text, value in (
            ("connections", "gauge", "Open connections in PostgreSQL's protocol.", self.connections),
            ("under_way", "gauge", "Statements that are being answered or wait to be.", self.under_way),
            ("kept_bytes", "gauge", "Bytes of statements and rows kept for connections.", self.kept.bytes),
            ("connections_total", "counter", "Connections that came.", self.came),
            ("cancels_total", "counter", "Requests to cancel a statement.", self.cancels),
            ("statements_total", "counter", "Statements that were answered.", self.statements),
            ("rows_total", "counter", "Rows of answers.", self._rows),
        ):
            out.one(f"headrace_pg_{short}", kind, text, value)
        out.family("headrace_pg_errors_total", "counter", "Errors that were told, by their state.")
        for state, count in sorted(self.errors.items()):
            out.sample("headrace_pg_errors_total", {"state": state}, count)
        out.family("headrace_pg_closed_total", "counter", "Connections that the server ended, by why.")
        for why, count in sorted(self.ended.items()):
            out.sample("headrace_pg_closed_total", {"why": why}, count)
        name = "headrace_pg_statement_seconds"
        out.family(name, "histogram", "From a statement to its answer.")
        total = 0
        for limit, count in zip((*map(str, _BUCKETS_S), "+Inf"), self._times, strict=True):
            total += count
            out.sample(f"{name}_bucket", {"le": limit}, total)
        out.sample(f"{name}_sum", {}, self._seconds)
        out.sample(f"{name}_count", {}, total)
