"""Fault X24, names as paths, in requests to ``headrace serve`` over HTTP, WebSocket and PostgreSQL's protocol.

Canary files surround the server's data directory, and the server runs inside it. Each case puts a generated name into a
route that accepts a name (of a view, a topic, a group, a flow, a key, a file of the web UI), or into a statement or the
login of PostgreSQL's protocol. The token allows everything. What must hold: the response is 400 or 404 with the right
code (a group of any name may be described), or 42P01 in PostgreSQL's protocol. No response contains a canary.
Everything outside the data directories stays the same, byte for byte, and inside are only files of known kinds.
"""

from __future__ import annotations

import http.client
import json
import random
import re
import socket
import urllib.parse
from collections.abc import Sequence
from pathlib import Path

from faults.log.hostile_names import hostile_name
from faults.log.path_names import describe_changes, digests_of_tree, plant_canaries
from faults.outcome import Outcome
from faults.run_directory import run_directory
from faults.serve.http_sizes import http_code
from faults.serve.postgres_sizes import message, startup
from faults.serve.scene import VIEW, ServedShop
from headrace.serve.features import ROUTES
from headrace.serve.http.route import JSON, Route

__all__ = ["CASES", "RUNS", "UNPROTECTED", "named_routes", "run"]

FAULT = "X24"
UNPROTECTED = {"page-file-allowlist": r"returns a canary"}
CASES = 500
RUNS = 20

_TIMEOUT_S = 60.0
_PARAMETER = re.compile(r"\{([^}]+)\}")
_REFUSED = {400: "HR-", 404: "HR-", 405: "HR-SERVE-METHOD", 409: "HR-", 415: "HR-SERVE-MEDIA"}
_ANY_GROUP = "{group:path}"
"""The parameter of the route that describes a group, which may have any name."""
_REFUSED_STATES = ("42P01", "42601", "42622", "54000", "22021", "08P01")
_HEAD_TOO_LARGE = 431
_CANARY = b"the canary of"
_BODY = b'{"value": {"product": "x", "amount": 1}, "to": "start", "where": "true"}'
_KNOWN_FILES = re.compile(
    r"shop\.db(-wal|-shm)?|tokens\.(json|lock)|headrace\.toml|(serve|requests)\.log|serve/shop-requests\.db(-wal|-shm)?"
)


def named_routes() -> list[Route]:
    """Return the routes with a name in their path."""
    return [route for route in ROUTES if _PARAMETER.search(route.path)]


def run(
    seed: int, *, protected: bool = True, without: str = "page-file-allowlist", cases: int = CASES
) -> Outcome:
    rng = random.Random(f"{FAULT} served {seed}")
    outcome = Outcome(FAULT, seed, cases=cases)
    with run_directory(FAULT, seed, in_memory=True) as home:
        world = home / "a" / "world"
        plant_canaries(world)
        shop_home = world / "shop"
        with ServedShop(shop_home, {}, without="" if protected else without) as shop:
            before = dict(digests_of_tree(home / "a", excluded=shop_home))
            routes = [route for route in named_routes() if protected or route.path.startswith("/page/")]
            attack = _Attack(shop, rng, outcome, str(world / "canary"), routes)
            for number in range(cases):
                outcome.hits += 1
                attack.case(number)
            attack.close()
            outcome.problems += shop.unexpected_exceptions()
            outcome.problems += describe_changes(
                before, dict(digests_of_tree(home / "a", excluded=shop_home))
            )
            outcome.problems += _unexpected_files(shop.app_data)
            if not shop.server.is_running:
                outcome.problems.append("the server exited unexpectedly")
            outcome.peak_rss_mb = shop.server.rss_mb("VmHWM")
    return outcome


