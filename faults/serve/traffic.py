"""Real traffic to ``headrace serve``: a request per route, a subscription, and the messages of a PostgreSQL driver.

The requests are generated from the route table, so that they include new routes.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import struct
import threading
from typing import Any

import psycopg

from faults.serve.scene import INPUT, VIEW, ServedShop
from headrace.serve.features import ROUTES
from headrace.serve.http.route import JSON, Route

__all__ = ["masked", "recorded_sessions", "requests", "subscription", "upgrade"]

_NAMES = {
    "view": VIEW,
    "topic": INPUT,
    "key": "k1",
    "key:path": "k1",
    "flow": f"{VIEW}-flow",
    "group": "nobody",
    "group:path": "nobody",
    "file:path": "frame.js",
}
_QUERIES = {
    f"/v1/views/{VIEW}/rows": "?limit=3&filter=amount%20%3E%205&sort=-amount&prefix=k",
    f"/v1/topics/{INPUT}/records": "?limit=3&partition=0&offset=0",
    f"/v1/log/topics/{INPUT}/record": "?partition=0&offset=0",
    f"/v1/dead/{INPUT}/letters": "?limit=3",
    "/v1/app/history": "?node=flow:derived-flow",
}
_BODIES: dict[str, Any] = {
    "/v1/sql": {"sql": f"SELECT product FROM {VIEW} WHERE amount > ? LIMIT 2", "parameters": [5]},
    "/v1/sql/changes": {"sql": f"SELECT count(*) AS n FROM {VIEW}", "parameters": []},
    "/v1/topics/{topic}/records": {"records": [{"value": {"product": "k1", "amount": 1, "note": None}}]},
    "/v1/log/topics/{topic}/search": {"where": "value.amount > 1", "limit": 5},
    "/v1/log/topics/{topic}/records": {"value": "{}", "partition": 0},
    "/v1/log/groups/{group:path}/seek": {"to": "start", "topics": [INPUT]},
}


def requests(token: str, *, changes: bool) -> list[bytes]:
    """Return whole requests to read-only routes; with ``changes``, also to routes with a body."""
    return [_request(route, token) for route in ROUTES if changes or route.method == "GET"]


def _request(route: Route, token: str) -> bytes:
    path = re.sub(r"\{([^}]+)\}", lambda found: _NAMES[found[1]], route.path)
    lines = [
        f"{route.method} {path}{_QUERIES.get(path, '') if route.method == 'GET' else ''} HTTP/1.1",
        "Host: 127.0.0.1",
        f"Authorization: Bearer {token}",
        "Accept: */*",
    ]
    if route.method == "GET":
        return "\r\n".join([*lines, "", ""]).encode()
    body = json.dumps(_BODIES.get(route.path, {})).encode()
    return (
        "\r\n".join([*lines, f"Content-Type: {JSON}", f"Content-Length: {len(body)}", "", ""]).encode() + body
    )


def upgrade(token: str) -> bytes:
    lines = [
        f"GET /v1/views/{VIEW}/changes HTTP/1.1",
        *("Host: 127.0.0.1", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"),
        *("Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", f"Authorization: Bearer {token}"),
    ]
    return "\r\n".join([*lines, "", ""]).encode()


def subscription() -> bytes:
    """Return the first frame of a WebSocket."""
    return masked(
        json.dumps({"type": "subscribe", "filter": "amount > 5", "limit": 3, "sort": "-amount"}).encode()
    )


def masked(payload: bytes, first: int = 0x81) -> bytes:
    head = bytes([first])
    head += bytes([0x80 | len(payload)]) if len(payload) < 126 else b"\xfe" + struct.pack(">H", len(payload))
    return head + bytes(4) + payload


# PostgreSQL's protocol


class _Recorder(threading.Thread):
    """Forwards bytes in both directions, and stores those of the client, one session per connection."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.sessions: list[bytearray] = []
        self._to = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])

    def run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self._listening.accept()[0]
                server = socket.create_connection(("127.0.0.1", self._to))
                kept = bytearray()
                self.sessions.append(kept)
                threading.Thread(target=self._pass, args=(client, server, kept), daemon=True).start()
                threading.Thread(target=self._pass, args=(server, client, None), daemon=True).start()

    @staticmethod
    def _pass(source: socket.socket, target: socket.socket, kept: bytearray | None) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(1 << 16):
                if kept is not None:
                    kept += piece
                target.sendall(piece)
            target.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._listening.close()


def recorded_sessions(shop: ServedShop, *, selects: bool) -> list[bytes]:
    """Return everything that psycopg sends, from the first byte of a connection to its last, without encryption.

    ``selects``: also SQL statements, which run in a separate process.
    """
    recorder = _Recorder(shop.pg_port)
    recorder.start()
    with psycopg.connect(
        host="127.0.0.1",
        port=recorder.port,
        user="recorded",
        password=shop.reader,
        sslmode="disable",
        gssencmode="disable",
        autocommit=True,
    ) as connection:
        connection.execute("SHOW server_version")
        connection.execute("SET application_name TO 'recorded'")
        if selects:
            select = f"SELECT product, amount FROM {VIEW} WHERE amount > %s AND product = %s"
            connection.execute(select, (5, "k1"), prepare=True)
            connection.execute(select, (5, "k1"), binary=True)
            connection.execute(f"SELECT amount FROM {VIEW} LIMIT 3")
            connection.execute(f"SELECT product FROM {VIEW} WHERE product = ANY(%s)", (["k1", "k2"],))
            with connection.transaction(), connection.cursor("cursor") as cursor:
                cursor.execute(f"SELECT product FROM {VIEW} LIMIT 9")
                cursor.fetchmany(2)
        else:
            connection.execute("SHOW server_version", prepare=True)
            connection.execute("SHOW DateStyle", binary=True)
            with connection.pipeline():
                connection.execute("SHOW TimeZone")
                connection.execute("SHOW server_encoding")
    recorder.close()
    return [bytes(session) for session in recorder.sessions]
