"""The monitor of an app: in a server without a run, and in the server of a run."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

from faults.serve.http import Http
from faults.serve.local_server import served, token_for
from faults.serve.shop_app import Order, Product, shop
from faults.servers.headrace_broker import start_headrace
from faults.servers.server import Server
from faults.views.follower_thread import following
from faults.wait import until
from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.declared_topics import ensure_declared
from headrace.ops.alerts.alert_log import AlertLog, AlertRecord
from headrace.runtime.run import Run
from headrace.serve.http.tokens import TokenBook, tokens_path
from headrace.settings import AlertSettings, LogSettings, ServeSettings, Settings
from headrace.stores import SQLite

Fresh = Callable[[str], str]
_LINES_MAX = 30
"""How many lines to read from a stream that sends one event per second, with two lines per event."""


def _read_app_now(http: Http) -> Any:
    return http.get("/v1/app/now").expect(200)


def _write(http: Http, topic: str, count: int) -> None:
    records = [{"value": {"product_id": f"p{n}", "name": "n", "price": 1}} for n in range(count)]
    http.post(f"/v1/topics/{topic}/records", {"records": records}).expect(200)


def _texts(now: Any) -> str:
    return "\n".join(f"{line['text']} | {line['next']}" for line in now["health"]["lines"])


@contextlib.contextmanager
def _run(app: App, bootstrap: str, data: Path, **more: Any) -> Iterator[Http]:
    settings = Settings(
        data=data,
        log=LogSettings(bootstrap_servers=bootstrap),
        serve=ServeSettings(listen="127.0.0.1:0"),
        alerts=AlertSettings(every_s=1, defaults=False),
    )
    results: list[str] = []
    run = Run(app, settings, note=results.append, **more)
    try:
        run.start()
        assert run.server is not None
        yield Http(run.server.port)
    finally:
        run.close()
        print(*results, sep="\n")


def test_a_server_without_a_run_monitors_the_log_and_the_stores_and_explains_what_is_missing(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    app = shop(fresh("observed"))
    for topic in app.topics:
        ensure_declared(cluster, topic, topic.name, 1)
    view, name = app.views[0].name, app.topics[0].name
    with served(app, cluster, tmp_path) as http:
        graph = http.get("/v1/app").expect(200)
        assert {"from": f"source:{name}", "to": f"topic:{name}"} in graph["edges"]
        source = next(node for node in graph["nodes"] if node["id"] == f"source:{name}")
        assert (source["kind"], source["name"]) == ("source", "written from outside")
        now = _read_app_now(http)
        assert set(now["nodes"]) == {node["id"] for node in graph["nodes"]}
        assert set(now["edges"]) == {f"{edge['from']}>{edge['to']}" for edge in graph["edges"]}
        assert now["nodes"][f"view:{view}"]["state"] == "not built"
        assert f"view {view} is not built" in _texts(now)
        with following(cluster, app.views[0], [], tmp_path):
            _write(http, name, 3)

            def arrived() -> Any:
                result = _read_app_now(http)
                position = result["nodes"][f"view:{view}"]["position"]
                is_current = position and position["offsets"] == {"0": 3}
                return result if is_current and result["nodes"][f"topic:{name}"]["end"] == 3 else None

            now = until(arrived, "the view's position")
        node = now["nodes"][f"view:{view}"]
        assert (node["state"], node["applied"], node["differs"]) == ("serving", None, None)
        assert node["lag"]["records"] == 0
        assert now["live"] is False
        assert "does not see the running parts" in _texts(now)
        alerts = http.get("/v1/alerts").expect(200)
        assert alerts["rules"] is None
        assert "headrace run" in alerts["rules_why"]
        history = http.get("/v1/app/history", node=f"topic:{name}").expect(200)
        end = history["fields"].index("end")
        assert history["samples"][-1][end] == 3
        later = http.get("/v1/app/history", node=f"topic:{name}", since_ms=history["samples"][-1][0])
        assert later.expect(200)["samples"][0] == history["samples"][-1]
        http.get("/v1/app/history", node="topic:none").expect(404)
        http.get("/v1/flows/none").expect(404)


def test_the_event_stream_ends_when_its_token_is_revoked(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    token = token_for(tmp_path, "page", "read:operations")
    with (
        served(shop(fresh("streamed")), cluster, tmp_path) as http,
        contextlib.closing(HTTPConnection("127.0.0.1", http.port, timeout=60)) as connection,
    ):
        login = {"Authorization": f"Bearer {token}"}
        connection.request("GET", "/v1/app/now/stream?every_ms=50", headers=login)
        answer = connection.getresponse()
        assert answer.headers["content-type"].startswith("text/event-stream")
        seen = [_event(answer) for _ in range(2)]
        assert seen[0]["at_ms"] < seen[1]["at_ms"]
        TokenBook(tokens_path(tmp_path)).revoke("page")
        # The stream ends within about a second, the time for which a token check is cached.
        lines = list(itertools.islice(iter(answer.readline, b""), _LINES_MAX))
        assert len(lines) < _LINES_MAX


def test_a_stopped_part_of_a_run_is_reported_as_the_cause(
    log: Server, cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    name = fresh("live")
    app = App(name)
    products = app.table(f"{name}-products", Product, key="product_id")
    orders = app.topic(f"{name}-orders", Order, key="order_id")
    app.view(f"{name}-good", products)
    (tmp_path / "broken.db").write_text("this is no database " * 100)
    app.view(f"{name}-broken", orders, store=SQLite(str(tmp_path / "broken.db")))
    app.alert("any", "lag >= 0", on=app.views[0])
    with _run(app, log.bootstrap, tmp_path / "data", feed="shop.traffic:feed") as http:
        nodes = http.get("/v1/app").expect(200)["nodes"]
        assert {node["name"] for node in nodes if node["kind"] == "source"} == {"shop.traffic:feed"}
        _write(http, products.name, 5)

        def settled() -> Any:
            result = _read_app_now(http)
            good, broken = (result["nodes"][f"view:{view.name}"] for view in app.views)
            is_done = good["applied"] == 5 and broken["state"] == "failed" and result["alerts"]
            return result if is_done and good["lag"]["records"] == 0 else None

        now = until(settled, "both views")
        assert now["live"] is True
        good, broken = (now["nodes"][f"view:{view.name}"] for view in app.views)
        assert (good["state"], good["cause"], good["dead"], good["differs"]) == ("following", False, 0, False)
        assert good["position"]["offsets"] == {"0": 5}
        assert broken["cause"] is True
        assert now["health"]["state"] == "bad"
        first = now["health"]["lines"][0]
        assert f"view {name}-broken has stopped: " in first["text"]
        assert "broken.db" in first["text"]
        assert first["next"]
        assert first["path"] == ["views", f"{name}-broken"]
        assert f"alert any: view {name}-good" in _texts(now)
        edge = now["edges"][f"topic:{products.name}>view:{name}-good"]
        assert edge["lag"]["records"] == 0
        alerts = http.get("/v1/alerts").expect(200)
        assert alerts["rules"] == [{"alert": "any", "when": f"lag >= 0 on view {name}-good"}]
        assert [alert["alert"] for alert in alerts["firing"]] == ["any"]
        changes = until(lambda: http.get("/v1/alerts").expect(200)["changes"], "the alerts' topic")
        assert changes[0]["state"] == "firing"


def test_an_unreachable_log_is_reported_until_it_responds(fresh: Fresh, tmp_path: Path) -> None:
    server = start_headrace(tmp_path / "log")
    app = shop(fresh("gone"))
    cluster = Cluster(server.bootstrap, timeout_s=5.0)
    for topic in app.topics:
        ensure_declared(cluster, topic, topic.name, 1)
    with served(app, cluster, tmp_path / "data") as http:
        assert "does not respond" not in _texts(_read_app_now(http))
        server.kill()
        now = until(lambda: _with_line(http, "the log does not respond"), "the problem to be reported")
        assert now["health"]["state"] == "bad"
        assert now["nodes"][f"topic:{app.topics[0].name}"]["end"] == 0
        assert not any(node["cause"] for node in now["nodes"].values())
        server = start_headrace(tmp_path / "log", port=server.port)
        until(lambda: not _with_line(http, "the log does not respond"), "the problem to end")
    server.stop()


def test_a_server_without_an_alert_watch_reads_alerts_from_the_log(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    app = App(fresh("alerted"))
    states = ("firing", "resolved", "firing")
    records = [
        AlertRecord(app.name, "backlog", "view", "v", state, at, at, "lag > 1", "view v: 2 records to read")
        for at, state in enumerate(states)
    ]
    with served(app, cluster, tmp_path) as http, contextlib.closing(AlertLog(cluster, app.name)) as written:
        for record in records:
            written.write([record])
        # The firing alerts come from the last sample. The changes can be newer than that sample.
        body = until(
            lambda: _document_if(
                http.get("/v1/alerts").expect(200),
                lambda document: (
                    (len(document["changes"]), [alert["at_ms"] for alert in document["firing"]]) == (3, [2])
                ),
            ),
            "all changes",
        )
        assert [change["at_ms"] for change in body["changes"]] == [2, 1, 0]


def _with_line(http: Http, text: str) -> Any:
    return _document_if(_read_app_now(http), lambda document: text in _texts(document))


def _document_if(document: Any, condition: Callable[[Any], bool]) -> Any:
    return document if condition(document) else None


def _event(answer: HTTPResponse) -> Any:
    while not (line := answer.readline()).startswith(b"data: "):
        assert line
    return json.loads(line[6:])
