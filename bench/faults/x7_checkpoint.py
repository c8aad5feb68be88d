"""X7, a checkpoint that is lost, damaged or of another moment: something happens to it between two runs of a flow.

A flow with state stops, names the folder and its last progress, and writes no row by what is left. What was derived
before stays as it is; a new generation, when asked for, and its view are what was sent comes to. A flow without state
goes on as if nothing had happened. Everything is held against a sum by hand.
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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from bench.faults.committed import committed
from bench.faults.flow_world import jvm_peak_mb, running, world
from bench.faults.outcome import Outcome
from bench.faults.sim_loop import patched
from headrace.app import App
from headrace.client.progress_log import current
from headrace.flow.errors import CheckpointLost, CheckpointStale, StateDamaged

__all__ = ["UNPROTECTED", "run"]

FAULT = "X7"
UNPROTECTED = {"look": r"^the sums: .* instead of"}
_WALKERS = 3
_PATIENCE_S = 600.0
_OUTPUTS = {"keep": "kept", "sum": "ways"}
_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_PROVIDERS = {
    "memory": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
    "rocksdb": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}
_STATE_FILE = re.compile(r"(\d+)(?:_[^.]*)?\.(?:delta|changelog|zip)")
"""Its version, whichever of the two keeps it."""


@dataclass(frozen=True)
class Step:
    step: str
    walker: str
    length: int


def run(seed: int, *, protected: bool = True, without: str = "look") -> Outcome:
    """Seeds in a row go through all the cases."""
    outcome = Outcome(FAULT, seed)
    rng = random.Random(f"{FAULT} {seed}")
    harmed, harm, provider = _CASES[seed % len(_CASES)] if protected else ("sum", _lost, "memory")
    with _state_in(provider):
        walk = _Walk(rng, outcome, harmed, patience_s=_PATIENCE_S if protected else _PATIENCE_S / 60)
        if protected:
            walk.play(harm)
        else:
            from headrace.flow import opening

            with patched(opening, "resume", lambda *of: False):
                walk.play(harm)
    return outcome


@contextlib.contextmanager
def _state_in(kind: str) -> Iterator[None]:
    conf = world().spark.conf
    conf.set(_PROVIDER, _PROVIDERS[kind])
    try:
        yield
    finally:
        conf.unset(_PROVIDER)


class _Walk:
    """A flow with a state, a flow without one, and a view of each."""

    def __init__(self, rng: random.Random, outcome: Outcome, harmed: str, *, patience_s: float) -> None:
        self.harmed = harmed
        self.patience_s = patience_s
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
        app.view(f"kept_{mark}", kept)
        app.view(f"ways_{mark}", ways)
        self.older: Path | None = None

    @property
    def flow(self) -> str:
        return f"{self.harmed}-{self.mark}"

    @property
    def place(self) -> Path:
        found = current(world().cluster, f"{self.flow}.progress")
        assert found is not None
        folder = world().settings().checkpoints / self.flow
        if self.harmed == "keep":
            # That of its last run; the next one has another.
            (only,) = folder.iterdir()
            return only
        (only,) = folder.glob(f"{found.generation.checkpoint}.*")
        return only

    def play(self, harm: Callable[[_Walk], None]) -> None:
        for number in range(self.rng.randrange(2, 4)):
            self._send()
            with running(self.app, 100_000) as run:
                run.followed()
            if number == 0:
                self.older = world().home / f"older-{self.mark}"
                shutil.copytree(self.place, self.older)
        place, before = self.place, self._written()
        harm(self)
        self._send()
        stopped = self._stopped()
        if stopped is None:
            # Nothing that is needed was harmed, or nobody has noticed: what came of it tells.
            self._judge(1)
            self.outcome.hits += self.harmed == "keep"
        elif self.harmed == "keep":
            self.outcome.problems.append(f"{self.flow} needs no checkpoint, and stops: {stopped}")
        else:
            self.outcome.hits += 1
            self._judge_error(stopped, place)
            if self._written() != before:
                self.outcome.problems.append(f"{self.flow} has written by what was left of its checkpoint")
            with world().running(self.app, rebuild=[self.flow]) as run:
                run.followed()
            self._judge(2)
        self.outcome.peak_rss_mb = jvm_peak_mb()

    def _send(self) -> None:
        rng = self.rng
        made = [
            Step(f"s{len(self.sent) + number}", f"w{rng.randrange(_WALKERS)}", rng.randrange(100))
            for number in range(rng.randrange(6, 20))
        ]
        self.sent += made
        world().declare(self.app)
        world().write(self.steps, made)

    def _stopped(self) -> BaseException | None:
        """What the flow ends with, or None once it has derived everything."""
        try:
            with running(self.app, 100_000) as run:
                deadline = time.monotonic() + self.patience_s
                while not (run.errors or run.is_derived()):
                    if time.monotonic() > deadline:
                        self.outcome.problems.append(f"{self.flow} neither stops nor goes on")
                        return None
                    time.sleep(0.1)
                if not run.errors:
                    run.followed()
        except (CheckpointLost, CheckpointStale, StateDamaged) as error:
            return error
        return None

    # What came of it

    def _judge_error(self, error: Any, place: Path) -> None:
        told = f"{error}\n{error.detail}\n{error.hint}"
        # A run that found the harm later has renamed the folder, by its number.
        wanted = (
            str(place.with_suffix("")),
            "the last progress in the log is generation 1, batch",
            "headrace flow rebuild",
        )
        for one in wanted:
            if one not in told:
                self.outcome.problems.append(f"{one!r} is not said: {told}")

    def _written(self) -> list[tuple[int | None, int | None, bytes | None]]:
        """By the generation that was harmed."""
        return [(one.partition(), one.offset(), one.value()) for one in self._read(self.harmed, 1)]

    def _read(self, flow: str, generation: int) -> list[Any]:
        topic = f"{_OUTPUTS[flow]}-{self.mark}"
        return committed(world().cluster.bootstrap, topic if generation == 1 else f"{topic}.g{generation}")

    def _judge(self, generation: int) -> None:
        """``generation`` is that of the flow that was harmed; the other one has gone on with what it had."""
        number = {"keep": 1, "sum": 1, self.harmed: generation}
        kept = [msgspec.json.decode(one.value(), type=Step) for one in self._read("keep", number["keep"])]
        found, expected = Counter(one.step for one in kept), Counter(one.step for one in self.sent)
        self.outcome.lost += (expected - found).total()
        self.outcome.duplicated += (found - expected).total()
        ways: dict[str, int] = {}
        for one in self._read("sum", number["sum"]):
            row = msgspec.json.decode(one.value())
            ways[row["walker"]] = row["length"]
        lengths: Counter[str] = Counter()
        for step in self.sent:
            lengths[step.walker] += step.length
        self._same("the sums", ways, dict(lengths))
        with contextlib.closing(sqlite3.connect(world().home / f"{self.app.name}.db")) as store:
            self._same(
                "the view of sums", dict(store.execute(f"SELECT * FROM ways_{self.mark}")), dict(lengths)
            )
            rows = store.execute(f"SELECT step, walker, length FROM kept_{self.mark}")
            self._same("the view", {Step(*row) for row in rows}, set(self.sent))

    def _same(self, what: str, found: Any, expected: Any) -> None:
        if found != expected:
            self.outcome.problems.append(f"{what}: {found} instead of {expected}")


def _keep(steps: Any) -> Any:
    return steps


def _sum(steps: Any) -> Any:
    from pyspark.sql import functions as F

    return steps.groupBy("walker").agg(F.sum("length").alias("length"))


# What happens to it


def _lost(walk: _Walk) -> None:
    shutil.rmtree(walk.place)


def _emptied(walk: _Walk) -> None:
    place = walk.place
    shutil.rmtree(place)
    place.mkdir()


def _older(walk: _Walk) -> None:
    """A copy that was made after the first run is put back."""
    assert walk.older is not None
    place = walk.place
    shutil.rmtree(place)
    shutil.copytree(walk.older, place)


def _part_lost(walk: _Walk) -> None:
    shutil.rmtree(walk.place / walk.rng.choice(("offsets", "commits")))


def _plan_garbled(walk: _Walk) -> None:
    last = max(int(one.name) for one in (walk.place / "offsets").iterdir() if one.name.isdecimal())
    (walk.place / "offsets" / str(last)).write_bytes(walk.rng.randbytes(walk.rng.randrange(60)))


def _state_cut(walk: _Walk) -> None:
    """The newest files of each partition's state, with what they are checked by or without."""
    with_sum = walk.rng.random() < 0.5
    for part in (walk.place / "state" / "0").iterdir():
        versions = {
            one: int(found[1]) for one in part.iterdir() if (found := _STATE_FILE.fullmatch(one.name))
        }
        for one in sorted(one for one in versions if versions[one] == max(versions.values())):
            os.truncate(one, walk.rng.randrange(one.stat().st_size))
            if with_sum:
                one.with_name(f".{one.name}.crc").unlink(missing_ok=True)


def _state_lost(walk: _Walk) -> None:
    shutil.rmtree(walk.place / "state")


_HARMS_WITHOUT_STATE = (_lost, _emptied, _older, _part_lost, _plan_garbled)
_HARMS = (*_HARMS_WITHOUT_STATE, _state_cut, _state_lost)
_CASES = [
    *(("sum", harm, provider) for harm in _HARMS for provider in _PROVIDERS),
    *(("keep", harm, "memory") for harm in _HARMS_WITHOUT_STATE),
]
