"""X8 with windows: the broker's clock jumps by an hour or ten years, or stands still, while a windowed flow runs.

Event times are in the records, so no jump may change what is derived. Each case writes the same visits, batch by batch,
and waits until each batch is derived. The clock jumps between two batches or inside one, whose transaction is open. It
is set right two batches later, or stays wrong to the end. The visits carry the time of their producer, or the time at
which the broker took them. What must hold, compared with a run whose clock is right:

    the derived topic has the same bytes, in the same order for each key; so have the late notes and the progress
    nothing is deleted, though records are kept for a day only
    a member of a group, which reads the derived topic all the time, keeps its session, and gets every row once
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

from bench.faults import calls
from bench.faults.broker_thread import BrokerThread
from bench.faults.committed import committed
from bench.faults.connection import Connection
from bench.faults.flow_world import batches, jvm_peak_mb, world
from bench.faults.outcome import Outcome
from bench.faults.sim_loop import patched
from bench.faults.sim_unprotected import without_protection
from bench.faults.steady_member import SteadyMember
from bench.faults.table import Sent, build_keyed
from bench.faults.workplace import workplace
from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.errors import HeadraceError
from headrace.flow.decoding import Decoder
from headrace.flow.writer import Writer
from headrace.testing.faulty_clock import DrivenClock
from tests.support.flows import FlowWorld
from tests.support.spark import compiled

__all__ = ["JUMPS", "RUNS", "UNPROTECTED", "run"]

FAULT = "X8"
UNPROTECTED = {"trusted-time": r"were deleted before their time", "event-time": r"windows differ"}
RUNS = 8
"""Every jump inside and between batches, set right or not, with both kinds of timestamps."""
_HOUR_MS = 3_600_000
_YEARS_MS = 10 * 365 * 24 * _HOUR_MS
JUMPS = {"+1 h": _HOUR_MS, "-1 h": -_HOUR_MS, "+10 y": _YEARS_MS, "-10 y": -_YEARS_MS, "frozen": 0}
_BATCHES = 5
_VISITS = 14
_JUMP_AT, _BACK_AT = 1, 3
_BATCH_S = 25
_LATE = timedelta(seconds=20)
_CHECKS_S = 0.25
"""Long enough for the broker to look for expired records more than once."""
_SHOWN = 3
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Visit:
    visit: str
    place: str
    spent: int
    at: datetime


@dataclass(frozen=True, slots=True)
class Derived:
    """What a case leaves in the log."""

    rows: dict[bytes, list[tuple[int, bytes | None]]]
    """By key: partition and value of each row, in the order of the log."""
    late: list[tuple[int, int, int]]
    """Partition, offset and event time."""
    progress: list[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class _Case:
    jump: str = ""
    """Empty for the run to compare with."""
    inside: bool = False
    stays: bool = False
    stamped: bool = False

    @classmethod
    def drawn(cls, jump: str, seed: int) -> _Case:
        return cls(jump, inside=bool(seed & 1), stays=bool(seed & 2), stamped=bool(seed & 4))

    def __str__(self) -> str:
        where = "inside a batch" if self.inside else "between batches"
        end = "stays" if self.stays else "is set right"
        times = "append times" if self.stamped else "create times"
        return f"{self.jump}, {where}, {end}, {times}"


def run(
    seed: int,
    *,
    protected: bool = True,
    without: str = "event-time",
    jumps: Sequence[str] = tuple(JUMPS),
) -> Outcome:
    """Every one of ``jumps`` is a case."""
    outcome = Outcome(FAULT, seed, cases=0)
    cases = [_Case.drawn(jump, seed) for jump in jumps]
    if not protected:
        cases = [_Case("+10 y", stamped=without == "event-time")]
    began, expected = _undisturbed(seed)
    with _broker(seed) as (clock, where, port), _without("" if protected else without):
        for case in cases:
            stage = _Stage(case, where, port, clock)
            outcome.problems += [
                f"{case}: {problem}" for problem in stage.play(_visits(seed, began), expected)
            ]
            outcome.hits += stage.hits
            outcome.cases += 1
    outcome.peak_rss_mb = jvm_peak_mb()
    return outcome


@functools.cache
def _undisturbed(seed: int) -> tuple[datetime, Derived]:
    """When its visits began, and what a run with a right clock derives from them."""
    began = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(minutes=5)
    with _broker(seed) as (clock, where, port):
        stage = _Stage(_Case(), where, port, clock)
        problems = stage.play(_visits(seed, began), None)
        assert not problems, problems
        return began, stage.derived()


@contextlib.contextmanager
def _broker(seed: int) -> Iterator[tuple[DrivenClock, FlowWorld, int]]:
    """Its clock begins right, and moves with the time."""
    clock = DrivenClock(time.time_ns() // 1_000_000, ticking=time.monotonic)
    with workplace(FAULT, seed, in_memory=True) as home, BrokerThread(home / "log", clock) as broker:
        where = FlowWorld(cast(Any, broker), Cluster(broker.bootstrap), world().spark, home)
        yield clock, where, broker.port


def _visits(seed: int, began: datetime) -> list[list[Visit]]:
    """By batch. Some are as late as they may be, some later."""
    rng = random.Random(f"{FAULT} windows {seed}")
    found: list[list[Visit]] = []
    for number in range(_BATCHES):
        batch = []
        for at_s in sorted(rng.uniform(0, _BATCH_S) for _ in range(_VISITS)):
            behind_s = rng.choice((0, 0, 0, rng.uniform(0, 20), rng.uniform(90, 200)))
            at = began + timedelta(seconds=number * _BATCH_S + at_s - behind_s)
            batch.append(Visit(f"v{len(batch)}.{number}", f"p{rng.randrange(3)}", rng.randrange(100), at))
        found.append(batch)
    return found


@contextlib.contextmanager
def _without(protection: str) -> Iterator[None]:
    if protection == "event-time":
        # The flow takes the time at which the broker took a record for the time of the event.
        decode = Decoder.decode

        def by_arrival(self: Decoder, raw: Any) -> Any:
            from pyspark.sql import functions as F

            arrived = F.when(F.col("event_us").isNotNull(), F.col("logged_us"))
            return decode(self, raw).withColumn("event_us", arrived)

        with patched(Decoder, "decode", by_arrival):
            yield
    else:
        with without_protection(protection or None):
            yield


class _Stage:
    """One case: a flow over topics of its own."""

    def __init__(self, case: _Case, where: FlowWorld, port: int, clock: DrivenClock) -> None:
        self.case = case
        self.hits = 0
        self._where = where
        self._port = port
        self._clock = clock
        self._struck: Callable[[], None] | None = None
        """What happens inside the next batch."""
        number = next(_numbers)
        app = self._app = App(f"visits-{number}")
        self._visits = app.topic(f"visits-{number}", Visit, key="visit", time="at", late=_LATE, partitions=2)
        self._sums = app.topic(f"sums-{number}", key=["place", "minute"], partitions=2)
        self._flow = app.flow(reads=[self._visits], writes=self._sums, name=f"sum-{number}")(_sum)

    def play(self, visits: list[list[Visit]], expected: Derived | None) -> list[str]:
        """What there is to object to; without ``expected``, rows are not compared."""
        self._create_input()
        member = SteadyMember(self._port, self._sums.name)
        problems: list[str] = []
        try:
            with (
                patched(Writer, "flush", self._flush_and_strike(Writer.flush)),
                compiled(self._where.spark),
                self._where.running(self._app, follow=False) as run,
            ):
                member.start()
                member.wait_until_assigned()
                for number, batch in enumerate(visits):
                    self._at(number, _JUMP_AT, self._jump)
                    if not self.case.stays:
                        self._at(number, _BACK_AT, self._set_right)
                    self._write(number % 2, batch)
                    run.derived()
            if expected is not None:
                problems += _differences(self.derived(), expected)
        except HeadraceError as error:
            problems.append(f"the flow does not go on: {error}")
        finally:
            self._set_right()
            problems += self._deleted()
            problems += member.finish(
                [] if problems else committed(self._where.cluster.bootstrap, self._sums.name)
            )
        return problems

    def derived(self) -> Derived:
        bootstrap = self._where.cluster.bootstrap
        rows: dict[bytes, list[tuple[int, bytes | None]]] = {}
        for record in committed(bootstrap, self._sums.name):
            rows.setdefault(record.key() or b"", []).append((record.partition() or 0, record.value()))
        notes = [json.loads(one.value() or b"") for one in committed(bootstrap, self._flow.late_topic)]
        return Derived(
            rows,
            [(note["partition"], note["offset"], note["event_us"]) for note in notes],
            [
                (
                    *(
                        batch[name]
                        for name in ("batch", "watermark_us", "rows_in", "rows_out", "late", "dead")
                    ),
                    batch["inputs"][self._visits.name],
                )
                for batch in batches(bootstrap, self._flow.name)
            ],
        )

    # Input

    def _create_input(self) -> None:
        configs: dict[Any, Any] = {"retention.ms": str(24 * _HOUR_MS), "internal.segment.bytes": "300"}
        if self.case.stamped:
            configs["message.timestamp.type"] = "LogAppendTime"
        with Connection(self._port) as connection:
            error = calls.create_topic(connection, self._visits.name, self._visits.partitions or 1, configs)
        assert not error, f"topic {self._visits.name} was not created: error {error}"

    def _write(self, partition: int, batch: list[Visit]) -> None:
        """As one batch of records: a flow reads all of it or nothing."""
        records = []
        for number, visit in enumerate(batch):
            key, value = self._visits.encode(visit)
            records.append(Sent(number, key or b"", value))
        built = build_keyed(records, time.time_ns() // 1_000_000)
        with Connection(self._port) as connection:
            answer = calls.produce(connection, self._visits.name, partition, built)
        assert not answer.error, f"{self.case}: records with the right time were refused: {answer}"

    # The clock

    def _at(self, number: int, wanted: int, strike: Callable[[], None]) -> None:
        if number != wanted or not self.case.jump:
            return
        if self.case.inside:
            self._struck = strike
        else:
            strike()

    def _flush_and_strike(self, flush: Callable[[Writer], None]) -> Callable[[Writer], None]:
        """When the rows of a batch are in the log, and it is not committed."""

        def flush_and_strike(writer: Writer) -> None:
            flush(writer)
            if self._struck is not None:
                strike, self._struck = self._struck, None
                strike()

        return flush_and_strike

    def _jump(self) -> None:
        self.hits += 1
        if self.case.jump == "frozen":
            self._clock.freeze()
        else:
            self._clock.jump_wall(JUMPS[self.case.jump])
        time.sleep(_CHECKS_S)

    def _set_right(self) -> None:
        self._clock.thaw()
        self._clock.jump_wall(time.time_ns() // 1_000_000 - self._clock.now_ms())
        time.sleep(_CHECKS_S)

    # What must hold

    def _deleted(self) -> list[str]:
        problems = []
        for topic in (self._visits.name, self._sums.name, self._flow.progress_topic):
            starts = {one: at for one, at in self._where.cluster.starts(topic).items() if at}
            if starts:
                problems.append(f"records of {topic} below {starts} were deleted before their time")
        return problems


def _sum(visits: Any) -> Any:
    from pyspark.sql import functions as F

    minutes = visits.groupBy("place", F.window("at", "1 minute").alias("window"))
    summed = minutes.agg(F.sum("spent").alias("spent"), F.count(F.lit(1)).alias("visits"))
    return summed.select("place", F.col("window.start").alias("minute"), "spent", "visits")


def _differences(found: Derived, expected: Derived) -> list[str]:
    problems = []
    wrong = [
        f"key {key!r} has {found.rows.get(key)} instead of {expected.rows.get(key)}"
        for key in sorted(found.rows.keys() | expected.rows.keys())
        if found.rows.get(key) != expected.rows.get(key)
    ]
    if wrong:
        problems.append(f"{len(wrong)} windows differ: {'; '.join(wrong[:_SHOWN])}")
    if found.late != expected.late:
        problems.append(f"the late notes are {found.late} instead of {expected.late}")
    if found.progress != expected.progress:
        problems.append(f"the progress is {found.progress} instead of {expected.progress}")
    return problems
