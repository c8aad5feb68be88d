"""One token leaves others their share of SQL processes, followed statements, subscriptions and streams.

SQL does not reveal views that a token may not read.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from faults.serve.http import Http
from faults.serve.local_server import served, token_for
from faults.serve.shop_app import shop
from faults.serve.subscriber_copy import socket
from faults.views.follower_thread import following
from faults.wait import until
from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.declared_topics import ensure_declared
from headrace.serve.features import ROUTES
from headrace.serve.http.route import Route
from tests.serve.sql_server import connect

_MANY = f"[{','.join(['1'] * 100)}]"
_LONG = f"{_MANY}.map(a, {_MANY}.exists(b, a + b == 1)).size() < 0"
"""An expression so slow that no search with it ends during a test."""
_ENDLESS = "SELECT count(*) FROM range(1000000000) a, range(1000000) b WHERE a.range + b.range = 7"


@pytest.fixture(scope="module")
def app(cluster: Cluster) -> App:
    shop_app = shop("shares")
    for topic in shop_app.topics:
        ensure_declared(cluster, topic, topic.name, 1)
    producer = cluster.producer({})
    for number in range(5_000):
        producer.produce(shop_app.topics[1].name, b"{}", str(number))
    assert producer.flush(30) == 0
    return shop_app


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shares")


@pytest.fixture(scope="module")
def tokens(home: Path) -> dict[str, str]:
    scopes = ("read:view:*", "read:topic:*", "read:operations")
    return {
        "greedy": token_for(home, "greedy", *scopes),
        "other": token_for(home, "other", *scopes),
        "narrow": token_for(home, "narrow", "read:view:narrow", "read:view:SHARES-ORDERS-VIEW"),
        "writer": token_for(home, "writer", "write:topic:*", "read:topic:*", "read:operations"),
    }


@pytest.fixture(scope="module")
def server(app: App, cluster: Cluster, home: Path, tokens: dict[str, str]) -> Iterator[Http]:
    limits = {"sql_processes": 2, "subscribers": 2, "sql_ms": 60_000}
    with (
        following(cluster, app.views[0], [], home) as followed,
        served(app, cluster, home, pg_listen="127.0.0.1:0", **limits) as client,
    ):
        until(lambda: followed.follower.status.state == "following", "the view")
        yield client


def _port(server: Http) -> int:
    return server.server.pg_port  # type: ignore[attr-defined,no-any-return]


@contextlib.contextmanager
def _stream(server: Http, token: str, path: str, body: object = None) -> Iterator[int]:
    """Open a streaming response for the duration of the block, and yield its status."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    raw = None if body is None else json.dumps(body)
    connection.request("GET" if body is None else "POST", path, raw, headers)
    try:
        yield connection.getresponse().status
    finally:
        connection.close()


def test_one_token_cannot_occupy_all_sql_processes(server: Http, tokens: dict[str, str]) -> None:
    received: list[BaseException] = []

    def send(connection: psycopg.Connection[object]) -> None:
        try:
            connection.execute(_ENDLESS)
        except psycopg.Error as error:
            received.append(error)

    with contextlib.ExitStack() as stack:
        greedy = [
            stack.enter_context(connect(_port(server), password=tokens["greedy"], autocommit=True))
            for _ in range(2)
        ]
        threads = [threading.Thread(target=send, args=(number,)) for number in greedy]
        for thread in threads:
            thread.start()
        until(lambda: "headrace_pg_under_way 2" in _metrics(server, tokens), "both statements")
        with connect(_port(server), password=tokens["other"], autocommit=True) as other:
            assert other.execute("SELECT 42").fetchone() == (42,)
        result = Http(server.port, tokens["other"]).post("/v1/sql", {"sql": "SELECT 42"})
        assert result.expect(200)["rows"] == [[42]]
        # One statement of the greedy token runs. The other waits 10 s for a process, which a slow test run may exceed.
        assert len(received) < 2
        assert all(isinstance(error, psycopg.errors.TooManyConnections) for error in received), received
        for connection in greedy:
            # Connection.cancel() would block this process, which runs the server.
            connection.cancel_safe()
        for thread in threads:
            thread.join(60)
    assert len(received) == 2


def _metrics(server: Http, tokens: dict[str, str]) -> str:
    return Http(server.port, tokens["other"]).get("/metrics").body.decode()


@pytest.mark.parametrize("path", ["/v1/sql", "/v1/sql/changes"])
def test_sql_needs_a_scope_to_read_a_view(server: Http, tokens: dict[str, str], path: str) -> None:
    refused = Http(server.port, tokens["writer"]).post(path, {"sql": "SELECT 42"}).expect(403)
    assert (refused["code"], "read:view" in refused["detail"]) == ("HR-SERVE-SCOPE", True)


