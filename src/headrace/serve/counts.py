"""What is counted of requests and connections, for Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

from headrace.broker.exposition import Exposition

__all__ = ["Counts"]

_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Counts:
    """In one event loop."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._times: dict[str, list[int]] = {}
        self._seconds: Counter[str] = Counter()
        self._sent: Counter[str] = Counter()
        self.in_flight = 0
        self.closed: Counter[str] = Counter()
        """Connections that we ended, by why."""

    def note(self, route: str, method: str, status: int, took_s: float, sent_bytes: int) -> None:
        self._requests[route, method, status] += 1
        self._times.setdefault(route, [0] * (len(_BUCKETS_S) + 1))[bisect_left(_BUCKETS_S, took_s)] += 1
        self._seconds[route] += took_s  # type: ignore[assignment]
        self._sent[route] += sent_bytes

    def page(self, out: Exposition, connections: int, waiters: int, under_way: int) -> None:
        out.family("headrace_http_requests_total", "counter", "Requests that were answered.")
        for (route, method, status), count in sorted(self._requests.items()):
            labels = {"route": route, "method": method, "status": status}
            out.sample("headrace_http_requests_total", labels, count)
        name = "headrace_http_request_seconds"
        out.family(name, "histogram", "From the first byte of a request to the last of its answer.")
        for route, times in sorted(self._times.items()):
            total = 0
            for limit, count in zip((*map(str, _BUCKETS_S), "+Inf"), times, strict=True):
                total += count
                out.sample(f"{name}_bucket", {"route": route, "le": limit}, total)
            out.sample(f"{name}_sum", {"route": route}, self._seconds[route])
            out.sample(f"{name}_count", {"route": route}, total)
        out.family("headrace_http_sent_bytes_total", "counter", "Bytes of bodies of answers.")
        for route, count in sorted(self._sent.items()):
            out.sample("headrace_http_sent_bytes_total", {"route": route}, count)
        out.family("headrace_http_closed_total", "counter", "Connections that the server ended, by why.")
        for why, count in sorted(self.closed.items()):
            out.sample("headrace_http_closed_total", {"why": why}, count)
        for short, text, value in (
            ("in_flight", "Requests that are being answered.", self.in_flight),
            ("connections", "Open connections.", connections),
            ("waiting", "Requests that wait for a view to come as far as they ask.", waiters),
            ("under_way", "Questions to stores and to the log that are asked or wait to be.", under_way),
        ):
            out.one(f"headrace_http_{short}", "gauge", text, value)
