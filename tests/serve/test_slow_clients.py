"""Slow, numerous and oversized clients: they are closed, and others are served."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path

from faults.serve.http import Http
from faults.serve.local_server import served
from faults.serve.shop_app import shop
from faults.views.follower_thread import following
from faults.wait import until
from headrace.broker.net.client_limits import Account, Holder
from headrace.client.cluster import Cluster
from headrace.client.declared_topics import ensure_declared
from headrace.serve.http.connection import Gate
from headrace.serve.http.limits import Limits
from headrace.serve.http.request_log import RequestMetrics
from headrace.testing.clock import DrivenClock

Fresh = Callable[[str], str]


def _connected(http: Http, sent: bytes = b"") -> socket.socket:
    client = socket.create_connection(("127.0.0.1", http.port), timeout=30)
    client.sendall(sent)
    return client


def _is_closed(connection: socket.socket) -> bool:
    connection.settimeout(0.01)
    try:
        return connection.recv(65_536) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def _metric(http: Http, line: str) -> float:
    rows = [row for row in http.get("/metrics").body.decode().splitlines() if row.startswith(line + " ")]
    return float(rows[0].split()[-1]) if rows else 0.0


def test_slow_senders_and_readers_are_closed_and_others_are_served(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    app = shop(fresh("slow"))
    host = b"Host: 127.0.0.1\r\n"
    post = b"POST /v1/topics/%s/records HTTP/1.1\r\n" % app.topics[0].name.encode() + host
    with served(app, cluster, tmp_path, receive_ms=600, connections=120) as http:
        incomplete = {
            "silent": b"",
            "half a line": b"GET /hea",
            "drops": b"GET /healthz HTTP/1.1\r\n" + host,
            "blank lines": b"\r\n",
            "no body": post + b"Content-Type: application/json\r\nContent-Length: 10\r\n\r\n{",
            "chunks": post
            + b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
            "second": b"GET /healthz HTTP/1.1\r\n" + host + b"\r\nGET /he",
            "body of a get": b"GET /healthz HTTP/1.1\r\n" + host + b"Content-Length: 10\r\n\r\n1",
        }
        slow = {name: _connected(http, sent) for name, sent in incomplete.items()}
        # More connections than allowed; each makes room for the next.
        crowd = [_connected(http) for _ in range(200)]
        for _ in range(50):
            assert http.get("/healthz").status == 200
        deadline = time.monotonic() + 30
        while slow and time.monotonic() < deadline:
            for name in [name for name, client in slow.items() if _is_closed(client)]:
                slow.pop(name).close()
            for name in {"drops", "blank lines"} & set(slow):
                try:
                    slow[name].sendall(b"\r\n" if name == "blank lines" else b"X")
                except OSError:
                    slow.pop(name).close()
            assert http.get("/healthz").status == 200
        assert slow == {}
        until(lambda: all(map(_is_closed, crowd)), "the crowd to be disconnected", timeout_s=120)
        for client in crowd:
            client.close()
        assert _metric(http, 'headrace_http_closed_total{why="slow to send"}') > 0
        assert _metric(http, 'headrace_http_closed_total{why="made room"}') > 0
        until(lambda: _metric(http, "headrace_http_connections") <= 2, "the other connections to be closed")


def test_a_body_that_arrives_too_slowly_gets_408(cluster: Cluster, fresh: Fresh, tmp_path: Path) -> None:
    app = shop(fresh("slow"))
    head = (
        f"POST /v1/topics/{app.topics[0].name}/records HTTP/1.1\r\nHost: localhost\r\n"
        "Content-Type: application/json\r\nContent-Length: 5\r\n\r\n{"
    )
    with served(app, cluster, tmp_path, receive_ms=300) as http:
        connection = _connected(http, head.encode())
        connection.settimeout(20)
        output = b""
        try:
            while chunk := connection.recv(65_536):
                output += chunk
        except OSError:
            pass
        connection.close()
        # Depending on which deadline ends first, the client gets a response or a closed connection.
        assert output == b"" or output.startswith(b"HTTP/1.1 408 ")


def test_an_oversized_request_is_refused_before_it_is_buffered(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    app = shop(fresh("large"))
    path = f"/v1/topics/{app.topics[0].name}/records"
    with served(app, cluster, tmp_path, body_bytes_max=1_000) as http:
        assert http.post(path, b"x" * 1_001).status == 413
        chunked = _connected(
            http,
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            "Transfer-Encoding: chunked\r\n\r\n".encode(),
        )
        try:
            for _ in range(1_000):
                chunked.sendall(b"400\r\n" + b"x" * 1_024 + b"\r\n")
        except OSError:
            pass
        chunked.close()
        lying = _connected(
            http,
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {10**15}\r\n\r\n".encode(),
        )
        assert lying.recv(65_536).startswith(b"HTTP/1.1 413 ")
        lying.close()
        endless = _connected(http, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n")
        output = b""
        try:
            for number in range(100_000):
                endless.sendall(b"X-%d: %s\r\n" % (number, b"x" * 100))
            output = endless.recv(65_536)
        except OSError:
            pass
        endless.close()
        assert output == b"" or (output.startswith(b"HTTP/1.1 431 ") and b"HR-SERVE-HEAD" in output)
        assert _metric(http, 'headrace_http_closed_total{why="head too large"}') >= 1
        for wrong in (
            b"nonsense\r\n\r\n",
            b"GET / HTTP/9.9\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00",
            b"GET \xff\xfe HTTP/1.1\r\n\r\n",
        ):
            connection = _connected(http, wrong)
            response = connection.recv(65_536)
            assert response == b"" or response.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 431 "))
            connection.close()
        assert http.get("/healthz").status == 200


class _FakeConnection:
    """A connection with the methods and attributes that the gate uses."""

    def __init__(self, unsent: int, incomplete_since: float | None = None) -> None:
        self.unsent = unsent
        self.incomplete_since = incomplete_since
        self.unsent_since: float | None = None
        self.dropped = False

    def unsent_bytes(self) -> int:
        return self.unsent

    def is_receiving(self) -> bool:
        return self.incomplete_since is not None

    def drop(self) -> None:
        self.dropped = True

    def evict(self, reason: str) -> None:
        self.dropped = True


def test_only_a_response_that_is_not_read_has_a_deadline() -> None:
    clock = DrivenClock()
    counts = RequestMetrics()
    gate = Gate(Limits(send_s=30), counts, clock)
    reader, stuck = _FakeConnection(10), _FakeConnection(10)
    assert gate.enter(reader)
    assert gate.enter(stuck)
    for _ in range(8):
        gate.sweep()
        clock.advance(5)
        reader.unsent = 0
        gate.sweep()
        reader.unsent = 10
    assert (reader.dropped, stuck.dropped, gate.count) == (False, True, 1)
    assert counts.closed == {"slow to read": 1}


def test_the_oldest_unread_response_is_closed_when_unread_bytes_exceed_the_limit() -> None:
    """Several gates share one account."""
    limits = Limits(unsent_bytes_max=1_000)
    unsent: Account[Holder] = Account("answers", limits.unsent_bytes_max)
    gates = [Gate(limits, RequestMetrics(), DrivenClock(), unsent) for _ in range(2)]
    first, second, third = _FakeConnection(600), _FakeConnection(300), _FakeConnection(600)
    for gate, connection in zip((gates[0], gates[1], gates[0]), (first, second, third), strict=True):
        assert gate.enter(connection)
        gate.note_unsent(connection)
    assert (first.dropped, second.dropped, third.dropped) == (True, False, False)
    gates[0].leave(third)
    assert unsent.total == 300


def test_a_new_connection_replaces_the_longest_idle_connection() -> None:
    gate = Gate(Limits(connections_max=3), RequestMetrics(), DrivenClock())
    served_now, old, new = _FakeConnection(0), _FakeConnection(0, 1.0), _FakeConnection(0, 2.0)
    assert all(map(gate.enter, (served_now, old, new)))
    assert gate.enter(_FakeConnection(0))
    assert (served_now.dropped, old.dropped, new.dropped) == (False, True, False)
    assert gate.enter(_FakeConnection(0))
    assert not gate.enter(_FakeConnection(0))


def test_unread_responses_do_not_delay_other_clients(cluster: Cluster, fresh: Fresh, tmp_path: Path) -> None:
    """Unread responses fill the buffers of the kernel, and then those of the server."""
    app = shop(fresh("unread"))
    for declared in app.topics:
        ensure_declared(cluster, declared, declared.name, 1)
    view, topic = app.views[0], app.topics[0].name
    with following(cluster, view, [], tmp_path), served(app, cluster, tmp_path) as http:
        records = [
            {"value": {"product_id": f"p{number}", "name": "x" * 10_000, "price": 1}} for number in range(90)
        ]
        token = http.post(f"/v1/topics/{topic}/records", {"records": records}).expect(200)["token"]
        http.get(f"/v1/views/{view.name}/rows", after=token, wait="20s").expect(200)
        request = f"GET /v1/views/{view.name}/rows HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        unread = socket.socket()
        unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        unread.connect(("127.0.0.1", http.port))
        unread.sendall(request * 20)
        until(lambda: _metric(http, "headrace_http_in_flight") >= 2, "an unread response")
        for _ in range(20):
            assert http.get("/healthz").status == 200
        unread.close()
        until(lambda: _metric(http, "headrace_http_in_flight") == 1, "the connection to be closed")
