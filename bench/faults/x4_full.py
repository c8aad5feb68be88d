"""X4, disk full: writes are refused while there is no space, and go on by themselves when there is.

Two ways to have no space:

    limit     RLIMIT_FSIZE on the running broker, a little above the size of its largest file: the first sign is a
              short write, then EFBIG; the space comes back when the limit is lifted
    tmpfs     a file system of 64 MB that a filler leaves almost no room in: ENOSPC for everything, new files too; the
              space comes back when the filler goes. Without the right to mount, the run fails

Meanwhile clients get error 56, what was acknowledged can be read, and files end with a whole batch. In some runs the
broker is killed while there is still no space. At the end: kill -9, restart, and all that holds for a kill.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from confluent_kafka import KafkaException

from bench.faults import calls
from bench.faults.batches import build_batch, parse_batches
from bench.faults.connection import Connection, Gone
from bench.faults.oracle import Ledger, Place, partition_files
from bench.faults.outcome import Outcome
from bench.faults.process import BrokerDied, BrokerProcess
from bench.faults.scene import Scene
from bench.faults.workplace import workplace

__all__ = ["KINDS", "UNPROTECTED", "run"]

FAULT = "X4"
UNPROTECTED = {"write-results": r"^no write was refused on a full disk"}
KINDS = ("limit", "tmpfs")
_STORAGE_ERROR = 56
_NOT_COORDINATOR = 16
_REFUSALS = (_STORAGE_ERROR, _NOT_COORDINATOR)
_SIZE_MB = 64
_WAIT_S_MAX = 120.0
_TORN = "torn"


def run(
    seed: int, *, protected: bool = True, without: str = "write-results", kind: str | None = None
) -> Outcome:
    rng = random.Random(seed)
    outcome = Outcome(FAULT, seed)
    chosen = rng.choice(KINDS)
    starter = [] if protected else ["--without", without]
    with contextlib.ExitStack() as stack:
        home = stack.enter_context(workplace(FAULT, seed))
        disk = home / "disk"
        kind = kind or chosen
        if kind == "tmpfs":
            stack.enter_context(_tmpfs(disk))
            # Journals that begin a new file now and then never grow to a limit, but do need room.
            starter += ["--journal-snapshot", "5000"] if rng.random() < 0.5 else []
        else:
            disk.mkdir()
        broker = stack.enter_context(
            BrokerProcess(home, starter=starter, retention_check_ms=200, forked=True, data=disk / "data")
        )
        broker.start()
        # Without rolls the files grow to the limit; with them, new files meet a disk without room.
        scene = Scene(
            broker,
            rng,
            refusals=_REFUSALS,
            segment_bytes=1 << 30 if kind == "limit" else rng.choice([20_000, 200_000]),
        )
        scene.make_topics()
        scene.employ()
        try:
            _run(scene, rng, _Limit(broker, rng) if kind == "limit" else _Filler(disk, rng), outcome)
        except (AssertionError, KafkaException, Gone) as failure:
            scene.ledger.object(f"{type(failure).__name__}: {failure}")
        finally:
            scene.give_up()
            broker.kill()
        return scene.report(outcome)


def _run(scene: Scene, rng: random.Random, space: _Limit | _Filler, outcome: Outcome) -> None:
    broker, ledger = scene.broker, scene.ledger
    with Connection(broker.port) as connection:
        if error := calls.create_topic(connection, _TORN, 1, {"max.message.bytes": "4000000"}):
            raise AssertionError(f"topic {_TORN} could not be made: error {error}")
        torn_id = calls.topics(connection, [_TORN])[0].id
    scene.wait_for_acks(rng.randint(50, 500))
    _until(lambda: scene.commits.commits > 10, broker, "no commits")
    space.take()
    deadline = time.monotonic() + _WAIT_S_MAX
    while not _refusals(scene) and not ledger.problems and time.monotonic() < deadline:
        time.sleep(0.01)
    if not _refusals(scene):
        ledger.object("no write was refused on a full disk")
        return
    outcome.hits += 1
    if space.hits_journals:
        _until(lambda: bool(scene.commits.refused), broker, "no commit was refused on a full disk")
        _until(lambda: bool(scene.topics.refused), broker, "no topic change was refused on a full disk")
    _look_at_a_full_disk(scene, space, partition_files(broker.data, torn_id, 0))
    if rng.random() < 0.3:
        _kill_while_full(broker, ledger, space)
        space.give_back()
        broker.start()
    else:
        space.give_back()
    with Connection(broker.port) as connection:
        for place in scene.places:
            _until(partial(_accepts, scene, connection, place), broker, f"{place} takes no writes")
    done = scene.commits.commits, scene.topics.changes
    _until(lambda: scene.commits.commits > done[0], broker, "no commit is taken")
    _until(lambda: scene.topics.changes > done[1], broker, "no topic can be changed")
    signs = ("No space left", "File too large", "short write")
    if not any(sign in line for line in broker.log_lines("ERROR") for sign in signs):
        ledger.object("the broker did not say that there is no space")
    scene.finish()
    broker.kill()
    broker.start()
    scene.judge()


def _look_at_a_full_disk(scene: Scene, space: _Limit | _Filler, torn: Path) -> None:
    """Reads go on; a batch that does not fit is refused and leaves no torn bytes."""
    with Connection(scene.broker.port) as connection:
        for place in scene.places:
            start_error, start = calls.list_offset(connection, *place, calls.EARLIEST)
            fetched = calls.fetch(connection, *place, start)
            # Retention may have moved the start between the two.
            if (
                start_error
                or fetched.error not in (0, 1)
                or (fetched.high_watermark > start and not fetched.records)
            ):
                scene.ledger.object(f"{place} cannot be read on a full disk: {start_error}, {fetched.error}")
        batch = build_batch([os.urandom(1000) for _ in range(space.too_many_kb)], int(time.time() * 1000))
        answer = calls.produce(connection, _TORN, 0, batch)
    if answer.error != _STORAGE_ERROR:
        scene.ledger.object(f"a batch that cannot fit was answered with error {answer.error}")
    for path in sorted(torn.glob("*.log")):
        for item in parse_batches(path.read_bytes()):
            if isinstance(item, str):
                scene.ledger.object(f"torn bytes were left in {path.name}: {item}")


def _kill_while_full(broker: BrokerProcess, ledger: Ledger, space: _Limit | _Filler) -> None:
    """A start on a full disk may fail, but with an error that a person can read, and without harm."""
    broker.kill()
    if isinstance(space, _Limit):
        return
    try:
        broker.start()
        broker.kill()
    except BrokerDied as died:
        if "Traceback" in str(died) or "No space left" not in str(died):
            ledger.object(f"a start on a full disk: {died}")


def _refusals(scene: Scene) -> int:
    producers = (scene.plain, scene.idempotent)
    return sum(answer.error == _STORAGE_ERROR for producer in producers for answer in list(producer.answers))


def _accepts(scene: Scene, connection: Connection, place: Place) -> bool:
    error = scene.send_one(connection, place)
    if error not in (0, _STORAGE_ERROR):
        scene.ledger.object(f"{place} answered with error {error} when there was space again")
    return error == 0


def _until(condition: Callable[[], bool], broker: BrokerProcess, what: str) -> None:
    deadline = time.monotonic() + _WAIT_S_MAX
    while not condition():
        broker.expect_alive()
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} within {_WAIT_S_MAX:.0f} s")
        time.sleep(0.02)


class _Limit:
    """A limit on the size of each of the broker's files: just above the largest, or where the journals stand."""

    too_many_kb = 2_000

    def __init__(self, broker: BrokerProcess, rng: random.Random) -> None:
        self._broker = broker
        self._rng = rng
        self.hits_journals = rng.random() < 0.4

    def take(self) -> None:
        data = self._broker.data
        journals = [_size(data / "metadata"), _size(data / "groups")]
        records = _size(data / "topics")
        # Below this the limit would reach the marks as well, which have all their bytes from the beginning.
        reached = min(journals) if self.hits_journals else records
        limit = max(reached, 8_192) + self._rng.randint(1, 3_000)
        resource.prlimit(self._broker.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    def give_back(self) -> None:
        if self._broker.runs:
            unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
            resource.prlimit(self._broker.pid, resource.RLIMIT_FSIZE, unlimited)


def _size(directory: Path) -> int:
    """Of the largest segment in it."""
    while True:
        try:
            return max((path.stat().st_size for path in directory.rglob("*.log")), default=0)
        except FileNotFoundError:
            # Topics come and go meanwhile.
            continue


class _Filler:
    """A file that takes almost all the room of a small file system."""

    too_many_kb = 2_000
    hits_journals = True

    def __init__(self, disk: Path, rng: random.Random) -> None:
        self._path = disk / "filler"
        self._rng = rng

    def take(self) -> None:
        left = self._rng.randint(4_096, 200_000)
        with self._path.open("wb") as file:
            while (free := shutil.disk_usage(self._path.parent).free) > left:
                # The broker takes its part meanwhile.
                with contextlib.suppress(OSError):
                    os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size + free - left)

    def give_back(self) -> None:
        self._path.unlink()


@contextlib.contextmanager
def _tmpfs(path: Path) -> Iterator[None]:
    """A small file system of its own; raises ``OSError`` where that is not allowed."""
    path.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_SIZE_MB}m", "tmpfs", str(path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        raise PermissionError(f"{path} cannot be mounted")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], capture_output=True, check=False)
