"""Traces of requests and views, as a collector receives them. Without a configured collector, nothing is traced."""

from __future__ import annotations

import contextlib
import http.server
import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from faults.serve.local_server import served
from faults.serve.shop_app import shop
from faults.views.follower_thread import following
from faults.wait import until
from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.declared_topics import ensure_declared
from headrace.client.records import read
from headrace.serve.http.request_log import NO_TRACES, traces_of

Fresh = Callable[[str], str]
_TRACE, _PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class _Collector:
    """A collector that accepts traces by OTLP over HTTP."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.service = ""
        received = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                received.take(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}"

    def take(self, request: Any) -> None:
        for resource_span in request.resource_spans:
            self.service = _attributes(resource_span.resource)["service.name"]
            for scope in resource_span.scope_spans:
                self.spans += scope.spans

    def named(self, name: str) -> Any:
        return next((span for span in self.spans if span.name == name), None)


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Collector]:
    running = _Collector()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", running.address)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    thread = threading.Thread(target=running.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield running
    running.server.shutdown()
    running.server.server_close()
    thread.join()


@pytest.fixture
def app(cluster: Cluster, fresh: Fresh) -> App:
    shop_app = shop(fresh("traced"))
    for topic in shop_app.topics:
        ensure_declared(cluster, topic, topic.name, 1)
    return shop_app


def _attributes(span: Any) -> dict[str, Any]:
    return {
        attribute.key: getattr(attribute.value, attribute.value.WhichOneof("value"))
        for attribute in span.attributes
    }


def test_a_request_is_a_span_of_its_callers_trace_with_a_span_for_the_view(
    cluster: Cluster, app: App, collector: _Collector, tmp_path: Path
) -> None:
    view, topic = app.views[0].name, app.topics[0].name
    sent = {"traceparent": f"00-{_TRACE}-{_PARENT}-01", "tracestate": "vendor=1"}
    secret = "s3cret-key"
    with following(cluster, app.views[0], [], tmp_path), served(app, cluster, tmp_path) as http:
        value = {"product_id": secret, "name": "n", "price": 1}
        token = http.post(f"/v1/topics/{topic}/records", {"value": value}, headers=sent).expect(200)["token"]
        request = {"after": token, "wait": "20s", "headers": sent}
        http.get(f"/v1/views/{view}/rows/{secret}", **request).expect(200)
        http.get(f"/v1/views/{view}/rows", filter=f'nothing = "{secret}"').expect(400)
        http.get(f"/{secret}").expect(404)
        until(lambda: len(collector.spans) >= 7, "the spans")
    # The exit of the block above exports the remaining spans.
    read_span = collector.named("GET /v1/views/{view}/rows/{key:path}")
    assert (read_span.trace_id.hex(), read_span.parent_span_id.hex()) == (_TRACE, _PARENT)
    result = _attributes(read_span)
    assert (result["http.response.status_code"], result["headrace.view"]) == (200, view)
    assert result["http.route"] == "/v1/views/{view}/rows/{key:path}"
    for name in (f"wait {view}", f"query {view}"):
        inner = next(span for span in collector.spans if span.name == name and span.trace_id.hex() == _TRACE)
        assert inner.parent_span_id == read_span.span_id
        assert _attributes(inner)["db.system.name"] == "sqlite"
    query_spans = [span for span in collector.spans if span.name == f"query {view}"]
    assert [_attributes(span).get("headrace.rows") for span in query_spans] == [1, None]
    assert _attributes(query_spans[1])["error.type"] == "HR-SERVE-FILTER"
    write_span = collector.named("POST /v1/topics/{topic}/records")
    send_span = collector.named(f"send {topic}")
    assert send_span.parent_span_id == write_span.span_id
    # A reader of the record can continue the trace.
    (record,) = read(cluster, topic, {0: (0, cluster.ends(topic)[0])})
    traceparent_header = dict(record.headers() or [])["traceparent"]
    assert traceparent_header == f"00-{_TRACE}-{send_span.span_id.hex()}-01".encode()
    assert collector.service == "headrace-serve"
    assert secret not in str(collector.spans)
    assert collector.named("GET") is not None


def test_an_unreachable_collector_delays_no_request(
    cluster: Cluster, app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:1/v1/traces")
    with served(app, cluster, tmp_path) as http:
        for _ in range(20):
            http.get("/healthz").expect(200)


def test_nothing_is_traced_without_a_configured_collector(
    cluster: Cluster, app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results: list[str] = []
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
    for environment in (
        {},
        {**endpoint, "OTEL_SDK_DISABLED": "true"},
        {**endpoint, "OTEL_TRACES_EXPORTER": "none"},
    ):
        assert traces_of(environment, "shop", results.append) is NO_TRACES
    assert results == []
    assert traces_of({"OTEL_TRACES_EXPORTER": "zipkin"}, "shop", results.append) is NO_TRACES
    assert "zipkin" in results.pop()
    monkeypatch.delitem(sys.modules, "headrace.serve.http.otel", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    assert traces_of(endpoint, "shop", results.append) is NO_TRACES
    assert "pip install 'headrace[otel]'" in results.pop()
    # Records have no trace header.
    value = {"order_id": "o", "product_id": "p", "pieces": 1}
    topic = app.topics[1].name
    with contextlib.ExitStack() as stack:
        http = stack.enter_context(served(app, cluster, tmp_path))
        http.post(f"/v1/topics/{topic}/records", {"value": value}).expect(200)
    (record,) = read(cluster, topic, {0: (0, cluster.ends(topic)[0])})
    assert not record.headers()
    assert json.loads(record.value() or b"") == value
