"""Tokens, hosts, origins and security headers. Scopes: ``test_scopes``."""

from __future__ import annotations

import json
import re
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faults.serve.http import Http, Reply
from faults.serve.local_server import served, token_for
from faults.serve.shop_app import shop
from faults.views.follower_thread import following
from faults.wait import until
from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.declared_topics import ensure_declared
from headrace.errors import ConfigError
from headrace.serve.features import ROUTES
from headrace.serve.http.guard import SAFE_HEADERS
from headrace.serve.http.openapi import ALWAYS
from headrace.serve.http.route import Route
from headrace.serve.http.server import Server
from headrace.serve.http.tokens import ADMIN, TokenBook, tokens_path
from headrace.settings import ServeSettings

Fresh = Callable[[str], str]


def _call(http: Http, route: Route, app: App, headers: dict[str, str] | None = None) -> Reply:
    path = route.path.replace("{key:path}", "p")
    path = path.replace("{view}", app.views[0].name).replace("{topic}", app.topics[0].name)
    body = {"value": {"product_id": "p", "name": "n", "price": 1}} if route.body else None
    return http.request(route.method, path, body=body, headers=headers)


@pytest.fixture(scope="module")
def app(cluster: Cluster) -> App:
    shop_app = shop("security")
    for topic in shop_app.topics:
        ensure_declared(cluster, topic, topic.name, 1)
    return shop_app


@pytest.fixture(scope="module")
def home(app: App, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("security")
    with following(cluster, app.views[0], [], home) as followed:
        until(lambda: followed.follower.status.state == "following", "the view")
    return home


@pytest.fixture(scope="module")
def open_http(app: App, cluster: Cluster, home: Path) -> Iterator[Http]:
    """A server without tokens: every user of this machine may do everything."""
    with served(app, cluster, home) as http:
        yield http


@pytest.fixture
def http_and_home(app: App, cluster: Cluster, home: Path, tmp_path: Path) -> Iterator[tuple[Http, Path]]:
    (tmp_path / "shop.db").symlink_to(home / "shop.db")
    token_for(tmp_path, "root", "admin")
    with served(app, cluster, tmp_path) as http:
        yield http, tmp_path


def test_wrong_revoked_and_expired_tokens_are_refused_even_without_the_token_file(
    http_and_home: tuple[Http, Path],
) -> None:
    http, data = http_and_home
    book = TokenBook(tokens_path(data))
    token = token_for(data, "reader", "read:view:*")
    reader = Http(http.port, token)
    until(lambda: reader.get("/v1/views").status == 200, "the token to be known")
    _, number, secret = token.split("_", 2)
    for wrong in (
        "",
        "x",
        token[:-1],
        token + "x",
        f"hr_{number}_{'A' * 43}",
        f"hr_{'0' * 16}_{secret}",
        "Ä",
        "a" * 9_000,
    ):
        for kind in ("Bearer", "Basic", ""):
            if (wrong, kind) != ("", ""):
                reply = http.get(
                    "/v1/views", headers={"Authorization": f"{kind} {wrong}".encode().decode("latin-1")}
                )
                assert reply.status == 401
    # The case of the scheme is ignored.
    assert http.get("/v1/views", headers={"Authorization": f"bearer {token}"}).status == 200
    book.revoke("reader")
    until(lambda: reader.get("/v1/views").status == 401, "the token to be refused")
    with pytest.raises(ConfigError, match="no token"):
        book.revoke("reader")
    _, expired = book.create("short", ["admin"], 0)
    assert Http(http.port, expired).get("/v1/views").status == 401
    token_file = tokens_path(data).read_text()
    assert secret not in token_file
    assert tokens_path(data).stat().st_mode & 0o077 == 0
    # An unreadable token file refuses all requests, and the response does not contain its path.
    root = Http(http.port, token_for(data, "second", "admin"))
    until(lambda: root.get("/v1/views").status == 200, "the token to be known")
    token_file = tokens_path(data).read_text()
    tokens_path(data).write_text(token_file[:-10])
    until(lambda: root.get("/v1/views").status == 500, "the changed file")
    for _ in range(3):
        document = root.get("/v1/views").expect(500)
        assert document["code"] == "HR-CONFIG-INVALID"
        assert str(data) not in json.dumps(document)
    tokens_path(data).write_text(token_file)
    until(lambda: root.get("/v1/views").status == 200, "the file to be valid again")
    assert http.server_log.warnings  # type: ignore[attr-defined]
    http.server_log.warnings.clear()  # type: ignore[attr-defined]
    tokens_path(data).unlink()
    until(lambda: reader.get("/v1/views").status == 401, "requests without a token file to be refused")
    assert http.get("/v1/views").status == 401


def test_without_tokens_only_this_machine_may_connect(app: App, cluster: Cluster, tmp_path: Path) -> None:
    received: list[str] = []

    def server(listen: str) -> Server:
        return Server(app, cluster, tmp_path, ServeSettings(), listen, warn=received.append)

    with pytest.raises(ConfigError, match="no tokens"):
        server("0.0.0.0:0")
    token = token_for(tmp_path, "one", "read:view:*")
    running = server("0.0.0.0:0")
    running.start()
    try:
        assert Http(running.port).get("/v1/views").status == 401
        assert Http(running.port, token).get("/v1/views").status == 200
        assert "TLS" in received[0]
    finally:
        running.stop()
    with pytest.raises(ConfigError, match="cannot listen on"):
        server("192.0.2.1:1")
    with pytest.raises(ConfigError, match="invalid scope"):
        token_for(tmp_path, "two", "read:everything")
    with pytest.raises(ConfigError, match="active token"):
        token_for(tmp_path, "one", ADMIN)


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "", "localhost@evil", "127.0.0.1:1:2", "x" * 300]
)
def test_an_unknown_host_is_refused(open_http: Http, host: str) -> None:
    reply = open_http.get("/v1/views", headers={"Host": host})
    assert reply.status == 400
    assert reply.headers["content-security-policy"] == SAFE_HEADERS["Content-Security-Policy"]


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1", "[::1]:9"])
def test_a_known_host_may_have_any_port(open_http: Http, host: str) -> None:
    assert open_http.get("/healthz", headers={"Host": host}).status == 200


