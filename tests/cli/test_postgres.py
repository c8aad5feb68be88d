"""Commands about views that are in PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.servers.postgres import shared_server
from faults.servers.server import Server, free_port
from headrace.client.cluster import Cluster
from tests.cli.runner import Headrace
from tests.cli.test_views import PRODUCTS

APP = "tests.cli.shop_postgres:app"
VIEW = "pg-products"


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    server = shared_server()
    database = server.database()
    monkeypatch.setenv("SHOP_DATABASE", server.url(database))
    yield server.url(database)
    server.drop(database)


def test_a_view_in_postgres_is_followed_listed_described_read_and_checked(
    embedded: Server, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    headrace, data = Headrace(embedded.bootstrap), ("--data", str(tmp_path))
    (row,) = headrace.ok("view", "list", APP, *data, "--json").json
    assert (row["state"], row["store"]) == ("not built", "$SHOP_DATABASE, schema cli")
    Cluster(embedded.bootstrap).ensure_topic(VIEW, 2)
    headrace.ok("produce", VIEW, "-f", "%k\t%v\n", stdin=PRODUCTS)
    (document,) = headrace.ok("view", "follow", APP, *data, "--exit", "--json").json
    assert (document["applied"], document["dead"], document["lag"]) == (3, 1, 0)
    (document,) = headrace.ok("view", "describe", APP, *data, "--json").json
    assert (document["rows"], document["behind"], document["state"], document["dead"]) == (2, 0, "serving", 1)
    rows = headrace.ok("query", APP, VIEW, *data, "--json").json
    apple = {"product_id": "a", "name": "apple", "price": "1.500000", "weight": "Infinity", "picture": "aGk="}
    assert sorted(rows, key=lambda item: str(item["product_id"]))[0] == apple
    assert headrace.ok("verify", APP, *data).code == 0
    found = headrace.run("doctor", APP, *data, "--json").json
    (store,) = [item for item in found if item["check"] == "store"]
    assert (store["state"], VIEW in store["text"]) == ("ok", True)

    without_broker = f"postgresql://shop:s3cr3t@127.0.0.1:{free_port()}/shop"
    monkeypatch.setenv("SHOP_DATABASE", without_broker)
    listed = headrace.run("view", "list", APP, *data, "--json")
    assert (listed.code, listed.json[0]["state"]) == (0, "unknown")
    assert "cannot reach" in listed.err
    found = headrace.run("doctor", APP, *data, "--json")
    (store,) = [item for item in found.json if item["check"] == "store"]
    assert store["state"] == "missing"
    refused = headrace.run("query", APP, VIEW, *data)
    assert refused.code != 0
    assert "cannot reach" in refused.err
    monkeypatch.delenv("SHOP_DATABASE")
    unset = headrace.run("query", APP, VIEW, *data)
    assert "SHOP_DATABASE is not set" in unset.err
    for output in (listed, found, refused, unset):
        assert "s3cr3t" not in output.out + output.err
