"""Fault X2 for flows, a power loss: Spark's checkpoints keep everything that was synced, and a random part of the rest.

A stateful and a stateless flow run over several batches. The power fails during a sync, between a sync and the commit
of the log, or after a commit. The log itself loses nothing that was committed: ``faults.simulation.power_loss`` tests
its power losses. Each unsynced file of the stateful flow's checkpoint is lost, empty, truncated or whole, at random.
The whole checkpoint of the stateless flow can be lost. Both flows must resume by themselves. The oracle computes all
sums itself.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import uuid
from collections import Counter
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import msgspec

from faults.committed_records import committed
from faults.flows.shared_world import jvm_peak_mb, running, world
from faults.flows.synced_files import PowerLoss, SyncedFiles
from faults.outcome import Outcome
from faults.patch import patched
from faults.servers.spark import session_conf
from headrace.app import App
from headrace.client.progress import current
from headrace.client.transactional_writer import TransactionalWriter
from headrace.errors import HeadraceError
from headrace.flow.spark.checkpoint import CheckpointSync

__all__ = ["UNPROTECTED", "run"]

FAULT = "X2"
UNPROTECTED = {"sync": r"a flow does not continue"}
_WALKERS = 3
_ROWS_AT_ONCE = 12
_LOSSES = 2
_COMMITS = 2
"""The number of commits before the loss: with the first, the driver becomes the owner of the flow; the second is that
of the first batch.
"""
_SYNCS_MAX = 12
"""The power fails at one of the first 12 syncs of a batch. Each batch makes more syncs, so the power always fails."""
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
    sync_removed = (
        contextlib.nullcontext() if protected else patched(CheckpointSync, "sync", lambda self: None)
    )
    with _state_in(rng.choice(_PROVIDERS)), sync_removed:
        walk = _WalkCase(rng, outcome)
        try:
            walk.run(seed, losses)
        except HeadraceError as error:
            outcome.problems.append(f"a flow does not continue: {error}")
    outcome.peak_rss_mb = jvm_peak_mb()
    return outcome


def _state_in(provider: str) -> AbstractContextManager[None]:
    return session_conf(world().spark, {_PROVIDER: provider})


class _WalkCase:
    def __init__(self, rng: random.Random, outcome: Outcome) -> None:
        self.rng = rng
        self.outcome = outcome
        self.sent: list[Step] = []
        self.suffix = suffix = uuid.uuid4().hex[:8]
        self.app = app = App(f"walk-{suffix}")
        self.steps = app.topic(f"steps-{suffix}", Step, key="step", partitions=2)
        kept = app.topic(f"kept-{suffix}", key="step")
        distances = app.topic(f"distances-{suffix}", key="walker")
        app.flow(reads=[self.steps], writes=kept, name=f"keep-{suffix}")(_keep)
        app.flow(reads=[self.steps], writes=distances, name=f"sum-{suffix}", unbounded=True)(_sum)
        self.files = SyncedFiles()
        self.power_failed = False

    def run(self, seed: int, losses: int) -> None:
        for number in range(losses):
            self._send()
            self._run_until_lost(_MOMENTS[(seed + number) % len(_MOMENTS)])
            self._lose_power()
        self._send()
        with self._running() as run:
            run.wait_until_derived()
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
        """Run both flows until the power fails in the second batch of the stateful flow, or all input is derived."""
        self.power_failed = False
        try:
            with patched(TransactionalWriter, "commit", self._commit_until(moment)), self._running() as run:
                run.wait_until_derived()
        except HeadraceError as error:
            if not isinstance(error.__cause__, PowerLoss):
                raise
            self.power_failed = True
        self.files.calls_left = None

    def _commit_until(self, moment: str) -> Any:
        commit, commits = TransactionalWriter.commit, 0
        writer_id = f"headrace.flow.sum-{self.suffix}"

        def commit_until(writer: TransactionalWriter) -> None:
            nonlocal commits
            if writer.id != writer_id:
                commit(writer)
                return
            if moment == "before the commit" and commits == _COMMITS:
                raise PowerLoss("the power is lost")
            commit(writer)
            commits += 1
            if moment == "while it syncs" and commits == _COMMITS:
                self.files.calls_left = self.rng.randrange(_SYNCS_MAX)

        return commit_until

    def _lose_power(self) -> None:
        progress = current(world().cluster, f"{self.app.name}.sum-{self.suffix}.progress")
        assert progress is not None
        checkpoints = world().settings().checkpoints
        (folder,) = (checkpoints / f"sum-{self.suffix}").glob(f"{progress.generation.checkpoint}.*")
        damaged = self.files.lose_power(folder, self.rng)
        if progress.last is not None and (damaged or self.power_failed):
            self.outcome.hits += 1
        if self.rng.random() < 0.5:
            shutil.rmtree(checkpoints / f"keep-{self.suffix}")

    # Results

    def _judge(self) -> None:
        kept = Counter(msgspec.json.decode(message.value())["step"] for message in self._read("kept"))
        expected = Counter(step.step for step in self.sent)
        self.outcome.lost += (expected - kept).total()
        self.outcome.duplicated += (kept - expected).total()
        distances = {}
        for message in self._read("distances"):
            row = msgspec.json.decode(message.value())
            distances[row["walker"]] = row["length"]
        lengths: Counter[str] = Counter()
        for step in self.sent:
            lengths[step.walker] += step.length
        if distances != dict(lengths):
            self.outcome.problems.append(f"the sums are {distances} instead of {dict(lengths)}")

    def _read(self, topic: str) -> list[Any]:
        return committed(world().cluster.bootstrap, f"{topic}-{self.suffix}")


def _keep(steps: Any) -> Any:
    return steps


def _sum(steps: Any) -> Any:
    from pyspark.sql import functions as F

    return steps.groupBy("walker").agg(F.sum("length").alias("length"))