def test_other_origins_are_refused_unless_they_are_configured(
    app: App, cluster: Cluster, tmp_path: Path
) -> None:
    token = token_for(tmp_path, "root", "admin")
    with served(app, cluster, tmp_path, origins="https://shop.example", hosts="shop.internal") as http:
        http.token = token
        own = f"http://127.0.0.1:{http.port}"
        for origin, status in (
            (own, 200),
            ("https://shop.example", 200),
            ("https://evil.example", 403),
            ("null", 403),
        ):
            for method in ("GET", "POST"):
                path = "/v1/views" if method == "GET" else f"/v1/topics/{app.topics[0].name}/records"
                body = None if method == "GET" else {"value": {"product_id": "p", "name": "n", "price": 1}}
                reply = http.request(method, path, body=body, headers={"Origin": origin})
                assert reply.status == status, (origin, reply.body)
                allowed = reply.headers.get("access-control-allow-origin")
                assert allowed == (origin if origin == "https://shop.example" else None)
        for site, mode, status in (
            ("cross-site", "no-cors", 403),
            ("cross-site", "navigate", 200),
            ("same-origin", "cors", 200),
        ):
            fetched = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode}
            assert http.get("/docs", headers=fetched).status == status
        request = {"Origin": "https://shop.example", "Access-Control-Request-Method": "POST"}
        reply = http.request("OPTIONS", f"/v1/topics/{app.topics[0].name}/records", headers=request)
        assert (reply.status, reply.headers["access-control-allow-methods"]) == (
            204,
            "GET, POST, HEAD, OPTIONS",
        )
        evil = http.request("OPTIONS", "/v1/views", headers={**request, "Origin": "https://evil.example"})
        assert evil.status == 403
        # An HTML form cannot send the content type of JSON.
        reply = http.request(
            "POST",
            f"/v1/topics/{app.topics[0].name}/records",
            body=b"{}",
            headers={"Content-Type": "text/plain"},
        )
        assert reply.status == 415
        assert http.get("/healthz", headers={"Host": "shop.internal:8443"}).status == 200


@pytest.mark.parametrize(
    "settings",
    [
        {"hosts": "shop.example"},
        {"hosts": "localhost, shop.example"},
        {"hosts": "2001:db8::1"},
        {"origins": "https://shop.example"},
        {"origins": "http://localhost:1, https://localhost.shop.example"},
        {"origins": "http://[broken"},
    ],
)
def test_a_server_without_tokens_does_not_start_with_foreign_hosts_or_origins(
    app: App, cluster: Cluster, tmp_path: Path, settings: dict[str, str]
) -> None:
    def server() -> Server:
        return Server(app, cluster, tmp_path, ServeSettings(**settings), "127.0.0.1:0", warn=print)

    with pytest.raises(
        ConfigError, match="but no tokens exist: every client that connects through this name"
    ):
        server()
    token_for(tmp_path, "one", "read:view:*")
    running = server()
    running.start()
    running.stop()


