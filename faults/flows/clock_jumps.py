"""Fault X8 with windows: the broker's clock jumps by an hour or ten years, or stops, while a windowed flow runs.

Event times are in the records, so no jump may change the derived rows. Each case writes the same visits, batch by
batch, and waits until each batch is derived. The clock jumps between two batches, or inside a batch while its
transaction is open. It is corrected two batches later, or stays wrong to the end. The timestamp of a visit is set by
the producer, or is the broker's append time. Compared with a run with a correct clock:

    the derived topic must have the same bytes in the same order per key; late events and progress must be equal too
    no record may be deleted, although the retention time is one day
    a group member that reads the derived topic must keep its session, and receive every row once
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from faults.committed_records import committed
from faults.flows.shared_world import batches, jvm_peak_mb, world
from faults.flows.steady_member import SteadyMember
from faults.flows.world import FlowWorld
from faults.log.compacted_oracle import Sent, build_keyed
from faults.outcome import Outcome
from faults.patch import patched
from faults.protocol import calls
from faults.protocol.connection import Connection
from faults.run_directory import run_directory
from faults.servers.spark import compiled
from faults.simulation.unprotected import without_protection
from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.transactional_writer import TransactionalWriter
from headrace.errors import HeadraceError
from headrace.flow.codec.codec import Decoder
from headrace.testing.broker import BrokerThread
from headrace.testing.clock import DrivenClock

__all__ = ["JUMPS", "RUNS", "UNPROTECTED", "run"]

FAULT = "X8"
UNPROTECTED = {"trusted-time": r"were deleted before their time", "event-time": r"windows differ"}
RUNS = 8
"""Eight seeds cover each jump inside and between batches, corrected or not, with both kinds of timestamps."""
_HOUR_MS = 3_600_000
_YEARS_MS = 10 * 365 * 24 * _HOUR_MS
JUMPS = {"+1 h": _HOUR_MS, "-1 h": -_HOUR_MS, "+10 y": _YEARS_MS, "-10 y": -_YEARS_MS, "frozen": 0}
_BATCHES = 5
_VISITS = 14
_JUMP_AT, _BACK_AT = 1, 3
_BATCH_S = 25
_LATE = timedelta(seconds=20)
_RETENTION_WAIT_S = 0.25
"""Long enough for the broker to check retention more than once."""
_WINDOWS_REPORTED_MAX = 3
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Visit:
    visit: str
    place: str
    spent: int
    at: datetime


@dataclass(frozen=True, slots=True)
class FlowResults:
    """The rows and progress that the flow of a case wrote to the log."""

    rows: dict[bytes, list[tuple[int, bytes | None]]]
    """For each key: partition and value of each row, in the order of the log."""
    late: list[tuple[int, int, int]]
    """Partition, offset and event time of each late record."""
    progress: list[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class _Case:
    jump: str = ""
    """Empty for the reference run."""
    inside_batch: bool = False
    stays_wrong: bool = False
    append_time: bool = False

    @classmethod
    def from_seed(cls, jump: str, seed: int) -> _Case:
        return cls(jump, inside_batch=bool(seed & 1), stays_wrong=bool(seed & 2), append_time=bool(seed & 4))

    def __str__(self) -> str:
        where = "inside a batch" if self.inside_batch else "between batches"
        correction = "stays" if self.stays_wrong else "is corrected"
        times = "append times" if self.append_time else "create times"
        return f"{self.jump}, {where}, {correction}, {times}"


def run(
    seed: int,
    *,
    protected: bool = True,
    without: str = "event-time",
    jumps: Sequence[str] = tuple(JUMPS),
) -> Outcome:
    """Run one case for each of ``jumps``."""
    outcome = Outcome(FAULT, seed, cases=0)
    cases = [_Case.from_seed(jump, seed) for jump in jumps]
    if not protected:
        cases = [_Case("+10 y", append_time=without == "event-time")]
    began, expected = _reference_run(seed)
    with _broker(seed) as (clock, flow_world, port), _without("" if protected else without):
        for case in cases:
            case_run = _CaseRun(case, flow_world, port, clock)
            outcome.problems += [
                f"{case}: {problem}" for problem in case_run.run(_visits(seed, began), expected)
            ]
            outcome.hits += case_run.hits
            outcome.cases += 1
    outcome.peak_rss_mb = jvm_peak_mb()
    return outcome


@functools.cache
def _reference_run(seed: int) -> tuple[datetime, FlowResults]:
    """Return the start time of the visits, and what a run with a correct clock derives from them."""
    began = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(minutes=5)
    with _broker(seed) as (clock, flow_world, port):
        case_run = _CaseRun(_Case(), flow_world, port, clock)
        problems = case_run.run(_visits(seed, began), None)
        assert not problems, problems
        return began, case_run.read_results()


@contextlib.contextmanager
def _broker(seed: int) -> Iterator[tuple[DrivenClock, FlowWorld, int]]:
    """Start a broker whose clock is correct at first, and advances with real time."""
    clock = DrivenClock(time.time_ns() // 1_000_000, ticking=time.monotonic)
    with run_directory(FAULT, seed, in_memory=True) as home, BrokerThread(home / "log", clock) as broker:
        flow_world = FlowWorld(cast(Any, broker), Cluster(broker.bootstrap), world().spark, home)
        yield clock, flow_world, broker.port


def _visits(seed: int, began: datetime) -> list[list[Visit]]:
    """Return the visits of each batch. Some events are within the allowed lateness, some are later."""
    rng = random.Random(f"{FAULT} windows {seed}")
    batches: list[list[Visit]] = []
    for number in range(_BATCHES):
        batch: list[Visit] = []
        for at_s in sorted(rng.uniform(0, _BATCH_S) for _ in range(_VISITS)):
            delay_s = rng.choice((0, 0, 0, rng.uniform(0, 20), rng.uniform(90, 200)))
            at = began + timedelta(seconds=number * _BATCH_S + at_s - delay_s)
            batch.append(Visit(f"v{len(batch)}.{number}", f"p{rng.randrange(3)}", rng.randrange(100), at))
        batches.append(batch)
    return batches


@contextlib.contextmanager
def _without(protection: str) -> Iterator[None]:
    if protection == "event-time":
        # The flow uses the broker's append time as the event time.
        decode = Decoder.decode

        def decode_with_append_time(self: Decoder, raw: Any) -> Any:
            from pyspark.sql import functions as F

            append_time_us = F.when(F.col("event_us").isNotNull(), F.col("logged_us"))
            return decode(self, raw).withColumn("event_us", append_time_us)

        with patched(Decoder, "decode", decode_with_append_time):
            yield
    else:
        with without_protection(protection or None):
            yield


class _CaseRun:
    """One case: a flow with its own topics."""

    def __init__(self, case: _Case, flow_world: FlowWorld, port: int, clock: DrivenClock) -> None:
        self.case = case
        self.hits = 0
        self._flow_world = flow_world
        self._port = port
        self._clock = clock
        self._pending_jump: Callable[[], None] | None = None
        """The change of the clock that happens inside the next batch."""
        number = next(_numbers)
        app = self._app = App(f"visits-{number}")
        self._visits = app.topic(f"visits-{number}", Visit, key="visit", time="at", late=_LATE, partitions=2)
        self._sums = app.topic(f"sums-{number}", key=["place", "minute"], partitions=2)
        self._flow = app.flow(reads=[self._visits], writes=self._sums, name=f"sum-{number}")(_sum)

    def run(self, visits: list[list[Visit]], expected: FlowResults | None) -> list[str]:
        """Run the case and return its problems. If ``expected`` is None, do not compare the results."""
        self._create_input()
        member = SteadyMember(self._port, self._sums.name)
        problems: list[str] = []
        try:
            with (
                patched(TransactionalWriter, "flush", self._flush_and_strike(TransactionalWriter.flush)),
                compiled(self._flow_world.spark),
                self._flow_world.running(self._app, follow=False) as run,
            ):
                member.start()
                member.wait_until_assigned()
                for number, batch in enumerate(visits):
                    self._strike_at(number, _JUMP_AT, self._jump)
                    if not self.case.stays_wrong:
                        self._strike_at(number, _BACK_AT, self._correct_clock)
                    self._write(number % 2, batch)
                    run.wait_until_derived()
            if expected is not None:
                problems += _differences(self.read_results(), expected)
        except HeadraceError as error:
            problems.append(f"the flow does not continue: {error}")
        finally:
            self._correct_clock()
            problems += self._find_deleted_records()
            problems += member.finish(
                [] if problems else committed(self._flow_world.cluster.bootstrap, self._sums.name)
            )
        return problems

    def read_results(self) -> FlowResults:
        bootstrap = self._flow_world.cluster.bootstrap
        rows: dict[bytes, list[tuple[int, bytes | None]]] = {}
        for record in committed(bootstrap, self._sums.name):
            rows.setdefault(record.key() or b"", []).append((record.partition() or 0, record.value()))
        late_records = [
            json.loads(message.value() or b"") for message in committed(bootstrap, self._flow.late_topic)
        ]
        return FlowResults(
            rows,
            [(record["partition"], record["offset"], record["event_us"]) for record in late_records],
            [
                (
                    *(
                        batch[name]
                        for name in ("batch", "watermark_us", "rows_in", "rows_out", "late", "dead")
                    ),
                    batch["inputs"][self._visits.name],
                )
                for batch in batches(bootstrap, f"{self._app.name}.{self._flow.name}")
            ],
        )

    # Input

    def _create_input(self) -> None:
        configs: dict[Any, Any] = {"retention.ms": str(24 * _HOUR_MS), "internal.segment.bytes": "300"}
        if self.case.append_time:
            configs["message.timestamp.type"] = "LogAppendTime"
        with Connection(self._port) as connection:
            error = calls.create_topic(connection, self._visits.name, self._visits.partitions or 1, configs)
        assert not error, f"topic {self._visits.name} was not created: error {error}"

    def _write(self, partition: int, batch: list[Visit]) -> None:
        """Write one record batch, so that the flow reads all of it or nothing."""
        records = []
        for number, visit in enumerate(batch):
            key, value = self._visits.encode(visit)
            records.append(Sent(number, key or b"", value))
        built = build_keyed(records, time.time_ns() // 1_000_000)
        with Connection(self._port) as connection:
            answer = calls.produce(connection, self._visits.name, partition, built)
        assert not answer.error, f"{self.case}: records with the correct time were refused: {answer}"

    # The clock

    def _strike_at(self, number: int, strike_number: int, strike: Callable[[], None]) -> None:
        if number != strike_number or not self.case.jump:
            return
        if self.case.inside_batch:
            self._pending_jump = strike
        else:
            strike()

    def _flush_and_strike(
        self, flush: Callable[[TransactionalWriter], None]
    ) -> Callable[[TransactionalWriter], None]:
        """Strike after the rows of a batch are in the log and before the batch is committed."""

        def flush_and_strike(writer: TransactionalWriter) -> None:
            flush(writer)
            if self._pending_jump is not None:
                strike, self._pending_jump = self._pending_jump, None
                strike()

        return flush_and_strike

    def _jump(self) -> None:
        self.hits += 1
        if self.case.jump == "frozen":
            self._clock.freeze()
        else:
            self._clock.jump_wall(JUMPS[self.case.jump])
        time.sleep(_RETENTION_WAIT_S)

    def _correct_clock(self) -> None:
        self._clock.thaw()
        self._clock.jump_wall(time.time_ns() // 1_000_000 - self._clock.now_ms())
        time.sleep(_RETENTION_WAIT_S)

    # What must hold

    def _find_deleted_records(self) -> list[str]:
        problems = []
        for topic in (self._visits.name, self._sums.name, self._flow.progress_topic):
            starts = {partition: at for partition, at in self._flow_world.cluster.starts(topic).items() if at}
            if starts:
                problems.append(f"records of {topic} below {starts} were deleted before their time")
        return problems


def _sum(visits: Any) -> Any:
    from pyspark.sql import functions as F

    minutes = visits.groupBy("place", F.window("at", "1 minute").alias("window"))
    summed = minutes.agg(F.sum("spent").alias("spent"), F.count(F.lit(1)).alias("visits"))
    return summed.select("place", F.col("window.start").alias("minute"), "spent", "visits")


def _differences(actual: FlowResults, expected: FlowResults) -> list[str]:
    problems = []
    wrong = [
        f"key {key!r} has {actual.rows.get(key)} instead of {expected.rows.get(key)}"
        for key in sorted(actual.rows.keys() | expected.rows.keys())
        if actual.rows.get(key) != expected.rows.get(key)
    ]
    if wrong:
        problems.append(f"{len(wrong)} windows differ: {'; '.join(wrong[:_WINDOWS_REPORTED_MAX])}")
    if actual.late != expected.late:
        problems.append(f"the late-event records are {actual.late} instead of {expected.late}")
    if actual.progress != expected.progress:
        problems.append(f"the progress is {actual.progress} instead of {expected.progress}")
    return problems
