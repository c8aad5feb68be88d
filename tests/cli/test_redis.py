"""Commands about views that are in Redis."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.client.cluster import Cluster
from tests.cli.runner import Headrace
from tests.cli.test_views import PRODUCTS
from tests.support.redis import fresh_database, shared
from tests.support.server import Server, free_port

APP = "tests.cli.shop_redis:app"
VIEW = "redis-products"


def test_a_view_in_redis_is_followed_listed_described_read_and_looked_at(
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
    (told,) = headrace.ok("view", "follow", APP, *data, "--exit", "--json").json
    assert (told["applied"], told["dead"], told["lag"]) == (3, 1, 0)
    (told,) = headrace.ok("view", "describe", APP, *data, "--json").json
    assert (told["rows"], told["behind"], told["state"], told["dead"]) == (2, 0, "serving", 1)
    rows = headrace.ok("query", APP, VIEW, *data, "--json").json
    apple = {"product_id": "a", "name": "apple", "price": "1.500000", "weight": "Infinity", "picture": "aGk="}
    assert sorted(rows, key=lambda one: str(one["product_id"]))[0] == apple
    assert headrace.ok("verify", APP, *data).code == 0
    looked = headrace.run("doctor", APP, *data, "--json")
    (store,) = [one for one in looked.json if one["check"] == "store"]
    assert (store["state"], f"$SHOP_REDIS, for {VIEW}: redis " in store["text"]) == ("ok", True)

    monkeypatch.setenv("SHOP_REDIS", f"redis://me:s3cr3t@127.0.0.1:{free_port()}/0")
    listed = headrace.run("view", "list", APP, *data, "--json")
    assert (listed.code, listed.json[0]["state"]) == (0, "unknown")
    looked = headrace.run("doctor", APP, *data, "--json")
    (store,) = [one for one in looked.json if one["check"] == "store"]
    assert (store["state"], "does not answer" in store["text"]) == ("missing", True)
    refused = headrace.run("query", APP, VIEW, *data)
    assert refused.code != 0
    assert "does not answer" in refused.err
    for said in (listed, looked, refused):
        assert "s3cr3t" not in said.out + said.err
