"""X24, names as paths, in a backup: whatever a manifest calls a place or a file, a restore makes no path of it.

A broker writes a backup. Each case puts a generated name into a copy of its newest manifest, in a place that names
something, with a checksum that is right, and restores it. What must hold: the restore is refused unless a broker could
have written the name; the tree around the restored directory is the same to the last byte.
"""

from __future__ import annotations

import contextlib
import random
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from bench.faults import calls
from bench.faults.batches import build_batch
from bench.faults.connection import Connection
from bench.faults.hostile import hostile_name, is_topic_name
from bench.faults.outcome import Outcome
from bench.faults.process import BrokerProcess
from bench.faults.unprotected_backup import believed_names
from bench.faults.workplace import workplace
from bench.faults.x24_names import changes, plant, tree
from headrace.broker.backup.choosing import choose
from headrace.broker.backup.folder import BackupFolder
from headrace.broker.backup.restoring import Restoring
from headrace.checksum import crc32c
from headrace.clock import SystemClock
from headrace.errors import HeadraceError

__all__ = ["UNPROTECTED", "run"]

FAULT = "X24"
UNPROTECTED = {"restored-names": r"^outside the data directory"}
CASES = 100
Body = dict[str, Any]

_PLACE = re.compile(r"metadata|groups|[0-9a-f]{32}/(0|[1-9][0-9]{0,8})", re.ASCII)
_TOPIC_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)


def run(seed: int, *, protected: bool = True, without: str = "restored-names", cases: int = CASES) -> Outcome:
    rng = random.Random(f"{FAULT} {without} {seed}")
    outcome = Outcome(FAULT, seed, cases=cases)
    with workplace(FAULT, seed, in_memory=True) as home:
        world, folder = home / "a" / "world", home / "backup"
        plant(world)
        restored = world / "restored"
        _back_up(home / "own", folder)
        before = dict(tree(home / "a", besides=restored))
        with contextlib.nullcontext() if protected else believed_names():
            attack = _Attack(folder, restored, rng, str(world / "x"), outcome)
            for _ in range(cases):
                attack.case()
        outcome.problems += changes(before, dict(tree(home / "a", besides=restored)))
    return outcome


def _back_up(home: Path, folder: Path) -> None:
    folder.mkdir()
    options = ["--backup", str(folder), "--backup-every-ms", "20"]
    with BrokerProcess(home, options=options, forked=True) as broker:
        broker.start()
        with Connection(broker.port) as connection:
            for topic in ("one", "two"):
                assert calls.create_topic(connection, topic, 2) == 0
                batch = build_batch([b"record"], int(time.time() * 1000))
                assert calls.produce(connection, topic, 0, batch).error == 0
        # A clean stop ships the rest.
        assert not broker.stop()


class _Attack:
    def __init__(
        self, folder: Path, restored: Path, rng: random.Random, target: str, outcome: Outcome
    ) -> None:
        self._folder = folder
        self._restored = restored
        self._rng = rng
        self._target = target
        self._outcome = outcome
        newest = msgspec.structs.replace(choose(BackupFolder(folder)), base=None)
        for path in (folder / "manifests").iterdir():
            path.unlink()
        self._path = folder / "manifests" / newest.name.file
        self._body: Body = msgspec.to_builtins(newest)

    def case(self) -> None:
        given = hostile_name(self._rng, self._target)
        name = given if isinstance(given, str) else given.decode("latin-1")
        spot = self._rng.choice(_CHOICES)
        put, is_known = _SPOTS[spot]
        body = msgspec.json.decode(msgspec.json.encode(self._body))
        put(body, name)
        raw = msgspec.json.encode(body)
        self._path.write_bytes(raw + b"\n%08x\n" % crc32c(raw))
        self._outcome.hits += 1
        try:
            folder = BackupFolder(self._folder)
            Restoring(folder, self._restored, choose(folder), {}, clock=SystemClock()).run()
        except HeadraceError:
            return
        except Exception as error:
            self._outcome.problems.append(f"{spot} {name!r:.60}: {type(error).__name__}: {error}")
        else:
            if not is_known(name):
                self._outcome.problems.append(f"{spot} {name!r:.60} was taken")
        finally:
            shutil.rmtree(self._restored, ignore_errors=True)


def _partition(body: Body) -> str:
    return next(place for place, part in body["parts"].items() if "/" in place and part["segments"][0][1])


def _put_place(body: Body, name: str) -> None:
    body["parts"][name] = body["parts"].pop(_partition(body))


def _put_topic_id(body: Body, name: str) -> None:
    _put_place(body, f"{name}/0")


def _put_partition(body: Body, name: str) -> None:
    _put_place(body, f"{_partition(body).partition('/')[0]}/{name}")


def _put_file(body: Body, name: str) -> None:
    body["parts"][_partition(body)]["segments"][0][1][0][0] = name


def _put_state(body: Body, name: str) -> None:
    body["parts"][_partition(body)]["state"] = [name, 0, 0, 0]


def _put_topic(body: Body, name: str) -> None:
    body["topics"][_partition(body).partition("/")[0]] = name


def _put_ends(body: Body, name: str) -> None:
    manifest = f"{1:010d}-{1:013d}-{1:010d}-{'0' * 8}.json"
    body["restored"] = [{"at_ms": 0, "manifest": manifest, "ends": {name: 0}}]


_SPOTS: dict[str, tuple[Callable[[Body, str], None], Callable[[str], bool]]] = {
    "the place": (_put_place, lambda name: bool(_PLACE.fullmatch(name))),
    "the topic id of a place": (_put_topic_id, lambda name: bool(_TOPIC_ID.fullmatch(name))),
    "the partition of a place": (_put_partition, lambda name: name.isdecimal() and len(name) < 10),
    "the file of a piece": (_put_file, lambda name: False),
    "the file of a state": (_put_state, lambda name: False),
    "the name of a topic": (_put_topic, is_topic_name),
    "a place that is stale": (
        lambda body, name: body.update(stale=[name]),
        lambda name: bool(_PLACE.fullmatch(name)),
    ),
    "a place of an earlier restore": (_put_ends, lambda name: bool(_PLACE.fullmatch(name))),
}
_CHOICES = [*_SPOTS, "the place", "the topic id of a place", "the topic id of a place"]
"""What becomes a path that is written to comes more often."""
