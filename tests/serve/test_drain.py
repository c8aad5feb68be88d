"""An orderly stop of the command under load: a client that respects ``/readyz`` loses no request."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from faults.serve.local_server import Process
from faults.serve.shop_app import shop
from faults.servers.server import Server
from faults.views.follower_thread import following
from faults.wait import until, unwatch
from headrace.client.cluster import Cluster
from headrace.client.declared_topics import ensure_declared
from headrace.client.records import read

Fresh = Callable[[str], str]


class _Load:
    """Clients that write and read without a pause, over connections that stay open as long as the server allows."""

    def __init__(self, port: int, topic: str, view: str) -> None:
        self.port = port
        self.topic = topic
        self.view = view
        self.stopped = threading.Event()
        """Set when the load balancer removes the server: clients then send no new requests."""
        self.response_counts: Counter[tuple[str, int]] = Counter()
        self.written: list[str] = []
        """Keys of orders that were acknowledged."""
        self.attempted: set[str] = set()
        self.connection_errors: list[BaseException] = []
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._call, args=(number,)) for number in range(6)]
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()

    def _call(self, caller: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        number = 0
        while not self.stopped.is_set():
            number += 1
            order = f"{caller}-{number}"
            try:
                if number % 2:
                    self.attempted.add(order)
                    status, _ = self._request(connection, "POST", f"/v1/topics/{self.topic}/records", order)
                    if status == 200:
                        self.written.append(order)
                else:
                    status, body = self._request(connection, "GET", f"/v1/views/{self.view}/rows", None)
                    assert status != 200 or json.loads(body)["rows"] is not None
            except (OSError, http.client.HTTPException) as error:
                self.connection_errors.append(error)
                connection.close()
        connection.close()

    def _request(
        self, connection: http.client.HTTPConnection, method: str, path: str, order: str | None
    ) -> tuple[int, bytes]:
        sent = {"Content-Type": "application/json"}
        if order is not None and len(order) % 2:
            sent["Idempotency-Key"] = order
        value = {"order_id": order, "product_id": "p", "pieces": 1}
        body = None if order is None else json.dumps({"value": value})
        connection.request(method, path, body, sent)
        response = connection.getresponse()
        data = response.read()
        with self._lock:
            self.response_counts[method, response.status] += 1
        return response.status, data


def _send_first_half(port: int, topic: str, body: bytes) -> socket.socket:
    """Send the first half of a request."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=30)
    head = (
        f"POST /v1/topics/{topic}/records HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    connection.sendall(head.encode() + body[:10])
    return connection


@pytest.mark.parametrize("notice_s", [1, 0])
def test_a_stopping_server_under_load_reports_it_and_finishes_started_requests(
    cluster: Cluster, log: Server, fresh: Fresh, tmp_path: Path, notice_s: int
) -> None:
    name = fresh("drained")
    app = shop(name)
    for topic in app.topics:
        ensure_declared(cluster, topic, topic.name, 1)
    orders, view = app.topics[1].name, app.views[1].name
    environment = {"SHOP_NAME": name, "HEADRACE_SERVE__NOTICE_S": str(notice_s)}
    with following(cluster, app.views[1], [], tmp_path):
        server = Process("faults.serve.shop_app:app", log.bootstrap, tmp_path, environment=environment)
        until(lambda: server.http.get(f"/v1/views/{view}/rows").status == 200, "the view")
        load = _Load(server.port, orders, view)
        until(
            lambda: load.response_counts["GET", 200] > 20 and load.response_counts["POST", 200] > 20,
            "some load",
        )
        body = json.dumps({"value": {"order_id": "half", "product_id": "p", "pieces": 1}}).encode()
        half = _send_first_half(server.port, orders, body)
        until(
            lambda: "headrace_http_in_flight" in server.http.get("/metrics").body.decode(),
            "the half request to be counted",
        )
        unwatch(server.process)
        server.process.send_signal(signal.SIGTERM)
        if notice_s:
            reply = until(
                lambda: reply if (reply := server.http.get("/readyz")).json["draining"] else None,
                "the notice",
            )
            assert reply is not None
            assert (reply.status, reply.json["ready"]) == (503, False)
            assert reply.headers["connection"] == "close"
        else:
            until(lambda: load.connection_errors, "a refused connection")
        load.stopped.set()
        half.sendall(body[10:])
        output = b""
        while chunk := half.recv(65_536):
            output += chunk
        half.close()
        load.join()
        assert server.stop() == 143
    assert output.startswith(b"HTTP/1.1 200 "), output
    assert b"connection: close" in output.lower()
    if notice_s:
        assert load.connection_errors == []
    # No response is partial, and every acknowledged write is stored once.
    assert all(
        isinstance(error, (ConnectionError, http.client.RemoteDisconnected))
        for error in load.connection_errors
    )
    assert {status for _, status in load.response_counts} <= {200, 503}
    records = read(cluster, orders, {0: (0, cluster.ends(orders)[0])})
    order_counts = Counter(json.loads(entry.value() or b"")["order_id"] for entry in records)
    assert set(order_counts.values()) == {1}
    assert {"half", *load.written} <= set(order_counts) <= {"half", *load.attempted}
    lines = [json.loads(line) for line in server.errors.read_text().splitlines() if line.startswith("{")]
    seen = Counter((line["method"], line["status"]) for line in lines if "view" in line or "topic" in line)
    assert sum(seen.values()) >= sum(load.response_counts.values())
    with contextlib.closing(socket.socket()) as late, pytest.raises(ConnectionRefusedError):
        late.connect(("127.0.0.1", server.port))
