"""Fault X31, a flow that changes while it runs: two processes run the old and the new function side by side, and the
process that switches dies at a random step.

The history, the change and the step are random. The change is a factor, a filter, or another count per key; the flow
has no state, or aggregates. The new function builds its generation beside the old one and switches. At the chosen
write to the log, before or after it, the switching process stops for ever without cleaning up. Then the flow must
continue, and switch in the end: by itself within the limits, else by the operator. Some cases switch back.

An independent reader folds the flow's topic by key all the time. It must never lose a key that the report does not
count as gone. At the end, the rows of the topic and of the view must be those of the serving function over all records,
which the oracle computes, and ``verify`` must prove the view.
"""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from faults.flows.shared_world import jvm_peak_mb, running, world
from faults.flows.world import RunningApp
from faults.outcome import Outcome
from faults.patch import patched
from faults.wait import until
from headrace.app import App
from headrace.model.declarations import Flow
from headrace.settings import SwitchSettings

__all__ = ["UNPROTECTED", "run"]

FAULT = "X31"
UNPROTECTED = {"fence": r"the topic has", "difference": r"the topic has"}
_STEPS = 5
"""The writes to the log: the new generation, the begin of the switch, its seal, the longer lease, and the switch."""
_KEYS = 40
_WAIT_S = 120.0


@dataclass(frozen=True)
class Trip:
    trip_id: str
    bike: str
    minutes: int


class _Killed(BaseException):
    """Stops the switching process in the middle. No code of the product handles it."""


def run(seed: int, *, protected: bool = True, without: str = "fence") -> Outcome:
    outcome = Outcome(FAULT, seed)
    rng = random.Random(f"{FAULT} switch {seed}")
    case = _Case(rng, outcome)
    with contextlib.nullcontext() if protected else _without(without):
        case.run()
    outcome.peak_rss_mb = jvm_peak_mb()
    return outcome


@contextlib.contextmanager
def _without(protection: str) -> Iterator[None]:
    from headrace.flow.switch import difference, operation

    if protection == "fence":
        # The old driver goes on writing to the stable topic after the switch.
        with patched(operation.SwitchOperation, "_fence", lambda *_: None):
            yield
    else:
        with patched(difference.Difference, "changes", lambda *_: iter(())):
            yield


