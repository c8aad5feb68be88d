"""Fault X24, names as paths, in a backup: a restore must not use a name in a manifest as a path outside its directory.

A broker writes a backup. Each case puts a generated name into a copy of its newest manifest, with a correct checksum,
and restores it. The restore must refuse every name that a broker could not have written. Everything outside the
restored directory must stay the same, byte for byte.
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

from faults.log.hostile_names import hostile_name, is_topic_name
from faults.log.path_names import describe_changes, digests_of_tree, plant_canaries
from faults.outcome import Outcome
from faults.protocol import calls
from faults.protocol.batches import build_batch
from faults.protocol.connection import Connection
from faults.run_directory import run_directory
from faults.servers.broker_process import BrokerProcess
from faults.unprotected.backup import unvalidated_manifest_names
from headrace.broker.backup.folder import BackupFolder
from headrace.broker.backup.restore import Restore
from headrace.broker.backup.restore_points import choose
from headrace.checksum import crc32c
from headrace.clock import SystemClock
from headrace.errors import HeadraceError

__all__ = ["UNPROTECTED", "run"]

FAULT = "X24"
UNPROTECTED = {"restored-names": r"^outside the data directory"}
CASES = 100
Body = dict[str, Any]

_LOG_ID = re.compile(r"metadata|groups|[0-9a-f]{32}/(0|[1-9][0-9]{0,8})", re.ASCII)
_TOPIC_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)


def run(seed: int, *, protected: bool = True, without: str = "restored-names", cases: int = CASES) -> Outcome:
    rng = random.Random(f"{FAULT} {without} {seed}")
    outcome = Outcome(FAULT, seed, cases=cases)
    with run_directory(FAULT, seed, in_memory=True) as home:
        world, folder = home / "a" / "world", home / "backup"
        plant_canaries(world)
        restored = world / "restored"
        _back_up(home / "own", folder)
        before = dict(digests_of_tree(home / "a", excluded=restored))
        with contextlib.nullcontext() if protected else unvalidated_manifest_names():
            attack = _Attack(folder, restored, rng, str(world / "x"), outcome)
            for _ in range(cases):
                attack.case()
        outcome.problems += describe_changes(before, dict(digests_of_tree(home / "a", excluded=restored)))
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
        # A clean stop backs up the rest.
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
        hostile = hostile_name(self._rng, self._target)
        name = hostile if isinstance(hostile, str) else hostile.decode("latin-1")
        field = self._rng.choice(_CHOICES)
        set_field, is_valid = _FIELDS[field]
        body = msgspec.json.decode(msgspec.json.encode(self._body))
        set_field(body, name)
        raw = msgspec.json.encode(body)
        self._path.write_bytes(raw + b"\n%08x\n" % crc32c(raw))
        self._outcome.hits += 1
        try:
            folder = BackupFolder(self._folder)
            Restore(folder, self._restored, choose(folder), {}, clock=SystemClock()).run()
        except HeadraceError:
            return
        except Exception as error:
            self._outcome.problems.append(f"{field} {name!r:.60}: {type(error).__name__}: {error}")
        else:
            if not is_valid(name):
                self._outcome.problems.append(f"{field} {name!r:.60} was accepted")
        finally:
            shutil.rmtree(self._restored, ignore_errors=True)


def _partition(body: Body) -> str:
    parts: dict[str, Any] = body["parts"]
    return next(log_id for log_id, part in parts.items() if "/" in log_id and part["segments"][0][1])


def _put_log_id(body: Body, name: str) -> None:
    body["parts"][name] = body["parts"].pop(_partition(body))


def _put_topic_id(body: Body, name: str) -> None:
    _put_log_id(body, f"{name}/0")


def _put_partition(body: Body, name: str) -> None:
    _put_log_id(body, f"{_partition(body).partition('/')[0]}/{name}")


def _put_file(body: Body, name: str) -> None:
    body["parts"][_partition(body)]["segments"][0][1][0][0] = name


def _put_state(body: Body, name: str) -> None:
    body["parts"][_partition(body)]["state"] = [name, 0, 0, 0]


def _put_topic(body: Body, name: str) -> None:
    body["topics"][_partition(body).partition("/")[0]] = name


def _put_ends(body: Body, name: str) -> None:
    manifest = f"{1:010d}-{1:013d}-{1:010d}-{'0' * 8}.json"
    body["restored"] = [{"at_ms": 0, "manifest": manifest, "ends": {name: 0}}]


_FIELDS: dict[str, tuple[Callable[[Body, str], None], Callable[[str], bool]]] = {
    "the log id": (_put_log_id, lambda name: bool(_LOG_ID.fullmatch(name))),
    "the topic id of a log": (_put_topic_id, lambda name: bool(_TOPIC_ID.fullmatch(name))),
    "the partition of a log": (_put_partition, lambda name: name.isdecimal() and len(name) < 10),
    "the file of a piece": (_put_file, lambda name: False),
    "the file of a log's state": (_put_state, lambda name: False),
    "the name of a topic": (_put_topic, is_topic_name),
    "the id of a stale log": (
        lambda body, name: body.update(stale=[name]),
        lambda name: "/" in name and bool(_LOG_ID.fullmatch(name)),
    ),
    "the id of a log in an earlier restore": (_put_ends, lambda name: bool(_LOG_ID.fullmatch(name))),
}
_CHOICES = [*_FIELDS, "the log id", "the topic id of a log", "the topic id of a log"]
"""Fields that become a part of the path of a written file are drawn more often."""
