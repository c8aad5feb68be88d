"""A broker is killed while it backs up. Every restore point must restore the log as it was at that time.

A run kills the broker several times while producers, transactions and a group are busy. Most kills hit the middle of a
backup round; some happen while the backup folder is missing. Then the run restores some restore points, each to its own
broker, and reads them with a stock client:

    numbers    each partition has 0, 1, 2 … without a gap or a duplicate, including all that were acknowledged before
               the restore point
    pairs      both partitions have the same numbers, including all that were acknowledged before the restore point
    readers    the group's offset is at or after its last acknowledged commit before the point, and within the log

At the end the run changes one byte of a backup file. The restore must fail, and the error must name the file.

A hit is a kill that left a temporary file, or a file that no manifest names.
"""

from __future__ import annotations

import contextlib
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path

from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient

from faults.committed_records import committed
from faults.log.backup_writers import GROUP, Acknowledged, Writers
from faults.outcome import Outcome
from faults.patch import patched
from faults.run_directory import run_directory
from faults.servers.broker_process import BrokerDied, BrokerProcess
from headrace.broker.backup.errors import BackupError
from headrace.broker.backup.folder import BackupFolder
from headrace.broker.backup.manifest import Piece
from headrace.broker.backup.pieces import PieceReader
from headrace.broker.backup.restore import Restore
from headrace.broker.backup.restore_points import choose
from headrace.client.cluster import Cluster
from headrace.clock import SystemClock

__all__ = ["UNPROTECTED", "run"]

FAULT = "backup"
UNPROTECTED = {
    "backup-order": r"cannot be restored",
    "backup-single-turn": r"transactions are partial|the group is at",
    "backup-checksums": r"was restored, although",
}
_MANIFEST = re.compile(r"(\d{10})-(\d{13})-")
_PIECE = re.compile(r"-(\d{10})-[0-9a-f]{8}\.(?:piece|state)")
# The tolerance when times are compared, because the broker and the writers read the clock at different
# moments.
_SLACK_MS = 30
_NEW_RESTORE_POINTS = 3


def run(
    seed: int,
    *,
    protected: bool = True,
    without: str = "backup-order",
    kills: tuple[int, int] = (2, 5),
    restores: int = 3,
) -> Outcome:
    rng = random.Random(f"{FAULT} {seed}")
    outcome = Outcome(FAULT, seed)
    in_broker = not protected and without != "backup-checksums"
    with run_directory(FAULT, seed, in_memory=True) as home:
        folder = home / "backup"
        folder.mkdir()
        options = ["--backup", str(folder), "--backup-every-ms", str(rng.choice([5, 20, 60]))]
        options += ["--durability", rng.choice(["synced", "os"])]
        starter = ["--without", without] if in_broker else []
        with BrokerProcess(home / "broker", options=options, starter=starter, forked=True) as broker:
            broker.start()
            acknowledged, newest_at_kills = _run_with_kills(broker, folder, rng, outcome, rng.randint(*kills))
            if broker.is_running:
                broker.kill()
            outcome.peak_rss_mb = broker.peak_rss_mb
        if not outcome.problems:
            _judge_restore_points(home, folder, acknowledged, rng, outcome, restores, newest_at_kills)
            _judge_damage(home, folder, rng, outcome, acknowledged, checks_sums=protected or in_broker)
    return outcome


def _run_with_kills(
    broker: BrokerProcess, folder: Path, rng: random.Random, outcome: Outcome, kills: int
) -> tuple[Acknowledged, set[tuple[int, int]]]:
    """Return the acknowledged numbers, and the newest restore point at each kill."""
    newest_at_kills: set[tuple[int, int]] = set()
    cluster = Cluster(broker.bootstrap, timeout_s=20.0)
    segments = {"internal.segment.bytes": str(rng.choice([2_000, 20_000, 1 << 20]))}
    for topic in ("numbers", "pairs"):
        cluster.ensure_topic(topic, 2, segments)
    writers = Writers(broker.bootstrap)
    try:
        attempts = 0
        while (kills > 0 or not outcome.hits) and attempts < 20:
            attempts += 1
            kills -= 1
            _wait_for_progress(writers, folder, broker)
            folder_missing = rng.random() < 0.2
            if folder_missing:
                folder.rename(folder.with_name("away"))
                time.sleep(rng.uniform(0.0, 0.1))
            else:
                _pause_in_a_round(broker, folder, rng)
            broker.kill()
            if folder_missing:
                folder.with_name("away").rename(folder)
            outcome.hits += int(_is_round_in_progress(folder))
            newest_at_kills.update(_restore_points(folder)[-1:])
            broker.start()
        _wait_for_progress(writers, folder, broker)
        writers.finish()
        if rng.random() < 0.5 and (code := broker.stop()):
            outcome.problems.append(f"a clean stop returned exit code {code}")
    except (AssertionError, BrokerDied) as failure:
        outcome.problems.append(f"{type(failure).__name__}: {failure}")
        writers.finish()
    outcome.problems += writers.problems + broker.unexpected_exceptions()
    return writers.acknowledged, newest_at_kills