def test_a_token_without_a_scope_to_read_a_view_does_not_log_in(server: Http, tokens: dict[str, str]) -> None:
    with pytest.raises(psycopg.OperationalError, match="SQL needs the scope read:view"):
        connect(_port(server), password=tokens["writer"])
    lines = [json.loads(line) for line in server.server_log.lines]  # type: ignore[attr-defined]
    assert ("LOGIN", 403) in [(line["method"], line["status"]) for line in lines]


@pytest.mark.parametrize(
    "sql",
    [
        'SELECT * FROM "{name}"',
        'SELECT * FROM "{upper}"',
        'WITH "{name}" AS (SELECT 42 AS a) SELECT * FROM "{name}"',
        'WITH "{upper}" AS (SELECT 42 AS a) SELECT * FROM "{name}"',
        'SELECT * FROM (WITH "{name}" AS (SELECT 42 AS a) SELECT a FROM "{name}") one, "{name}"',
        "SELECT * FROM search('{name}', 'word')",
        "WITH \"{name}\" AS (SELECT 42 AS a) SELECT * FROM \"{name}\", search('{name}', 'word')",
        "SELECT * FROM \"{name}\"('x')",
        "SELECT * FROM query_table('{name}')",
        "SELECT * FROM pragma_table_info('{name}')",
        "SELECT to_regclass('{name}')",
    ],
)
def test_sql_treats_a_forbidden_view_as_unknown(
    server: Http, app: App, tokens: dict[str, str], sql: str
) -> None:
    http = Http(server.port, tokens["narrow"])

    def document(name: str) -> tuple[int, str]:
        reply = http.post("/v1/sql", {"sql": sql.format(name=name, upper=name.upper())})
        text = reply.body.decode().lower().replace(name.lower(), "NAME")
        # The SQL engine has a system table with a similar name.
        text = re.sub(r'did you mean \\"\w+\\"\?', "", text)
        document = json.loads(text)
        return reply.status, json.dumps(
            {key: document[key] for key in document if key not in ("instance", "request")}
        )

    present, absent = app.views[0].name, "shares-absences-view"
    assert document(present) == document(absent)


def test_a_scope_that_differs_in_case_does_not_reveal_a_view(
    server: Http, app: App, tokens: dict[str, str]
) -> None:
    """The scope allows a name that no view has; a view has the same name in lower case."""
    http = Http(server.port, tokens["narrow"])
    request = http.post("/v1/sql", {"sql": f'SELECT * FROM "{app.views[1].name.upper()}"'})
    assert request.expect(404)["code"] == "HR-SERVE-NOT-THERE"


_STREAMS = [
    route
    for route in ROUTES
    if {doc.media_type for doc in route.responses.values()} & {"text/event-stream", "application/x-ndjson"}
]
_BODIES = {"/v1/sql/changes": {"sql": "SELECT 42"}, "/v1/log/topics/{topic}/search": {"where": _LONG}}


@pytest.mark.parametrize("route", _STREAMS, ids=lambda route: f"{route.method} {route.path}")
def test_one_token_cannot_occupy_all_streaming_responses(
    route: Route, server: Http, app: App, tokens: dict[str, str]
) -> None:
    path = route.path.replace("{view}", app.views[0].name).replace("{topic}", app.topics[1].name)
    body = _BODIES.get(route.path)
    with contextlib.ExitStack() as stack:
        used = 0
        while (status := stack.enter_context(_stream(server, tokens["greedy"], path, body))) == 200:
            used += 1
            assert used <= 60, "no limit was reached"
        assert (status, used > 0) == (429, True)
        refused = Http(server.port, tokens["greedy"]).request(route.method, path, body=body).expect(429)
        assert refused["code"] == "HR-SERVE-SHARE"
        assert "with this token" in refused["detail"]
        assert stack.enter_context(_stream(server, tokens["other"], path, body)) == 200


def test_one_token_cannot_occupy_all_subscriptions(server: Http, app: App, tokens: dict[str, str]) -> None:
    view = app.views[0].name

    async def run() -> None:
        async with socket(server.port, view, token=tokens["greedy"]) as (_, first):
            assert (await anext(first))["type"] == "hello"
            async with socket(server.port, view, token=tokens["greedy"]) as (_, second):
                refused = await anext(second)
                assert (refused["close"], refused["code"]) == (4429, "HR-SERVE-SHARE")
            async with socket(server.port, view, token=tokens["other"]) as (_, third):
                assert (await anext(third))["type"] == "hello"

    asyncio.run(asyncio.wait_for(run(), 60))
