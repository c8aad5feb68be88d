"""Sales that are sent, drivers that derive from them, and what any reader of committed records then finds."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from bench.faults.committed import committed
from bench.faults.forking import ROOT, dying_with_us
from bench.faults.outcome import Outcome

__all__ = ["Driver", "Sales"]

_NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
_PATIENCE_S = 600.0
_LOOK_S = 0.05


class Driver:
    """``bench.faults.flow_driver``, or another program, in a process of its own."""

    def __init__(
        self, bootstrap: str, home: Path, *words: str, program: str = "bench.faults.flow_driver"
    ) -> None:
        self.log = home / f"driver-{time.monotonic_ns()}.log"
        self.peak_rss_mb = 0.0
        """The most memory that Python and its JVM had together, as far as it was waited for."""
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(
                [
                    *dying_with_us(),
                    sys.executable,
                    "-m",
                    program,
                    bootstrap,
                    str(home),
                    *words,
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
            )

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_for(self, word: str) -> bool:
        """Whether it came to say so; False if it ended without."""
        deadline = time.monotonic() + _PATIENCE_S
        while word not in self.said():
            self._note_rss()
            if self._process.poll() is not None and word not in self.said():
                return False
            assert time.monotonic() < deadline, f"the driver did not say {word!r}:\n{self.said()[-3000:]}"
            time.sleep(0.05)
        return True

    def wait(self) -> int:
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            self._note_rss()
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self._process.wait(_LOOK_S)
        raise AssertionError(f"the driver does not end:\n{self.said()[-3000:]}")

    def times(self, word: str) -> int:
        return self.said().count(word)

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def rss_mb(self, field: str = "VmRSS") -> dict[str, float]:
        """Of Python, and of the JVM that it has started; ``VmHWM`` is the most that each ever had."""
        return {"Python": _rss_mb(self._process.pid, field), "Java": _rss_mb(self._java(), field)}

    def _note_rss(self) -> None:
        """Either may end, or not have begun, while it is looked at."""
        with contextlib.suppress(OSError, StopIteration):
            self.peak_rss_mb = max(self.peak_rss_mb, sum(self.rss_mb("VmHWM").values()))

    def _children(self) -> list[int]:
        """That its first thread has started."""
        pid = self._process.pid
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def _java(self) -> int:
        return next(one for one in self._children() if _is_java(one))

    def sleep(self, *, alone: bool = True) -> None:
        """Python, or the JVM too."""
        for pid in (self._process.pid, *(() if alone else (self._java(),))):
            os.kill(pid, signal.SIGSTOP)

    def wake(self) -> None:
        with contextlib.suppress(OSError):
            for child in self._children():
                os.kill(child, signal.SIGCONT)
        os.kill(self._process.pid, signal.SIGCONT)

    def end(self) -> None:
        if self._process.poll() is None:
            self._note_rss()
            self.wake()
            self._process.kill()
            self._process.wait()


def _text(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _rss_mb(pid: int, field: str) -> float:
    told = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in told if line.startswith(f"{field}:"))


def _is_java(pid: int) -> bool:
    return Path(f"/proc/{pid}/exe").resolve().name == "java"


class Sales:
    """What was sent, by hand, and what must follow from it."""

    def __init__(self, bootstrap: str, rng: random.Random) -> None:
        self._bootstrap = bootstrap
        self._rng = rng
        self._sent: dict[str, tuple[str, int, datetime]] = {}
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic("sales", 2, config={"retention.ms": "-1"})])["sales"].result(30)

    def send(self, count: int) -> None:
        producer = Producer({"bootstrap.servers": self._bootstrap})
        for _ in range(count):
            number = len(self._sent)
            at = _NOON + timedelta(seconds=self._rng.randrange(300))
            sale = (f"p{self._rng.randrange(3)}", self._rng.randrange(1, 100), at)
            self._sent[f"s{number}"] = sale
            row = {"sale_id": f"s{number}", "product_id": sale[0], "amount": sale[1], "at": at.isoformat()}
            producer.produce("sales", json.dumps(row).encode(), f"s{number}".encode())
        assert producer.flush(30) == 0

    def until_derived(self, driver: Driver) -> None:
        """Wait until a reader of committed records sees a row for every sale, or the driver has ended."""
        deadline = time.monotonic() + _PATIENCE_S
        while driver.runs and self.behind() > 0:
            assert time.monotonic() < deadline, f"nothing goes on:\n{driver.said()[-3000:]}"
            time.sleep(0.2)

    def behind(self) -> int:
        """Rows that a reader of committed records does not see yet."""
        try:
            return len(self._sent) - len(self._read("kept"))
        except KeyError:
            return len(self._sent)

    def judge(self, outcome: Outcome, store: Path | None = None) -> None:
        """``store`` is the file of the views, if they were followed."""
        kept = Counter(row["sale_id"] for _, row in self._read("kept"))
        outcome.lost += sum(1 for sale in self._sent if sale not in kept)
        outcome.duplicated += sum(times - 1 for times in kept.values())
        if strange := [sale for sale in kept if sale not in self._sent]:
            outcome.problems.append(f"rows that nobody sent: {strange[:5]}")
        sums = dict(self._read("sums"))
        found = {(row["product_id"], row["minute"]): (row["amount"], row["sales"]) for row in sums.values()}
        expected: dict[tuple[str, str], tuple[int, int]] = {}
        for product, amount, at in self._sent.values():
            minute = _text(at.replace(second=0))
            so_far = expected.get((product, minute), (0, 0))
            expected[product, minute] = (so_far[0] + amount, so_far[1] + 1)
        if found != expected:
            wrong = sorted(key for key in expected | found if expected.get(key) != found.get(key))
            told = [f"{key}: {found.get(key)} instead of {expected.get(key)}" for key in wrong[:5]]
            outcome.problems.append(f"{len(wrong)} sums are wrong: {'; '.join(told)}")
        self._judge_progress(outcome)
        if store is not None:
            self._judge_store(outcome, store, expected)

    def _judge_store(
        self, outcome: Outcome, store: Path, sums: dict[tuple[str, str], tuple[int, int]]
    ) -> None:
        """Row by row, with SQLite alone."""
        with contextlib.closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as connection:
            kept = set(connection.execute("SELECT sale_id, product_id, amount, at FROM kept_rows"))
            summed = set(connection.execute("SELECT product_id, minute, amount, sales FROM sum_rows"))
        sent = {(sale, product, amount, _text(at)) for sale, (product, amount, at) in self._sent.items()}
        for view, found, expected in (
            ("kept_rows", kept, sent),
            ("sum_rows", summed, {(*key, *value) for key, value in sums.items()}),
        ):
            if found != expected:
                wrong = sorted(found ^ expected)
                outcome.problems.append(f"{view}: {len(wrong)} rows differ from what was sent: {wrong[:4]}")

    def _judge_progress(self, outcome: Outcome) -> None:
        """Batches follow each other without a gap, and no number is there twice."""
        for flow in ("keep", "sum_up"):
            records = [row for _, row in self._read(f"{flow}.progress") if row["record"] == "batch"]
            numbers = [row["batch"] for row in records]
            if numbers != sorted(set(numbers)):
                outcome.problems.append(f"{flow}: batches {numbers}")
            reached: dict[tuple[str, str], int] = {}
            for row in records:
                for topic, ranges in row["inputs"].items():
                    for number, (start, to) in ranges.items():
                        before = reached.get((topic, number), 0)
                        if start != before:
                            outcome.problems.append(f"{flow}: {topic}/{number} from {start} after {before}")
                        reached[topic, number] = to

    def _read(self, topic: str) -> list[tuple[str, Any]]:
        found = committed(self._bootstrap, topic)
        return [(str(one.key(), "utf-8"), json.loads(one.value())) for one in found]
