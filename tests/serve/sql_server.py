"""One app with a view in every store, and a server with SQL over HTTP and PostgreSQL's protocol.

All tests of SQL share it and leave it unchanged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from faults.serve.http import Http
from faults.serve.local_server import served
from faults.serve.shop_app import Order
from faults.views.follower_thread import following
from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.declared_topics import ensure_declared
from tests.serve.every_store import app_with_every_store, sample_rows

__all__ = [
    "COUNT",
    "ORDERS",
    "connect",
    "run_sql",
    "sql_app",
    "sql_home",
    "sql_http",
    "sql_port",
    "write_rows",
]

COUNT = 120
ORDERS = "odd-Orders"
"""A view whose name needs quotes, with a key of two columns."""


@pytest.fixture(scope="session")
def sql_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sql")


@pytest.fixture(scope="session")
def sql_app(cluster: Cluster, sql_home: Path) -> App:
    app = app_with_every_store("sqltest", sql_home)
    orders = app.topic("sqltest-orders", Order, key="order_id")
    app.view(ORDERS, orders, key=["product_id", "order_id"])
    for topic in app.topics:
        ensure_declared(cluster, topic, topic.name, 2)
    return app


@pytest.fixture(scope="session")
def sql_http(sql_app: App, cluster: Cluster, sql_home: Path) -> Iterator[Http]:
    limits = {"sql_ms": 20_000, "sql_rows_max": 1_000, "sql_memory_mb": 96, "receive_ms": 3_000}
    with contextlib.ExitStack() as stack:
        for view in sql_app.views:
            stack.enter_context(following(cluster, view, [], sql_home))
        client = stack.enter_context(
            served(sql_app, cluster, sql_home, pg_listen="127.0.0.1:0", pg_connections=20, **limits)
        )
        token = write_rows(client, sql_app, sample_rows(COUNT))
        for view in sql_app.views[:-1]:
            run_sql(client, f"SELECT 1 FROM {view.name} LIMIT 1", after=token, wait="30s")
        yield client


@pytest.fixture(scope="session")
def sql_port(sql_http: Http) -> int:
    return sql_http.server.pg_port  # type: ignore[attr-defined,no-any-return]


def write_rows(http: Http, app: App, rows: list[dict[str, object]]) -> str:
    path = f"/v1/topics/{app.topics[0].name}/records"
    token: str = http.post(path, {"records": [{"value": row} for row in rows]}).expect(200)["token"]
    return token


def run_sql(http: Http, sql: str, *parameters: Any, **more: Any) -> Any:
    return http.post("/v1/sql", {"sql": sql, "parameters": list(parameters)}, **more).expect(200)


def connect(port: int, **more: Any) -> psycopg.Connection[Any]:
    return psycopg.connect(host="127.0.0.1", port=port, user="me", dbname="shop", connect_timeout=30, **more)
