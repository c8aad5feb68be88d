"""The matrix of tokens over every route and socket, as the table of routes lists them."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.declaring import ensure_declared
from headrace.serve.route import Route
from headrace.serve.routes import ROUTES
from headrace.serve.scope import (
    ACTIONS,
    ADMIN,
    OPERATIONS,
    PUBLIC,
    READ_TOPIC,
    READ_VIEW,
    WRITE_TOPIC,
    parse_scope,
)
from headrace.serve.served import Served
from tests.serve.http import Http, Reply
from tests.serve.serving import served, token_for
from tests.serve.shop import shop
from tests.support.waiting import until
from tests.views.seeing import following

# Whoever adds to it lets in anybody who can reach the server.
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
    made = shop("scopes")
    for topic in made.topics:
        ensure_declared(cluster, topic, topic.name, 1)
    return made


@pytest.fixture(scope="module")
def closed(
    app: App, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Http, Path]]:
    home = tmp_path_factory.mktemp("scopes")
    token_for(home, "root", "admin")
    with following(cluster, app.views[0], [], home) as followed, served(app, cluster, home) as http:
        until(lambda: followed.follower.status.state == "following", "the view")
        yield http, home


def _scopes(app: App) -> dict[str, list[str]]:
    """Who has which: nobody, each action by itself, names that are others', names that are right."""
    return {
        "none": [],
        "other names": ["read:view:other", "read:topic:other", "write:topic:other-*"],
        **{action: [f"{action}:*" if named else action] for action, named in ACTIONS.items()},
        "by name": [f"read:view:{app.views[0].name}", f"write:topic:{app.topics[0].name[:-3]}*"],
    }


def _path(route: Route, app: App, name: str = "") -> str:
    path = route.path.replace("{key:path}", "p").replace("{file:path}", "frame.js")
    return (
        path.replace("{view}", name or app.views[0].name)
        .replace("{topic}", name or app.topics[0].name)
        .replace("{group}", "g")
    )


def _ask(http: Http, route: Route, app: App, name: str = "") -> Reply:
    body = {"value": {"product_id": "p", "name": "n", "price": 1}} if route.body else None
    return http.ask(route.method, _path(route, app, name), body=body)


def _name(route: Route, app: App) -> str:
    return {"view": app.views[0].name, "topic": app.topics[0].name}.get(route.named, "")


def _allowed(route: Route, held: list[str], app: App) -> bool:
    scopes = [parse_scope(one) for one in held]
    return (
        route.action == PUBLIC
        or (route.listed and bool(scopes))
        or (route.any_name and any(one.action in (route.action, ADMIN) for one in scopes))
        or any(one.allows(route.action, _name(route, app)) for one in scopes)
    )


@pytest.fixture(scope="module")
def tokens(app: App, closed: tuple[Http, Path]) -> dict[str, str]:
    http, data = closed
    made = {
        who: token_for(data, who.replace(" ", "-").replace(":", "-"), *some) if some else ""
        for who, some in _scopes(app).items()
    }
    until(lambda: Http(http.port, made["by name"]).get("/v1/views").status == 200, "the tokens to be known")
    return made


@pytest.mark.parametrize("route", ROUTES, ids=lambda one: f"{one.method} {one.path}")
def test_a_route_is_answered_for_those_whose_scope_allows_it_and_for_nobody_else(
    route: Route, app: App, closed: tuple[Http, Path], tokens: dict[str, str]
) -> None:
    http, _ = closed
    told = set()
    for who, held in _scopes(app).items():
        reply = _ask(Http(http.port, tokens[who]), route, app)
        if _allowed(route, held, app):
            assert reply.status not in (401, 403), (who, reply.body)
            told.add("allowed")
            continue
        told.add("refused")
        assert reply.status == (403 if held else 401), (who, reply.body)
        assert reply.headers["content-type"] == "application/problem+json"
        assert ("www-authenticate" in reply.headers) == (reply.status == 401)
        assert "headrace-position" not in reply.headers
        if held and route.named:
            # Whether it is there is not told to who may not know.
            absent = _ask(Http(http.port, tokens[who]), route, app, "not-there")
            assert absent.status == 403
            assert absent.json["detail"].replace("not-there", _name(route, app)) == reply.json["detail"]
    assert told == ({"allowed"} if route.action == PUBLIC else {"allowed", "refused"})