def _wait_for_progress(writers: Writers, folder: Path, broker: BrokerProcess) -> None:
    """Wait until further numbers are acknowledged and further restore points are written."""
    count, newest = writers.acknowledged.count(), _newest(folder)

    def is_enough() -> bool:
        return writers.acknowledged.count() > count + 20 and _newest(folder) >= newest + _NEW_RESTORE_POINTS

    broker.wait_until(is_enough, "no number is acknowledged, or no restore point is written", timeout_s=120.0)


def _pause_in_a_round(broker: BrokerProcess, folder: Path, rng: random.Random) -> None:
    """Pause the broker in the middle of a backup round, or give up after a while. On a busy machine a round would end
    before a kill arrives, so SIGSTOP pauses the broker first. If the round has already ended, resume and try again.
    """
    deadline = time.monotonic() + 5.0
    while time.monotonic() < deadline:
        if _is_round_in_progress(folder):
            time.sleep(rng.choice([0.0, 0.0, 0.0005, 0.002]))
            broker.pause()
            if _is_round_in_progress(folder):
                return
            broker.resume()


def _is_round_in_progress(folder: Path) -> bool:
    """Whether the folder has a file that no manifest names yet."""
    newest = _newest(folder)
    for path in (folder / "pieces").rglob("*"):
        match = _PIECE.search(path.name)
        if path.name.endswith(".new") or (match is not None and int(match[1]) > newest):
            return True
    return any((folder / "manifests").glob("*.new"))


def _newest(folder: Path) -> int:
    return max((number for number, _ in _restore_points(folder)), default=0)


def _restore_points(folder: Path) -> list[tuple[int, int]]:
    """Return number and time of every manifest, read from the file names alone."""
    with contextlib.suppress(FileNotFoundError):
        names = [_MANIFEST.match(path.name) for path in (folder / "manifests").glob("*.json")]
        return sorted((int(name[1]), int(name[2])) for name in names if name is not None)
    return []


def _judge_restore_points(
    home: Path,
    folder: Path,
    acknowledged: Acknowledged,
    rng: random.Random,
    outcome: Outcome,
    restores: int,
    newest_at_kills: set[tuple[int, int]],
) -> None:
    """Check the newest restore point, one that was the newest at a kill, and some others."""
    points = _restore_points(folder)
    chosen_points = {points[-1], *rng.sample(sorted(newest_at_kills), min(1, len(newest_at_kills)))}
    chosen_points |= set(rng.sample(points, min(max(0, restores - 2), len(points))))
    for number, at_ms in sorted(chosen_points):
        try:
            _restore(folder, home / f"restored-{number}" / "data", number)
        except BackupError as error:
            outcome.lost += 1
            outcome.problems.append(f"restore point {number} cannot be restored: {error}")
            continue
        with _restored_broker(home / f"restored-{number}") as broker:
            _judge(broker, number, at_ms - _SLACK_MS, acknowledged, outcome)
            outcome.problems += broker.unexpected_exceptions()


def _restore(folder: Path, data: Path, number: int) -> None:
    backup = BackupFolder(folder)
    data.parent.mkdir(parents=True, exist_ok=True)
    Restore(backup, data, choose(backup, to=str(number)), {}, clock=SystemClock()).run()