class _Case:
    def __init__(self, rng: random.Random, outcome: Outcome) -> None:
        self._rng = rng
        self._outcome = outcome
        self._suffix = uuid.uuid4().hex[:8]
        self._trips: list[Trip] = []
        self._is_sum = rng.random() < 0.4
        self._change = rng.choice(("factor", "filter", "nothing"))
        self._drops = rng.choice((1, _KEYS // 2))

    def run(self) -> None:
        old, flow = self._version(is_new=False)
        new, _ = self._version(is_new=True)
        self._send(self._rng.randrange(20, 120))
        with running(old, 10_000) as first:
            first.wait_until_followed()
            reader = _Reader(world().cluster.bootstrap, flow.writes.name)
            with (
                reader.reading(),
                self._dying_switch() as died,
                running(new, 10_000, follow=False, rebuild_changed=True, switch=SwitchSettings()) as second,
            ):
                self._send(self._rng.randrange(1, 30))
                gone = self._until_switched(second, flow)
                self._outcome.hits += died.is_set()
                self._send(self._rng.randrange(1, 30))
                self._settle(first, second, flow, 2)
                if self._rng.random() < 0.5:
                    self._switch_back(first, second, flow)
            self._judge_reader(reader, gone)
            self._verify(first if _serving(flow) == 1 else second)

    def _version(self, *, is_new: bool) -> tuple[App, Flow]:
        from pyspark.sql import DataFrame
        from pyspark.sql import functions as F

        app = App(f"switch-{self._suffix}")
        trips = app.topic(f"trips-{self._suffix}", Trip, key="trip_id")
        bikes = app.topic(f"bikes-{self._suffix}", key="bike" if self._is_sum else "trip_id")
        factor = 60 if is_new and self._change == "factor" else 1
        least = self._drops if is_new and self._change == "filter" else 0
        is_sum = self._is_sum

        @app.flow(
            reads=[trips],
            writes=bikes,
            name=f"derive-{self._suffix}",
            version=str(is_new),
            unbounded=True,
        )
        def derive(trips: DataFrame) -> DataFrame:
            rows = trips.where(F.substring("bike", 2, 4).cast("int") >= least)
            rows = rows.withColumn("minutes", F.col("minutes") * factor)
            return rows.groupBy("bike").agg(F.sum("minutes").alias("minutes")) if is_sum else rows

        app.view(f"bikes_{self._suffix}", bikes)
        return app, derive

    def _expected(self, *, is_new: bool) -> dict[str, int]:
        factor = 60 if is_new and self._change == "factor" else 1
        least = self._drops if is_new and self._change == "filter" else 0
        rows: dict[str, int] = {}
        for trip in self._trips:
            if int(trip.bike[1:]) >= least:
                key = trip.bike if self._is_sum else trip.trip_id
                rows[key] = rows.get(key, 0) + trip.minutes * factor
        return rows

    def _send(self, count: int) -> None:
        app, _ = self._version(is_new=False)
        first = len(self._trips)
        sent = [
            Trip(f"t{number}", f"b{self._rng.randrange(_KEYS)}", self._rng.randrange(100))
            for number in range(first, first + count)
        ]
        self._trips += sent
        world().declare(app)
        world().write(app.topics[0], sent)

    # The switch

    @contextlib.contextmanager
    def _dying_switch(self) -> Iterator[threading.Event]:
        """Stop the first switch at a random write to the log, as a kill would: nothing is cleaned up."""
        from headrace.client import generations, generations_writer
        from headrace.client.errors import LogError
        from headrace.client.transactional_writer import TransactionalWriter
        from headrace.flow.switch import operation

        died, step, is_before = threading.Event(), self._rng.randrange(_STEPS), self._rng.random() < 0.5
        counter = iter(range(1_000_000))
        dead_writers: list[Any] = []
        commit: Callable[[Any], None] = TransactionalWriter.commit
        close = operation.SwitchOperation.close

        def dying_commit(writer: TransactionalWriter) -> None:
            is_extension = threading.current_thread().name.startswith("switch of ")
            if is_extension and writer in dead_writers:
                raise LogError("a dead process extends nothing", name="DEAD")
            is_switch = writer.id.startswith("headrace.generations.") and not died.is_set()
            if not is_switch or is_extension or next(counter) != step:
                return commit(writer)
            if not is_before:
                commit(writer)
            died.set()
            dead_writers.append(writer)
            raise _Killed

        def close_unless_killed(switch: operation.SwitchOperation) -> None:
            if switch._opened is None or switch._opened.writer not in dead_writers:
                close(switch)

        with (
            patched(TransactionalWriter, "commit", dying_commit),
            patched(operation.SwitchOperation, "close", close_unless_killed),
            # The dead process was on another machine, so the others wait until its lease ends.
            patched(operation, "process_name", lambda: "elsewhere:1"),
            patched(operation, "_LEASE_MS", 1_000),
            patched(generations_writer, "_SKEW_MS", 0),
            patched(operation, "_EXTEND_S", 0.3),
            patched(operation, "_COMMIT_MS", 3_000),
            patched(generations, "_CACHE_S", 0.1),
        ):
            yield died

    def _until_switched(self, run: RunningApp, flow: Flow) -> int:
        """Wait until the new generation serves, restart its driver after a kill, and be the operator if it waits.
        Returns how many keys the report counts as gone.
        """
        from headrace.client.generations import generations_of
        from headrace.flow.switch.operation import switch_now

        cluster, deadline = world().cluster, time.monotonic() + _WAIT_S
        while time.monotonic() < deadline:
            generations = generations_of(cluster, flow)
            if generations is not None and generations.serving == 2:
                return self._reported_gone(run)
            if any(isinstance(error, _Killed) for error in run.errors):
                run.errors[:] = [error for error in run.errors if not isinstance(error, _Killed)]
                run.restart()
            if any("it waits for you" in note for note in run.notes):
                with contextlib.suppress(Exception, _Killed):
                    return switch_now(cluster, flow, 2).counts.gone
            time.sleep(0.05)
        self._outcome.problems.append(f"the flow did not switch within {_WAIT_S:g} s: {run.notes}")
        return 0

    @staticmethod
    def _reported_gone(run: RunningApp) -> int:
        """The number of keys that the note about the switch counts as gone."""
        for note in reversed(run.notes):
            if "serves now" in note:
                return int(note.partition(" keys; ")[2].partition(" gone")[0])
        return 0

    def _switch_back(self, first: RunningApp, second: RunningApp, flow: Flow) -> None:
        from headrace.client.generations import generations_of
        from headrace.flow.switch.operation import switch_back

        switch_back(world().cluster, flow, 1, wait_s=30)
        until(lambda: first.errors or _is_published(flow), "the difference is published", timeout_s=60)
        self._send(self._rng.randrange(1, 30))
        self._settle(first, second, flow, 1)
        generations = generations_of(world().cluster, flow)
        assert generations is not None
        if generations.serving != 1:
            self._outcome.problems.append(f"generation {generations.serving} serves after the switch back")

    def _settle(self, first: RunningApp, second: RunningApp, flow: Flow, serving: int) -> None:
        """Wait until both functions have derived all, and judge what readers see."""
        expected = self._expected(is_new=serving == 2)
        for run in (first, second):
            run.wait_until_derived()

        def stable() -> dict[str, int]:
            return _fold(world().cluster.bootstrap, flow.writes.name)

        with contextlib.suppress(AssertionError):
            until(lambda: stable() == expected, "the topic has the rows", timeout_s=20, pause_s=0.2)
        found = stable()
        if found != expected:
            self._outcome.problems.append(
                f"the topic has {_difference(found, expected)} from generation {serving} ({self._description})"
            )
        rows: dict[str, int] = {}
        with contextlib.suppress(AssertionError):
            until(lambda: first.view_rows() == expected, "the view has the rows", timeout_s=20, pause_s=0.1)
        rows = first.view_rows()
        if rows != expected:
            self._outcome.problems.append(
                f"the view has {_difference(rows, expected)} from generation {serving} ({self._description})"
            )

    @property
    def _description(self) -> str:
        return f"{'sum' if self._is_sum else 'map'}, {self._change}, {len(self._trips)} trips"

    # Judging

    def _judge_reader(self, reader: _Reader, gone: int) -> None:
        lost = reader.lost_keys_max - gone
        if lost > 0:
            self._outcome.problems.append(
                f"a reader saw {lost} keys disappear that were never reported as gone"
            )
        if gone > reader.keys_before // 100 and self._change != "filter":
            self._outcome.problems.append(f"{gone} keys were reported as gone, although none is")

    def _verify(self, run: RunningApp) -> None:
        from headrace.ops.verify.errors import CannotVerify
        from headrace.ops.verify.verifier import Verifier

        flow_world = world()
        arguments = (flow_world.spark, flow_world.cluster, run.app, flow_world.settings())
        with Verifier(*arguments, run.compiled, run.schemas) as verifier:
            report = verifier.attempt(lambda: verifier.view(run.app.views[0]))
        if isinstance(report, CannotVerify) or report.verdict != "proven":
            self._outcome.problems.append(f"verify: {report}")


class _Reader:
    """A stock consumer that folds the topic by key, and counts the keys that disappear."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._stop = threading.Event()
        self.keys_before = len(_fold(bootstrap, topic))
        self.lost_keys_max = 0

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        thread = threading.Thread(target=self._read, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join(30)

    def _read(self) -> None:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            {"bootstrap.servers": self._bootstrap, "group.id": "stock", "enable.auto.commit": False}
        )
        consumer.assign([TopicPartition(self._topic, 0, 0)])
        keys: set[bytes] = set()
        known: set[bytes] = set()
        while not self._stop.is_set():
            for message in consumer.consume(1_000, 0.1):
                if message.error() is not None:
                    continue
                key = message.key() or b""
                if message.value() is None:
                    keys.discard(key)
                else:
                    keys.add(key)
                    known.add(key)
                self.lost_keys_max = max(self.lost_keys_max, len(known - keys))
        consumer.close()


def _fold(bootstrap: str, topic: str) -> dict[str, int]:
    from faults.committed_records import committed

    rows: dict[str, int] = {}
    for message in committed(bootstrap, topic):
        key = (message.key() or b"").decode()
        if message.value() is None:
            rows.pop(key, None)
        else:
            rows[key] = json.loads(message.value() or b"")["minutes"]
    return rows


def _difference(found: dict[str, int], expected: dict[str, int]) -> str:
    extra, missing = found.keys() - expected.keys(), expected.keys() - found.keys()
    different = sum(found[key] != expected[key] for key in found.keys() & expected.keys())
    return f"{len(extra)} extra, {len(missing)} missing and {different} different rows"


def _serving(flow: Flow) -> int:
    from headrace.client.generations import generations_of

    generations = generations_of(world().cluster, flow)
    return 0 if generations is None else generations.serving


def _is_published(flow: Flow) -> bool:
    from headrace.client.generations import generations_of

    generations = generations_of(world().cluster, flow)
    return generations is not None and generations.is_published
