"""Commands about views that are in folders: full-text indexes and Delta tables."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from headrace.client.cluster import Cluster
from tests.cli.runner import Headrace, Result
from tests.cli.test_views import PRODUCTS
from tests.support.server import Server

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
    told = headrace.ok("view", "follow", APP, "--data", str(data), "--exit", "--json").json
    assert [(one["applied"], one["dead"], one["lag"]) for one in told] == [(3, 1, 0), (3, 1, 0)]
    return data


@pytest.fixture
def data(followed: Path, tmp_path: Path) -> Path:
    """One's own copy, to do harm to."""
    shutil.copytree(followed, tmp_path / "data")
    return tmp_path / "data"


def test_views_in_folders_are_described_read_and_proven(headrace: Headrace, followed: Path) -> None:
    data = ("--data", str(followed))
    told = headrace.ok("view", "describe", APP, *data, "--json").json
    assert [(one["rows"], one["behind"], one["state"], one["dead"]) for one in told] == [
        (2, 0, "serving", 1)
    ] * 2
    for view in ("found", "lake"):
        rows = headrace.ok("query", APP, view, *data, "--json").json
        assert sorted(rows, key=lambda one: str(one["product_id"]))[0] == APPLE
    assert headrace.ok("verify", APP, *data).code == 0


def matched(headrace: Headrace, data: Path, view: str, words: str, *more: str) -> Result:
    return headrace.run("query", APP, view, "--match", words, "--data", str(data), "--json", *more)


def test_rows_are_found_by_their_words(headrace: Headrace, followed: Path) -> None:
    assert matched(headrace, followed, "found", "APPLE").json == [APPLE]
    assert [row["product_id"] for row in matched(headrace, followed, "found", "bar").json] == ["b"]
    assert matched(headrace, followed, "found", "apple -apple").json == []
    both = matched(headrace, followed, "found", "apple bar", "--limit", "1")
    assert (len(both.json), "there are more rows" in both.err) == (1, True)


def test_words_that_cannot_be_searched_for_are_told_with_how_to(headrace: Headrace, followed: Path) -> None:
    wrong = {"found": ['"half', "price:1", "(" * 100_000], "lake": ["apple"]}
    for view, every in wrong.items():
        for words in every:
            told = matched(headrace, followed, view, words)
            assert told.code not in (0, 70), told
            assert (told.out, told.err.count("Traceback")) == ("", 0)
    assert "column:word" in matched(headrace, followed, "found", '"half').err
    assert "has no full-text index" in matched(headrace, followed, "lake", "apple").err
    select = headrace.run("query", APP, "SELECT 1", "--match", "apple", "--data", str(followed))
    assert "--match searches one view" in select.err


def stores(headrace: Headrace, data: Path) -> list[dict[str, Any]]:
    found = headrace.run("doctor", APP, "--data", str(data), "--json").json
    return [one for one in found if one["check"] == "store"]


def test_doctor_looks_at_folders(headrace: Headrace, data: Path, tmp_path: Path) -> None:
    told = stores(headrace, data)
    assert [(one["state"], one["text"]) for one in told] == [
        ("ok", f"{data / 'shop.search'}, for found"),
        ("ok", f"{data / 'shop.lake'}, for lake"),
    ]
    unmade = stores(headrace, tmp_path / "none")
    assert [(one["state"], "made by the first start" in one["text"]) for one in unmade] == [("ok", True)] * 2
    assert not (tmp_path / "none").exists()
    max((data / "shop.search" / "found" / "catalog").glob("*.json")).write_text("{")
    shutil.rmtree(data / "shop.lake")
    (data / "shop.lake").touch()
    told = stores(headrace, data)
    assert [one["state"] for one in told] == ["missing", "missing"]
    assert "is damaged" in told[0]["text"]
    assert all(one["hint"] for one in told)


def test_one_view_that_is_damaged_does_not_keep_another_from_being_read(
    headrace: Headrace, data: Path
) -> None:
    shutil.copytree(data / "shop.search" / "found", data / "shop.search" / "other")
    max((data / "shop.search" / "other" / "catalog").glob("*.json")).write_text("{")
    assert matched(headrace, data, "found", "apple").json == [APPLE]
    (data / "shop.lake" / "_headrace" / "lake").rename(data / "shop.lake" / "_headrace" / "lost")
    shutil.copytree(data / "shop.lake" / "lake", data / "shop.lake" / "lost")
    max((data / "shop.lake" / "lost" / "_delta_log").glob("*.json")).write_text("{")
    assert len(headrace.ok("query", APP, "lake", "--data", str(data), "--json").json) == 2