def test_no_socket_opens_for_who_may_not_ask_for_its_route(
    app: App, closed: tuple[Http, Path], tokens: dict[str, str]
) -> None:
    http, _ = closed
    for route, (who, held) in itertools.product(ROUTES, _scopes(app).items()):
        status = Http(http.port, tokens[who]).get(_path(route, app), headers=_SOCKET).status
        if not route.socket:
            assert status in (401, 403, 404), (route.path, who, status)
        elif held:
            assert status == (101 if _allowed(route, held, app) else 403), (route.path, who)
        else:
            # A page cannot send its token before the first message, and is told nothing before that has come.
            assert status == 101
    assert [one.path for one in ROUTES if one.socket] == ["/v1/views/{view}/changes"]


@pytest.mark.parametrize(
    "route", [one for one in ROUTES if one.action == WRITE_TOPIC], ids=lambda one: f"{one.method} {one.path}"
)
@pytest.mark.parametrize("end", [".DLT", "-dlt", ".DLT-dlt"])
def test_writing_dead_letters_needs_the_scope_for_the_topic_that_they_came_from(
    route: Route, end: str, app: App, closed: tuple[Http, Path]
) -> None:
    http, data = closed
    origin, name = app.topics[0].name, f"{app.topics[0].name}{end}"
    label = f"{route.path}{end}".translate(str.maketrans("/{}", "---"))
    letters = token_for(data, f"{label}-letters", f"write:topic:{name}", f"write:topic:{origin}.DLT")
    both = token_for(data, f"{label}-both", f"write:topic:{origin}*")
    until(lambda: Http(http.port, both).get("/v1/topics").status == 200, "the tokens to be known")
    refused = _ask(Http(http.port, letters), route, app, name)
    assert refused.status == 403
    assert f"write:topic:{origin}" in refused.json["detail"]
    assert _ask(Http(http.port, both), route, app, name).status not in (401, 403)


def test_lists_have_only_what_the_token_may_see(
    app: App, closed: tuple[Http, Path], tokens: dict[str, str]
) -> None:
    port = closed[0].port
    by_name = Http(port, tokens["by name"])
    assert [one["view"] for one in by_name.get("/v1/views").expect(200)["views"]] == [app.views[0].name]
    assert [one["topic"] for one in by_name.get("/v1/topics").expect(200)["topics"]] == [app.topics[0].name]
    other = Http(port, tokens["other names"])
    assert other.get("/v1/views").expect(200)["views"] == []
    assert other.get("/v1/topics").expect(200)["topics"] == []
    assert "views" not in Http(port).get("/readyz").json
    assert "views" in Http(port, tokens[OPERATIONS]).get("/readyz").json


def test_what_needs_no_token_is_a_short_list_and_everything_else_has_a_scope() -> None:
    assert Served.routes is ROUTES
    assert {one.path for one in ROUTES if one.action == PUBLIC} == _PUBLIC
    assert len({(one.method, one.path) for one in ROUTES}) == len(ROUTES)


def test_a_route_without_a_scope_cannot_be_made() -> None:
    fine = next(one for one in ROUTES if one.path == "/v1/views/{view}")
    for wrong in (
        {"action": "read:everything"},
        {"action": OPERATIONS},
        {"named": ""},
        {"named": "topic"},
        {"action": PUBLIC},
        {"listed": True},
        {"any_name": True},
        {"socket": "Subscribe", "method": "POST"},
        {"socket": "Subscribe", "action": READ_TOPIC},
    ):
        with pytest.raises(ValueError, match=re.escape("/v1/views/{view}")):
            dataclasses.replace(fine, **wrong)
    with pytest.raises(TypeError, match="action"):
        Route("GET", "/v1/new", handle=fine.handle, summary="New")  # type: ignore[call-arg]
    assert dataclasses.replace(fine, action=READ_VIEW) == fine
