"""Every kind of token against every route and WebSocket of the route table."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.serve.http import Http, Reply
from faults.serve.local_server import served, token_for
from faults.serve.shop_app import shop
from faults.views.follower_thread import following
from faults.wait import until
from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.declared_topics import ensure_declared
from headrace.serve.features import ROUTES
from headrace.serve.http.route import Route
from headrace.serve.http.tokens import (
    ADMIN,
    OPERATIONS,
    PERMISSIONS,
    PUBLIC,
    READ_TOPIC,
    READ_VIEW,
    WRITE_TOPIC,
    parse_scope,
)

# A route in this list is open to everyone who can reach the server.
_PUBLIC = {
    *("/healthz", "/readyz", "/openapi.json", "/docs", "/", "/page/{file:path}"),
    *("/client/headrace.js", "/client/offline.js", "/client/changes.js", "/client/exchange.js"),
    *("/client/copy.js", "/client/database.js", "/client/outbox.js"),
    *("/client/headrace.d.ts", "/client/offline.d.ts"),
}
_SOCKET = {
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    "Sec-WebSocket-Version": "13",
}


@pytest.fixture(scope="module")
def app(cluster: Cluster) -> App:
    shop_app = shop("scopes")
    for topic in shop_app.topics:
        ensure_declared(cluster, topic, topic.name, 1)
    return shop_app


@pytest.fixture(scope="module")
def http_and_home(
    app: App, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Http, Path]]:
    home = tmp_path_factory.mktemp("scopes")
    token_for(home, "root", "admin")
    with following(cluster, app.views[0], [], home) as followed, served(app, cluster, home) as http:
        until(lambda: followed.follower.status.state == "following", "the view")
        yield http, home


def _scopes(app: App) -> dict[str, list[str]]:
    """Return the scopes of each token: none, other names, one action each, or the names of this app."""
    return {
        "none": [],
        "other names": ["read:view:other", "read:topic:other", "write:topic:other-*"],
        **{action: [f"{action}:*" if needs_name else action] for action, needs_name in PERMISSIONS.items()},
        "by name": [f"read:view:{app.views[0].name}", f"write:topic:{app.topics[0].name[:-3]}*"],
    }


def _path(route: Route, app: App, name: str = "") -> str:
    path = route.path.replace("{key:path}", "p").replace("{file:path}", "frame.js")
    return (
        path.replace("{view}", name or app.views[0].name)
        .replace("{topic}", name or app.topics[0].name)
        .replace("{group}", "g")
    )


def _call(http: Http, route: Route, app: App, name: str = "") -> Reply:
    body = {"value": {"product_id": "p", "name": "n", "price": 1}} if route.body else None
    return http.request(route.method, _path(route, app, name), body=body)


def _name(route: Route, app: App) -> str:
    return {"view": app.views[0].name, "topic": app.topics[0].name}.get(route.permission_name, "")


def _allowed(route: Route, token_scopes: list[str], app: App) -> bool:
    scopes = [parse_scope(scope) for scope in token_scopes]
    return (
        route.permission == PUBLIC
        or (route.is_filtered and bool(scopes))
        or (route.any_name and any(scope.permission in (route.permission, ADMIN) for scope in scopes))
        or any(scope.allows(route.permission, _name(route, app)) for scope in scopes)
    )


@pytest.fixture(scope="module")
def tokens(app: App, http_and_home: tuple[Http, Path]) -> dict[str, str]:
    http, data = http_and_home
    tokens_by_holder = {
        holder: token_for(data, holder.replace(" ", "-").replace(":", "-"), *token_scopes)
        if token_scopes
        else ""
        for holder, token_scopes in _scopes(app).items()
    }
    until(
        lambda: Http(http.port, tokens_by_holder["by name"]).get("/v1/views").status == 200,
        "the tokens to be known",
    )
    return tokens_by_holder


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_a_route_responds_only_to_tokens_whose_scope_permits_it(
    route: Route, app: App, http_and_home: tuple[Http, Path], tokens: dict[str, str]
) -> None:
    http, _ = http_and_home
    result = set()
    for holder, token_scopes in _scopes(app).items():
        reply = _call(Http(http.port, tokens[holder]), route, app)
        if _allowed(route, token_scopes, app):
            assert reply.status not in (401, 403), (holder, reply.body)
            result.add("allowed")
            continue
        result.add("refused")
        assert reply.status == (403 if token_scopes else 401), (holder, reply.body)
        assert reply.headers["content-type"] == "application/problem+json"
        assert ("www-authenticate" in reply.headers) == (reply.status == 401)
        assert "headrace-position" not in reply.headers
        if token_scopes and route.permission_name:
            # A forbidden name gets the same response as an unknown one.
            absent = _call(Http(http.port, tokens[holder]), route, app, "not-there")
            assert absent.status == 403
            assert absent.json["detail"].replace("not-there", _name(route, app)) == reply.json["detail"]
    assert result == ({"allowed"} if route.permission == PUBLIC else {"allowed", "refused"})


def test_no_websocket_opens_without_the_permission_of_its_route(
    app: App, http_and_home: tuple[Http, Path], tokens: dict[str, str]
) -> None:
    http, _ = http_and_home
    for route, (holder, token_scopes) in itertools.product(ROUTES, _scopes(app).items()):
        status = Http(http.port, tokens[holder]).get(_path(route, app), headers=_SOCKET).status
        if not route.websocket:
            assert status in (401, 403, 404), (route.path, holder, status)
        elif token_scopes:
            assert status == (101 if _allowed(route, token_scopes, app) else 403), (route.path, holder)
        else:
            # A page sends its token as the first message; the server sends nothing before it.
            assert status == 101
    assert [route.path for route in ROUTES if route.websocket] == ["/v1/views/{view}/changes"]


@pytest.mark.parametrize(
    "route",
    [route for route in ROUTES if route.permission == WRITE_TOPIC],
    ids=lambda route: f"{route.method} {route.path}",
)
@pytest.mark.parametrize("end", [".DLT", "-dlt", ".DLT-dlt"])
def test_replaying_dead_letters_needs_the_scope_of_their_topic(
    route: Route, end: str, app: App, http_and_home: tuple[Http, Path]
) -> None:
    http, data = http_and_home
    origin, name = app.topics[0].name, f"{app.topics[0].name}{end}"
    label = f"{route.path}{end}".translate(str.maketrans("/{}", "---"))
    letters_token = token_for(
        data, f"{label}-letters_token", f"write:topic:{name}", f"write:topic:{origin}.DLT"
    )
    full_token = token_for(data, f"{label}-full_token", f"write:topic:{origin}*")
    until(lambda: Http(http.port, full_token).get("/v1/topics").status == 200, "the tokens to be known")
    refused = _call(Http(http.port, letters_token), route, app, name)
    assert refused.status == 403
    assert f"write:topic:{origin}" in refused.json["detail"]
    assert _call(Http(http.port, full_token), route, app, name).status not in (401, 403)


def test_lists_contain_only_what_the_token_may_read(
    app: App, http_and_home: tuple[Http, Path], tokens: dict[str, str]
) -> None:
    port = http_and_home[0].port
    by_name = Http(port, tokens["by name"])
    assert [view["view"] for view in by_name.get("/v1/views").expect(200)["views"]] == [app.views[0].name]
    assert [topic["topic"] for topic in by_name.get("/v1/topics").expect(200)["topics"]] == [
        app.topics[0].name
    ]
    other = Http(port, tokens["other names"])
    assert other.get("/v1/views").expect(200)["views"] == []
    assert other.get("/v1/topics").expect(200)["topics"] == []
    assert "views" not in Http(port).get("/readyz").json
    assert "views" in Http(port, tokens[OPERATIONS]).get("/readyz").json


def test_only_the_listed_routes_are_public_and_every_other_route_has_a_permission() -> None:
    assert {route.path for route in ROUTES if route.permission == PUBLIC} == _PUBLIC
    assert len({(route.method, route.path) for route in ROUTES}) == len(ROUTES)


def test_a_route_without_a_permission_cannot_be_constructed() -> None:
    fine = next(route for route in ROUTES if route.path == "/v1/views/{view}")
    for wrong in (
        {"permission": "read:everything"},
        {"permission": OPERATIONS},
        {"permission_name": ""},
        {"permission_name": "topic"},
        {"permission": PUBLIC},
        {"is_filtered": True},
        {"any_name": True},
        {"websocket": "Subscribe", "method": "POST"},
        {"websocket": "Subscribe", "permission": READ_TOPIC},
    ):
        with pytest.raises(ValueError, match=re.escape("/v1/views/{view}")):
            dataclasses.replace(fine, **wrong)
    with pytest.raises(TypeError, match="permission"):
        Route("GET", "/v1/new", handle=fine.handle, summary="New")  # type: ignore[call-arg]
    assert dataclasses.replace(fine, permission=READ_VIEW) == fine
