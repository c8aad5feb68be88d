"""Fault X7: between two runs of a flow, its checkpoint is lost, damaged, or replaced by an older copy.

A stateful flow must stop, name the folder and its last progress record in its error, and write no row that it computes
from the remaining files. Earlier results must stay. A rebuild begins a new generation; its topic and view must equal
the rows that the oracle computes from the sent events. A stateless flow must continue as if nothing had happened.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import sqlite3
import time
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from faults.committed_records import committed
from faults.flows.shared_world import jvm_peak_mb, running, world
from faults.outcome import Outcome
from faults.patch import patched
from faults.servers.spark import session_conf
from headrace.app import App
from headrace.client.progress import current
from headrace.flow.errors import CheckpointLost, CheckpointStale, StateDamaged

__all__ = ["UNPROTECTED", "run"]

FAULT = "X7"
UNPROTECTED = {"checkpoint-check": r"^the sums: .* instead of"}
_WALKERS = 3
_PATIENCE_S = 600.0
_OUTPUTS = {"keep": "kept", "sum": "distances"}
_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_PROVIDERS = {
    "memory": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
    "rocksdb": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}
_STATE_FILE = re.compile(r"(\d+)(?:_[^.]*)?\.(?:delta|changelog|zip)")
"""Matches the state files of both providers. The group is the version in the file name."""


@dataclass(frozen=True)
class Step:
    step: str
    walker: str
    length: int


def run(seed: int, *, protected: bool = True, without: str = "checkpoint-check") -> Outcome:
    """Consecutive seeds cover all the cases."""
    outcome = Outcome(FAULT, seed)
    rng = random.Random(f"{FAULT} {seed}")
    damaged_flow, damage, provider = (
        _CASES[seed % len(_CASES)] if protected else ("sum", _remove_checkpoint, "memory")
    )
    with _state_in(provider):
        walk = _WalkCase(
            rng, outcome, damaged_flow, patience_s=_PATIENCE_S if protected else _PATIENCE_S / 60
        )
        if protected:
            walk.run(damage)
        else:
            from headrace.flow import flow_state

            # The flow compares checkpoint and log before and after it takes over the folder.
            with (
                patched(flow_state, "expect_match", lambda *_: None),
                patched(flow_state, "clean_up", lambda *_: False),
            ):
                walk.run(damage)
    return outcome


def _state_in(kind: str) -> AbstractContextManager[None]:
    return session_conf(world().spark, {_PROVIDER: _PROVIDERS[kind]})


class _WalkCase:
    """A stateful flow that sums the steps of each walker, a stateless flow that copies them, and a view of each."""

    def __init__(self, rng: random.Random, outcome: Outcome, damaged_flow: str, *, patience_s: float) -> None:
        self.damaged_flow = damaged_flow
        self.patience_s = patience_s
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
        app.view(f"kept_{suffix}", kept)
        app.view(f"distances_{suffix}", distances)
        self.older_copy: Path | None = None

    @property
    def flow(self) -> str:
        return f"{self.damaged_flow}-{self.suffix}"

    @property
    def checkpoint(self) -> Path:
        progress = current(world().cluster, f"{self.app.name}.{self.flow}.progress")
        assert progress is not None
        folder = world().settings().checkpoints / self.flow
        if self.damaged_flow == "keep":
            # The folder of the last run; the next run creates another.
            (newest,) = folder.iterdir()
            return newest
        (newest,) = folder.glob(f"{progress.generation.checkpoint}.*")
        return newest

    def run(self, damage: Callable[[_WalkCase], None]) -> None:
        for number in range(self.rng.randrange(2, 4)):
            self._send()
            with running(self.app, 100_000) as run:
                run.wait_until_followed()
            if number == 0:
                self.older_copy = world().home / f"older-{self.suffix}"
                shutil.copytree(self.checkpoint, self.older_copy)
        checkpoint, before = self.checkpoint, self._written()
        damage(self)
        self._send()
        error = self._run_until_stopped()
        if error is None:
            # Either no needed file was damaged, or the damage was not detected: the results show which.
            self._judge(1)
            self.outcome.hits += self.damaged_flow == "keep"
        elif self.damaged_flow == "keep":
            self.outcome.problems.append(f"{self.flow} needs no checkpoint, but stopped: {error}")
        else:
            self.outcome.hits += 1
            self._judge_error(error, checkpoint)
            if self._written() != before:
                self.outcome.problems.append(f"{self.flow} wrote rows from the remains of its checkpoint")
            with world().running(self.app, rebuild=[self.flow]) as run:
                run.wait_until_followed()
            self._judge(2)
        self.outcome.peak_rss_mb = jvm_peak_mb()

    def _send(self) -> None:
        rng = self.rng
        steps_sent = [
            Step(f"s{len(self.sent) + number}", f"w{rng.randrange(_WALKERS)}", rng.randrange(100))
            for number in range(rng.randrange(6, 20))
        ]
        self.sent += steps_sent
        world().declare(self.app)
        world().write(self.steps, steps_sent)

    def _run_until_stopped(self) -> BaseException | None:
        """Return the error that stopped the flow, or None after the flow has derived everything."""
        try:
            with running(self.app, 100_000) as run:
                deadline = time.monotonic() + self.patience_s
                while not (run.errors or run.is_all_derived()):
                    if time.monotonic() > deadline:
                        self.outcome.problems.append(f"{self.flow} neither stops nor continues")
                        return None
                    time.sleep(0.1)
                if not run.errors:
                    run.wait_until_followed()
        except (CheckpointLost, CheckpointStale, StateDamaged) as error:
            return error
        return None

    # Results

    def _judge_error(self, error: Any, checkpoint: Path) -> None:
        text = f"{error}\n{error.detail}\n{error.hint}"
        # The folder's name ends with a run number. It is different if a later run detected the damage, so do
        # not compare it.
        expected_texts = (
            str(checkpoint.with_suffix("")),
            "the last progress record in the log has generation 1, batch",
            "headrace flow rebuild",
        )
        for expected in expected_texts:
            if expected not in text:
                self.outcome.problems.append(f"the error does not contain {expected!r}: {text}")

    def _written(self) -> list[tuple[int | None, int | None, bytes | None]]:
        """Return the rows that the first generation wrote."""
        return [
            (message.partition(), message.offset(), message.value())
            for message in self._read(self.damaged_flow, 1)
        ]

    def _read(self, flow: str, generation: int) -> list[Any]:
        topic = f"{_OUTPUTS[flow]}-{self.suffix}"
        return committed(world().cluster.bootstrap, topic if generation == 1 else f"{topic}.g{generation}")

    def _judge(self, generation: int) -> None:
        """Compare all results. ``generation`` is the current one of the damaged flow; the other flow is still at its
        first.
        """
        generations = {"keep": 1, "sum": 1, self.damaged_flow: generation}
        kept = [
            msgspec.json.decode(message.value(), type=Step)
            for message in self._read("keep", generations["keep"])
        ]
        actual, expected = Counter(step.step for step in kept), Counter(step.step for step in self.sent)
        self.outcome.lost += (expected - actual).total()
        self.outcome.duplicated += (actual - expected).total()
        distances: dict[str, int] = {}
        for message in self._read("sum", generations["sum"]):
            row = msgspec.json.decode(message.value())
            distances[row["walker"]] = row["length"]
        lengths: Counter[str] = Counter()
        for step in self.sent:
            lengths[step.walker] += step.length
        self._compare("the sums", distances, dict(lengths))
        with contextlib.closing(sqlite3.connect(world().home / f"{self.app.name}.db")) as store:
            self._compare(
                "the view of sums",
                dict(store.execute(f"SELECT * FROM distances_{self.suffix}")),
                dict(lengths),
            )
            rows = store.execute(f"SELECT step, walker, length FROM kept_{self.suffix}")
            self._compare("the view", {Step(*row) for row in rows}, set(self.sent))

    def _compare(self, name: str, actual: Any, expected: Any) -> None:
        if actual != expected:
            self.outcome.problems.append(f"{name}: {actual} instead of {expected}")


def _keep(steps: Any) -> Any:
    return steps


def _sum(steps: Any) -> Any:
    from pyspark.sql import functions as F

    return steps.groupBy("walker").agg(F.sum("length").alias("length"))


# Kinds of damage


def _remove_checkpoint(walk: _WalkCase) -> None:
    shutil.rmtree(walk.checkpoint)


def _empty_checkpoint(walk: _WalkCase) -> None:
    checkpoint = walk.checkpoint
    shutil.rmtree(checkpoint)
    checkpoint.mkdir()


def _restore_older_copy(walk: _WalkCase) -> None:
    """Restore the copy from after the first run."""
    assert walk.older_copy is not None
    checkpoint = walk.checkpoint
    shutil.rmtree(checkpoint)
    shutil.copytree(walk.older_copy, checkpoint)


def _remove_offsets_or_commits(walk: _WalkCase) -> None:
    shutil.rmtree(walk.checkpoint / walk.rng.choice(("offsets", "commits")))


def _overwrite_newest_offsets(walk: _WalkCase) -> None:
    last = max(int(path.name) for path in (walk.checkpoint / "offsets").iterdir() if path.name.isdecimal())
    (walk.checkpoint / "offsets" / str(last)).write_bytes(walk.rng.randbytes(walk.rng.randrange(60)))


def _truncate_state(walk: _WalkCase) -> None:
    """Truncate the newest state files of each partition, with or without their checksums."""
    delete_checksum_too = walk.rng.random() < 0.5
    for part in (walk.checkpoint / "state" / "0").iterdir():
        versions = {
            path: int(match[1]) for path in part.iterdir() if (match := _STATE_FILE.fullmatch(path.name))
        }
        for newest in sorted(version for version in versions if versions[version] == max(versions.values())):
            os.truncate(newest, walk.rng.randrange(newest.stat().st_size))
            if delete_checksum_too:
                newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)


def _remove_state(walk: _WalkCase) -> None:
    shutil.rmtree(walk.checkpoint / "state")


_DAMAGES_WITHOUT_STATE = (
    _remove_checkpoint,
    _empty_checkpoint,
    _restore_older_copy,
    _remove_offsets_or_commits,
    _overwrite_newest_offsets,
)
_DAMAGES = (*_DAMAGES_WITHOUT_STATE, _truncate_state, _remove_state)
_CASES = [
    *(("sum", damage, provider) for damage in _DAMAGES for provider in _PROVIDERS),
    *(("keep", damage, "memory") for damage in _DAMAGES_WITHOUT_STATE),
]
