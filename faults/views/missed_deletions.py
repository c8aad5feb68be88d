"""Fault X18 for a follower: it stops, rows are deleted, and it starts again after the log has removed the deletions.

A follower writes a table into SQLite. It stops, rows are deleted, and the other rows are updated until a stock reader
of the whole topic finds no deletion any more, which counts as a hit. Then the follower starts again and cannot read the
deletions that it missed. It must report this and rebuild the view, whose rows must equal the oracle's table. Its memory
must not grow with its lag.

    python -m faults.views.missed_deletions BOOTSTRAP DATA [PROTECTION]

This command follows the table to its end, as ``headrace view follow --exit`` does.
"""

from __future__ import annotations

import contextlib
import json
import random
import sqlite3
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Producer

from faults.committed_records import committed
from faults.outcome import Outcome
from faults.patch import patch
from faults.protocol import calls
from faults.protocol.connection import Connection
from faults.run_directory import run_directory
from faults.servers.broker_process import BrokerProcess
from faults.servers.fork_server import ROOT, parent_death_prefix
from headrace.app import App

__all__ = ["UNPROTECTED", "run"]

FAULT = "X18"
UNPROTECTED = {"tombstones": r"deleted rows are still in the view"}
RSS_MB_MAX = 64.0
_TOPIC = _VIEW = "items"
_KEYS = 60
_UPDATES = 2_000
_WAIT_S_MAX = 240.0
_CONFIGS: dict[str | bytes, str | bytes | None] = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "20000",
    "min.cleanable.dirty.ratio": "0.001",
    "delete.retention.ms": "0",
}


@dataclass(frozen=True)
class Item:
    item: str
    number: int


app = App("deletions")
app.view(_VIEW, app.table(_TOPIC, Item, key="item"))


def run(seed: int, *, protected: bool = True, without: str = "tombstones", records: int = 200_000) -> Outcome:
    """``records`` is the number of records written while the follower is stopped."""
    outcome = Outcome(FAULT, seed)
    with (
        run_directory(FAULT, seed) as home,
        BrokerProcess(home, options=["--set", "log.cleaner.backoff.ms=50"], forked=True) as broker,
    ):
        broker.start()
        with Connection(broker.port) as connection:
            if error := calls.create_topic(connection, _TOPIC, 1, _CONFIGS):
                raise AssertionError(f"the topic could not be created: error {error}")
        table = _Table(broker, random.Random(f"{FAULT} {seed}"))
        follower = _Follower(broker.bootstrap, home / "app", "" if protected else without)
        table.update(_KEYS)
        follower.follow()
        base_mb = follower.peak_rss_mb
        table.delete_some()
        table.update_until_removed()
        outcome.hits += 1
        table.update(records)
        output = follower.follow()
        outcome.peak_rss_mb = follower.peak_rss_mb
        if follower.peak_rss_mb > base_mb + RSS_MB_MAX:
            outcome.problems.append(
                f"the follower's memory was {follower.peak_rss_mb:.0f} MB, but {base_mb:.0f} MB before it was behind"
            )
        if protected and "tombstones in partition 0" not in output:
            outcome.problems.append(f"the follower did not report that it missed deletions: {output[-500:]}")
        table.judge(home / "app" / "deletions.db", outcome)
        outcome.problems += broker.unexpected_exceptions()
    return outcome


class _Table:
    """The written records, and the rows that result from them."""

    def __init__(self, broker: BrokerProcess, rng: random.Random) -> None:
        self._broker = broker
        self._rng = rng
        self._producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5})
        self._rows: dict[str, int | None] = dict.fromkeys(f"i{number}" for number in range(_KEYS))
        self._written = 0

    def update(self, count: int) -> None:
        """Update each row once, then any rows that are not deleted."""
        existing = [item for item, number in self._rows.items() if number is not None] or list(self._rows)
        for at in range(count):
            self._write(existing[at] if at < len(existing) else self._rng.choice(existing), self._written)
        self._flush()

    def delete_some(self) -> None:
        for item in self._rng.sample(sorted(self._rows), self._rng.randint(10, _KEYS // 2)):
            self._write(item, None)
        self._flush()

    def _write(self, item: str, number: int | None) -> None:
        self._written += 1
        self._rows[item] = number
        value = None if number is None else json.dumps({"item": item, "number": number})
        self._producer.produce(_TOPIC, value, item)
        if self._written % 10_000 == 0:
            self._flush()

    def _flush(self) -> None:
        if self._producer.flush(60):
            raise AssertionError("records were not acknowledged")

    def update_until_removed(self) -> None:
        deadline = time.monotonic() + _WAIT_S_MAX
        while any(message.value() is None for message in committed(self._broker.bootstrap, _TOPIC)):
            if time.monotonic() > deadline:
                raise AssertionError(f"deletions are still in the log after {_WAIT_S_MAX:.0f} s")
            self.update(_UPDATES)
            time.sleep(0.1)

    def judge(self, store: Path, outcome: Outcome) -> None:
        with contextlib.closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as connection:
            rows = dict(connection.execute(f"SELECT item, number FROM {_VIEW}"))
        expected = {item: number for item, number in self._rows.items() if number is not None}
        outcome.lost += len(expected.keys() - rows.keys())
        if stale := sorted(rows.keys() - expected.keys()):
            outcome.problems.append(f"{len(stale)} deleted rows are still in the view: {stale[:5]}")
        if wrong := sorted(item for item in expected if item in rows and rows[item] != expected[item]):
            outcome.problems.append(f"{len(wrong)} rows are not the newest: {wrong[:5]}")


class _Follower:
    def __init__(self, bootstrap: str, data: Path, without: str) -> None:
        self._words = [bootstrap, str(data), *filter(None, [without])]
        data.mkdir()
        self._log = data / "follow.log"
        self.peak_rss_mb = 0.0

    def follow(self) -> str:
        """Follow to the end of the topic, and return the output."""
        with self._log.open("wb") as log:
            process = subprocess.Popen(
                [*parent_death_prefix(), sys.executable, "-m", "faults.views.missed_deletions", *self._words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=ROOT,
            )
        self.peak_rss_mb, deadline = 0.0, time.monotonic() + _WAIT_S_MAX
        while process.poll() is None:
            self._note_rss(process.pid)
            if time.monotonic() > deadline:
                process.kill()
                process.wait()
                raise AssertionError(f"the follower does not exit:\n{self._log.read_text()[-2000:]}")
            time.sleep(0.01)
        output = self._log.read_text(errors="replace")
        if process.returncode:
            raise AssertionError(f"the follower exited with {process.returncode}:\n{output[-2000:]}")
        return output

    def _note_rss(self, pid: int) -> None:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    self.peak_rss_mb = max(self.peak_rss_mb, int(line.split()[1]) / 1024)


def main(bootstrap: str, data: str, without: str = "") -> int:
    from headrace.cli import main as command

    if without == "tombstones":
        from headrace.client.tombstones import Tombstones

        patch(Tombstones, "missed_tombstone_reason", lambda *_: None)
    words = ["view", "follow", "faults.views.missed_deletions:app", "--exit", "-b", bootstrap, "--data", data]
    sys.argv = ["headrace", *words]
    return int(command() or 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
