"""Commands about views that are in folders: full-text indexes and Delta tables."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from faults.servers.server import Server
from headrace.client.cluster import Cluster
from tests.cli.runner import Headrace, Result
from tests.cli.test_views import PRODUCTS

APP = "tests.cli.shop_folders:app"
TOPIC = "folder-products"
APPLE = {"product_id": "a", "name": "apple", "price": "1.500000", "weight": "Infinity", "picture": "aGk="}


@pytest.fixture(scope="module")
def followed(embedded: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory in which both views are up to date."""
    data, headrace = tmp_path_factory.mktemp("folders"), Headrace(embedded.bootstrap)
    listed = headrace.ok("view", "list", APP, "--data", str(data), "--json").json
    assert [(row["state"], row["store"]) for row in listed] == [
        ("not built", str(data / "shop.search")),
        ("not built", str(data / "shop.lake")),
    ]
    Cluster(embedded.bootstrap).ensure_topic(TOPIC, 2)
    headrace.ok("produce", TOPIC, "-f", "%k\t%v\n", stdin=PRODUCTS)
    document = headrace.ok("view", "follow", APP, "--data", str(data), "--exit", "--json").json
    assert [(item["applied"], item["dead"], item["lag"]) for item in document] == [(3, 1, 0), (3, 1, 0)]
    return data


@pytest.fixture
def data(followed: Path, tmp_path: Path) -> Path:
    """A copy of the data directory that the test may damage."""
    shutil.copytree(followed, tmp_path / "data")
    return tmp_path / "data"


def test_views_in_folders_are_described_read_and_proven(headrace: Headrace, followed: Path) -> None:
    data = ("--data", str(followed))
    document = headrace.ok("view", "describe", APP, *data, "--json").json
    assert [(item["rows"], item["behind"], item["state"], item["dead"]) for item in document] == [
        (2, 0, "serving", 1)
    ] * 2
    for view in ("found", "lake"):
        rows = headrace.ok("query", APP, view, *data, "--json").json
        assert sorted(rows, key=lambda item: str(item["product_id"]))[0] == APPLE
    assert headrace.ok("verify", APP, *data).code == 0


def matched(headrace: Headrace, data: Path, view: str, words: str, *more: str) -> Result:
    return headrace.run("query", APP, view, "--match", words, "--data", str(data), "--json", *more)


def test_rows_are_found_by_their_words(headrace: Headrace, followed: Path) -> None:
    assert matched(headrace, followed, "found", "APPLE").json == [APPLE]
    assert [row["product_id"] for row in matched(headrace, followed, "found", "bar").json] == ["b"]
    assert matched(headrace, followed, "found", "apple -apple").json == []
    both = matched(headrace, followed, "found", "apple bar", "--limit", "1")
    assert (len(both.json), "more rows exist" in both.err) == (1, True)


def test_an_invalid_search_is_an_error_with_a_hint(headrace: Headrace, followed: Path) -> None:
    wrong = {"found": ['"half', "price:1", "(" * 100_000], "lake": ["apple"]}
    for view, every in wrong.items():
        for words in every:
            document = matched(headrace, followed, view, words)
            assert document.code not in (0, 70), document
            assert (document.out, document.err.count("Traceback")) == ("", 0)
    assert "column:word" in matched(headrace, followed, "found", '"half').err
    assert "has no full-text index" in matched(headrace, followed, "lake", "apple").err
    select = headrace.run("query", APP, "SELECT 1", "--match", "apple", "--data", str(followed))
    assert "--match cannot be combined with SQL" in select.err


def stores(headrace: Headrace, data: Path) -> list[dict[str, Any]]:
    found = headrace.run("doctor", APP, "--data", str(data), "--json").json
    return [item for item in found if item["check"] == "store"]


def test_doctor_checks_folders(headrace: Headrace, data: Path, tmp_path: Path) -> None:
    document = stores(headrace, data)
    assert [(item["state"], item["text"]) for item in document] == [
        ("ok", f"{data / 'shop.search'}, for found"),
        ("ok", f"{data / 'shop.lake'}, for lake"),
    ]
    unmade = stores(headrace, tmp_path / "none")
    assert [(item["state"], "the first start creates it" in item["text"]) for item in unmade] == [
        ("ok", True)
    ] * 2
    assert not (tmp_path / "none").exists()
    max((data / "shop.search" / "found" / "catalog").glob("*.json")).write_text("{")
    shutil.rmtree(data / "shop.lake")
    (data / "shop.lake").touch()
    document = stores(headrace, data)
    assert [item["state"] for item in document] == ["missing", "missing"]
    assert "is damaged" in document[0]["text"]
    assert all(item["hint"] for item in document)


def test_a_damaged_view_does_not_block_another(headrace: Headrace, data: Path) -> None:
    shutil.copytree(data / "shop.search" / "found", data / "shop.search" / "other")
    max((data / "shop.search" / "other" / "catalog").glob("*.json")).write_text("{")
    assert matched(headrace, data, "found", "apple").json == [APPLE]
    (data / "shop.lake" / "_headrace" / "lake").rename(data / "shop.lake" / "_headrace" / "lost")
    shutil.copytree(data / "shop.lake" / "lake", data / "shop.lake" / "lost")
    max((data / "shop.lake" / "lost" / "_delta_log").glob("*.json")).write_text("{")
    assert len(headrace.ok("query", APP, "lake", "--data", str(data), "--json").json) == 2
