"""Fault X13, a zombie follower: it is paused while it applies a batch (SIGSTOP), replaced by a successor, and resumed
(SIGCONT). One seed in ten uses Apache Kafka.

If the zombie is paused before its transaction, it holds no lock, and the successor continues alone. In half of these
runs the flow begins a new generation during the pause. If the zombie is paused inside its transaction, it can hold a
lock: in SQLite the successor waits until the zombie resumes; in other stores the successor continues. In both cases the
zombie must be refused, with both epochs in the error. Every read of the view must show exactly the state after the
batch at the view's position, and never an earlier batch than the previous read.
"""

from __future__ import annotations

import random
import threading
import time

from faults.outcome import Outcome
from faults.run_directory import run_directory
from faults.servers.log_server import log_server
from faults.stores.port import Rows
from faults.stores.registry import kind_of, store_faults
from faults.views.follower_process import FollowerProcess
from faults.views.scripted_flow import Change, ScriptedFlow
from faults.views.view_reader import ViewReader
from headrace.client.cluster import Cluster

__all__ = ["UNPROTECTED", "BatchWriter", "run"]

FAULT = "X13"
UNPROTECTED = {"fence": r"went back|rows differ"}
_KEYS = 40
_SLOW_MS = 15.0
_UNFENCED_S = 3.0
"""How long a zombie continues if it is not refused."""
_NAME = "sales"


def run(seed: int, *, protected: bool = True, without: str = "fence", store: str = "") -> Outcome:
    """``store`` is one of ``KINDS``. By default the seed chooses it, so that over many seeds each kind is
    paused at every point.
    """
    rng = random.Random(seed)
    outcome = Outcome(FAULT, seed)
    kind = store or kind_of(seed, share=3)
    with (
        run_directory(FAULT, seed) as home,
        store_faults(kind).create(home) as faulty_store,
        log_server(home, seed if protected else 1, outcome) as bootstrap,
    ):
        writer = BatchWriter(bootstrap, rng)
        reader = ViewReader(faulty_store, _NAME, writer.expected)
        scene = _Scene(
            bootstrap, kind, faulty_store.address, rng, outcome, writer, "" if protected else without
        )
        try:
            scene.play(point=("applying", "applying", "inside")[seed % 3], renews=seed % 3 == 1)
            writer.stop()
            if reader.wait_for(*writer.at):
                writer.flow.batch([("last", {"product": "last", "amount": 1, "note": None})])
                reader.wait_for(*writer.at)
        finally:
            writer.stop()
            scene.end()
            reader.close()
        scene.judge()
        outcome.problems += reader.problems
        outcome.figures["looks"] = reader.reads
    return outcome


class BatchWriter:
    """A flow that writes one batch after another in a thread, and knows the rows of each."""

    def __init__(self, bootstrap: str, rng: random.Random, *, pause_s: float = 0.015) -> None:
        self._rng = random.Random(rng.getrandbits(30))
        self._pause_s = pause_s
        self._states: dict[tuple[int, int], Rows] = {}
        self._lock = threading.Lock()
        self.flow = ScriptedFlow(Cluster(bootstrap), _NAME)
        self.poison: list[bytes] = []
        self._begin()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    @property
    def at(self) -> tuple[int, int]:
        return self.flow.generation, self.flow.batches - 1

    def expected(self, generation: int, batch: int) -> Rows | None:
        """Return the expected rows, or None if the writer has not got the response to its commit yet."""
        return self._states.get((generation, batch))

    def renew(self) -> None:
        """Begin a new generation, which must catch up with the old one before it serves."""
        with self._lock:
            consumed = self.flow.consumed
            self._begin()
            self._batch(consumed=consumed)

    def _begin(self) -> None:
        self.flow.begin()
        self._states[self.flow.generation, -1] = {}

    def _write(self) -> None:
        while not self._done.is_set():
            with self._lock:
                self._batch()
            time.sleep(self._rng.uniform(0, 2 * self._pause_s))

    def _batch(self, consumed: int | None = None) -> None:
        products = [f"p{self._rng.randrange(_KEYS)}" for _ in range(self._rng.randint(0, 12))]
        changes: list[Change] = []
        for product in products:
            row = {"product": product, "amount": self._rng.randrange(10**6), "note": None}
            changes.append((product, None if self._rng.random() < 0.2 else row))
        raw: list[tuple[bytes | None, bytes | None]] = []
        if self._rng.random() < 0.5:
            bad = b"poison %d %d" % (self.flow.generation, self.flow.batches)
            raw.append((b"bad", bad))
        if self._rng.random() < 0.1:
            self.flow.abort(changes)
        self.flow.batch(changes, raw=raw, consumed=consumed)
        self.poison += [value for _, value in raw if value is not None]
        self._states[self.at] = dict(self.flow.derived.rows)

    def stop(self) -> None:
        self._done.set()
        self._thread.join(60)


class _Scene:
    def __init__(
        self,
        bootstrap: str,
        kind: str,
        address: str,
        rng: random.Random,
        outcome: Outcome,
        writer: BatchWriter,
        without: str,
    ) -> None:
        self._bootstrap = bootstrap
        self._kind = kind
        self._address = address
        self._rng = rng
        self._outcome = outcome
        self._writer = writer
        self._without = without
        self._zombie = self._follower()
        self._successor: FollowerProcess | None = None

    def _follower(self) -> FollowerProcess:
        return FollowerProcess(
            self._bootstrap, self._kind, self._address, _NAME, slow_ms=_SLOW_MS, without=self._without
        )

    def play(self, *, point: str, renews: bool) -> None:
        zombie = self._zombie
        zombie.wait_for("applied", 0)
        zombie.wait_for(point, zombie.last(point) + self._rng.randint(1, 8))
        zombie.pause()
        if zombie.is_within:
            self._outcome.hits += 1
        paused_at = self._writer.at
        successor = self._successor = self._follower()
        if zombie.lines[-1].startswith("inside") and store_faults(self._kind).waits_for_zombie:
            # The successor cannot take over the view while the zombie holds the lock.
            time.sleep(0.5)
            zombie.resume()
        else:
            successor.wait_for("applied", paused_at[1] + 2)
            if renews:
                self._writer.renew()
                time.sleep(self._rng.uniform(0, 0.3))
            zombie.resume()
        if not (zombie.finish(_UNFENCED_S) if self._without else zombie.finish()):
            self._report_problem(f"the zombie was not refused; it printed {zombie.lines[-3:]}")

    def _report_problem(self, problem: str) -> None:
        self._outcome.problems.append(problem)

    def judge(self) -> None:
        last = self._zombie.lines[-1]
        if not (last.startswith("refused ") and "epoch 1 " in last and "epoch 2 " in last):
            self._report_problem(
                f"the zombie did not get the error of a replaced follower: {self._zombie.lines[-3:]}"
            )
        if self._successor is not None and any(line.startswith("refused") for line in self._successor.lines):
            self._report_problem(f"the successor was refused: {self._successor.lines[-1]}")

    def end(self) -> None:
        for process in (self._zombie, self._successor):
            if process is not None:
                self._outcome.peak_rss_mb = max(self._outcome.peak_rss_mb, process.rss_mb())
                process.kill()
