"""An orderly end under load, of the command as its users run it: who heeds ``/readyz`` loses no request."""

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

from headrace.client.cluster import Cluster
from headrace.client.declaring import ensure_declared
from headrace.client.reading import read
from tests.serve.serving import Process
from tests.serve.shop import shop
from tests.support.server import Server
from tests.support.waiting import until, unwatch
from tests.views.seeing import following

Fresh = Callable[[str], str]


class _Load:
    """Callers that write and read without a pause, each over connections that it keeps as long as it may."""

    def __init__(self, port: int, topic: str, view: str) -> None:
        self.port = port
        self.topic = topic
        self.view = view
        self.away = threading.Event()
        """Set by a balancer: nothing is begun any more."""
        self.answered: Counter[tuple[str, int]] = Counter()
        self.written: list[str] = []
        """Keys of orders that were acknowledged."""
        self.attempted: set[str] = set()
        self.cut_off: list[BaseException] = []
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
        while not self.away.is_set():
            number += 1
            order = f"{caller}-{number}"
            try:
                if number % 2:
                    self.attempted.add(order)
                    status, _ = self._ask(connection, "POST", f"/v1/topics/{self.topic}/records", order)
                    if status == 200:
                        self.written.append(order)
                else:
                    status, body = self._ask(connection, "GET", f"/v1/views/{self.view}/rows", None)
                    assert status != 200 or json.loads(body)["rows"] is not None
            except (OSError, http.client.HTTPException) as error:
                self.cut_off.append(error)
                connection.close()
        connection.close()

    def _ask(
        self, connection: http.client.HTTPConnection, method: str, path: str, order: str | None
    ) -> tuple[int, bytes]:
        sent = {"Content-Type": "application/json"}
        if order is not None and len(order) % 2:
            sent["Idempotency-Key"] = order
        value = {"order_id": order, "product_id": "p", "pieces": 1}
        body = None if order is None else json.dumps({"value": value})
        connection.request(method, path, body, sent)
        answer = connection.getresponse()
        found = answer.read()
        with self._lock:
            self.answered[method, answer.status] += 1
        return answer.status, found


def _begun(port: int, topic: str, body: bytes) -> socket.socket:
    """A request that is half sent."""
    made = socket.create_connection(("127.0.0.1", port), timeout=30)
    head = (
        f"POST /v1/topics/{topic}/records HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    made.sendall(head.encode() + body[:10])
    return made


@pytest.mark.parametrize("notice_s", [1, 0])
def test_a_server_under_load_says_that_it_stops_answers_what_has_begun_and_ends(
    cluster: Cluster, log: Server, fresh: Fresh, tmp_path: Path, notice_s: int
) -> None:
    name = fresh("drained")
    app = shop(name)
    for topic in app.topics:
        ensure_declared(cluster, topic, topic.name, 1)
    orders, view = app.topics[1].name, app.views[1].name
    environment = {"SHOP_NAME": name, "HEADRACE_SERVE__NOTICE_S": str(notice_s)}
    with following(cluster, app.views[1], [], tmp_path):
        server = Process("tests.serve.shop:app", log.bootstrap, tmp_path, environment=environment)
        until(lambda: server.http.get(f"/v1/views/{view}/rows").status == 200, "the view")
        load = _Load(server.port, orders, view)
        until(lambda: load.answered["GET", 200] > 20 and load.answered["POST", 200] > 20, "some load")
        body = json.dumps({"value": {"order_id": "half", "product_id": "p", "pieces": 1}}).encode()
        half = _begun(server.port, orders, body)
        until(lambda: "headrace_http_in_flight" in server.http.get("/metrics").body.decode(), "it to be seen")
        unwatch(server.process)
        server.process.send_signal(signal.SIGTERM)
        if notice_s:
            reply = until(
                lambda: found if (found := server.http.get("/readyz")).json["draining"] else None,
                "the notice",
            )
            assert reply is not None
            assert (reply.status, reply.json["ready"]) == (503, False)
            assert reply.headers["connection"] == "close"
        else:
            until(lambda: load.cut_off, "the first who is not let in")
        load.away.set()
        half.sendall(body[10:])
        said = b""
        while chunk := half.recv(65_536):
            said += chunk
        half.close()
        load.join()
        assert server.stop() == 143
    assert said.startswith(b"HTTP/1.1 200 "), said
    assert b"connection: close" in said.lower()
    if notice_s:
        assert load.cut_off == []
    # Nobody was answered half, and what was acknowledged is there once.
    assert all(isinstance(one, (ConnectionError, http.client.RemoteDisconnected)) for one in load.cut_off)
    assert {status for _, status in load.answered} <= {200, 503}
    found = read(cluster, orders, {0: (0, cluster.ends(orders)[0])})
    there = Counter(json.loads(one.value() or b"")["order_id"] for one in found)
    assert set(there.values()) == {1}
    assert {"half", *load.written} <= set(there) <= {"half", *load.attempted}
    lines = [json.loads(one) for one in server.errors.read_text().splitlines() if one.startswith("{")]
    seen = Counter((one["method"], one["status"]) for one in lines if "view" in one or "topic" in one)
    assert sum(seen.values()) >= sum(load.answered.values())
    with contextlib.closing(socket.socket()) as late, pytest.raises(ConnectionRefusedError):
        late.connect(("127.0.0.1", server.port))
