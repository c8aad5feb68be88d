"""Traces of requests, for whoever collects them. Off unless the environment names a collector, as OpenTelemetry has it:

    OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4318

or ``OTEL_EXPORTER_OTLP_TRACES_ENDPOINT``, or ``OTEL_TRACES_EXPORTER=otlp`` for a collector on the same machine.

A span says which route, which view and which position; never a key, a filter, a value or a token.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Literal, Protocol

from headrace.model.extras import ExtraMissing, needing

__all__ = ["NO_TRACES", "Kind", "Span", "Traces", "traces_of"]

Kind = Literal["internal", "client", "producer"]
Attributes = Mapping[str, str | int]
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


class Span(Protocol):
    def note(self, attributes: Attributes, name: str = "") -> None:
        """What became known on the way, and by it a better name."""

    def fail(self, code: str) -> None: ...


class Traces(Protocol):
    def request(self, method: str, headers: Mapping[str, str]) -> AbstractContextManager[Span]:
        """The whole of one; part of the caller's trace, where it sends one."""

    def step(
        self, name: str, attributes: Attributes, kind: Kind = "internal"
    ) -> AbstractContextManager[Span]:
        """Of what is under way. An error that leaves it is noted by its code."""

    def carried(self) -> bytes | None:
        """What is under way, for the headers of records (W3C's ``traceparent``)."""

    def close(self) -> None: ...


class _Nothing:
    """No traces, and the span of none of them."""

    def request(self, method: str, headers: Mapping[str, str]) -> AbstractContextManager[Span]:
        return _NO_SPAN

    def step(
        self, name: str, attributes: Attributes, kind: Kind = "internal"
    ) -> AbstractContextManager[Span]:
        return _NO_SPAN

    def carried(self) -> bytes | None:
        return None

    def close(self) -> None:
        pass

    def note(self, attributes: Attributes, name: str = "") -> None:
        pass

    def fail(self, code: str) -> None:
        pass


NO_TRACES = _Nothing()
_NO_SPAN = contextlib.nullcontext[Span](NO_TRACES)


def traces_of(environment: Mapping[str, str], app: str, warn: Callable[[str], None]) -> Traces:
    """Answers do not depend on traces: what keeps them from being made is told, and nothing else."""
    exporter = environment.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    asked = exporter == "otlp" or (not exporter and any(environment.get(one) for one in _ENDPOINTS))
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true" or exporter == "none":
        return NO_TRACES
    if exporter and not asked:
        warn(f"OTEL_TRACES_EXPORTER={exporter!r} is not known here, and no traces are made; otlp is")
    if not asked:
        return NO_TRACES
    try:
        with needing("otel", "opentelemetry"):
            from headrace.serve.otel import OtelTraces

            return OtelTraces(app)
    except ExtraMissing as error:
        warn(f"traces are asked for, and none are made: {error.message}; {error.hint}")
        return NO_TRACES
