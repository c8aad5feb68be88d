"""What OpenAPI says of every route, held against the server by schemathesis: requests that fit, and some that do not;
each answer is one that is documented, of the shape that is documented.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import positive_data_acceptance

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.declaring import ensure_declared
from headrace.serve.limits import Limits
from headrace.serve.openapi import openapi
from headrace.serve.route import Route
from headrace.serve.routes import ROUTES
from tests.serve.http import Http
from tests.serve.serving import served, token_for
from tests.serve.shop import shop
from tests.support.waiting import until
from tests.views.seeing import following

load_all_checks()
_API = schemathesis.openapi.from_dict(openapi(ROUTES, Limits()))
_API.config.checks.negative_data_rejection.expected_statuses = ["400", "404", "413", "415", "431"]
# Of an answer that goes on, the beginning.
_API.config.max_stream_events = 1
# Who may ask: ``test_scopes``.
_API.config.generation.with_security_parameters = False
# A filter, a cursor, a key or a value may have the type that is documented and still not fit the view: that is a 400
# that is documented too.
_EXCLUDED = [positive_data_acceptance]
_QUICK = settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))


@dataclass(frozen=True)
class _Target:
    base: str
    session: requests.Session
    names: dict[str, str]
    """Things that are there, by the names that paths have for them."""


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


def _check(route: Route, target: _Target, data: Any, mode: GenerationMode) -> None:
    operation = _API[route.path.replace(":path}", "}")][route.method]
    case = data.draw(operation.as_strategy(mode))
    for name, there in target.names.items():
        # Most names that are made up are of nothing; whatever else is wrong with a request, it reaches something.
        if name in case.path_parameters and (mode is GenerationMode.NEGATIVE or data.draw(st.booleans())):
            case.path_parameters[name] = there
    case.call_and_validate(target.base, session=target.session, excluded_checks=_EXCLUDED, timeout=60)


@pytest.mark.parametrize("route", ROUTES, ids=lambda one: f"{one.method} {one.path}")
def test_a_request_that_fits_is_answered_as_documented(route: Route, target: _Target) -> None:
    @_QUICK
    @given(st.data())
    def check(data: st.DataObject) -> None:
        _check(route, target, data, GenerationMode.POSITIVE)

    check()


@pytest.mark.parametrize(
    "route",
    [one for one in ROUTES if any(two.where != "path" for two in one.parameters)],
    ids=lambda one: f"{one.method} {one.path}",
)
def test_a_request_that_does_not_fit_is_refused_as_documented(route: Route, target: _Target) -> None:
    @_QUICK
    @given(st.data())
    def check(data: st.DataObject) -> None:
        _check(route, target, data, GenerationMode.NEGATIVE)

    check()
