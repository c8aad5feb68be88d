"""Three stories about copies of data: five stores that follow one log, compared with last night's dump
(``four-stores``); read models that are added while the app runs (``cqrs``); a store that is replaced (``swap-store``).

SHOP_DATABASE=postgresql://... SHOP_REDIS=redis://... python -m examples.shop.copies
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from subprocess import Popen

from examples.shop import app as shop
from examples.shop.everywhere import app as everywhere
from examples.shop.traffic import Traffic
from examples.stage import Stage, on_stage
from headrace.stores.registry import open_reader

__all__ = ["Outcome", "play"]

_APP = "examples.shop.everywhere:app"
_PRODUCTS = 20
_ADDED = [view for view in everywhere.views if view not in shop.views]


@dataclass
class Outcome:
    """The results of the story, for its test."""

    dump: set[str] = field(default_factory=set)
    """The orders in last night's dump."""
    served_at_least: int = 0
    """The lowest number of rows that the old read model served while the new ones filled."""
    rows: dict[str, int] = field(default_factory=dict)
    switched: list[dict[str, str]] = field(default_factory=list)
    answered: set[str] = field(default_factory=set)
    """The orders that readers of "sales" get after PostgreSQL serves the name."""
    left_behind: int = 0
    generations: set[int] = field(default_factory=set)


def play(stage: Stage) -> Outcome:
    outcome = Outcome()
    stage.declare(shop)
    traffic = Traffic(stage.cluster)
    with stage.running(shop) as run:
        for number in range(_PRODUCTS):
            traffic.price(number)
        _trade(traffic, orders=300, clicks=200)
        traffic.nonsense()
        traffic.flush()
        stage.settle(run)
        outcome.dump = _sales(stage)

        stage.say("cqrs: add four read models of each topic while the old one serves")
        follower = stage.start("view", "follow", _APP, *(view.name for view in _ADDED))
        try:
            outcome.served_at_least = len(outcome.dump)
            _trade(traffic, orders=100, clicks=0)
            traffic.price(3)
            traffic.flush()
            stage.settle(run)
            stage.served(everywhere, _ADDED, lambda: _watch_old_model(stage, outcome, follower))
            _report_copies(stage, outcome)
            _swap(stage, outcome)
            _trade(traffic, orders=20, clicks=0)
            traffic.flush()
            stage.settle(run)
            stage.served(everywhere, _ADDED, lambda: _watch_old_model(stage, outcome, follower))
            outcome.answered = _queried(stage)
            is_equal = outcome.answered == _sales(stage)
            stage.say(
                f"  after 20 more orders it has {'the same rows as' if is_equal else 'OTHER rows than'} SQLite"
            )
            outcome.generations = {flow.current.generation.generation for flow in run.flows if flow.current}
            _switch_back(stage)
        finally:
            follower.send_signal(signal.SIGINT)
            follower.communicate(timeout=60)
    return outcome


def _trade(traffic: Traffic, *, orders: int, clicks: int) -> None:
    now = datetime.now(UTC)
    for _ in range(orders):
        traffic.order(now)
    for _ in range(clicks):
        traffic.click(now)


# The stories cqrs and four-stores


def _watch_old_model(stage: Stage, outcome: Outcome, follower: Popen[str]) -> None:
    """Count the rows that the old read model serves while the new ones fill."""
    assert follower.poll() is None, follower.communicate()[1]
    outcome.served_at_least = min(outcome.served_at_least, len(_sales(stage)))


def _report_copies(stage: Stage, outcome: Outcome) -> None:
    for view in everywhere.views:
        if view.topic.name == "sales":
            reader = open_reader(view, everywhere.name, stage.data)
            assert reader is not None
            with closing(reader):
                outcome.rows[view.name] = reader.count(view.name)
    stage.say(f"  filled from the first offset: {len(_ADDED)} of {len(_ADDED)}")
    kept = outcome.served_at_least >= len(outcome.dump)
    stage.say(f"  meanwhile the old read model served {'all its rows' if kept else 'FEWER rows than before'}")
    stage.say("four-stores: number of sales in each store")
    for name, count in outcome.rows.items():
        stage.say(f"  {name}: {count}")
    outcome.left_behind = outcome.rows["sales"] - len(outcome.dump)
    stage.say(
        f"  last night's dump, for comparison: {len(outcome.dump)}, {outcome.left_behind} sales are missing"
    )


# The story swap-store


def _swap(stage: Stage, outcome: Outcome) -> None:
    stage.say('swap-store: PostgreSQL serves the name "sales"')
    done = stage.headrace("view", "switch", _APP, "sales", "sales_sql", "--wait", "60", "--json")
    assert done.returncode == 0, done.stderr
    outcome.switched = [json.loads(line) for line in done.stdout.splitlines()]
    (switched,) = outcome.switched
    stage.say(f"  before: {switched['before']}, now: {switched['now']}")


def _queried(stage: Stage) -> set[str]:
    done = stage.headrace("query", _APP, "sales", "--json", "--limit", "0")
    assert done.returncode == 0, done.stderr
    return {json.loads(line)["order_id"] for line in done.stdout.splitlines()}


def _switch_back(stage: Stage) -> None:
    done = stage.headrace("view", "switch", _APP, "sales", "sales", "--wait", "60")
    assert done.returncode == 0, done.stderr


def _sales(stage: Stage) -> set[str]:
    """Return the orders that SQLite serves."""
    with closing(sqlite3.connect(stage.data / f"{shop.name}.db")) as store:
        return {order for (order,) in store.execute("SELECT order_id FROM sales")}


if __name__ == "__main__":
    missing = [name for name in ("SHOP_DATABASE", "SHOP_REDIS") if name not in os.environ]
    if missing:
        sys.exit(f"set {' and '.join(missing)} to the address of a PostgreSQL or Redis server")
    on_stage(play)
