"""Traces requests with OpenTelemetry, and exports the spans in batches by OTLP over HTTP in the background.

The queue of spans is bounded: when it is full, new spans are dropped. OpenTelemetry's own environment variables
configure sampling, headers and timeouts (``OTEL_TRACES_SAMPLER`` …). The tracer provider is private, because an
application that embeds the server can have its own.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Any

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from headrace.errors import HeadraceError
from headrace.serve.http.request_log import Kind, Span

__all__ = ["OtelTraces"]

_KINDS = {"internal": SpanKind.INTERNAL, "client": SpanKind.CLIENT, "producer": SpanKind.PRODUCER}
_CLOSE_S = 2.0
_W3C = TraceContextTextMapPropagator()
_METHODS = ("GET", "HEAD", "POST", "OPTIONS")


class OtelTraces:
    def __init__(self, app: str) -> None:
        resource = Resource.create({"service.version": version("headrace"), "headrace.app": app})
        if str(resource.attributes["service.name"]).startswith("unknown_service"):
            # Neither OTEL_SERVICE_NAME nor OTEL_RESOURCE_ATTRIBUTES is set.
            resource = resource.merge(Resource({"service.name": "headrace-serve"}))
        # The server shuts the provider down itself, so the provider must not do it again at process exit.
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("headrace.serve", version("headrace"))

    @contextlib.contextmanager
    def request(self, method: str, headers: Mapping[str, str]) -> Iterator[Span]:
        parent = {name: headers[name] for name in ("traceparent", "tracestate") if name in headers}
        method_name = method if method in _METHODS else "_OTHER"
        attributes = {"http.request.method": method_name, "url.scheme": "http"}
        with self._tracer.start_as_current_span(
            method_name,
            _W3C.extract(parent),
            SpanKind.SERVER,
            attributes,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            yield _Span(span)

    @contextlib.contextmanager
    def step(self, name: str, attributes: Mapping[str, str | int], kind: Kind = "internal") -> Iterator[Span]:
        with self._tracer.start_as_current_span(
            name,
            kind=_KINDS[kind],
            attributes=dict(attributes),
            # Do not record the exception: error messages contain values.
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield _Span(span)
            except HeadraceError as error:
                _Span(span).fail(error.code)
                raise
            except BaseException as error:
                _Span(span).fail(type(error).__name__)
                raise

    def traceparent(self) -> bytes | None:
        carrier: dict[str, str] = {}
        _W3C.inject(carrier)
        text = carrier.get("traceparent")
        return None if text is None else text.encode()

    def close(self) -> None:
        # Do not wait long for a collector that does not respond. Spans that are not exported yet are lost.
        closing = threading.Thread(target=self._provider.shutdown, name="serve traces", daemon=True)
        closing.start()
        closing.join(_CLOSE_S)


class _Span:
    def __init__(self, span: trace.Span) -> None:
        self._span = span

    def note(self, attributes: Mapping[str, Any], name: str = "") -> None:
        self._span.set_attributes(dict(attributes))
        if name:
            self._span.update_name(name)

    def fail(self, code: str) -> None:
        self._span.set_attribute("error.type", code)
        self._span.set_status(Status(StatusCode.ERROR))
