"""``headrace view switch``: a new store replaces the old one, and readers use the same name."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.servers.server import Server, free_port
from headrace.client.cluster import Cluster
from tests.cli.runner import Headrace

APP = "tests.cli.replaced"


@pytest.fixture
def shop(embedded: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Headrace:
    """An app with a filled store, before any switch."""
    monkeypatch.chdir(tmp_path)
    cluster = Cluster(embedded.bootstrap)
    cluster.ensure_topic("replaced-items", 2, {"cleanup.policy": "compact"})
    cluster.ensure_topic("replaced-others", 1, {"cleanup.policy": "compact"})
    headrace = Headrace(embedded.bootstrap)
    put(headrace, "a", 1)
    headrace.ok("view", "follow", f"{APP}:before", "--exit")
    headrace.ok("view", "switch", f"{APP}:before", "stock", "stock")
    return headrace


def put(headrace: Headrace, item: str, pieces: int) -> None:
    line = f'{item}\t{{"item_id":"{item}","pieces":{pieces}}}\n'.encode()
    headrace.ok("produce", "replaced-items", "-f", "%k\t%v\n", stdin=line)


def refused(headrace: Headrace, *words: str) -> str:
    result = headrace.run(*words)
    assert result.code == 1, result.err
    return result.err


def pieces(headrace: Headrace, app: str, name: str = "stock") -> dict[str, int]:
    rows = headrace.ok("query", f"{APP}:{app}", name, "--json").json
    return {row["item_id"]: row["pieces"] for row in rows}


def test_a_store_is_replaced_and_readers_keep_their_name(shop: Headrace) -> None:
    shop.ok("view", "follow", f"{APP}:both", "--exit")
    assert shop.ok("view", "switch", f"{APP}:both", "stock", "stock_new", "--json").json == [
        {"name": "stock", "before": "stock", "now": "stock_new"}
    ]
    # From now on only the new store is followed, and the name returns its rows.
    put(shop, "a", 2)
    shop.ok("view", "follow", f"{APP}:after", "--exit")
    assert pieces(shop, "after")["a"] == 2
    assert pieces(shop, "both")["a"] == 2
    # The old file is unchanged, and can be read under its own name.
    rows = shop.ok("query", "old.db", "stock", "--json").json
    assert next(row for row in rows if row["item_id"] == "a")["pieces"] == 1
    # Switch back.
    shop.ok("view", "follow", f"{APP}:both", "stock", "--exit")
    shop.ok("view", "switch", f"{APP}:both", "stock", "stock")
    assert pieces(shop, "before")["a"] == 2


def test_a_view_that_has_not_caught_up_does_not_get_the_name(shop: Headrace) -> None:
    document = refused(shop, "view", "switch", f"{APP}:both", "stock", "stock_new")
    assert "does not serve yet" in document
    shop.ok("view", "follow", f"{APP}:both", "stock_new", "--exit")
    put(shop, "b", 1)
    put(shop, "c", 1)
    shop.ok("view", "follow", f"{APP}:both", "stock", "--exit")
    document = refused(shop, "view", "switch", f"{APP}:both", "stock", "stock_new")
    assert "2 records behind" in document
    assert "--wait" in document
    assert pieces(shop, "both")["c"] == 1


def test_a_name_is_not_switched_to_other_rows(shop: Headrace) -> None:
    document = refused(shop, "view", "switch", f"{APP}:other", "stock", "elsewhere")
    assert "different topics replaced-items and replaced-others" in document


def test_an_unknown_view_cannot_be_switched(shop: Headrace) -> None:
    assert "has no view 'none'" in refused(shop, "view", "switch", f"{APP}:both", "stock", "none")
    assert "has no view 'none'" in refused(shop, "view", "switch", f"{APP}:both", "none", "stock")


def test_without_a_broker_a_name_is_served_by_its_own_view(shop: Headrace) -> None:
    without_broker = Headrace(f"127.0.0.1:{free_port()}")
    assert pieces(without_broker, "before")["a"] == 1
