"""Operation: the command, tokens, metrics, the access log, an orderly stop, and OpenAPI."""

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

from faults.serve.http import Http
from faults.serve.local_server import COMMAND, Process, served
from faults.serve.shop_app import shop
from faults.servers.server import Server
from faults.views.follower_thread import following
from faults.wait import until, watched_process
from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.declared_topics import ensure_declared
from headrace.serve.features import ROUTES
from headrace.serve.http.limits import Limits
from headrace.serve.http.openapi import openapi
from headrace.settings import DEFAULT_SERVE_LISTEN
from tests.cli.runner import Headrace

Fresh = Callable[[str], str]


@pytest.fixture
def app(cluster: Cluster, fresh: Fresh) -> App:
    shop_app = shop(fresh("operated"))
    for topic in shop_app.topics:
        ensure_declared(cluster, topic, topic.name, 1)
    return shop_app


def test_the_server_is_ready_when_every_view_can_be_read_and_counts_requests(
    cluster: Cluster, app: App, tmp_path: Path
) -> None:
    with served(app, cluster, tmp_path, stale_s=5) as http:
        assert http.get("/healthz").expect(200) == {"alive": True}
        http.get("/readyz").expect(503)
        with following(cluster, app.views[0], [], tmp_path), following(cluster, app.views[1], [], tmp_path):
            until(lambda: http.get("/readyz").status == 200, "both views")
            document = http.get("/readyz").expect(200)
            assert [view["ready"] for view in document["views"]] == [True, True]
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


def test_the_access_log_has_a_line_per_request_and_no_secret(
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
        lines = http.server_log.lines  # type: ignore[attr-defined]
        until(lambda: len(lines) == 4, "the lines")
    results = [json.loads(line) for line in lines]
    assert "sssss" not in "".join(lines)
    assert [entry["status"] for entry in results] == [401, 503, 404, 400]
    assert [entry["route"] for entry in results][:3] == [
        "/v1/views/{view}/rows/{key:path}",
        "/v1/views/{view}/rows",
        "none",
    ]
    assert results[1]["view"] == view
    assert {"time", "request", "method", "token", "peer", "ms", "bytes", "code"} <= set(results[0])


def test_an_orderly_stop_finishes_requests_and_notifies_waiting_clients(
    cluster: Cluster, log: Server, fresh: Fresh, tmp_path: Path
) -> None:
    """A stop by Ctrl-C. ``test_drain`` tests a stop by SIGTERM under load."""
    name = fresh("ended")
    app = shop(name)
    for topic in app.topics:
        ensure_declared(cluster, topic, topic.name, 1)
    server = Process("faults.serve.shop_app:app", log.bootstrap, tmp_path, environment={"SHOP_NAME": name})
    value = {"value": {"product_id": "p", "name": "n", "price": 1}}
    token = server.http.post(f"/v1/topics/{app.topics[0].name}/records", value).expect(200)["token"]
    replies = []
    waiting = threading.Thread(
        target=lambda: replies.append(
            server.http.get(f"/v1/views/{app.views[0].name}/rows", after=token, wait="25s")
        )
    )
    waiting.start()
    until(
        lambda: "headrace_http_waiting 1" in server.http.get("/metrics").body.decode(), "the waiting request"
    )
    assert server.stop(signal.SIGINT) == 130
    waiting.join()
    assert replies[0].expect(503)["code"] == "HR-SERVE-DRAINING"
    assert replies[0].headers["connection"] == "close"
    messages = [json.loads(line) for line in server.errors.read_text().splitlines() if line.startswith("{")]
    assert {entry["status"] for entry in messages} == {200, 503}


def test_headrace_run_serves_the_views_of_its_app(fresh: Fresh, tmp_path: Path) -> None:
    """The server listens on a free port."""
    name, text = fresh("whole"), tmp_path / "output"
    options = ("--listen", "127.0.0.1:0", "--data", tmp_path / "data")
    default_port = int(DEFAULT_SERVE_LISTEN.rpartition(":")[2])
    used = contextlib.ExitStack()
    with contextlib.suppress(OSError):
        used.enter_context(socket.create_server(("127.0.0.1", default_port)))
    with text.open("wb") as output:
        process = subprocess.Popen(
            [COMMAND, "run", "faults.serve.shop_app:app", *options],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, "SHOP_NAME": name, "HEADRACE_SERVE__ACCESS_LOG": str(tmp_path / "access")},
        )
    try:
        with watched_process(process, "headrace run", text):
            match = until(
                lambda: re.search(r"the web UI is at http://127\.0\.0\.1:(\d+)", text.read_text()),
                "the address",
                timeout_s=480,
            )
        assert match is not None
        assert int(match[1]) != default_port
        http = Http(int(match[1]))
        value = {"value": {"product_id": "p", "name": "n", "price": 1}}
        token = http.post(f"/v1/topics/{name}-products/records", value).expect(200)["token"]
        row = http.get(f"/v1/views/{name}-products-view/rows/p", after=token, wait="20s").expect(200)["row"]
        assert row["name"] == "n"
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143, text.read_text()
        used.close()
    assert text.read_text().splitlines()[0].endswith(match[0])
    assert len((tmp_path / "access").read_text().splitlines()) == 2


