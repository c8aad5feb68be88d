"""Records finished requests in the access log, in Prometheus metrics and in traces.

An access log line contains the route and the view or topic, never the path or the query. Paths contain keys and
queries contain values, and a client might paste a token into either. A span contains the route, the view and the
position, never a key, a filter, a value or a token.

Tracing is off unless OpenTelemetry's environment variables name a collector:

    OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4318

or ``OTEL_EXPORTER_OTLP_TRACES_ENDPOINT``. ``OTEL_TRACES_EXPORTER=otlp`` alone selects a collector on the same machine.
"""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol

import msgspec

from headrace.broker.metrics.exposition import Exposition
from headrace.clock import time_json
from headrace.files import make_private_dir, private
from headrace.model.errors import MissingExtra, needing

__all__ = ["NO_TRACES", "AccessLog", "Kind", "LogFile", "RequestMetrics", "Span", "Traces", "traces_of"]

_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class LogFile:
    """Appends lines to a file that only its owner can read. Use it in one thread.

    If a line would make the file larger than ``bytes_max``, the file is first renamed to ``<name>.1``. This replaces
    the previous ``<name>.1``. Both files together have at most twice ``bytes_max``.
    """

    def __init__(self, path: Path, bytes_max: int) -> None:
        self._path = path
        self._bytes_max = bytes_max
        self._file: BinaryIO | None = None
        self._bytes = 0

    def write(self, line: str) -> None:
        raw = line.encode() + b"\n"
        if self._file is not None and self._bytes and self._bytes + len(raw) > self._bytes_max:
            self.close()
            self._path.replace(self._path.with_name(f"{self._path.name}.1"))
        if self._file is None:
            make_private_dir(self._path.parent)
            self._file = open(self._path, "ab", buffering=0, opener=private)  # noqa: SIM115  close() closes it
            self._bytes = os.fstat(self._file.fileno()).st_size
        self._file.write(raw)
        self._bytes += len(raw)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class AccessLog:
    """Writes one line of JSON per request to ``write``; None disables the log."""

    def __init__(self, write: Callable[[str], None] | None) -> None:
        self._write = write

    def note(
        self,
        *,
        now_ms: int,
        request_id: str,
        method: str,
        route: str,
        names: Mapping[str, str],
        caller: str,
        peer: str,
        status: int,
        code: str,
        took_s: float,
        sent_bytes: int,
    ) -> None:
        if self._write is None:
            return
        line: dict[str, Any] = {
            "time": time_json(now_ms),
            "request": request_id,
            "method": method,
            "route": route,
            **{name: text[:249] for name, text in names.items() if name in ("view", "topic")},
            "token": caller,
            "peer": peer,
            "status": status,
            **({"code": code} if code else {}),
            "ms": round(took_s * 1_000, 3),
            "bytes": sent_bytes,
        }
        self._write(msgspec.json.encode(line).decode())


class RequestMetrics:
    """Counts requests and connections. Use it in one event loop."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._buckets: dict[str, list[int]] = {}
        self._seconds: Counter[str] = Counter()
        self._sent_bytes: Counter[str] = Counter()
        self.in_flight = 0
        self.closed: Counter[str] = Counter()
        """Connections that the server closed, by reason."""

    def note(self, route: str, method: str, status: int, took_s: float, sent_bytes: int) -> None:
        self._requests[route, method, status] += 1
        self._buckets.setdefault(route, [0] * (len(_BUCKETS_S) + 1))[bisect_left(_BUCKETS_S, took_s)] += 1
        self._seconds[route] += took_s  # type: ignore[assignment]
        self._sent_bytes[route] += sent_bytes

    def write(self, out: Exposition, connections: int, waiters: int, under_way: int) -> None:
        out.family("headrace_http_requests_total", "counter", "Finished requests.")
        for (route, method, status), count in sorted(self._requests.items()):
            labels = {"route": route, "method": method, "status": status}
            out.sample("headrace_http_requests_total", labels, count)
        name = "headrace_http_request_seconds"
        out.family(
            name, "histogram", "Seconds from the first byte of a request to the last byte of its response."
        )
        for route, buckets in sorted(self._buckets.items()):
            total = 0
            for limit, count in zip((*map(str, _BUCKETS_S), "+Inf"), buckets, strict=True):
                total += count
                out.sample(f"{name}_bucket", {"route": route, "le": limit}, total)
            out.sample(f"{name}_sum", {"route": route}, self._seconds[route])
            out.sample(f"{name}_count", {"route": route}, total)
        out.family("headrace_http_sent_bytes_total", "counter", "Bytes of response bodies.")
        for route, count in sorted(self._sent_bytes.items()):
            out.sample("headrace_http_sent_bytes_total", {"route": route}, count)
        out.family("headrace_http_closed_total", "counter", "Connections that the server closed, by reason.")
        for reason, count in sorted(self.closed.items()):
            out.sample("headrace_http_closed_total", {"why": reason}, count)
        for short, text, value in (
            ("in_flight", "Requests in progress.", self.in_flight),
            ("connections", "Open connections.", connections),
            ("waiting", "Requests that wait until a view reaches a position.", waiters),
            ("under_way", "Operations on stores and the log, running or queued.", under_way),
        ):
            out.single(f"headrace_http_{short}", "gauge", text, value)


Kind = Literal["internal", "client", "producer"]
Attributes = Mapping[str, str | int]
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


class Span(Protocol):
    def note(self, attributes: Attributes, name: str = "") -> None:
        """Add attributes, and optionally rename the span."""

    def fail(self, code: str) -> None: ...


class Traces(Protocol):
    def request(self, method: str, headers: Mapping[str, str]) -> AbstractContextManager[Span]:
        """The span of a whole request. It is part of the client's trace if the client sends a traceparent header."""

    def step(
        self, name: str, attributes: Attributes, kind: Kind = "internal"
    ) -> AbstractContextManager[Span]:
        """A span within the current span. If an error is raised inside, the span records the error's code."""

    def traceparent(self) -> bytes | None:
        """The current span as a W3C ``traceparent``, for the headers of records."""

    def close(self) -> None: ...


class _NoTraces:
    """Implements both ``Traces`` and ``Span`` without doing anything."""

    def request(self, method: str, headers: Mapping[str, str]) -> AbstractContextManager[Span]:
        return _NO_SPAN

    def step(
        self, name: str, attributes: Attributes, kind: Kind = "internal"
    ) -> AbstractContextManager[Span]:
        return _NO_SPAN

    def traceparent(self) -> bytes | None:
        return None

    def close(self) -> None:
        pass

    def note(self, attributes: Attributes, name: str = "") -> None:
        pass

    def fail(self, code: str) -> None:
        pass


NO_TRACES = _NoTraces()
_NO_SPAN = contextlib.nullcontext[Span](NO_TRACES)


def traces_of(environment: Mapping[str, str], app: str, warn: Callable[[str], None]) -> Traces:
    """Configure tracing from the environment. A problem only causes a warning, because requests work without traces."""
    exporter = environment.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    is_enabled = exporter == "otlp" or (not exporter and any(environment.get(name) for name in _ENDPOINTS))
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true" or exporter == "none":
        return NO_TRACES
    if exporter and not is_enabled:
        warn(f"no traces: OTEL_TRACES_EXPORTER={exporter!r} is not supported; use otlp")
    if not is_enabled:
        return NO_TRACES
    try:
        with needing("otel", "opentelemetry"):
            from headrace.serve.http.otel import OtelTraces

            return OtelTraces(app)
    except MissingExtra as error:
        warn(f"no traces: {error.message}; {error.hint}")
        return NO_TRACES
