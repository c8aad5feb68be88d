"""Callers that are slow, many or too large: they go, and others are served all the while."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path

from headrace.broker.pressure import Account, Holder
from headrace.client.cluster import Cluster
from headrace.client.declaring import ensure_declared
from headrace.serve.counts import Counts
from headrace.serve.gate import Gate
from headrace.serve.limits import Limits
from headrace.testing.faulty_clock import DrivenClock
from tests.serve.http import Http
from tests.serve.serving import served
from tests.serve.shop import shop
from tests.support.waiting import until
from tests.views.seeing import following

Fresh = Callable[[str], str]


def _connected(http: Http, sent: bytes = b"") -> socket.socket:
    made = socket.create_connection(("127.0.0.1", http.port), timeout=30)
    made.sendall(sent)
    return made


def _is_closed(one: socket.socket) -> bool:
    one.settimeout(0.01)
    try:
        return one.recv(65_536) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def _metric(http: Http, line: str) -> float:
    found = [one for one in http.get("/metrics").body.decode().splitlines() if one.startswith(line + " ")]
    return float(found[0].split()[-1]) if found else 0.0


def test_who_does_not_send_or_not_read_in_time_is_closed_and_others_are_served(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    app = shop(fresh("slow"))
    host = b"Host: 127.0.0.1\r\n"
    post = b"POST /v1/topics/%s/records HTTP/1.1\r\n" % app.topics[0].name.encode() + host
    with served(app, cluster, tmp_path, receive_ms=600, connections=120) as http:
        # Nothing; half a line; a byte now and then; a body that does not come; a second request without an end.
        begun = {
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
        slow = {name: _connected(http, sent) for name, sent in begun.items()}
        # More than there is place for; each makes room for the next.
        crowd = [_connected(http) for _ in range(200)]
        for _ in range(50):
            assert http.get("/healthz").status == 200
        deadline = time.monotonic() + 30
        while slow and time.monotonic() < deadline:
            for name in [name for name, one in slow.items() if _is_closed(one)]:
                slow.pop(name).close()
            for name in {"drops", "blank lines"} & set(slow):
                try:
                    slow[name].sendall(b"\r\n" if name == "blank lines" else b"X")
                except OSError:
                    slow.pop(name).close()
            assert http.get("/healthz").status == 200
        assert slow == {}
        until(lambda: all(map(_is_closed, crowd)), "the crowd to be gone", timeout_s=120)
        for one in crowd:
            one.close()
        assert _metric(http, 'headrace_http_closed_total{why="slow to send"}') > 0
        assert _metric(http, 'headrace_http_closed_total{why="made room"}') > 0
        until(lambda: _metric(http, "headrace_http_connections") <= 2, "no connection left behind")


def test_a_body_that_comes_too_slowly_is_answered_with_408(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    app = shop(fresh("slow"))
    head = (
        f"POST /v1/topics/{app.topics[0].name}/records HTTP/1.1\r\nHost: localhost\r\n"
        "Content-Type: application/json\r\nContent-Length: 5\r\n\r\n{"
    )
    with served(app, cluster, tmp_path, receive_ms=300) as http:
        one = _connected(http, head.encode())
        one.settimeout(20)
        said = b""
        try:
            while chunk := one.recv(65_536):
                said += chunk
        except OSError:
            pass
        one.close()
        # Whichever of the two deadlines was first: an answer, or an end.
        assert said == b"" or said.startswith(b"HTTP/1.1 408 ")


def test_what_is_too_large_is_refused_before_it_is_held(
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
        said = b""
        try:
            for number in range(100_000):
                endless.sendall(b"X-%d: %s\r\n" % (number, b"x" * 100))
            said = endless.recv(65_536)
        except OSError:
            pass
        endless.close()
        assert said == b"" or (said.startswith(b"HTTP/1.1 431 ") and b"HR-SERVE-HEAD" in said)
        assert _metric(http, 'headrace_http_closed_total{why="head too large"}') >= 1
        for wrong in (
            b"nonsense\r\n\r\n",
            b"GET / HTTP/9.9\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00",
            b"GET \xff\xfe HTTP/1.1\r\n\r\n",
        ):
            one = _connected(http, wrong)
            answered = one.recv(65_536)
            assert answered == b"" or answered.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 431 "))
            one.close()
        assert http.get("/healthz").status == 200


class _Guest:
    """A connection, as far as the gate asks."""

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


def test_an_answer_that_is_not_taken_has_a_deadline_and_one_that_is_has_none() -> None:
    clock = DrivenClock()
    counts = Counts()
    gate = Gate(Limits(send_s=30), counts, clock)
    taking, stuck = _Guest(10), _Guest(10)
    assert gate.enter(taking)
    assert gate.enter(stuck)
    for _ in range(8):
        gate.sweep()
        clock.advance(5)
        taking.unsent = 0
        gate.sweep()
        taking.unsent = 10
    assert (taking.dropped, stuck.dropped, gate.count) == (False, True, 1)
    assert counts.closed == {"slow to read": 1}


def test_who_has_left_answers_for_longest_is_closed_when_all_leave_too_much() -> None:
    """However many gates there are, the account is one."""
    limits = Limits(unsent_bytes_max=1_000)
    unsent: Account[Holder] = Account("answers", limits.unsent_bytes_max)
    gates = [Gate(limits, Counts(), DrivenClock(), unsent) for _ in range(2)]
    first, second, third = _Guest(600), _Guest(300), _Guest(600)
    for gate, guest in zip((gates[0], gates[1], gates[0]), (first, second, third), strict=True):
        assert gate.enter(guest)
        gate.note_unsent(guest)
    assert (first.dropped, second.dropped, third.dropped) == (True, False, False)
    gates[0].leave(third)
    assert unsent.total == 300


def test_who_waits_longest_makes_room_and_who_is_served_does_not() -> None:
    gate = Gate(Limits(connections_max=3), Counts(), DrivenClock())
    served_now, old, new = _Guest(0), _Guest(0, 1.0), _Guest(0, 2.0)
    assert all(map(gate.enter, (served_now, old, new)))
    assert gate.enter(_Guest(0))
    assert (served_now.dropped, old.dropped, new.dropped) == (False, True, False)
    assert gate.enter(_Guest(0))
    assert not gate.enter(_Guest(0))


def test_answers_that_nobody_reads_hold_up_nobody_else(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    """They fill the kernel's buffers, and then the server's."""
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
        until(lambda: _metric(http, "headrace_http_in_flight") >= 2, "an answer that is not taken")
        for _ in range(20):
            assert http.get("/healthz").status == 200
        unread.close()
        until(lambda: _metric(http, "headrace_http_in_flight") == 1, "it to be given up")