@contextlib.contextmanager
def _restored_broker(home: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(home, forked=True) as broker:
        broker.start()
        yield broker


def _judge(
    broker: BrokerProcess, number: int, at_ms: int, acknowledged: Acknowledged, outcome: Outcome
) -> None:
    numbers = _read(broker, "numbers", outcome)
    for partition, values in numbers.items():
        if values != list(range(len(values))):
            outcome.duplicated += len(values) - len(set(values))
            outcome.problems.append(
                f"restore point {number}: numbers-{partition} is not 0, 1, 2 …: {values[-5:]}"
            )
        _expect(
            set(values),
            acknowledged.numbers[partition],
            at_ms,
            f"restore point {number}: numbers-{partition}",
            outcome,
        )
    pairs = _read(broker, "pairs", outcome)
    if sorted(pairs[0]) != sorted(pairs[1]):
        unpaired = sorted(set(pairs[0]) ^ set(pairs[1]))
        outcome.problems.append(f"restore point {number}: transactions are partial: {unpaired[:5]}")
    for partition, values in pairs.items():
        outcome.duplicated += len(values) - len(set(values))
        _expect(set(values), acknowledged.pairs, at_ms, f"restore point {number}: pairs-{partition}", outcome)
    committed_offset = _committed_offset(broker)
    committed_at_least = max(
        (offset for offset, acknowledged_ms in acknowledged.commits if acknowledged_ms <= at_ms), default=0
    )
    if not committed_at_least <= committed_offset <= len(numbers[0]):
        outcome.problems.append(
            f"restore point {number}: the group is at {committed_offset}, but had committed {committed_at_least},"
            f" and the log ends at {len(numbers[0])}"
        )


def _expect(
    values: set[int], acknowledged: list[tuple[int, int]], at_ms: int, what: str, outcome: Outcome
) -> None:
    missing = [
        value for value, acknowledged_ms in acknowledged if acknowledged_ms <= at_ms and value not in values
    ]
    if missing:
        outcome.lost += len(missing)
        outcome.problems.append(
            f"{what} lacks {len(missing)} numbers that were acknowledged before it: {missing[:5]}"
        )


def _read(broker: BrokerProcess, topic: str, outcome: Outcome) -> dict[int, list[int]]:
    values: dict[int, list[int]] = {0: [], 1: []}
    try:
        for message in committed(broker.bootstrap, topic):
            values[message.partition() or 0].append(int(message.value() or b"-1"))
    except (AssertionError, KeyError, ValueError) as error:
        outcome.lost += 1
        outcome.problems.append(f"{topic} cannot be read: {type(error).__name__}: {error}")
    return values


def _committed_offset(broker: BrokerProcess) -> int:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    futures = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(GROUP)], request_timeout=30)
    rows = futures[GROUP].result(30).topic_partitions or []
    return next((row.offset for row in rows if (row.topic, row.partition) == ("numbers", 0)), 0)


def _judge_damage(
    home: Path,
    folder: Path,
    rng: random.Random,
    outcome: Outcome,
    acknowledged: Acknowledged,
    *,
    checks_sums: bool,
) -> None:
    """Change one byte of the newest restore point. The restore must fail with an error that names the file."""
    number, at_ms = _restore_points(folder)[-1]
    newest = choose(BackupFolder(folder), to=str(number))
    log_ids = [log_id for log_id in newest.parts if "/" in log_id and newest.parts[log_id].size]
    log_id = rng.choice(log_ids)
    pieces = [piece for run in newest.parts[log_id].segments for piece in run.pieces]
    path = folder / "pieces" / log_id / rng.choice(pieces).file
    if not path.exists():
        outcome.problems.append(f"restore point {number} names {path}, which does not exist")
        return
    raw = bytearray(path.read_bytes())
    raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    path.write_bytes(raw)
    with contextlib.ExitStack() as stack:
        if not checks_sums:
            stack.enter_context(_no_checksums())
        try:
            _restore(folder, home / "damaged" / "data", number)
        except BackupError as error:
            if path.name not in str(error):
                outcome.problems.append(f"{path} is damaged, but the error does not name it: {error}")
            return
    outcome.problems.append(f"restore point {number} was restored, although {path} is damaged")
    with contextlib.suppress(BrokerDied), _restored_broker(home / "damaged") as broker:
        _judge(broker, number, at_ms - _SLACK_MS, acknowledged, outcome)


@contextlib.contextmanager
def _no_checksums() -> Iterator[None]:
    def read_unchecked(self: PieceReader, log_id: str, piece: Piece, intact_to: object) -> Iterator[bytes]:
        yield self._folder.piece(log_id, piece.file).read_bytes()

    with patched(PieceReader, "_checked", read_unchecked):
        yield
