"""Three stories about workers that die or sleep: records read twice (``crash-before-commit``), counts in another store
(``offset-in-row``), and a worker that wakes after it was replaced (``zombie``).

REDIS_URL=redis://localhost/9 python -m examples.workers.story
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from examples.stage import Stage, on_stage
from examples.workers import Parcel, Stock, app, parcels, stock

__all__ = ["Outcome", "play"]

_APP = "examples.workers:app"
_DEPOTS = ("east", "north", "west")
_PARCELS = 100
_DIES_AFTER = 40


@dataclass
class Outcome:
    """The results of the story, for its test."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)
    parcels: dict[str, str] = field(default_factory=dict)
    proven: dict[str, int] = field(default_factory=dict)
    """Exit codes of ``headrace verify``."""
    stock_by_hand: int = 0
    stock: dict[str, int] = field(default_factory=dict)
    zombie_code: int = 0
    zombie_error: str = ""


def play(stage: Stage, redis_url: str) -> Outcome:
    outcome = Outcome()
    stage.declare(app)
    stage.write(parcels, _parcels(0, _PARCELS))
    _crash_before_commit(stage, outcome)
    _offset_in_row(stage, outcome, redis_url)
    _zombie(stage, outcome)
    return outcome


def _parcels(begin: int, end: int) -> list[Any]:
    return [Parcel(f"p{number:03}", _DEPOTS[number % len(_DEPOTS)]) for number in range(begin, end)]


# The story crash-before-commit


def _crash_before_commit(stage: Stage, outcome: Outcome) -> None:
    stage.say(f"crash-before-commit: {_PARCELS} parcels; the worker is killed after {_DIES_AFTER}")
    for way, description in (
        ("after", "its offset is committed later"),
        ("together", "its offset is in the transaction of the count"),
    ):
        store = stage.data / f"{way}.db"
        _run_worker_and_successor(stage, outcome, way, str(store))
        outcome.counts[way] = Counter(_counts(store))
        outcome.counts[way].pop("_position", None)
        _report(stage, outcome, way, description)
    _killed_follower(stage, outcome)


def _run_worker_and_successor(stage: Stage, outcome: Outcome, way: str, store: str) -> None:
    """Run a worker that dies, then its successor."""
    outcome.seen[way] = 0
    for die_after in (_DIES_AFTER, -1):
        worker = stage.start_module("examples.workers.by_hand", way, store, str(die_after))
        output, errors = worker.communicate(timeout=60)
        assert worker.returncode == (-signal.SIGKILL if die_after > 0 else 0), errors
        outcome.seen[way] += int(output)


def _report(stage: Stage, outcome: Outcome, way: str, description: str) -> None:
    counted = sum(outcome.counts[way].values())
    stage.say(f"  {description}: {outcome.seen[way]} seen, {counted} counted")


def _killed_follower(stage: Stage, outcome: Outcome) -> None:
    """Kill a view's follower and start it again. It stores its position in the transaction of its rows."""
    follower = stage.start("view", "follow", _APP, "parcels")
    stage.wait(lambda: bool(_view(stage, "parcels")), "the first parcels are in the view")
    follower.kill()
    follower.communicate()
    rows_before = len(_view(stage, "parcels"))
    stage.write(parcels, _parcels(_PARCELS, 2 * _PARCELS))
    done = stage.headrace("view", "follow", _APP, "parcels", "--exit", "--json")
    assert done.returncode == 0, done.stderr
    outcome.parcels = dict(_view(stage, "parcels"))
    outcome.seen["view"] = rows_before + json.loads(done.stdout)["applied"]
    outcome.proven["parcels"] = stage.headrace("verify", _APP, "parcels").returncode
    stage.say(
        f"  a view of {2 * _PARCELS} parcels, whose follower is killed: {outcome.seen['view']} applied,"
        f" {len(outcome.parcels)} rows; headrace verify: exit code {outcome.proven['parcels']}"
    )


# The story offset-in-row


