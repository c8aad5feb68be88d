"""Integrity before timeliness: what cannot go on serves its last whole batch, and everybody sees how late it is."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.faults.flow_by_hand import Change, FlowByHand
from headrace.client.cluster import Cluster
from tests.cli.runner import Headrace
from tests.support.waiting import until
from tests.views.seeing import following, produce

Fresh = Callable[[str], str]
SALE = b'{"product":"p%d","amount":%d,"note":null}'


def row(number: int) -> Change:
    return f"p{number}", {"product": f"p{number}", "amount": number, "note": None}


class Shop:
    """A flow that a test drives, its view, and the commands that look at them."""

    def __init__(self, cluster: Cluster, name: str, home: Path) -> None:
        self.flow = FlowByHand(cluster, name, partitions=1)
        self.cluster = cluster
        self.home = home
        self._headrace = Headrace(cluster.bootstrap)
        cluster.ensure_topic(self.source, 1)
        module = name.replace("-", "_")
        text = f"from bench.faults.flow_by_hand import view_of\napp, _, _ = view_of({name!r})\n"
        (home / f"{module}.py").write_text(text)
        self.module = f"{module}:app"

    @property
    def source(self) -> str:
        return self.flow.flow.reads[0].name

    def order(self, count: int) -> None:
        produce(self.cluster, self.source, [(b"p%d" % one, SALE % (one, one)) for one in range(count)])

    def run(self, *words: str) -> Any:
        return self._headrace.run(*words)

    def lag(self) -> dict[str, dict[str, Any]]:
        done = self.run("lag", "--app", self.module, "--over", "0", "--data", str(self.home), "--json")
        assert done.code == 0, done.err
        return {one["what"]: one for one in done.json}

    def served(self) -> list[dict[str, Any]]:
        done = self.run("query", str(self.home / "shop.db"), self.flow.view.name, "--json")
        assert done.code == 0, done.err
        return list(done.json)


@pytest.fixture
def shop(cluster: Cluster, fresh: Fresh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.chdir(tmp_path)
    return Shop(cluster, fresh("late"), tmp_path)


def test_a_flow_that_has_stalled_is_late_by_records_and_time_and_its_view_serves_its_last_whole_batch(
    shop: Shop,
) -> None:
    assert {what: one["state"] for what, one in shop.lag().items()} == {
        "flow": "not begun",
        "view": "not built",
    }
    shop.order(5)
    shop.flow.begin()
    shop.flow.batch([row(1), row(2)])
    with following(shop.cluster, shop.flow.view, [shop.flow.flow], shop.home) as followed:
        followed.expect(shop.flow.derived.rows, batch=0)
        # In the middle of a batch, for as long as it likes: rows are in the log, and nobody sees them.
        shop.flow.stall([row(1), row(3)])
        told = shop.lag()
        assert (told["flow"]["lag"], told["flow"]["batch"], told["flow"]["state"]) == (3, 0, "begun")
        assert told["flow"]["age_s"] >= 0
        assert (told["view"]["batches"], told["view"]["lag"], told["view"]["age_s"]) == (0, 0, 0.0)
        assert shop.served() == [row(1)[1], row(2)[1]]
        refused = shop.run("lag", "--app", shop.module, "--fail-above", "2", "--over", "0")
        assert (refused.code, f"flow {shop.flow.flow.name} by 3" in refused.err) == (5, True)


def test_a_view_whose_follower_cannot_write_is_late_by_batches_and_serves_its_last_whole_one(
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
            followed.until_state("waiting", "written by somebody else")
            assert followed.follower.status.position is not None
            told = shop.lag()["view"]
            assert (told["state"], told["batch"], told["batches"]) == ("serving", 0, 2)
            assert told["lag"] >= 3
            assert told["age_s"] >= 0
            assert shop.served() == [row(1)[1]]
            other.execute("ROLLBACK")
        followed.expect(shop.flow.derived.rows, batch=2)
        until(lambda: shop.lag()["view"]["batches"] == 0, "the view is up to date")


def test_a_view_of_a_generation_that_is_past_says_so_until_the_next_one_serves(shop: Shop) -> None:
    shop.flow.begin()
    shop.flow.batch([row(1), row(2)])
    with following(shop.cluster, shop.flow.view, [shop.flow.flow], shop.home) as followed:
        followed.expect(shop.flow.derived.rows, batch=0)
        shop.flow.begin()
        followed.until_state("rebuilding", "generation 2")
        told = shop.lag()["view"]
        assert (told["generation"], told["lag"]) == (1, None)
        assert told["state"] == "rebuilding; the flow's generation is 2"
        assert shop.served() == [row(1)[1], row(2)[1]]
        shop.flow.batch([row(1), row(2)])
        followed.expect(shop.flow.derived.rows, batch=0, generation=2)
        until(lambda: shop.lag()["view"]["lag"] == 0, "the new one serves")
