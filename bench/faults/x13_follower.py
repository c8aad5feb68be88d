"""X13, a zombie follower: stopped inside an apply (SIGSTOP), replaced by a successor, and woken (SIGCONT).
On Apache Kafka for one seed in ten.

Before its transaction the zombie holds nothing, and the successor goes on alone; in a third of the runs the flow begins
a new generation meanwhile. Within its transaction the zombie may hold a lock: SQLite's successor waits until it wakes,
that of a server goes on without it. Either way the zombie must be refused, with both epochs in the words, and whoever
reads the view at any moment must see the rows of the batch that its position names, and never an earlier batch than
before.
"""

from __future__ import annotations

import random
import threading
import time

from bench.faults.flow_by_hand import Change, FlowByHand
from bench.faults.follower_process import FollowerProcess
from bench.faults.log_server import log_server
from bench.faults.outcome import Outcome
from bench.faults.store_kinds import KINDS, Rows, kind_of
from bench.faults.view_watch import ViewWatch
from bench.faults.workplace import workplace
from headrace.client.cluster import Cluster

__all__ = ["UNPROTECTED", "Writing", "run"]

FAULT = "X13"
UNPROTECTED = {"fence": r"went back|rows differ"}
_KEYS = 40
_SLOW_MS = 15.0
_UNREFUSED_S = 3.0
"""How long a zombie goes on that nobody refuses, for whom it is vain to wait."""
_NAME = "sales"


def run(seed: int, *, protected: bool = True, without: str = "fence", store: str = "") -> Outcome:
    """``store`` is one of ``store_kinds.KINDS``; without it, the seed says which: each is struck at every point."""
    rng = random.Random(seed)
    outcome = Outcome(FAULT, seed)
    kind = store or kind_of(seed, share=3)
    with (
        workplace(FAULT, seed) as home,
        KINDS[kind].place(home) as place,
        log_server(home, seed if protected else 1, outcome) as bootstrap,
    ):
        writing = Writing(bootstrap, rng)
        watch = ViewWatch(place, _NAME, writing.expected)
        scene = _Scene(bootstrap, kind, place.address, rng, outcome, writing, "" if protected else without)
        try:
            scene.play(point=("applying", "applying", "inside")[seed % 3], renews=seed % 3 == 1)
            writing.stop()
            if watch.wait_for(*writing.at):
                writing.flow.batch([("last", {"product": "last", "amount": 1, "note": None})])
                watch.wait_for(*writing.at)
        finally:
            writing.stop()
            scene.end()
            watch.close()
        scene.judge()
        outcome.problems += watch.problems
        outcome.figures["looks"] = watch.looks
    return outcome


class Writing:
    """A flow that writes batch after batch in a thread of its own, and knows what each comes to."""

    def __init__(self, bootstrap: str, rng: random.Random, *, pause_s: float = 0.015) -> None:
        self._rng = random.Random(rng.getrandbits(30))
        self._pause_s = pause_s
        self._states: dict[tuple[int, int], Rows] = {}
        self._turn = threading.Lock()
        self.flow = FlowByHand(Cluster(bootstrap), _NAME)
        self.poison: list[bytes] = []
        self._begin()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    @property
    def at(self) -> tuple[int, int]:
        return self.flow.generation, self.flow.batches - 1

    def expected(self, generation: int, batch: int) -> Rows | None:
        """None for a batch that is seen before its writer has heard that it is committed."""
        return self._states.get((generation, batch))

    def renew(self) -> None:
        """A new generation, that has to come as far as the old one before it serves."""
        with self._turn:
            consumed = self.flow.consumed
            self._begin()
            self._batch(consumed=consumed)

    def _begin(self) -> None:
        self.flow.begin()
        self._states[self.flow.generation, -1] = {}

    def _write(self) -> None:
        while not self._done.is_set():
            with self._turn:
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
        writing: Writing,
        without: str,
    ) -> None:
        self._bootstrap = bootstrap
        self._kind = kind
        self._address = address
        self._rng = rng
        self._outcome = outcome
        self._writing = writing
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
        zombie.sleep()
        if zombie.is_within:
            self._outcome.hits += 1
        slept_at = self._writing.at
        successor = self._successor = self._follower()
        if zombie.lines[-1].startswith("inside") and KINDS[self._kind].waits_for_zombie:
            # It cannot have the view while the zombie holds the lock.
            time.sleep(0.5)
            zombie.wake()
        else:
            successor.wait_for("applied", slept_at[1] + 2)
            if renews:
                self._writing.renew()
                time.sleep(self._rng.uniform(0, 0.3))
            zombie.wake()
        if not (zombie.finish(_UNREFUSED_S) if self._without else zombie.finish()):
            self._object(f"the zombie was not refused; it says {zombie.lines[-3:]}")

    def _object(self, problem: str) -> None:
        self._outcome.problems.append(problem)

    def judge(self) -> None:
        last = self._zombie.lines[-1]
        if not (last.startswith("refused ") and "epoch 1 " in last and "epoch 2 " in last):
            self._object(f"the zombie was not told that it was replaced: {self._zombie.lines[-3:]}")
        if self._successor is not None and any(line.startswith("refused") for line in self._successor.lines):
            self._object(f"the successor was refused: {self._successor.lines[-1]}")

    def end(self) -> None:
        for one in (self._zombie, self._successor):
            if one is not None:
                self._outcome.peak_rss_mb = max(self._outcome.peak_rss_mb, one.rss_mb())
                one.kill()