def _offset_in_row(stage: Stage, outcome: Outcome, redis_url: str) -> None:
    import redis

    stage.say(
        f"offset-in-row: {2 * _PARCELS} parcels, counted in Redis; a partly processed batch is repeated"
    )
    client: Any = redis.Redis.from_url(redis_url)
    for way, description in (
        ("plain", "plain counts"),
        ("offset", "counts with the offset of their last parcel"),
    ):
        client.delete(f"workers:{way}", f"workers:{way}:at")
        _run_worker_and_successor(stage, outcome, way, redis_url)
        stored_counts = client.hgetall(f"workers:{way}")
        outcome.counts[way] = Counter({depot.decode(): int(count) for depot, count in stored_counts.items()})
        _report(stage, outcome, way, description)
    client.close()


# The story zombie


def _zombie(stage: Stage, outcome: Outcome) -> None:
    stage.say("zombie: a worker pauses with an unprocessed record, is replaced, then continues")
    stage.write(stock, [Stock("lamp", 5)])
    _sleeper_by_hand(stage, outcome)
    stage.say(f"  hand-written worker: the last record has 9 lamps, the table has {outcome.stock_by_hand}")
    _sleeping_follower(stage, outcome)
    stage.say(f"  a view's follower is refused: exit code {outcome.zombie_code}, {outcome.zombie_error}")
    stage.say(
        f"  the view has {outcome.stock['lamp']} lamps; headrace verify: exit code {outcome.proven['stock']}"
    )


def _sleeper_by_hand(stage: Stage, outcome: Outcome) -> None:
    store = str(stage.data / "latest.db")
    zombie = stage.start_module("examples.workers.by_hand", "latest", store, "0")
    _, status = os.waitpid(zombie.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), "the worker ended instead of stopping"
    stage.write(stock, [Stock("lamp", 9)])
    successor = stage.start_module("examples.workers.by_hand", "latest", store, "-1")
    successor.communicate(timeout=60)
    zombie.send_signal(signal.SIGCONT)
    zombie.communicate(timeout=60)
    outcome.stock_by_hand = _counts(Path(store))["lamp"]


def _sleeping_follower(stage: Stage, outcome: Outcome) -> None:
    zombie = stage.start("view", "follow", _APP, "stock")
    stage.wait(lambda: bool(_view(stage, "stock")), "the view serves")
    zombie.send_signal(signal.SIGSTOP)
    successor = stage.headrace("view", "follow", _APP, "stock", "--exit")
    assert successor.returncode == 0, successor.stderr
    stage.write(stock, [Stock("lamp", 7)])
    zombie.send_signal(signal.SIGCONT)
    _, errors = zombie.communicate(timeout=60)
    outcome.zombie_code = zombie.returncode
    outcome.zombie_error = next(word for word in errors.split() if "HR-" in word).strip("():[],")
    stage.headrace("view", "follow", _APP, "stock", "--exit")
    outcome.stock = {item: int(pieces) for item, pieces in _view(stage, "stock")}
    outcome.proven["stock"] = stage.headrace("verify", _APP, "stock").returncode


# Reading the stores


def _counts(path: Path) -> dict[str, int]:
    with closing(sqlite3.connect(path)) as store:
        return dict(store.execute("SELECT depot, pieces FROM counts").fetchall())


def _view(stage: Stage, name: str) -> list[tuple[str, str]]:
    path = stage.data / f"{app.name}.db"
    if not path.exists():
        return []
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as store:
        tables = store.execute("SELECT name FROM sqlite_master WHERE name = ?", (name,)).fetchall()
        return store.execute(f'SELECT * FROM "{name}"').fetchall() if tables else []  # noqa: S608


if __name__ == "__main__":
    if "REDIS_URL" not in os.environ:
        sys.exit("set REDIS_URL to the address of a Redis server, for example redis://localhost/9")
    on_stage(lambda stage: play(stage, os.environ["REDIS_URL"]))