def test_hosts_and_origins_of_this_machine_need_no_token(app: App, cluster: Cluster, home: Path) -> None:
    names = {"hosts": "localhost,::1,[::1]", "origins": "http://localhost:5173,https://127.0.0.1"}
    with served(app, cluster, home, **names) as http:
        assert http.get("/v1/views", headers={"Origin": "http://localhost:5173"}).status == 200


_FORWARDED = (
    "Forwarded",
    "X-Forwarded-For",
    "X-Forwarded-Host",
    "X-Forwarded-Proto",
    "X-Forwarded-Anything",
    "Via",
    "X-Real-IP",
    "x-real-ip",
)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_without_tokens_no_route_serves_a_forwarded_request(open_http: Http, app: App, route: Route) -> None:
    name = _FORWARDED[len(route.path) % len(_FORWARDED)]
    reply = _call(open_http, route, app, {name: "203.0.113.7"})
    assert (reply.status, reply.json["code"]) == (403, "HR-SERVE-FORWARDED")


@pytest.mark.parametrize("name", _FORWARDED)
def test_without_tokens_a_proxy_header_is_refused(open_http: Http, name: str) -> None:
    sent = {name: "203.0.113.7"}
    assert open_http.get("/v1/views", headers=sent).expect(403)["code"] == "HR-SERVE-FORWARDED"
    socket = {
        **sent,
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
        "Sec-WebSocket-Version": "13",
    }
    assert open_http.get("/v1/views/x/changes", headers=socket).status == 403


def test_with_a_token_a_proxy_may_forward(http_and_home: tuple[Http, Path]) -> None:
    http, data = http_and_home
    token = token_for(data, "behind-a-proxy", "read:view:*")
    sent = dict.fromkeys(_FORWARDED, "203.0.113.7")
    until(lambda: Http(http.port, token).get("/v1/views", headers=sent).status == 200, "the token")
    assert http.get("/v1/views", headers=sent).status == 401


def test_every_response_has_the_browser_security_headers(open_http: Http, app: App) -> None:
    replies = [_call(open_http, route, app) for route in ROUTES]
    replies += [
        open_http.get("/none"),
        open_http.request("DELETE", "/v1/views"),
        open_http.request("OPTIONS", "/v1/views"),
    ]
    assert [reply.status for reply in replies[-3:]] == [404, 405, 204]
    assert replies[-2].headers["allow"] == "GET, HEAD, OPTIONS"
    for reply in replies:
        for name in SAFE_HEADERS:
            assert name.lower() in reply.headers
        assert "default-src 'none'" in reply.headers["content-security-policy"]
        assert "server" not in reply.headers
        assert re.fullmatch("[0-9a-f]{16}", reply.headers["headrace-request-id"])


_CORPUS = (
    *(
        "' OR 1=1 --",
        '"; DROP TABLE x',
        "../../etc/passwd",
        "\x00",
        "1e400",
        "-1",
        "9" * 30,
        "NaN",
        "%00",
        "{}",
        "[]",
    ),
    *(
        "null",
        'name = "a"',
        "price > 1",
        '{"product_id": "p"}',
        "-price",
        "name,-name",
        "`",
        "true",
        "@0",
        "(((((((",
    ),
)
_FUZZ = st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.sampled_from(_CORPUS)


@settings(max_examples=150)
@given(data=st.data())
def test_no_request_causes_an_internal_error(open_http: Http, app: App, data: st.DataObject) -> None:
    route = data.draw(st.sampled_from(ROUTES))
    path = route.path.replace("{key:path}", "{key}")
    for part, known in (("view", app.views[0].name), ("topic", app.topics[0].name), ("key", "p")):
        given_name = data.draw(st.just(known) | _FUZZ) if f"{{{part}}}" in path else known
        path = path.replace(f"{{{part}}}", urllib.parse.quote(given_name, safe=""))
    names = [parameter.name for parameter in route.parameters if parameter.where == "query"]
    request: dict[str, Any] = data.draw(
        st.dictionaries(st.sampled_from([*names, "other"]), _FUZZ, max_size=3)
    )
    request.pop("wait", None)
    body = (
        data.draw(st.none() | st.binary(max_size=60) | st.just(b'{"value": {"product_id": "p"}}'))
        if route.body
        else None
    )
    reply = open_http.request(route.method, path, body=body, **request)
    declared = {*route.responses, *route.error_statuses, *ALWAYS, 404}
    assert reply.status in declared - {500}, (route.path, request, reply.status, reply.body)
    assert reply.status != 500
    if reply.status >= 400 and reply.status != 503:
        assert set(reply.json) >= {"type", "title", "status", "code", "detail"}
