"""Tests every route against its OpenAPI description, by schemathesis, with valid and invalid requests. Each response
must have a documented status and the documented shape.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import requests
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from faults.serve.http import Http
from faults.serve.local_server import served, token_for
from faults.serve.shop_app import shop
from faults.views.follower_thread import following
from faults.wait import until
from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.declared_topics import ensure_declared
from headrace.serve.features import ROUTES
from headrace.serve.http.limits import Limits
from headrace.serve.http.openapi import openapi
from headrace.serve.http.route import Route

_QUICK = settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))


@dataclass(frozen=True)
class _Target:
    base: str
    session: requests.Session
    names: dict[str, str]
    """Existing objects, by the names of path parameters."""


@pytest.fixture(scope="module")
def target(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Target]:
    home = tmp_path_factory.mktemp("schema")
    app: App = shop("schema")
    for topic in app.topics:
        ensure_declared(cluster, topic, topic.name, 1)
    token = token_for(home, "root", "admin")
    with contextlib.ExitStack() as stack:
        for view in app.views:
            stack.enter_context(following(cluster, view, [], home))
        http = stack.enter_context(served(app, cluster, home))
        http = Http(http.port, token)
        value = {"product_id": "p", "name": "n", "price": 1}
        http.post(f"/v1/topics/{app.topics[0].name}/records", {"value": value}).expect(200)
        until(lambda: http.get("/readyz").status == 200, "the views")
        session = stack.enter_context(requests.Session())
        session.headers["Authorization"] = f"Bearer {token}"
        names = {"view": app.views[0].name, "topic": app.topics[0].name, "key": "p"}
        yield _Target(f"http://127.0.0.1:{http.port}", session, names)


@cache
def _api() -> Any:
    """Import schemathesis here: all processes of a run collect this module, but only one runs it."""
    import schemathesis
    from schemathesis.checks import load_all_checks

    load_all_checks()
    api = schemathesis.openapi.from_dict(openapi(ROUTES, Limits()))
    api.config.checks.negative_data_rejection.expected_statuses = ["400", "404", "413", "415", "431"]
    # Read only the beginning of a streaming response.
    api.config.max_stream_events = 1
    # ``test_scopes`` tests permissions.
    api.config.generation.with_security_parameters = False
    return api


def _check(route: Route, target: _Target, data: Any, *, valid: bool) -> None:
    from schemathesis import GenerationMode
    from schemathesis.specs.openapi.checks import positive_data_acceptance

    mode = GenerationMode.POSITIVE if valid else GenerationMode.NEGATIVE
    operation = _api()[route.path.replace(":path}", "}")][route.method]
    case = data.draw(operation.as_strategy(mode))
    for name, present in target.names.items():
        # A random name rarely exists, so use existing names. Requests then reach the handlers.
        if name in case.path_parameters and (not valid or data.draw(st.booleans())):
            case.path_parameters[name] = present
    # A filter, cursor, key or value can have the documented type and still be invalid for the view. The response is
    # then 400, which is documented too.
    excluded = [positive_data_acceptance]
    case.call_and_validate(target.base, session=target.session, excluded_checks=excluded, timeout=60)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_a_valid_request_gets_a_documented_response(route: Route, target: _Target) -> None:
    @_QUICK
    @given(st.data())
    def check(data: st.DataObject) -> None:
        _check(route, target, data, valid=True)

    check()


@pytest.mark.parametrize(
    "route",
    [route for route in ROUTES if any(parameter.where != "path" for parameter in route.parameters)],
    ids=lambda route: f"{route.method} {route.path}",
)
def test_an_invalid_request_gets_a_documented_refusal(route: Route, target: _Target) -> None:
    @_QUICK
    @given(st.data())
    def check(data: st.DataObject) -> None:
        _check(route, target, data, valid=False)

    check()
