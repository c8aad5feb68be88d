"""Traces by OpenTelemetry: sent in the background, in batches, by OTLP over HTTP; its queue is bounded and drops.

Sampling, headers, timeouts and the rest are as its own variables say (``OTEL_TRACES_SAMPLER`` …). The provider is our
own: an application around us may have another.
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
from headrace.serve.traces import Kind, Span

__all__ = ["OtelTraces"]

_KINDS = {"internal": SpanKind.INTERNAL, "client": SpanKind.CLIENT, "producer": SpanKind.PRODUCER}
_CLOSE_S = 2.0
_W3C = TraceContextTextMapPropagator()
_METHODS = ("GET", "HEAD", "POST", "OPTIONS")


class OtelTraces:
    def __init__(self, app: str) -> None:
        resource = Resource.create({"service.version": version("headrace"), "headrace.app": app})
        if str(resource.attributes["service.name"]).startswith("unknown_service"):
            # Neither OTEL_SERVICE_NAME nor OTEL_RESOURCE_ATTRIBUTES says otherwise.
            resource = resource.merge(Resource({"service.name": "headrace-serve"}))
        # Whoever stops the server stops this too: not again when the process ends.
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("headrace.serve", version("headrace"))

    @contextlib.contextmanager
    def request(self, method: str, headers: Mapping[str, str]) -> Iterator[Span]:
        told = {name: headers[name] for name in ("traceparent", "tracestate") if name in headers}
        known = method if method in _METHODS else "_OTHER"
        attributes = {"http.request.method": known, "url.scheme": "http"}
        with self._tracer.start_as_current_span(
            known,
            _W3C.extract(told),
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
            # What an error says has values in it.
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

    def carried(self) -> bytes | None:
        found: dict[str, str] = {}
        _W3C.inject(found)
        text = found.get("traceparent")
        return None if text is None else text.encode()

    def close(self) -> None:
        # A collector that does not answer holds up nobody who stops: what is not sent by then is lost.
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
