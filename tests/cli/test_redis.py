"""Commands about views that are in Redis."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.servers.redis import fresh_database, shared
from faults.servers.server import Server, free_port
from headrace.client.cluster import Cluster
from tests.cli.runner import Headrace
from tests.cli.test_views import PRODUCTS

APP = "tests.cli.shop_redis:app"
VIEW = "redis-products"


def test_a_view_in_redis_is_followed_listed_described_read_and_checked(
    embedded: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = fresh_database()
    monkeypatch.setenv("SHOP_REDIS", f"{shared().url}?db={database}")
    shared().client(database).flushdb()
    headrace, data = Headrace(embedded.bootstrap), ("--data", str(tmp_path))
    (row,) = headrace.ok("view", "list", APP, *data, "--json").json
    assert (row["state"], row["store"]) == ("not built", "$SHOP_REDIS, prefix shop:")
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
    checked = headrace.run("doctor", APP, *data, "--json")
    (store,) = [item for item in checked.json if item["check"] == "store"]
    assert (store["state"], f", for {VIEW}: redis " in store["text"]) == ("ok", True)

    monkeypatch.setenv("SHOP_REDIS", f"redis://me:s3cr3t@127.0.0.1:{free_port()}/0")
    listed = headrace.run("view", "list", APP, *data, "--json")
    assert (listed.code, listed.json[0]["state"]) == (0, "unknown")
    checked = headrace.run("doctor", APP, *data, "--json")
    (store,) = [item for item in checked.json if item["check"] == "store"]
    assert (store["state"], "no response" in store["text"]) == ("missing", True)
    refused = headrace.run("query", APP, VIEW, *data)
    assert refused.code != 0
    assert "no response" in refused.err
    for output in (listed, checked, refused):
        assert "s3cr3t" not in output.out + output.err
