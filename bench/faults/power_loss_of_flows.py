"""X2 for flows, a power loss: of Spark's checkpoints there is what was synced, and of the rest anything.

A flow with state and one without run over several batches. The power is lost in the middle of a sync, between a sync
and the commit of the log, or after a commit; the log has what it had committed, as its own runs show. Files of the
flow's checkpoint that were not synced are gone, empty, cut short or whole, each by chance; all of the checkpoint of the
flow without state may be gone. Both flows must go on by themselves. Everything is held against a sum by hand.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from bench.faults.committed import committed
from bench.faults.flow_world import jvm_peak_mb, running, world
from bench.faults.outcome import Outcome
from bench.faults.sim_loop import patched
from bench.faults.synced_files import PowerLoss, SyncedFiles
from headrace.app import App
from headrace.client.progress_log import current
from headrace.errors import HeadraceError
from headrace.flow.checkpoint_sync import CheckpointSync
from headrace.flow.writer import Writer

__all__ = ["UNPROTECTED", "run"]

FAULT = "X2"
UNPROTECTED = {"sync": r"a flow does not go on"}
_WALKERS = 3
_ROWS_AT_ONCE = 12
_LOSSES = 2
_COMMITS = 2
"""Of the driver as the owner of the flow, and of a batch."""
_CALLS = 12
"""Each batch syncs more files and folders than that."""
_MOMENTS = ("while it syncs", "before the commit", "after the commit")
_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_PROVIDERS = tuple(
    f"org.apache.spark.sql.execution.streaming.state.{name}StateStoreProvider"
    for name in ("HDFSBacked", "RocksDB")
)


@dataclass(frozen=True)
class Step:
    step: str
    walker: str
    length: int


def run(seed: int, *, protected: bool = True, without: str = "sync", losses: int = _LOSSES) -> Outcome:
    outcome = Outcome(FAULT, seed)
    rng = random.Random(f"{FAULT} flows {seed}")
    unsynced = contextlib.nullcontext() if protected else patched(CheckpointSync, "sync", lambda self: None)
    with _state_in(rng.choice(_PROVIDERS)), unsynced:
        walk = _Walk(rng, outcome)
        try:
            walk.play(seed, losses)
        except HeadraceError as error:
            outcome.problems.append(f"a flow does not go on: {error}")
    outcome.peak_rss_mb = jvm_peak_mb()
    return outcome


@contextlib.contextmanager
def _state_in(provider: str) -> Iterator[None]:
    conf = world().spark.conf
    conf.set(_PROVIDER, provider)
    try:
        yield
    finally:
        conf.unset(_PROVIDER)


class _Walk:
    def __init__(self, rng: random.Random, outcome: Outcome) -> None:
        self.rng = rng
        self.outcome = outcome
        self.sent: list[Step] = []
        self.mark = mark = uuid.uuid4().hex[:8]
        self.app = app = App(f"walk-{mark}")
        self.steps = app.topic(f"steps-{mark}", Step, key="step", partitions=2)
        kept = app.topic(f"kept-{mark}", key="step")
        ways = app.topic(f"ways-{mark}", key="walker")
        app.flow(reads=[self.steps], writes=kept, name=f"keep-{mark}")(_keep)
        app.flow(reads=[self.steps], writes=ways, name=f"sum-{mark}", unbounded=True)(_sum)
        self.files = SyncedFiles()
        self.struck = False

    def play(self, seed: int, losses: int) -> None:
        for number in range(losses):
            self._send()
            self._run_until_lost(_MOMENTS[(seed + number) % len(_MOMENTS)])
            self._lose_power()
        self._send()
        with self._running() as run:
            run.derived()
        self._judge()

    def _running(self) -> Any:
        return running(self.app, _ROWS_AT_ONCE, follow=False, fsync=self.files.fsync)

    def _send(self) -> None:
        begin = len(self.sent)
        steps = [
            Step(f"s{number}", f"w{self.rng.randrange(_WALKERS)}", self.rng.randrange(100))
            for number in range(begin, begin + self.rng.randrange(20, 50))
        ]
        self.sent += steps
        world().declare(self.app)
        world().write(self.steps, steps)

    def _run_until_lost(self, moment: str) -> None:
        """Both flows run. The one with state comes to the moment in the batch after its first; else all is derived."""
        self.struck = False
        try:
            with patched(Writer, "commit", self._commit_until(moment)), self._running() as run:
                run.derived()
        except HeadraceError as error:
            if not isinstance(error.__cause__, PowerLoss):
                raise
            self.struck = True
        self.files.calls_left = None

    def _commit_until(self, moment: str) -> Any:
        commit, commits = Writer.commit, 0
        flow = f"sum-{self.mark}"

        def commit_until(writer: Writer) -> None:
            nonlocal commits
            if writer.flow != flow:
                commit(writer)
                return
            if moment == "before the commit" and commits == _COMMITS:
                raise PowerLoss("the power is lost")
            commit(writer)
            commits += 1
            if moment == "while it syncs" and commits == _COMMITS:
                self.files.calls_left = self.rng.randrange(_CALLS)

        return commit_until

    def _lose_power(self) -> None:
        found = current(world().cluster, f"sum-{self.mark}.progress")
        assert found is not None
        checkpoints = world().settings().checkpoints
        (folder,) = (checkpoints / f"sum-{self.mark}").glob(f"{found.generation.checkpoint}.*")
        harmed = self.files.lose_power(folder, self.rng)
        if found.last is not None and (harmed or self.struck):
            self.outcome.hits += 1
        if self.rng.random() < 0.5:
            shutil.rmtree(checkpoints / f"keep-{self.mark}")

    # What came of it

    def _judge(self) -> None:
        kept = Counter(msgspec.json.decode(one.value())["step"] for one in self._read("kept"))
        expected = Counter(step.step for step in self.sent)
        self.outcome.lost += (expected - kept).total()
        self.outcome.duplicated += (kept - expected).total()
        ways = {}
        for one in self._read("ways"):
            row = msgspec.json.decode(one.value())
            ways[row["walker"]] = row["length"]
        lengths: Counter[str] = Counter()
        for step in self.sent:
            lengths[step.walker] += step.length
        if ways != dict(lengths):
            self.outcome.problems.append(f"the sums are {ways} instead of {dict(lengths)}")

    def _read(self, topic: str) -> list[Any]:
        return committed(world().cluster.bootstrap, f"{topic}-{self.mark}")


def _keep(steps: Any) -> Any:
    return steps


def _sum(steps: Any) -> Any:
    from pyspark.sql import functions as F

    return steps.groupBy("walker").agg(F.sum("length").alias("length"))