class _Attack:
    def __init__(
        self, shop: ServedShop, rng: random.Random, outcome: Outcome, target: str, routes: Sequence[Route]
    ) -> None:
        self._shop = shop
        self._rng = rng
        self._outcome = outcome
        self._target = target
        self._routes = routes
        self._http = http.client.HTTPConnection("127.0.0.1", shop.server.port, timeout=_TIMEOUT_S)

    def close(self) -> None:
        self._http.close()

    def case(self, number: int) -> None:
        name = hostile_name(self._rng, self._target)
        raw = name.encode() if isinstance(name, str) else name
        kind = number % 10
        if kind == 8:
            self._subscribe(raw)
        elif kind == 9:
            self._select(raw)
        else:
            self._request(self._routes[number % len(self._routes)], raw)

    def _path(self, path: str, raw: bytes) -> str:
        """Insert the name into the path, escaped as clients do, or raw if a request can contain it."""
        bare = raw.decode("latin-1").replace(" ", "%20")
        is_bare = bare.isprintable() and bare.isascii() and self._rng.random() < 0.3
        text = bare.replace("#", "%23").replace("?", "%3F") if is_bare else urllib.parse.quote(raw, safe="")
        # Only the last of several names is hostile.
        parameters = _PARAMETER.findall(path)
        for parameter in parameters[:-1]:
            path = path.replace(f"{{{parameter}}}", VIEW)
        return path.replace(f"{{{parameters[-1]}}}", text)

    def _request(self, route: Route, raw: bytes) -> None:
        path = self._path(route.path, raw)
        headers = {"Authorization": f"Bearer {self._shop.admin}", "Content-Type": JSON, "Connection": "close"}
        request_line = f"{route.method} {path!r:.120}"
        try:
            self._http.request(route.method, path, _BODY if route.method == "POST" else None, headers)
            answer = self._http.getresponse()
            body = answer.read() if answer.getheader("Content-Type") != "text/event-stream" else b""
        except http.client.HTTPException as error:
            self._report_problem(f"{request_line} got no response: {error!r}")
            return
        finally:
            self._http.close()
        if _CANARY in body:
            self._report_problem(f"{request_line} returns a canary")
        elif answer.status in _REFUSED:
            code = str(json.loads(body).get("code")) if body else "HR-"
            if not code.startswith(_REFUSED[answer.status]):
                self._report_problem(f"{request_line} got status {answer.status} {code}")
        elif answer.status == 200:
            if _ANY_GROUP not in route.path and not _is_other(route, raw):
                self._report_problem(f"{request_line} succeeded, although the name does not exist")
        elif answer.status != _HEAD_TOO_LARGE:
            self._report_problem(f"{request_line} got status {answer.status}")

    def _subscribe(self, raw: bytes) -> None:
        path = self._path("/v1/views/{view}/changes", raw)
        lines = [
            f"GET {path} HTTP/1.1",
            *("Host: 127.0.0.1", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"),
            *("Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", f"Authorization: Bearer {self._shop.admin}"),
        ]
        received = b""
        with socket.create_connection(("127.0.0.1", self._shop.server.port), _TIMEOUT_S) as connection:
            connection.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))
            received = connection.recv(65_536)
            if received.startswith(b"HTTP/1.1 101"):
                connection.sendall(b"\x81\x94\0\0\0\0" + b'{"type":"subscribe"}')
                while http_code(received) == "" and (piece := connection.recv(65_536)):
                    received += piece
        code = http_code(received)
        if code not in ("400", "404", "4400", "4404", "431"):
            self._report_problem(f"a subscription of {path!r:.120} got the code {code}")

    def _select(self, raw: bytes) -> None:
        """Use the name as a table, and as user and database of the login."""
        text = raw.replace(b"\0", b"")
        quoted = b'"' + text.replace(b'"', b'""') + b'"'
        login_name = raw.decode("latin-1").replace("\0", "")[:400]
        with socket.create_connection(("127.0.0.1", self._shop.pg_port), _TIMEOUT_S) as connection:
            connection.sendall(
                startup(login_name or "x", database=login_name or "x")
                + message(b"p", self._shop.admin.encode() + b"\0")
                + message(b"Q", b"SELECT * FROM " + quoted[:5_000] + b"\0")
                + message(b"X", b"")
            )
            received = b""
            while piece := connection.recv(65_536):
                received += piece
        states = re.findall(rb"C([0-9A-Z]{5})\0M", received)
        if _CANARY in received:
            self._report_problem(f"SELECT * FROM {quoted!r:.100} returns a canary")
        if not states or states[-1].decode() not in _REFUSED_STATES:
            self._report_problem(
                f"SELECT * FROM {quoted!r:.100} got the states {states}: {received[-200:]!r}"
            )

    def _report_problem(self, problem: str) -> None:
        self._outcome.problems.append(problem)


def _is_other(route: Route, raw: bytes) -> bool:
    """Whether the path can match another route, because the name is empty or has slashes or dots."""
    return b"/" in raw or raw in (b"", b".", b"..") or route.path.startswith("/v1/app")


def _unexpected_files(data: Path) -> list[str]:
    files = [str(path.relative_to(data)) for path in data.rglob("*") if not path.is_dir()]
    return [f"{name!r} is in the data directory" for name in files if not _KNOWN_FILES.fullmatch(name)]