def test_commands_create_list_and_revoke_tokens_and_show_each_once(log: Server, tmp_path: Path) -> None:
    headrace, data = Headrace(log.bootstrap), ("--data", str(tmp_path))
    run = headrace.ok("token", "create", "till", "-s", "write:topic:orders", "--days", "2", *data, "--json")
    (document,) = run.json
    assert document["token"].startswith(f"hr_{document['id']}_")
    assert headrace.ok("token", "create", "me", "--scope", "admin", *data).out.startswith("hr_")
    listed = headrace.ok("token", "list", *data, "--json")
    assert [(token["name"], token["state"], token["scopes"]) for token in listed.json] == [
        ("till", "active", ["write:topic:orders"]),
        ("me", "active", ["admin"]),
    ]
    secret = document["token"].removeprefix(f"hr_{document['id']}_")
    assert secret not in listed.out + headrace.ok("tokens", "list", *data).out
    headrace.ok("token", "revoke", "till", *data)
    assert [token["state"] for token in headrace.ok("token", "list", *data, "--json").json] == [
        "revoked",
        "active",
    ]
    for wrong in (
        ("revoke", "unknown"),
        ("create", "x"),
        ("create", "x y", "-s", "admin"),
        ("create", "x", "-s", "all"),
    ):
        assert headrace.run("token", *wrong, *data).code == 2


def test_openapi_has_every_route_and_its_page_loads_nothing_from_other_hosts(
    cluster: Cluster, app: App, tmp_path: Path
) -> None:
    with served(app, cluster, tmp_path) as http:
        document = http.get("/openapi.json").expect(200)
        page = http.get("/docs")
    assert document == json.loads(json.dumps(openapi(ROUTES, Limits())))
    assert document["openapi"] == "3.1.0"
    operations = {
        (method.upper(), path): entry
        for path, methods in document["paths"].items()
        for method, entry in methods.items()
    }
    assert set(operations) == {(route.method, route.path.replace(":path}", "}")) for route in ROUTES}
    names = [operation["operationId"] for operation in operations.values()]
    assert len(names) == len(set(names))
    for (_, path), operation in operations.items():
        in_path = {each["name"] for each in operation["parameters"] if each["in"] == "path"}
        assert in_path == set(re.findall(r"\{(\w+)\}", path))
    for name in re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document)):
        assert name in document["components"]["schemas"]
    text = page.body.decode()
    assert "<script" not in text
    assert re.findall(r'(?:src|href)="(?!/openapi)', text) == []
    assert "url(" not in text
    assert re.search(r"style-src 'sha256-[^']+'", page.headers["content-security-policy"])
    for route in ROUTES:
        assert route.path.replace(":path}", "}") in text


def test_the_error_names_a_missing_extra(tmp_path: Path) -> None:
    program = """
import sys
sys.modules["starlette"] = None
from pathlib import Path
from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.serve.http.server import Server
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


def test_the_command_fails_without_a_broker_or_with_an_invalid_address(tmp_path: Path) -> None:
    headrace = Headrace("127.0.0.1:1")
    assert headrace.run("serve", "faults.serve.shop_app:app", "--data", str(tmp_path)).code == 3
