"""The backup of a broker that is killed while it ships: any moment, restored, is the log as it was then.

A run kills the broker several times while producers, transactions and a group are busy, mostly in the middle of a
round, at times with the folder away for a while. Then some moments are restored, each to a broker of its own, and read
with a stock client:

    numbers    each partition holds 0, 1, 2 … without a gap or a twin, and all that was acknowledged before the moment
    pairs      the same numbers in both partitions, and all that was acknowledged before the moment
    readers    a commit that was acknowledged before the moment, or a later one, and nothing behind the log's end

One byte of a piece is changed at the end: no restore may take it, and the piece must be named.

A hit is a kill that left a file without its name, or a piece that no manifest names.
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

from bench.faults.backup_writers import GROUP, Noted, Writers
from bench.faults.committed import committed
from bench.faults.outcome import Outcome
from bench.faults.process import BrokerDied, BrokerProcess
from bench.faults.workplace import workplace
from headrace.broker.backup.choosing import choose
from headrace.broker.backup.errors import BackupError
from headrace.broker.backup.folder import BackupFolder
from headrace.broker.backup.manifest import Piece
from headrace.broker.backup.reading import PieceReader
from headrace.broker.backup.restoring import Restoring
from headrace.client.cluster import Cluster
from headrace.clock import SystemClock

__all__ = ["UNPROTECTED", "run"]

FAULT = "backup"
UNPROTECTED = {
    "backup-order": r"cannot be restored",
    "backup-one-moment": r"transactions are there by half|the group is at",
    "backup-checksums": r"was restored, though",
}
_MANIFEST = re.compile(r"(\d{10})-(\d{13})-")
_PIECE = re.compile(r"-(\d{10})-[0-9a-f]{8}\.(?:piece|state)")
# The clocks of two processes are read at different times.
_SLACK_MS = 30
_MOMENTS = 3


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
    with workplace(FAULT, seed, in_memory=True) as home:
        folder = home / "backup"
        folder.mkdir()
        options = ["--backup", str(folder), "--backup-every-ms", str(rng.choice([5, 20, 60]))]
        options += ["--durability", rng.choice(["synced", "os"])]
        starter = ["--without", without] if in_broker else []
        with BrokerProcess(home / "broker", options=options, starter=starter, forked=True) as broker:
            broker.start()
            noted, killed = _live(broker, folder, rng, outcome, rng.randint(*kills))
            if broker.runs:
                broker.kill()
            outcome.peak_rss_mb = broker.peak_rss_mb
        if not outcome.problems:
            _judge_moments(home, folder, noted, rng, outcome, restores, killed)
            _judge_damage(home, folder, rng, outcome, noted, checked=protected or in_broker)
    return outcome


def _live(
    broker: BrokerProcess, folder: Path, rng: random.Random, outcome: Outcome, kills: int
) -> tuple[Noted, set[tuple[int, int]]]:
    """What was acknowledged, and the newest moment at each kill."""
    killed: set[tuple[int, int]] = set()
    cluster = Cluster(broker.bootstrap, timeout_s=20.0)
    segments = {"internal.segment.bytes": str(rng.choice([2_000, 20_000, 1 << 20]))}
    for topic in ("numbers", "pairs"):
        cluster.ensure_topic(topic, 2, segments)
    writers = Writers(broker.bootstrap)
    try:
        tries = 0
        while (kills > 0 or not outcome.hits) and tries < 20:
            tries += 1
            kills -= 1
            _work(writers, folder, broker)
            away = rng.random() < 0.2
            if away:
                folder.rename(folder.with_name("away"))
                time.sleep(rng.uniform(0.0, 0.1))
            else:
                _stop_in_a_round(broker, folder, rng)
            broker.kill()
            if away:
                folder.with_name("away").rename(folder)
            outcome.hits += int(_is_half(folder))
            killed.update(_moments(folder)[-1:])
            broker.start()
        _work(writers, folder, broker)
        writers.finish()
        if rng.random() < 0.5 and (code := broker.stop()):
            outcome.problems.append(f"a stop ended with {code}")
    except (AssertionError, BrokerDied) as failure:
        outcome.problems.append(f"{type(failure).__name__}: {failure}")
        writers.finish()
    outcome.problems += writers.fell + broker.traces()
    return writers.noted, killed


def _work(writers: Writers, folder: Path, broker: BrokerProcess) -> None:
    """Until something was acknowledged, and moments were taken meanwhile."""
    count, newest = writers.noted.count(), _newest(folder)

    def is_enough() -> bool:
        return writers.noted.count() > count + 20 and _newest(folder) >= newest + _MOMENTS

    broker.wait_until(is_enough, "nothing is acknowledged, or no moment is taken", timeout_s=120.0)


def _stop_in_a_round(broker: BrokerProcess, folder: Path, rng: random.Random) -> None:
    """In the middle of one, or for a while at most: on a busy machine a round is over before a kill arrives, so the
    broker is stopped, and let go on if it was too late.
    """
    deadline = time.monotonic() + 5.0
    while time.monotonic() < deadline:
        if _is_half(folder):
            time.sleep(rng.choice([0.0, 0.0, 0.0005, 0.002]))
            broker.pause()
            if _is_half(folder):
                return
            broker.resume()


def _is_half(folder: Path) -> bool:
    """Whether the folder has something that no manifest names yet."""
    newest = _newest(folder)
    for path in (folder / "pieces").rglob("*"):
        found = _PIECE.search(path.name)
        if path.name.endswith(".new") or (found is not None and int(found[1]) > newest):
            return True
    return any((folder / "manifests").glob("*.new"))


def _newest(folder: Path) -> int:
    return max((number for number, _ in _moments(folder)), default=0)


def _moments(folder: Path) -> list[tuple[int, int]]:
    """Number and time of every manifest, by their names alone."""
    with contextlib.suppress(FileNotFoundError):
        names = [_MANIFEST.match(path.name) for path in (folder / "manifests").glob("*.json")]
        return sorted((int(name[1]), int(name[2])) for name in names if name is not None)
    return []


def _judge_moments(
    home: Path,
    folder: Path,
    noted: Noted,
    rng: random.Random,
    outcome: Outcome,
    restores: int,
    killed: set[tuple[int, int]],
) -> None:
    """The newest, one that was the newest when the broker was killed, and any others."""
    moments = _moments(folder)
    chosen = {moments[-1], *rng.sample(sorted(killed), min(1, len(killed)))}
    chosen |= set(rng.sample(moments, min(max(0, restores - 2), len(moments))))
    for number, at_ms in sorted(chosen):
        try:
            _restore(folder, home / f"restored-{number}" / "data", number)
        except BackupError as error:
            outcome.lost += 1
            outcome.problems.append(f"moment {number} cannot be restored: {error}")
            continue
        with _served(home / f"restored-{number}") as broker:
            _judge(broker, number, at_ms - _SLACK_MS, noted, outcome)
            outcome.problems += broker.traces()


def _restore(folder: Path, data: Path, number: int) -> None:
    found = BackupFolder(folder)
    data.parent.mkdir(parents=True, exist_ok=True)
    Restoring(found, data, choose(found, to=str(number)), {}, clock=SystemClock()).run()


@contextlib.contextmanager
def _served(home: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(home, forked=True) as broker:
        broker.start()
        yield broker


def _judge(broker: BrokerProcess, number: int, at_ms: int, noted: Noted, outcome: Outcome) -> None:
    found = _read(broker, "numbers", outcome)
    for partition, values in found.items():
        if values != list(range(len(values))):
            outcome.duplicated += len(values) - len(set(values))
            outcome.problems.append(f"moment {number}: numbers-{partition} is no run from 0: {values[-5:]}")
        _expect(
            set(values), noted.numbers[partition], at_ms, f"moment {number}: numbers-{partition}", outcome
        )
    pairs = _read(broker, "pairs", outcome)
    if sorted(pairs[0]) != sorted(pairs[1]):
        halves = sorted(set(pairs[0]) ^ set(pairs[1]))
        outcome.problems.append(f"moment {number}: transactions are there by half: {halves[:5]}")
    for partition, values in pairs.items():
        outcome.duplicated += len(values) - len(set(values))
        _expect(set(values), noted.pairs, at_ms, f"moment {number}: pairs-{partition}", outcome)
    at = _committed_offset(broker)
    least = max((offset for offset, noted_ms in noted.commits if noted_ms <= at_ms), default=0)
    if not least <= at <= len(found[0]):
        outcome.problems.append(
            f"moment {number}: the group is at {at}, had committed {least}, and the log ends at {len(found[0])}"
        )


def _expect(values: set[int], noted: list[tuple[int, int]], at_ms: int, what: str, outcome: Outcome) -> None:
    missing = [value for value, noted_ms in noted if noted_ms <= at_ms and value not in values]
    if missing:
        outcome.lost += len(missing)
        outcome.problems.append(
            f"{what} lacks {len(missing)} that were acknowledged before it: {missing[:5]}"
        )


def _read(broker: BrokerProcess, topic: str, outcome: Outcome) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {0: [], 1: []}
    try:
        for message in committed(broker.bootstrap, topic):
            found[message.partition() or 0].append(int(message.value() or b"-1"))
    except (AssertionError, KeyError, ValueError) as error:
        outcome.lost += 1
        outcome.problems.append(f"{topic} cannot be read: {type(error).__name__}: {error}")
    return found


def _committed_offset(broker: BrokerProcess) -> int:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(GROUP)], request_timeout=30)
    rows = asked[GROUP].result(30).topic_partitions or []
    return next((row.offset for row in rows if (row.topic, row.partition) == ("numbers", 0)), 0)


def _judge_damage(
    home: Path, folder: Path, rng: random.Random, outcome: Outcome, noted: Noted, *, checked: bool
) -> None:
    """One byte of the newest moment is another: it is named and not restored."""
    number, at_ms = _moments(folder)[-1]
    newest = choose(BackupFolder(folder), to=str(number))
    places = [place for place in newest.parts if "/" in place and newest.parts[place].size]
    place = rng.choice(places)
    pieces = [piece for run in newest.parts[place].segments for piece in run.pieces]
    path = folder / "pieces" / place / rng.choice(pieces).file
    if not path.exists():
        outcome.problems.append(f"moment {number} names {path}, which is not there")
        return
    raw = bytearray(path.read_bytes())
    raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    path.write_bytes(raw)
    with contextlib.ExitStack() as stack:
        if not checked:
            stack.enter_context(_no_checksums())
        try:
            _restore(folder, home / "damaged" / "data", number)
        except BackupError as error:
            if path.name not in str(error):
                outcome.problems.append(f"{path} is damaged, and this is said: {error}")
            return
    outcome.problems.append(f"moment {number} was restored, though {path} is damaged")
    with contextlib.suppress(BrokerDied), _served(home / "damaged") as broker:
        _judge(broker, number, at_ms - _SLACK_MS, noted, outcome)


@contextlib.contextmanager
def _no_checksums() -> Iterator[None]:
    checked = PieceReader._checked

    def trusting(self: PieceReader, place: str, piece: Piece, whole_to: object) -> Iterator[bytes]:
        yield self._folder.piece(place, piece.file).read_bytes()

    PieceReader._checked = trusting  # type: ignore[method-assign]
    try:
        yield
    finally:
        PieceReader._checked = checked  # type: ignore[method-assign]
