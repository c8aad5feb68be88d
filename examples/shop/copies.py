"""Three stories of copies: five stores that follow one log, and a dump of last night (``four-stores``); read models
that are added while it runs (``cqrs``); a store that is replaced (``swap-store``).

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
from headrace.views.opening import open_reader

__all__ = ["Told", "play"]

_APP = "examples.shop.everywhere:app"
_PRODUCTS = 20
_ADDED = [view for view in everywhere.views if view not in shop.views]


@dataclass
class Told:
    """What the story found, for whoever wants to hold it against something else."""

    dump: set[str] = field(default_factory=set)
    """Orders that last night's dump has."""
    served_at_least: int = 0
    """Rows of the old read model at any moment while the others filled."""
    rows: dict[str, int] = field(default_factory=dict)
    switched: list[dict[str, str]] = field(default_factory=list)
    answered: set[str] = field(default_factory=set)
    """Orders that who asks for "sales" is told of, when PostgreSQL answers."""
    left_behind: int = 0
    generations: set[int] = field(default_factory=set)


def play(stage: Stage) -> Told:
    told = Told()
    stage.declare(shop)
    traffic = Traffic(stage.cluster)
    with stage.running(shop) as run:
        for number in range(_PRODUCTS):
            traffic.price(number)
        _trade(traffic, orders=300, clicks=200)
        traffic.nonsense()
        traffic.flush()
        stage.settle(run)
        told.dump = _sales(stage)

        stage.say("cqrs: four more read models of each topic, beside the one that serves")
        follower = stage.start("view", "follow", _APP, *(view.name for view in _ADDED))
        try:
            told.served_at_least = len(told.dump)
            _trade(traffic, orders=100, clicks=0)
            traffic.price(3)
            traffic.flush()
            stage.settle(run)
            stage.served(everywhere, _ADDED, lambda: _look(stage, told, follower))
            _tell_of_copies(stage, told)
            _swap(stage, told)
            _trade(traffic, orders=20, clicks=0)
            traffic.flush()
            stage.settle(run)
            stage.served(everywhere, _ADDED, lambda: _look(stage, told, follower))
            told.answered = _asked(stage)
            alike = told.answered == _sales(stage)
            stage.say(f"  20 orders later it has {'the same as' if alike else 'OTHERS than'} the old one")
            told.generations = {one.current.generation.generation for one in run.flows if one.current}
            _back(stage)
        finally:
            follower.send_signal(signal.SIGINT)
            follower.communicate(timeout=60)
    return told


def _trade(traffic: Traffic, *, orders: int, clicks: int) -> None:
    now = datetime.now(UTC)
    for _ in range(orders):
        traffic.order(now)
    for _ in range(clicks):
        traffic.click(now)


# 30, cqrs; 18, four-stores


def _look(stage: Stage, told: Told, follower: Popen[str]) -> None:
    """What there is while the others fill."""
    assert follower.poll() is None, follower.communicate()[1]
    told.served_at_least = min(told.served_at_least, len(_sales(stage)))


def _tell_of_copies(stage: Stage, told: Told) -> None:
    for view in everywhere.views:
        if view.topic.name == "sales":
            reader = open_reader(view, everywhere.name, stage.data)
            assert reader is not None
            with closing(reader):
                told.rows[view.name] = reader.count(view.name)
    stage.say(f"  filled from the first offset: {len(_ADDED)} of {len(_ADDED)}")
    kept = told.served_at_least >= len(told.dump)
    stage.say(f"  meanwhile the old one served {'all that it had' if kept else 'FEWER rows than before'}")
    stage.say("four-stores: what each has of the sales")
    for name, count in told.rows.items():
        stage.say(f"  {name}: {count}")
    told.left_behind = told.rows["sales"] - len(told.dump)
    stage.say(f"  the dump of last night: {len(told.dump)}, {told.left_behind} behind")


# 31, swap-store


def _swap(stage: Stage, told: Told) -> None:
    stage.say('swap-store: who asks for "sales" is answered by PostgreSQL')
    done = stage.headrace("view", "switch", _APP, "sales", "sales_sql", "--wait", "60", "--json")
    assert done.returncode == 0, done.stderr
    told.switched = [json.loads(line) for line in done.stdout.splitlines()]
    (switched,) = told.switched
    stage.say(f"  before: {switched['before']}, now: {switched['now']}")


def _asked(stage: Stage) -> set[str]:
    done = stage.headrace("query", _APP, "sales", "--json", "--limit", "0")
    assert done.returncode == 0, done.stderr
    return {json.loads(line)["order_id"] for line in done.stdout.splitlines()}


def _back(stage: Stage) -> None:
    done = stage.headrace("view", "switch", _APP, "sales", "sales", "--wait", "60")
    assert done.returncode == 0, done.stderr


def _sales(stage: Stage) -> set[str]:
    """What SQLite serves."""
    with closing(sqlite3.connect(stage.data / f"{shop.name}.db")) as store:
        return {order for (order,) in store.execute("SELECT order_id FROM sales")}


if __name__ == "__main__":
    missing = [name for name in ("SHOP_DATABASE", "SHOP_REDIS") if name not in os.environ]
    if missing:
        sys.exit(f"{' and '.join(missing)} must say where a PostgreSQL and a Redis are")
    on_stage(play)
