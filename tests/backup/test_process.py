"""Backups of a broker process: the broker is killed during a copy, the command restores the backup, and a view follows
the restored log.
"""

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

from faults.servers.headrace_broker import COMMAND, start_headrace
from faults.servers.server import Server
from faults.views.follower_thread import following, produce
from faults.wait import until
from headrace.app import App
from headrace.broker.backup.folder import BackupFolder
from headrace.broker.backup.restore_points import check, choose
from headrace.client.cluster import Cluster
from headrace.client.records import read
from headrace.ops.verify.verifier import verify_view
from headrace.settings import Settings


def headrace(*words: str | Path, code: int = 0) -> list[dict[str, Any]]:
    """Run a command and return its output as rows."""
    done = subprocess.run([COMMAND, *words, "--json"], capture_output=True, text=True, timeout=480)
    assert done.returncode == code, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


Start = Callable[..., Server]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start brokers, and stop all of them after the test."""
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
    values_by_partition: dict[int, list[int]] = {}
    for number, end in cluster.ends(topic, committed=False).items():
        values_by_partition[number] = [
            int(record.value() or b"") for record in read(cluster, topic, {number: (0, end)})
        ]
    return values_by_partition


def wait_for_restore_point(folder: Path, records: int) -> int:
    """Wait for the first restore point with at least this number of records."""

    def sequence_with_records() -> int | None:
        try:
            newest = choose(BackupFolder(folder))
        except Exception:
            return None
        return newest.sequence if newest.record_count() >= records else None

    return until(sequence_with_records, f"{records} records in the backup", timeout_s=480, pause_s=0.02)


class Load:
    """Sends numbers to two partitions, each in order, until it is stopped; counts the acknowledged ones."""

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


def test_after_a_kill_during_a_copy_every_restore_point_is_intact(tmp_path: Path, start: Start) -> None:
    folder = tmp_path / "backup"
    folder.mkdir()
    home = tmp_path / "broker"
    server = start(home, folder, every_ms=20)
    port = server.port
    Cluster(server.bootstrap, timeout_s=10.0).ensure_topic("numbers", 2, {"segment.bytes": "1048576"})
    load = Load(server, "numbers")
    for times in range(3):
        wait_for_restore_point(folder, 200 * (times + 1))
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
    (report,) = headrace("backup", "check", folder)
    assert report["damaged"] == 0
    (row,) = headrace("backup", "restore", folder, "--data", tmp_path / "restored" / "data")
    assert row["restore_point"] == names[-1].sequence
    other = start(tmp_path / "restored", None)
    restored_values = values(other, "numbers")
    # A clean stop copies the remaining records, and each partition is a prefix of what was sent.
    for partition, numbers in restored_values.items():
        assert numbers == list(range(len(numbers)))
        assert len(numbers) >= acknowledged[partition] > 0
    assert other.stop() == 0


@dataclass(frozen=True)
class Order:
    order: str
    amount: int


def order(name: str, amount: int) -> tuple[bytes, bytes]:
    return name.encode(), json.dumps({"order": name, "amount": amount}).encode()


def test_a_view_ahead_of_the_restored_log_is_rebuilt_and_verified(tmp_path: Path, start: Start) -> None:
    folder = tmp_path / "backup"
    folder.mkdir()
    server = start(tmp_path / "broker", folder)
    cluster = Cluster(server.bootstrap, timeout_s=10.0)
    cluster.ensure_topic("orders", 1, {})
    app = App("shop")
    view = app.view("orders", app.table("orders", Order, key="order"))
    first = {f"o{n}": n for n in range(10)}
    produce(cluster, "orders", [order(*item) for item in first.items()])
    number = wait_for_restore_point(folder, 10)
    produce(cluster, "orders", [order(f"lost{n}", n) for n in range(5)])
    lost = first | {f"lost{n}": n for n in range(5)}
    with following(cluster, view, [], tmp_path) as followed:
        followed.expect({name: (name, amount) for name, amount in lost.items()})
    server.kill()
    headrace("backup", "restore", folder, "--data", tmp_path / "restored" / "data", "--to", str(number))
    new = tmp_path / "new"
    new.mkdir()
    server = start(tmp_path / "restored", new)
    cluster = Cluster(server.bootstrap, timeout_s=10.0)
    # Write more records than the view had read, so that offsets alone do not reveal the restore.
    produce(cluster, "orders", [order(f"new{n}", n) for n in range(8)])
    rows = first | {f"new{n}": n for n in range(8)}
    with following(cluster, view, [], tmp_path) as followed:
        followed.expect({name: (name, amount) for name, amount in rows.items()})
        assert any("restored from a backup" in line for line in followed.lines), followed.lines
    report = verify_view(None, cluster, app, view, Settings(data=tmp_path), (), {})
    assert (report.verdict, report.found_rows) == ("proven", 18)
    # The view then continues from its position, without another rebuild.
    with following(cluster, view, [], tmp_path) as followed:
        produce(cluster, "orders", [order("last", 1)])
        followed.expect({name: (name, amount) for name, amount in (rows | {"last": 1}).items()})
        assert not any("is built" in line for line in followed.lines)
    wait_for_restore_point(new, 19)
    (status,) = headrace("backup", "status", new, "-b", server.bootstrap)
    assert status["behind_records"] == 0
    listed = headrace("backup", "list", folder)
    assert {row["state"] for row in listed} == {"restorable"}
    assert server.stop() == 0
