"""Running it: the command, tokens, metrics, the access log, an orderly end, and what the routes say of themselves."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.declaring import ensure_declared
from headrace.serve.limits import Limits
from headrace.serve.openapi import openapi
from headrace.serve.routes import ROUTES
from headrace.serve.schemas import SCHEMAS
from headrace.settings.page_place import USUAL_LISTEN
from tests.cli.runner import Headrace
from tests.serve.http import Http
from tests.serve.serving import COMMAND, Process, served
from tests.serve.shop import shop
from tests.support.server import Server
from tests.support.waiting import until, watched_process
from tests.views.seeing import following

Fresh = Callable[[str], str]


@pytest.fixture
def app(cluster: Cluster, fresh: Fresh) -> App:
    made = shop(fresh("operated"))
    for topic in made.topics:
        ensure_declared(cluster, topic, topic.name, 1)
    return made


def test_the_server_is_ready_when_every_view_can_be_read_and_counts_what_it_does(
    cluster: Cluster, app: App, tmp_path: Path
) -> None:
    with served(app, cluster, tmp_path, stale_s=5) as http:
        assert http.get("/healthz").expect(200) == {"alive": True}
        http.get("/readyz").expect(503)
        with following(cluster, app.views[0], [], tmp_path), following(cluster, app.views[1], [], tmp_path):
            until(lambda: http.get("/readyz").status == 200, "both views")
            told = http.get("/readyz").expect(200)
            assert [one["ready"] for one in told["views"]] == [True, True]
            page = http.get("/metrics").body.decode()
        for name in (
            'headrace_http_requests_total{route="/readyz",method="GET",status="200"}',
            'headrace_http_request_seconds_bucket{route="/healthz",le="+Inf"} 1',
            f'headrace_served_view_behind_records{{app="shop",view="{app.views[0].name}"}} 0',
            "headrace_http_in_flight 1",
        ):
            assert name in page, page
        for line in page.splitlines():
            assert re.fullmatch(r"# (HELP|TYPE) .+|[a-z_]+(\{.*\})? [-+0-9.eEInfa]+", line), line


def test_a_line_per_request_tells_what_was_asked_for_and_no_secret(
    cluster: Cluster, app: App, tmp_path: Path
) -> None:
    secret = "hr_0123456789abcdef_" + "s" * 43
    with served(app, cluster, tmp_path) as http:
        view = app.views[0].name
        http.get(f"/v1/views/{view}/rows/{secret}", headers={"Authorization": f"Bearer {secret}"})
        http.get(f"/v1/views/{view}/rows", filter=f'name = "{secret}"', headers={"Cookie": secret})
        http.get(f"/none/{secret}\n{secret}".replace("\n", "%0a"))
        http.post(
            f"/v1/topics/{app.topics[0].name}/records", {"value": secret}, headers={"Idempotency-Key": secret}
        )
        lines = http.heard.lines  # type: ignore[attr-defined]
        until(lambda: len(lines) == 4, "the lines")
    told = [json.loads(line) for line in lines]
    assert "sssss" not in "".join(lines)
    assert [one["status"] for one in told] == [401, 503, 404, 400]
    assert [one["route"] for one in told][:3] == [
        "/v1/views/{view}/rows/{key:path}",
        "/v1/views/{view}/rows",
        "none",
    ]
    assert told[1]["view"] == view
    assert {"time", "request", "method", "token", "peer", "ms", "bytes", "code"} <= set(told[0])


def test_it_ends_in_order_answers_what_is_under_way_and_tells_who_waits(
    cluster: Cluster, log: Server, fresh: Fresh, tmp_path: Path
) -> None:
    """By Ctrl-C; by SIGTERM, under load: ``test_drain``."""
    name = fresh("ended")
    app = shop(name)
    for topic in app.topics:
        ensure_declared(cluster, topic, topic.name, 1)
    server = Process("tests.serve.shop:app", log.bootstrap, tmp_path, environment={"SHOP_NAME": name})
    value = {"value": {"product_id": "p", "name": "n", "price": 1}}
    token = server.http.post(f"/v1/topics/{app.topics[0].name}/records", value).expect(200)["token"]
    replies = []
    waiting = threading.Thread(
        target=lambda: replies.append(
            server.http.get(f"/v1/views/{app.views[0].name}/rows", after=token, wait="25s")
        )
    )
    waiting.start()
    until(lambda: "headrace_http_waiting 1" in server.http.get("/metrics").body.decode(), "the one who waits")
    assert server.stop(signal.SIGINT) == 130
    waiting.join()
    assert replies[0].expect(503)["code"] == "HR-SERVE-DRAINING"
    assert replies[0].headers["connection"] == "close"
    said = [json.loads(line) for line in server.errors.read_text().splitlines() if line.startswith("{")]
    assert {one["status"] for one in said} == {200, 503}


def test_a_run_of_the_whole_app_serves_what_it_follows(fresh: Fresh, tmp_path: Path) -> None:
    """At a free port, since the usual one is taken."""
    name, said = fresh("whole"), tmp_path / "said"
    options = ("--listen", "127.0.0.1:0", "--data", tmp_path / "data")
    usual = int(USUAL_LISTEN.rpartition(":")[2])
    taken = contextlib.ExitStack()
    with contextlib.suppress(OSError):
        taken.enter_context(socket.create_server(("127.0.0.1", usual)))
    with said.open("wb") as output:
        process = subprocess.Popen(
            [COMMAND, "run", "tests.serve.shop:app", *options],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, "SHOP_NAME": name, "HEADRACE_SERVE__ACCESS_LOG": str(tmp_path / "access")},
        )
    try:
        with watched_process(process, "headrace run", said):
            found = until(
                lambda: re.search(r"the page is at http://127\.0\.0\.1:(\d+)", said.read_text()),
                "the address",
                timeout_s=480,
            )
        assert found is not None
        assert int(found[1]) != usual
        http = Http(int(found[1]))
        value = {"value": {"product_id": "p", "name": "n", "price": 1}}
        token = http.post(f"/v1/topics/{name}-products/records", value).expect(200)["token"]
        row = http.get(f"/v1/views/{name}-products-view/rows/p", after=token, wait="20s").expect(200)["row"]
        assert row["name"] == "n"
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143, said.read_text()
        taken.close()
    assert said.read_text().splitlines()[0].endswith(found[0])
    assert len((tmp_path / "access").read_text().splitlines()) == 2


def test_tokens_are_made_listed_and_revoked_by_command_and_shown_once(log: Server, tmp_path: Path) -> None:
    headrace, data = Headrace(log.bootstrap), ("--data", str(tmp_path))
    made = headrace.ok("token", "create", "till", "-s", "write:topic:orders", "--days", "2", *data, "--json")
    (told,) = made.json
    assert told["token"].startswith(f"hr_{told['id']}_")
    assert headrace.ok("token", "create", "me", "--scope", "admin", *data).out.startswith("hr_")
    listed = headrace.ok("token", "list", *data, "--json")
    assert [(one["name"], one["state"], one["scopes"]) for one in listed.json] == [
        ("till", "active", ["write:topic:orders"]),
        ("me", "active", ["admin"]),
    ]
    secret = told["token"].removeprefix(f"hr_{told['id']}_")
    assert secret not in listed.out + headrace.ok("tokens", "list", *data).out
    headrace.ok("token", "revoke", "till", *data)
    assert [one["state"] for one in headrace.ok("token", "list", *data, "--json").json] == [
        "revoked",
        "active",
    ]
    for wrong in (
        ("revoke", "nobody"),
        ("create", "x"),
        ("create", "x y", "-s", "admin"),
        ("create", "x", "-s", "all"),
    ):
        assert headrace.run("token", *wrong, *data).code == 2


def test_openapi_has_every_route_that_is_dispatched_and_the_page_asks_nobody_else(
    cluster: Cluster, app: App, tmp_path: Path
) -> None:
    with served(app, cluster, tmp_path) as http:
        told = http.get("/openapi.json").expect(200)
        page = http.get("/docs")
    assert told == json.loads(json.dumps(openapi(ROUTES, Limits())))
    assert told["openapi"] == "3.1.0"
    operations = {
        (method.upper(), path): one for path, some in told["paths"].items() for method, one in some.items()
    }
    assert set(operations) == {(one.method, one.path.replace(":path}", "}")) for one in ROUTES}
    names = [one["operationId"] for one in operations.values()]
    assert len(names) == len(set(names))
    for (_, path), one in operations.items():
        in_path = {each["name"] for each in one["parameters"] if each["in"] == "path"}
        assert in_path == set(re.findall(r"\{(\w+)\}", path))
    for name in re.findall(r'"#/components/schemas/(\w+)"', json.dumps(told)):
        assert name in SCHEMAS
    text = page.body.decode()
    assert "<script" not in text
    assert re.findall(r'(?:src|href)="(?!/openapi)', text) == []
    assert "url(" not in text
    assert re.search(r"style-src 'sha256-[^']+'", page.headers["content-security-policy"])
    for one in ROUTES:
        assert one.path.replace(":path}", "}") in text


def test_where_the_extra_is_missing_the_error_names_it(tmp_path: Path) -> None:
    program = """
import sys
sys.modules["starlette"] = None
from pathlib import Path
from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.serve.server import Server
from headrace.settings import ServeSettings
try:
    Server(App("x"), Cluster("127.0.0.1:1"), Path("."), ServeSettings(), "127.0.0.1:0", warn=print)
except Exception as error:
    print(error.code, error.hint)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    assert done.stdout == "HR-EXTRA-MISSING pip install 'headrace[serve]'\n"


def test_a_broker_that_is_not_there_and_an_address_that_is_none_end_the_command(tmp_path: Path) -> None:
    headrace = Headrace("127.0.0.1:1")
    assert headrace.run("serve", "tests.serve.shop:app", "--data", str(tmp_path)).code == 3
