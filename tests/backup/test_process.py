"""The backup of a broker in a process of its own: killed in the middle of it, restored by the command, and followed."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from headrace.app import App
from headrace.broker.backup.checking import check
from headrace.broker.backup.choosing import choose
from headrace.broker.backup.folder import BackupFolder
from headrace.client.cluster import Cluster
from headrace.client.reading import read
from headrace.ops.verify import verify_view
from headrace.settings import Settings
from tests.support.embedded import COMMAND, start_headrace
from tests.support.server import Server
from tests.support.waiting import until
from tests.views.seeing import following, produce


def headrace(*words: str | Path, code: int = 0) -> list[dict[str, Any]]:
    """What a command prints, row by row."""
    done = subprocess.run([COMMAND, *words, "--json"], capture_output=True, text=True, timeout=480)
    assert done.returncode == code, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


Start = Callable[..., Server]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts brokers, and leaves none of them behind."""
    started: list[Server] = []

    def begin(home: Path, folder: Path | None, every_ms: int = 30, port: int = 0) -> Server:
        options = ["--backup", str(folder), "--backup-every-ms", str(every_ms)] if folder else []
        started.append(start_headrace(home, options, port=port))
        return started[-1]

    yield begin
    for server in started:
        server.kill()


def values(server: Server, topic: str) -> dict[int, list[int]]:
    cluster = Cluster(server.bootstrap, timeout_s=10.0)
    found: dict[int, list[int]] = {}
    for number, end in cluster.ends(topic, committed=False).items():
        found[number] = [int(one.value() or b"") for one in read(cluster, topic, {number: (0, end)})]
    return found


def wait_for_moment(folder: Path, records: int) -> int:
    """The first moment that has at least so many."""

    def there() -> int | None:
        try:
            newest = choose(BackupFolder(folder))
        except Exception:
            return None
        return newest.sequence if newest.records() >= records else None

    return until(there, f"{records} records in the backup", timeout_s=480, pause_s=0.02)


class Load:
    """Sends numbers to two partitions, each in order, until it is stopped; knows which were acknowledged."""

    def __init__(self, server: Server, topic: str) -> None:
        self.acknowledged: dict[int, int] = {0: 0, 1: 0}
        self._producer = Producer(
            {
                "bootstrap.servers": server.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                "log_level": 0,
            }
        )
        self._topic = topic
        self._stop = threading.Event()
        self._left = -1
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set() and number < 20_000:
            for partition in (0, 1):
                self._producer.produce(
                    self._topic, b"%d" % number, partition=partition, on_delivery=self._delivered
                )
            number += 1
            self._producer.poll(0)
            time.sleep(0.0005)
        self._left = self._producer.flush(30)

    def _delivered(self, error: object, message: Any) -> None:
        if error is None:
            self.acknowledged[message.partition()] += 1

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert self._left == 0, f"{self._left} records were never answered"


def test_killed_while_it_ships_it_goes_on_and_every_moment_is_whole(tmp_path: Path, start: Start) -> None:
    folder = tmp_path / "backup"
    folder.mkdir()
    home = tmp_path / "broker"
    server = start(home, folder, every_ms=20)
    port = server.port
    Cluster(server.bootstrap, timeout_s=10.0).ensure_topic("numbers", 2, {"segment.bytes": "1048576"})
    load = Load(server, "numbers")
    for times in range(3):
        wait_for_moment(folder, 200 * (times + 1))
        server.kill()
        server = start(home, folder, every_ms=20, port=port)
    load.stop()
    acknowledged = dict(load.acknowledged)
    assert server.stop() == 0
    backup = BackupFolder(folder)
    names = backup.names()
    assert len(names) > 4
    for name in (*names[:: max(1, len(names) // 5)], names[-1]):
        assert not check(backup, backup.load(name, names)).damaged
    (told,) = headrace("backup", "check", folder)
    assert told["damaged"] == 0
    (row,) = headrace("backup", "restore", folder, "--data", tmp_path / "restored" / "data")
    assert row["moment"] == names[-1].sequence
    other = start(tmp_path / "restored", None)
    found = values(other, "numbers")
    # A clean stop ships what is left; and each partition is a prefix of what was sent.
    for partition, numbers in found.items():
        assert numbers == list(range(len(numbers)))
        assert len(numbers) >= acknowledged[partition] > 0
    assert other.stop() == 0


@dataclass(frozen=True)
class Order:
    order: str
    amount: int


def order(name: str, amount: int) -> tuple[bytes, bytes]:
    return name.encode(), json.dumps({"order": name, "amount": amount}).encode()


def test_a_view_that_had_read_further_than_the_restored_log_is_built_again_and_proven(
    tmp_path: Path, start: Start
) -> None:
    folder = tmp_path / "backup"
    folder.mkdir()
    server = start(tmp_path / "broker", folder)
    cluster = Cluster(server.bootstrap, timeout_s=10.0)
    cluster.ensure_topic("orders", 1, {})
    app = App("shop")
    view = app.view("orders", app.table("orders", Order, key="order"))
    first = {f"o{n}": n for n in range(10)}
    produce(cluster, "orders", [order(*one) for one in first.items()])
    moment = wait_for_moment(folder, 10)
    produce(cluster, "orders", [order(f"lost{n}", n) for n in range(5)])
    lost = first | {f"lost{n}": n for n in range(5)}
    with following(cluster, view, [], tmp_path) as followed:
        followed.expect({name: (name, amount) for name, amount in lost.items()})
    server.kill()
    headrace("backup", "restore", folder, "--data", tmp_path / "restored" / "data", "--to", str(moment))
    new = tmp_path / "new"
    new.mkdir()
    server = start(tmp_path / "restored", new)
    cluster = Cluster(server.bootstrap, timeout_s=10.0)
    # More than the view has read, so that its offsets alone would not tell.
    produce(cluster, "orders", [order(f"new{n}", n) for n in range(8)])
    rows = first | {f"new{n}": n for n in range(8)}
    with following(cluster, view, [], tmp_path) as followed:
        followed.expect({name: (name, amount) for name, amount in rows.items()})
        assert any("restored from a backup" in line for line in followed.told), followed.told
    report = verify_view(None, cluster, app, view, Settings(data=tmp_path), (), {})
    assert (report.verdict, report.found_rows) == ("proven", 18)
    # And it goes on from there, without being built once more.
    with following(cluster, view, [], tmp_path) as followed:
        produce(cluster, "orders", [order("last", 1)])
        followed.expect({name: (name, amount) for name, amount in (rows | {"last": 1}).items()})
        assert not any("is built" in line for line in followed.told)
    wait_for_moment(new, 19)
    (status,) = headrace("backup", "status", new, "-b", server.bootstrap)
    assert status["behind_records"] == 0
    listed = headrace("backup", "list", folder)
    assert {row["state"] for row in listed} == {"restorable"}
    assert server.stop() == 0
