"""Integrity before timeliness: a stalled part serves its last whole batch, and its lag is visible."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from faults.views.follower_thread import following, produce
from faults.views.scripted_flow import Change, ScriptedFlow
from faults.wait import until
from headrace.client.cluster import Cluster
from tests.cli.runner import Headrace

Fresh = Callable[[str], str]
SALE = b'{"product":"p%d","amount":%d,"note":null}'


def row(number: int) -> Change:
    return f"p{number}", {"product": f"p{number}", "amount": number, "note": None}


class Shop:
    """A flow that a test drives, its view, and the commands that show them."""

    def __init__(self, cluster: Cluster, name: str, home: Path) -> None:
        self.flow = ScriptedFlow(cluster, name, partitions=1)
        self.cluster = cluster
        self.home = home
        self._headrace = Headrace(cluster.bootstrap)
        cluster.ensure_topic(self.source, 1)
        module = name.replace("-", "_")
        text = f"from faults.views.scripted_flow import view_of\napp, _, _ = view_of({name!r})\n"
        (home / f"{module}.py").write_text(text)
        self.module = f"{module}:app"

    @property
    def source(self) -> str:
        return self.flow.flow.reads[0].name

    def order(self, count: int) -> None:
        produce(
            self.cluster, self.source, [(b"p%d" % number, SALE % (number, number)) for number in range(count)]
        )

    def run(self, *words: str) -> Any:
        return self._headrace.run(*words)

    def lag(self) -> dict[str, dict[str, Any]]:
        done = self.run("lag", "--app", self.module, "--over", "0", "--data", str(self.home), "--json")
        assert done.code == 0, done.err
        return {row["what"]: row for row in done.json}

    def served(self) -> list[dict[str, Any]]:
        done = self.run("query", str(self.home / "shop.db"), self.flow.view.name, "--json")
        assert done.code == 0, done.err
        return list(done.json)


@pytest.fixture
def shop(cluster: Cluster, fresh: Fresh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.chdir(tmp_path)
    return Shop(cluster, fresh("late"), tmp_path)


def test_a_stalled_flow_lags_and_its_view_serves_the_last_complete_batch(
    shop: Shop,
) -> None:
    assert {part: value["state"] for part, value in shop.lag().items()} == {
        "flow": "not begun",
        "view": "not built",
    }
    shop.order(5)
    shop.flow.begin()
    shop.flow.batch([row(1), row(2)])
    with following(shop.cluster, shop.flow.view, [shop.flow.flow], shop.home) as followed:
        followed.expect(shop.flow.derived.rows, batch=0)
        # During a batch of any duration: rows are in the log, and no reader sees them.
        shop.flow.stall([row(1), row(3)])
        result = shop.lag()
        assert (result["flow"]["lag"], result["flow"]["batch"], result["flow"]["state"]) == (3, 0, "begun")
        assert result["flow"]["age_s"] >= 0
        assert (result["view"]["batches"], result["view"]["lag"], result["view"]["age_s"]) == (0, 0, 0.0)
        assert shop.served() == [row(1)[1], row(2)[1]]
        refused = shop.run("lag", "--app", shop.module, "--fail-above", "2", "--over", "0")
        assert (refused.code, f"flow {shop.flow.flow.name} has 3" in refused.err) == (5, True)


def test_a_view_whose_follower_cannot_write_lags_and_serves_its_last_batch(
    shop: Shop,
) -> None:
    shop.flow.begin()
    shop.flow.batch([row(1)])
    with following(shop.cluster, shop.flow.view, [shop.flow.flow], shop.home) as followed:
        followed.expect(shop.flow.derived.rows, batch=0)
        with contextlib.closing(sqlite3.connect(followed.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            shop.flow.batch([row(1), row(2)])
            shop.flow.batch([row(3)])
            followed.until_state("waiting", "another program is writing")
            assert followed.follower.status.position is not None
            result = shop.lag()["view"]
            assert (result["state"], result["batch"], result["batches"]) == ("serving", 0, 2)
            assert result["lag"] >= 3
            assert result["age_s"] >= 0
            assert shop.served() == [row(1)[1]]
            other.execute("ROLLBACK")
        followed.expect(shop.flow.derived.rows, batch=2)
        until(lambda: shop.lag()["view"]["batches"] == 0, "the view is up to date")


def test_lag_shows_both_generations_until_the_new_one_serves(shop: Shop) -> None:
    shop.flow.begin()
    shop.flow.batch([row(1), row(2)])
    with following(shop.cluster, shop.flow.view, [shop.flow.flow], shop.home) as followed:
        followed.expect(shop.flow.derived.rows, batch=0)
        shop.flow.begin()
        followed.until_state("rebuilding", "generation 2")
        result = shop.lag()["view"]
        assert (result["generation"], result["lag"]) == (1, None)
        assert result["state"] == "rebuilding; the flow's generation is 2"
        assert shop.served() == [row(1)[1], row(2)[1]]
        shop.flow.batch([row(1), row(2)])
        followed.expect(shop.flow.derived.rows, batch=0, generation=2)
        until(lambda: shop.lag()["view"]["lag"] == 0, "the new generation serves")
