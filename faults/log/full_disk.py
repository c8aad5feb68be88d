"""Fault X4, full disk: the broker must refuse writes while it has no space, and accept them again as soon as it has
space.

There are two ways to run out of space:

    limit     RLIMIT_FSIZE on the running broker, a little above its largest file: the first write is short, the next
              fails with EFBIG; lifting the limit frees the space
    tmpfs     a file system of 64 MB that a filler file almost fills: every write and new file fails with ENOSPC;
              removing the filler frees the space. The run fails if it is not permitted to mount

While the disk is full, clients must get error 56, acknowledged records must be readable, and files must end with a
whole batch. Some runs kill the broker while the disk is full. At the end the broker is killed and restarted, and must
pass the checks for a kill.
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

from faults.log.oracle import Ledger, PartitionId, partition_files
from faults.log.scene import Scene
from faults.outcome import Outcome
from faults.protocol import calls
from faults.protocol.batches import build_batch, parse_batches
from faults.protocol.connection import Connection, Gone
from faults.run_directory import run_directory
from faults.servers.broker_process import BrokerDied, BrokerProcess

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
    random_kind = rng.choice(KINDS)
    starter = [] if protected else ["--without", without]
    with contextlib.ExitStack() as stack:
        home = stack.enter_context(run_directory(FAULT, seed))
        disk = home / "disk"
        kind = kind or random_kind
        if kind == "tmpfs":
            stack.enter_context(_tmpfs(disk))
            # With frequent snapshots, a journal needs space for new files. The other kind of run cannot use
            # this option: the journals would stay too small to reach the file size limit.
            starter += ["--journal-snapshot", "5000"] if rng.random() < 0.5 else []
        else:
            disk.mkdir()
        broker = stack.enter_context(
            BrokerProcess(home, starter=starter, retention_check_ms=200, forked=True, data=disk / "data")
        )
        broker.start()
        # Without new segments the files grow to the limit. With new segments, new files need space.
        scene = Scene(
            broker,
            rng,
            refusals=_REFUSALS,
            segment_bytes=1 << 30 if kind == "limit" else rng.choice([20_000, 200_000]),
        )
        scene.create_topics()
        scene.start_clients()
        try:
            _run(scene, rng, _Limit(broker, rng) if kind == "limit" else _Filler(disk, rng), outcome)
        except (AssertionError, KafkaException, Gone) as failure:
            scene.ledger.report_problem(f"{type(failure).__name__}: {failure}")
        finally:
            scene.give_up()
            broker.kill()
        return scene.report(outcome)


def _run(scene: Scene, rng: random.Random, space: _Limit | _Filler, outcome: Outcome) -> None:
    broker, ledger = scene.broker, scene.ledger
    with Connection(broker.port) as connection:
        if error := calls.create_topic(connection, _TORN, 1, {"max.message.bytes": "4000000"}):
            raise AssertionError(f"topic {_TORN} could not be created: error {error}")
        torn_id = calls.topics(connection, [_TORN])[0].id
    scene.wait_for_acks(rng.randint(50, 500))
    _wait_until(lambda: scene.commits.commits > 10, broker, "no commits")
    space.use_up()
    deadline = time.monotonic() + _WAIT_S_MAX
    while not _refusals(scene) and not ledger.problems and time.monotonic() < deadline:
        time.sleep(0.01)
    if not _refusals(scene):
        ledger.report_problem("no write was refused on a full disk")
        return
    outcome.hits += 1
    if space.hits_journals:
        _wait_until(lambda: bool(scene.commits.refused), broker, "no commit was refused on a full disk")
        _wait_until(lambda: bool(scene.topics.refused), broker, "no topic change was refused on a full disk")
    _judge_full_disk(scene, space, partition_files(broker.data, torn_id, 0))
    if rng.random() < 0.3:
        _kill_while_full(broker, ledger, space)
        space.free()
        broker.start()
    else:
        space.free()
    with Connection(broker.port) as connection:
        for partition_id in scene.partition_ids:
            _wait_until(
                partial(_accepts_write, scene, connection, partition_id),
                broker,
                f"{partition_id} accepts no writes",
            )
    progress_before = scene.commits.commits, scene.topics.changes
    _wait_until(lambda: scene.commits.commits > progress_before[0], broker, "no commit is accepted")
    _wait_until(lambda: scene.topics.changes > progress_before[1], broker, "no topic can be changed")
    log_messages = ("No space left", "File too large", "short write")
    if not any(log_message in line for line in broker.log_lines("ERROR") for log_message in log_messages):
        ledger.report_problem("the broker did not log that it has no space")
    scene.finish()
    broker.kill()
    broker.start()
    scene.judge()


def _judge_full_disk(scene: Scene, space: _Limit | _Filler, torn: Path) -> None:
    """Reads must still work. A batch that does not fit must be refused and must leave no torn bytes."""
    with Connection(scene.broker.port) as connection:
        for partition_id in scene.partition_ids:
            start_error, start = calls.list_offset(connection, *partition_id, calls.EARLIEST)
            fetched = calls.fetch(connection, *partition_id, start)
            # Retention might have moved the start between the two requests.
            if (
                start_error
                or fetched.error not in (0, 1)
                or (fetched.high_watermark > start and not fetched.records)
            ):
                scene.ledger.report_problem(
                    f"{partition_id} cannot be read on a full disk: errors {start_error}, {fetched.error}"
                )
        batch = build_batch(
            [os.urandom(1000) for _ in range(space.too_large_batch_kb)], int(time.time() * 1000)
        )
        answer = calls.produce(connection, _TORN, 0, batch)
    if answer.error != _STORAGE_ERROR:
        scene.ledger.report_problem(f"a batch that does not fit got error {answer.error}")
    for path in sorted(torn.glob("*.log")):
        for item in parse_batches(path.read_bytes()):
            if isinstance(item, str):
                scene.ledger.report_problem(f"torn bytes were left in {path.name}: {item}")


def _kill_while_full(broker: BrokerProcess, ledger: Ledger, space: _Limit | _Filler) -> None:
    """A start on a full disk may fail, but only with a readable error and without damage."""
    broker.kill()
    if isinstance(space, _Limit):
        return
    try:
        broker.start()
        broker.kill()
    except BrokerDied as died:
        if "Traceback" in str(died) or "No space left" not in str(died):
            ledger.report_problem(f"a start on a full disk did not fail with a readable error: {died}")


def _refusals(scene: Scene) -> int:
    producers = (scene.plain, scene.idempotent)
    return sum(answer.error == _STORAGE_ERROR for producer in producers for answer in list(producer.results))


def _accepts_write(scene: Scene, connection: Connection, partition_id: PartitionId) -> bool:
    error = scene.send_one(connection, partition_id)
    if error not in (0, _STORAGE_ERROR):
        scene.ledger.report_problem(f"{partition_id} responded with error {error} after the space was freed")
    return error == 0


def _wait_until(condition: Callable[[], bool], broker: BrokerProcess, what: str) -> None:
    deadline = time.monotonic() + _WAIT_S_MAX
    while not condition():
        broker.expect_alive()
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} within {_WAIT_S_MAX:.0f} s")
        time.sleep(0.02)


class _Limit:
    """A limit on the size of each file of the broker: a little above the largest segment, or a little above the
    journals.
    """

    too_large_batch_kb = 2_000

    def __init__(self, broker: BrokerProcess, rng: random.Random) -> None:
        self._broker = broker
        self._rng = rng
        self.hits_journals = rng.random() < 0.4

    def use_up(self) -> None:
        data = self._broker.data
        journals = [_size(data / "metadata"), _size(data / "groups")]
        records = _size(data / "topics")
        # A lower limit would also affect the mark files, which have their full size from the beginning.
        size = min(journals) if self.hits_journals else records
        limit = max(size, 8_192) + self._rng.randint(1, 3_000)
        resource.prlimit(self._broker.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    def free(self) -> None:
        if self._broker.is_running:
            unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
            resource.prlimit(self._broker.pid, resource.RLIMIT_FSIZE, unlimited)


def _size(directory: Path) -> int:
    """Return the size of the largest segment in the directory."""
    while True:
        try:
            return max((path.stat().st_size for path in directory.rglob("*.log")), default=0)
        except FileNotFoundError:
            # A topic was created or deleted meanwhile.
            continue


class _Filler:
    """A file that fills almost all the space of a small file system."""

    too_large_batch_kb = 2_000
    hits_journals = True

    def __init__(self, disk: Path, rng: random.Random) -> None:
        self._path = disk / "filler"
        self._rng = rng

    def use_up(self) -> None:
        bytes_left = self._rng.randint(4_096, 200_000)
        with self._path.open("wb") as file:
            while (free := shutil.disk_usage(self._path.parent).free) > bytes_left:
                # The broker also uses space meanwhile.
                with contextlib.suppress(OSError):
                    os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size + free - bytes_left)

    def free(self) -> None:
        self._path.unlink()


@contextlib.contextmanager
def _tmpfs(path: Path) -> Iterator[None]:
    """Mount a small file system. Raises ``OSError`` if this is not permitted."""
    path.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_SIZE_MB}m", "tmpfs", str(path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        raise PermissionError(f"{path} cannot be mounted")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], capture_output=True, check=False)
