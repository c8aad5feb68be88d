"""Traces from a request to the view that answers it, as a collector gets them; and none unless one is named."""

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

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.declaring import ensure_declared
from headrace.client.reading import read
from headrace.serve.traces import NO_TRACES, traces_of
from tests.serve.serving import served
from tests.serve.shop import shop
from tests.support.waiting import until
from tests.views.seeing import following

Fresh = Callable[[str], str]
_TRACE, _PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class _Collector:
    """Speaks OTLP over HTTP, as far as traces go."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.service = ""
        heard = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                heard.take(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}"

    def take(self, request: Any) -> None:
        for one in request.resource_spans:
            self.service = _attributes(one.resource)["service.name"]
            for scope in one.scope_spans:
                self.spans += scope.spans

    def named(self, name: str) -> Any:
        return next((span for span in self.spans if span.name == name), None)


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Collector]:
    made = _Collector()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", made.address)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


@pytest.fixture
def app(cluster: Cluster, fresh: Fresh) -> App:
    made = shop(fresh("traced"))
    for topic in made.topics:
        ensure_declared(cluster, topic, topic.name, 1)
    return made


def _attributes(span: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}


def test_a_request_is_a_span_of_its_caller_s_trace_and_the_view_that_answers_is_one_within(
    cluster: Cluster, app: App, collector: _Collector, tmp_path: Path
) -> None:
    view, topic = app.views[0].name, app.topics[0].name
    sent = {"traceparent": f"00-{_TRACE}-{_PARENT}-01", "tracestate": "vendor=1"}
    secret = "s3cret-key"
    with following(cluster, app.views[0], [], tmp_path), served(app, cluster, tmp_path) as http:
        value = {"product_id": secret, "name": "n", "price": 1}
        token = http.post(f"/v1/topics/{topic}/records", {"value": value}, headers=sent).expect(200)["token"]
        asked = {"after": token, "wait": "20s", "headers": sent}
        http.get(f"/v1/views/{view}/rows/{secret}", **asked).expect(200)
        http.get(f"/v1/views/{view}/rows", filter=f'nothing = "{secret}"').expect(400)
        http.get(f"/{secret}").expect(404)
        until(lambda: len(collector.spans) >= 7, "the spans")
    # The rest came with the end, at the latest.
    reading = collector.named("GET /v1/views/{view}/rows/{key:path}")
    assert (reading.trace_id.hex(), reading.parent_span_id.hex()) == (_TRACE, _PARENT)
    told = _attributes(reading)
    assert (told["http.response.status_code"], told["headrace.view"]) == (200, view)
    assert told["http.route"] == "/v1/views/{view}/rows/{key:path}"
    for name in (f"wait {view}", f"ask {view}"):
        inner = next(one for one in collector.spans if one.name == name and one.trace_id.hex() == _TRACE)
        assert inner.parent_span_id == reading.span_id
        assert _attributes(inner)["db.system.name"] == "sqlite"
    asking = [one for one in collector.spans if one.name == f"ask {view}"]
    assert [_attributes(one).get("headrace.rows") for one in asking] == [1, None]
    assert _attributes(asking[1])["error.type"] == "HR-SERVE-FILTER"
    writing = collector.named("POST /v1/topics/{topic}/records")
    sending = collector.named(f"send {topic}")
    assert sending.parent_span_id == writing.span_id
    # Whoever reads the record can go on with the trace.
    (record,) = read(cluster, topic, {0: (0, cluster.ends(topic)[0])})
    carried = dict(record.headers() or [])["traceparent"]
    assert carried == f"00-{_TRACE}-{sending.span_id.hex()}-01".encode()
    assert collector.service == "headrace-serve"
    assert secret not in str(collector.spans)
    assert collector.named("GET") is not None


def test_a_collector_that_does_not_answer_holds_up_nobody(
    cluster: Cluster, app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:1/v1/traces")
    with served(app, cluster, tmp_path) as http:
        for _ in range(20):
            http.get("/healthz").expect(200)


def test_nothing_is_traced_unless_it_is_asked_for(
    cluster: Cluster, app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
    for environment in (
        {},
        {**endpoint, "OTEL_SDK_DISABLED": "true"},
        {**endpoint, "OTEL_TRACES_EXPORTER": "none"},
    ):
        assert traces_of(environment, "shop", told.append) is NO_TRACES
    assert told == []
    assert traces_of({"OTEL_TRACES_EXPORTER": "zipkin"}, "shop", told.append) is NO_TRACES
    assert "zipkin" in told.pop()
    monkeypatch.delitem(sys.modules, "headrace.serve.otel", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    assert traces_of(endpoint, "shop", told.append) is NO_TRACES
    assert "pip install 'headrace[otel]'" in told.pop()
    # And records have no header of it.
    value = {"order_id": "o", "product_id": "p", "pieces": 1}
    topic = app.topics[1].name
    with contextlib.ExitStack() as stack:
        http = stack.enter_context(served(app, cluster, tmp_path))
        http.post(f"/v1/topics/{topic}/records", {"value": value}).expect(200)
    (record,) = read(cluster, topic, {0: (0, cluster.ends(topic)[0])})
    assert not record.headers()
    assert json.loads(record.value() or b"") == value
