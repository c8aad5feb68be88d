"""Three stories of workers that die or sleep: seen twice (``crash-before-commit``), a count that is kept elsewhere
(``offset-in-row``), and one that wakes when another has its work (``zombie``).

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

__all__ = ["Told", "play"]

_APP = "examples.workers:app"
_DEPOTS = ("east", "north", "west")
_PARCELS = 100
_DIES_AFTER = 40


@dataclass
class Told:
    """What the story found, for whoever wants to hold it against something else."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)
    parcels: dict[str, str] = field(default_factory=dict)
    proven: dict[str, int] = field(default_factory=dict)
    """Exit codes of ``headrace verify``."""
    stock_by_hand: int = 0
    stock: dict[str, int] = field(default_factory=dict)
    zombie_code: int = 0
    zombie_said: str = ""


def play(stage: Stage, redis_url: str) -> Told:
    told = Told()
    stage.declare(app)
    stage.write(parcels, _some(0, _PARCELS))
    _crash_before_commit(stage, told)
    _offset_in_row(stage, told, redis_url)
    _zombie(stage, told)
    return told


def _some(begin: int, end: int) -> list[Any]:
    return [Parcel(f"p{number:03}", _DEPOTS[number % len(_DEPOTS)]) for number in range(begin, end)]


# 14, crash-before-commit


def _crash_before_commit(stage: Stage, told: Told) -> None:
    stage.say(f"crash-before-commit: {_PARCELS} parcels, and a worker that is killed after {_DIES_AFTER}")
    for way, words in (
        ("after", "its offset is committed later"),
        ("together", "its offset is in the transaction of the count"),
    ):
        place = stage.data / f"{way}.db"
        _twice(stage, told, way, str(place))
        told.counts[way] = Counter(_counts(place))
        told.counts[way].pop("_position", None)
        _tell(stage, told, way, words)
    _killed_follower(stage, told)


def _twice(stage: Stage, told: Told, way: str, place: str) -> None:
    """A worker that dies, and the one that is started in its place."""
    told.seen[way] = 0
    for die_after in (_DIES_AFTER, -1):
        worker = stage.start_module("examples.workers.by_hand", way, place, str(die_after))
        said, complained = worker.communicate(timeout=60)
        assert worker.returncode == (-signal.SIGKILL if die_after > 0 else 0), complained
        told.seen[way] += int(said)


def _tell(stage: Stage, told: Told, way: str, words: str) -> None:
    counted = sum(told.counts[way].values())
    stage.say(f"  {words}: {told.seen[way]} seen, {counted} counted")


def _killed_follower(stage: Stage, told: Told) -> None:
    """A view's follower has its position in the transaction of its rows, in every store."""
    follower = stage.start("view", "follow", _APP, "parcels")
    stage.wait(lambda: bool(_view(stage, "parcels")), "the first parcels are in the view")
    follower.kill()
    follower.communicate()
    had = len(_view(stage, "parcels"))
    stage.write(parcels, _some(_PARCELS, 2 * _PARCELS))
    done = stage.headrace("view", "follow", _APP, "parcels", "--exit", "--json")
    assert done.returncode == 0, done.stderr
    told.parcels = dict(_view(stage, "parcels"))
    told.seen["view"] = had + json.loads(done.stdout)["applied"]
    told.proven["parcels"] = stage.headrace("verify", _APP, "parcels").returncode
    stage.say(
        f"  a view of {2 * _PARCELS}, its follower killed as well: {told.seen['view']} applied,"
        f" {len(told.parcels)} there; headrace verify: exit code {told.proven['parcels']}"
    )


# 55, offset-in-row


def _offset_in_row(stage: Stage, told: Told, redis_url: str) -> None:
    import redis

    stage.say(
        f"offset-in-row: {2 * _PARCELS} parcels, counted in Redis; a batch that was done in part is done again"
    )
    client: Any = redis.Redis.from_url(redis_url)
    for way, words in (("plain", "plain counts"), ("offset", "each with the offset of its last parcel")):
        client.delete(f"workers:{way}", f"workers:{way}:at")
        _twice(stage, told, way, redis_url)
        found = client.hgetall(f"workers:{way}")
        told.counts[way] = Counter({depot.decode(): int(count) for depot, count in found.items()})
        _tell(stage, told, way, words)
    client.close()


# 56, zombie


def _zombie(stage: Stage, told: Told) -> None:
    stage.say("zombie: a worker sleeps with a record in hand; another takes its work, and then it wakes")
    stage.write(stock, [Stock("lamp", 5)])
    _sleeper_by_hand(stage, told)
    stage.say(f"  by hand: 9 lamps were written last, {told.stock_by_hand} are in the table")
    _sleeping_follower(stage, told)
    stage.say(f"  a view's follower is refused: exit code {told.zombie_code}, {told.zombie_said}")
    stage.say(f"  the view has {told.stock['lamp']} lamps; headrace verify: exit code {told.proven['stock']}")


def _sleeper_by_hand(stage: Stage, told: Told) -> None:
    place = str(stage.data / "latest.db")
    zombie = stage.start_module("examples.workers.by_hand", "latest", place, "0")
    _, status = os.waitpid(zombie.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), "it ended instead of falling asleep"
    stage.write(stock, [Stock("lamp", 9)])
    successor = stage.start_module("examples.workers.by_hand", "latest", place, "-1")
    successor.communicate(timeout=60)
    zombie.send_signal(signal.SIGCONT)
    zombie.communicate(timeout=60)
    told.stock_by_hand = _counts(Path(place))["lamp"]


def _sleeping_follower(stage: Stage, told: Told) -> None:
    zombie = stage.start("view", "follow", _APP, "stock")
    stage.wait(lambda: bool(_view(stage, "stock")), "the view serves")
    zombie.send_signal(signal.SIGSTOP)
    successor = stage.headrace("view", "follow", _APP, "stock", "--exit")
    assert successor.returncode == 0, successor.stderr
    stage.write(stock, [Stock("lamp", 7)])
    zombie.send_signal(signal.SIGCONT)
    _, complained = zombie.communicate(timeout=60)
    told.zombie_code = zombie.returncode
    told.zombie_said = next(word for word in complained.split() if "HR-" in word).strip("():[],")
    stage.headrace("view", "follow", _APP, "stock", "--exit")
    told.stock = {item: int(pieces) for item, pieces in _view(stage, "stock")}
    told.proven["stock"] = stage.headrace("verify", _APP, "stock").returncode


# Looking


def _counts(place: Path) -> dict[str, int]:
    with closing(sqlite3.connect(place)) as store:
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
        sys.exit("REDIS_URL must say where a Redis is, such as redis://localhost/9")
    on_stage(lambda stage: play(stage, os.environ["REDIS_URL"]))
