"""The sent sales, the drivers that derive rows from them, and the check of the rows that read-committed readers see."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from faults.committed_records import committed
from faults.outcome import Outcome
from faults.servers.fork_server import ROOT, parent_death_prefix
from faults.servers.process_tree import rss_mb

__all__ = ["COLUMNS", "Driver", "Sales"]

COLUMNS = {
    "kept_rows": ("sale_id", "product_id", "amount", "at"),
    "sum_rows": ("product_id", "minute", "amount", "sales"),
}
"""The columns of each view of ``faults.flows.sales_app``."""

_NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
_PATIENCE_S = 600.0
_POLL_S = 0.05


class Driver:
    """A process that runs ``faults.flows.driver`` or another program."""

    def __init__(
        self, bootstrap: str, home: Path, *arguments: str, program: str = "faults.flows.driver"
    ) -> None:
        self.log = home / f"driver-{time.monotonic_ns()}.log"
        self.peak_rss_mb = 0.0
        """The highest sampled memory of Python and its JVM together."""
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(
                [
                    *parent_death_prefix(),
                    sys.executable,
                    "-m",
                    program,
                    bootstrap,
                    str(home),
                    *arguments,
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
            )

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_for(self, text: str) -> bool:
        """Wait until the process prints the text. Return False if it exits without printing it."""
        deadline = time.monotonic() + _PATIENCE_S
        while text not in self.output():
            self._sample_rss()
            if self._process.poll() is not None and text not in self.output():
                return False
            assert time.monotonic() < deadline, f"the driver did not print {text!r}:\n{self.output()[-3000:]}"
            time.sleep(0.05)
        return True

    def wait(self) -> int:
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            self._sample_rss()
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self._process.wait(_POLL_S)
        raise AssertionError(f"the driver does not exit:\n{self.output()[-3000:]}")

    def count(self, text: str) -> int:
        return self.output().count(text)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def rss_mb(self, field: str = "VmRSS") -> dict[str, float]:
        """Return the memory of Python and of its JVM. The field ``VmHWM`` is the peak of each."""
        return {"Python": rss_mb(self._process.pid, field), "Java": rss_mb(self._java(), field)}

    def _sample_rss(self) -> None:
        """Update ``peak_rss_mb``. A process might exit, or not have started yet, during the call."""
        with contextlib.suppress(OSError, StopIteration):
            self.peak_rss_mb = max(self.peak_rss_mb, sum(self.rss_mb("VmHWM").values()))

    def _children(self) -> list[int]:
        """Return the processes that the driver's main thread has started."""
        pid = self._process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def _java(self) -> int:
        return next(child for child in self._children() if _is_java(child))

    def pause(self, *, python_only: bool = True) -> None:
        """Stop Python with SIGSTOP; without ``python_only``, stop the JVM too."""
        for pid in (self._process.pid, *(() if python_only else (self._java(),))):
            os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        with contextlib.suppress(OSError):
            for child in self._children():
                os.kill(child, signal.SIGCONT)
        os.kill(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        if self.is_running:
            self._sample_rss()
            self.resume()
            self._process.kill()
            self._process.wait()


def _text(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _is_java(pid: int) -> bool:
    return Path(f"/proc/{pid}/exe").resolve().name == "java"


class Sales:
    """The sales that were sent, and the rows that must derive from them."""

    def __init__(self, bootstrap: str, rng: random.Random) -> None:
        self._bootstrap = bootstrap
        self._rng = rng
        self._sent: dict[str, tuple[str, int, datetime]] = {}
        self._lock = threading.Lock()
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic("sales", 2, config={"retention.ms": "-1"})])["sales"].result(30)

    def send(self, count: int) -> None:
        producer = Producer({"bootstrap.servers": self._bootstrap})
        for _ in range(count):
            key, value = self.draw_sale()
            producer.produce("sales", value, key)
        assert producer.flush(30) == 0

    def draw_sale(self) -> tuple[bytes, bytes]:
        """Return a new sale for a client to send. It counts as sent."""
        with self._lock:
            name = f"s{len(self._sent)}"
            at = _NOON + timedelta(seconds=self._rng.randrange(300))
            sale = (f"p{self._rng.randrange(3)}", self._rng.randrange(1, 100), at)
            self._sent[name] = sale
        row = {"sale_id": name, "product_id": sale[0], "amount": sale[1], "at": at.isoformat()}
        return name.encode(), json.dumps(row).encode()

    def wait_until_derived(self, driver: Driver) -> None:
        """Wait until a read-committed reader sees a row for every sale, or the driver has exited."""
        deadline = time.monotonic() + _PATIENCE_S
        while driver.is_running and self.unread_rows() > 0:
            assert time.monotonic() < deadline, f"the driver makes no progress:\n{driver.output()[-3000:]}"
            time.sleep(0.2)

    def unread_rows(self) -> int:
        """Return the number of kept rows that a read-committed reader does not see yet."""
        try:
            return len(self._sent) - len(self._read("kept"))
        except KeyError:
            return len(self._sent)

    def judge(self, outcome: Outcome, store: Path | None = None) -> None:
        """Check all results. ``store`` is the file of the views, if a follower wrote them."""
        kept = Counter(row["sale_id"] for _, row in self._read("kept"))
        outcome.lost += sum(1 for sale in self._sent if sale not in kept)
        outcome.duplicated += sum(times - 1 for times in kept.values())
        if unknown := [sale for sale in kept if sale not in self._sent]:
            outcome.problems.append(f"the output has rows that no client sent: {unknown[:5]}")
        sums = dict(self._read("sums"))
        actual = {(row["product_id"], row["minute"]): (row["amount"], row["sales"]) for row in sums.values()}
        expected = {row[:2]: row[2:] for row in self.expected()["sum_rows"]}
        if actual != expected:
            wrong_keys = sorted(key for key in expected | actual if expected.get(key) != actual.get(key))
            differences = [
                f"{key}: {actual.get(key)} instead of {expected.get(key)}" for key in wrong_keys[:5]
            ]
            outcome.problems.append(f"{len(wrong_keys)} sums are wrong: {'; '.join(differences)}")
        self._judge_progress(outcome)
        if store is not None:
            self._judge_store(outcome, store)

    def expected(self) -> dict[str, set[tuple[Any, ...]]]:
        """Return the rows of each view, as in ``COLUMNS``, that derive from everything that was sent."""
        sums: dict[tuple[str, str], tuple[int, int]] = {}
        with self._lock:
            sent = dict(self._sent)
        for product, amount, at in sent.values():
            minute = _text(at.replace(second=0))
            total = sums.get((product, minute), (0, 0))
            sums[product, minute] = (total[0] + amount, total[1] + 1)
        kept_rows = {(sale, product, amount, _text(at)) for sale, (product, amount, at) in sent.items()}
        return {"kept_rows": kept_rows, "sum_rows": {(*key, *value) for key, value in sums.items()}}

    def _judge_store(self, outcome: Outcome, store: Path) -> None:
        """Compare all rows, read with sqlite3 alone."""
        with contextlib.closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as connection:
            for view, expected in self.expected().items():
                actual = set(connection.execute(f"SELECT {', '.join(COLUMNS[view])} FROM {view}"))
                if actual != expected:
                    differing = sorted(actual ^ expected)
                    outcome.problems.append(
                        f"{view}: {len(differing)} rows differ from what was sent: {differing[:4]}"
                    )

    def _judge_progress(self, outcome: Outcome) -> None:
        """Check that no batch number occurs twice, and that the offset ranges have no gap."""
        for flow in ("keep", "sum_up"):
            records = [row for _, row in self._read(f"sales.{flow}.progress") if row["record"] == "batch"]
            numbers = [row["batch"] for row in records]
            if numbers != sorted(set(numbers)):
                outcome.problems.append(f"{flow}: batches {numbers}")
            read_until: dict[tuple[str, str], int] = {}
            for row in records:
                for topic, ranges in row["inputs"].items():
                    for number, (start, to) in ranges.items():
                        previous_end = read_until.get((topic, number), 0)
                        if start != previous_end:
                            outcome.problems.append(
                                f"{flow}: a batch reads {topic}/{number} from {start}, not from {previous_end}"
                            )
                        read_until[topic, number] = to

    def _read(self, topic: str) -> list[tuple[str, Any]]:
        messages = committed(self._bootstrap, topic)
        return [((message.key() or b"").decode(), json.loads(message.value() or b"")) for message in messages]
