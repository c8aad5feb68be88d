"""X24, names as paths, to the server of views: over HTTP, by WebSocket and in PostgreSQL's protocol.

The server's data directory lies among canaries, and it runs inside of it. Each case puts a generated name into a place
of a route that takes one: a view, a topic, a group, a flow, a key, a file of the page; or into a statement of
PostgreSQL's protocol, or its login. Whoever sends may do everything. What must hold: the answer is 400 or 404 with its
code (a group may be described, whatever it is called), 42P01 in PostgreSQL's protocol; no answer holds a canary; the
tree outside the data directories is the same to the last byte, and inside them are only files of the known kinds.
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

from bench.faults.hostile import hostile_name
from bench.faults.http_sizes import http_code
from bench.faults.outcome import Outcome
from bench.faults.postgres_sizes import message, startup
from bench.faults.served_shop import VIEW, ServedShop
from bench.faults.workplace import workplace
from bench.faults.x24_names import changes, plant, tree
from headrace.serve.route import JSON, Route
from headrace.serve.routes import ROUTES

__all__ = ["CASES", "RUNS", "UNPROTECTED", "named_routes", "run"]

FAULT = "X24"
UNPROTECTED = {"page-names": r"holds a canary"}
CASES = 500
RUNS = 20

_TIMEOUT_S = 60.0
_PLACE = re.compile(r"\{([^}]+)\}")
_REFUSED = {400: "HR-", 404: "HR-", 405: "HR-SERVE-METHOD", 409: "HR-", 415: "HR-SERVE-MEDIA"}
_DESCRIBED = "{group:path}"
_NO_TABLE = ("42P01", "42601", "42622", "54000", "22021", "08P01")
_HEAD_TOO_LARGE = 431
_CANARY = b"the canary of"
_BODY = b'{"value": {"product": "x", "amount": 1}, "to": "start", "where": "true"}'
_KNOWN_FILES = re.compile(
    r"shop\.db(-wal|-shm)?|tokens\.(json|lock)|headrace\.toml|(serve|requests)\.log|serve/shop-requests\.db(-wal|-shm)?"
)


def named_routes() -> list[Route]:
    """Of the server, with a name in their path."""
    return [route for route in ROUTES if _PLACE.search(route.path)]


def run(seed: int, *, protected: bool = True, without: str = "page-names", cases: int = CASES) -> Outcome:
    rng = random.Random(f"{FAULT} served {seed}")
    outcome = Outcome(FAULT, seed, cases=cases)
    with workplace(FAULT, seed, in_memory=True) as home:
        world = home / "a" / "world"
        plant(world)
        shop_home = world / "shop"
        with ServedShop(shop_home, {}, without="" if protected else without) as shop:
            before = dict(tree(home / "a", besides=shop_home))
            routes = [route for route in named_routes() if protected or route.path.startswith("/page/")]
            attack = _Attack(shop, rng, outcome, str(world / "canary"), routes)
            for number in range(cases):
                outcome.hits += 1
                attack.case(number)
            attack.close()
            outcome.problems += shop.faults()
            outcome.problems += changes(before, dict(tree(home / "a", besides=shop_home)))
            outcome.problems += _strangers(shop.app_data)
            if not shop.server.runs:
                outcome.problems.append("the server ended by itself")
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
        """As clients write it, or as it is, as far as a request can hold it."""
        bare = raw.decode("latin-1").replace(" ", "%20")
        is_bare = bare.isprintable() and bare.isascii() and self._rng.random() < 0.3
        text = bare.replace("#", "%23").replace("?", "%3F") if is_bare else urllib.parse.quote(raw, safe="")
        # Only the last of several places is the hostile one.
        places = _PLACE.findall(path)
        for place in places[:-1]:
            path = path.replace(f"{{{place}}}", VIEW)
        return path.replace(f"{{{places[-1]}}}", text)

    def _request(self, route: Route, raw: bytes) -> None:
        path = self._path(route.path, raw)
        head = {"Authorization": f"Bearer {self._shop.admin}", "Content-Type": JSON, "Connection": "close"}
        what = f"{route.method} {path!r:.120}"
        try:
            self._http.request(route.method, path, _BODY if route.method == "POST" else None, head)
            answer = self._http.getresponse()
            body = answer.read() if answer.getheader("Content-Type") != "text/event-stream" else b""
        except http.client.HTTPException as error:
            self._object(f"{what} got no answer: {error!r}")
            return
        finally:
            self._http.close()
        if _CANARY in body:
            self._object(f"{what} holds a canary")
        elif answer.status in _REFUSED:
            code = str(json.loads(body).get("code")) if body else "HR-"
            if not code.startswith(_REFUSED[answer.status]):
                self._object(f"{what} was answered with {answer.status} {code}")
        elif answer.status == 200:
            if _DESCRIBED not in route.path and not _is_other(route, raw):
                self._object(f"{what} was answered as if it were there")
        elif answer.status != _HEAD_TOO_LARGE:
            self._object(f"{what} was answered with {answer.status}")

    def _subscribe(self, raw: bytes) -> None:
        path = self._path("/v1/views/{view}/changes", raw)
        lines = [
            f"GET {path} HTTP/1.1",
            *("Host: 127.0.0.1", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"),
            *("Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", f"Authorization: Bearer {self._shop.admin}"),
        ]
        said = b""
        with socket.create_connection(("127.0.0.1", self._shop.server.port), _TIMEOUT_S) as connection:
            connection.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))
            said = connection.recv(65_536)
            if said.startswith(b"HTTP/1.1 101"):
                connection.sendall(b"\x81\x94\0\0\0\0" + b'{"type":"subscribe"}')
                while http_code(said) == "" and (piece := connection.recv(65_536)):
                    said += piece
        code = http_code(said)
        if code not in ("400", "404", "4400", "4404", "431"):
            self._object(f"a subscription of {path!r:.120} was answered with {code}")

    def _select(self, raw: bytes) -> None:
        """As a table, and as who logs in to what."""
        text = raw.replace(b"\0", b"")
        quoted = b'"' + text.replace(b'"', b'""') + b'"'
        names = raw.decode("latin-1").replace("\0", "")[:400]
        with socket.create_connection(("127.0.0.1", self._shop.pg_port), _TIMEOUT_S) as connection:
            connection.sendall(
                startup(names or "x", database=names or "x")
                + message(b"p", self._shop.admin.encode() + b"\0")
                + message(b"Q", b"SELECT * FROM " + quoted[:5_000] + b"\0")
                + message(b"X", b"")
            )
            said = b""
            while piece := connection.recv(65_536):
                said += piece
        states = re.findall(rb"C([0-9A-Z]{5})\0M", said)
        if _CANARY in said:
            self._object(f"SELECT * FROM {quoted!r:.100} holds a canary")
        if not states or states[-1].decode() not in _NO_TABLE:
            self._object(f"SELECT * FROM {quoted!r:.100} was answered with {states}: {said[-200:]!r}")

    def _object(self, problem: str) -> None:
        self._outcome.problems.append(problem)


def _is_other(route: Route, raw: bytes) -> bool:
    """With slashes, dots or nothing in it, the path may be one of another route, which is answered as such."""
    return b"/" in raw or raw in (b"", b".", b"..") or route.path.startswith("/v1/app")


def _strangers(data: Path) -> list[str]:
    found = [str(path.relative_to(data)) for path in data.rglob("*") if not path.is_dir()]
    return [f"{name!r} lies in the data directory" for name in found if not _KNOWN_FILES.fullmatch(name)]
