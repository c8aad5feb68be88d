"""Events in disorder, late, twice, dead and with absurd times; flows over them; and what must come of it, worked out by
hand from what was sent and from where the batches began and ended.
"""

from __future__ import annotations

import json
import random
import uuid
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from bench.faults.committed import committed
from bench.faults.flow_world import batches, jvm_peak_mb, running, world
from bench.faults.outcome import Outcome
from headrace.app import App
from headrace.ops.errors import CannotVerify
from headrace.ops.verify import Verifier
from tests.support.flows import RunningApp

__all__ = ["Disorder"]

_EVENTS = 16
_LATE = timedelta(seconds=20)
_NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ABSURD = (
    "1970-01-01T00:00:00Z",
    "1969-07-20T20:17:40Z",
    "9999-12-31T23:59:59Z",
    "0001-01-01T00:00:00Z",
    "2099-01-01T00:00:00Z",
)
_DEAD = (b"{", b'{"event":1}', b"\xff", None, b'{"event":"x","place":"p","at":"yesterday"}')


@dataclass(frozen=True)
class Event:
    event: str
    place: str
    at: datetime


@dataclass(frozen=True, slots=True)
class _Sent:
    """``at`` is None where it must be a dead letter."""

    event: str
    place: str
    at: datetime | None


@dataclass
class Disorder:
    rng: random.Random
    outcome: Outcome
    absurd: bool = False
    proven: bool = False
    """Whether a view follows the counts, and the product's own proof is asked too, which takes longer."""
    sent: dict[tuple[int, int], _Sent] = field(default_factory=dict)
    """By partition and offset."""

    def __post_init__(self) -> None:
        self.mark = mark = uuid.uuid4().hex[:8]
        self.app = app = App(f"disorder-{mark}")
        self.events = app.topic(f"events-{mark}", Event, key="event", time="at", late=_LATE, partitions=2)
        kept = app.topic(f"kept-{mark}", key="event", time="at", late=_LATE)
        counts = app.topic(f"counts-{mark}", key=["place", "minute"])

        @app.flow(reads=[self.events], writes=kept, name=f"keep-{mark}")
        def keep(events: Any) -> Any:
            return events

        @app.flow(reads=[self.events], writes=counts, name=f"count-{mark}")
        def count(events: Any) -> Any:
            from pyspark.sql import functions as F

            counted = events.groupBy("place", F.window("at", "1 minute").alias("window")).count()
            return counted.select("place", F.col("window.start").alias("minute"), "count")

        if self.proven:
            app.view(f"counts_{mark}", counts)

    def play(self, rounds: int = 2) -> None:
        """Some runs of the flows, each with batches of another size, fed while they go."""
        world().declare(self.app)
        busiest = self.rng.randrange(rounds)
        for number in range(rounds):
            with running(self.app, self.rng.choice((9, 20, 100_000))) as run:
                for part in range(2 if number == busiest else 1):
                    self._send(number * 60 + part * 30, late=number + part > 0)
                    run.derived()
                if self.proven and number == rounds - 1:
                    run.followed()
                    self._prove(run)
        self.outcome.peak_rss_mb = jvm_peak_mb()

    def _prove(self, run: RunningApp) -> None:
        """Batch over the same set, by the flows' own functions, is what is in the topics and in the store."""
        where = world()
        with Verifier(
            where.spark, where.cluster, self.app, where.settings(), run.compiled, run.schemas
        ) as verifier:
            for report in verifier.all():
                if isinstance(report, CannotVerify) or report.verdict != "proven":
                    self.outcome.problems.append(f"not proven: {report}")

    def _send(self, begin_s: int, *, late: bool) -> None:
        """Within what may be late, mostly; at the limit; and some far behind it."""
        rng, made = self.rng, []
        for number in range(_EVENTS):
            behind = rng.choice((0, 0, rng.uniform(0, 19), 20))
            if (late and number == 3) or rng.random() < 0.05:
                behind = rng.uniform(80, 3_000)
            at = _NOON + timedelta(seconds=begin_s + number * 30 // _EVENTS - behind)
            made.append(_Sent(f"e{begin_s + number}", f"p{rng.randrange(3)}", at))
            if rng.random() < 0.1:
                made.append(rng.choice(made[-5:]))
        wrong = [rng.choice(_DEAD) for _ in range(rng.randrange(3))]
        if self.absurd:
            wrong += [f'{{"event":"x","place":"p","at":"{at}"}}'.encode() for at in _ABSURD]
        records: list[tuple[_Sent, bytes | None]] = [(one, _value(one)) for one in made]
        for value in wrong:
            records.insert(rng.randrange(len(records)), (_Sent("", "", None), value))
        producer = world().cluster.producer({"linger.ms": 5})
        for one, value in records:
            partition = rng.randrange(2)
            offset = sum(place[0] == partition for place in self.sent)
            self.sent[partition, offset] = one
            producer.produce(self.events.name, value, one.event.encode(), partition=partition)
        assert producer.flush(30) == 0

    # What came of it

    def judge(self) -> None:
        for flow in ("keep", "count"):
            counted, late = self._decided(f"{flow}-{self.mark}")
            dead = {place for place, one in self.sent.items() if one.at is None}
            self._judge_sides(f"{flow}-{self.mark}", late, dead, len(counted))
            if flow == "keep":
                self._judge_kept(counted)
            else:
                self._judge_counts(counted)
        self.outcome.hits += len(late) + (len(dead) if self.absurd else 0)

    def _decided(self, flow: str) -> tuple[list[_Sent], set[tuple[int, int]]]:
        """Which are counted and which are late, given where the batches of the flow begin and end."""
        counted: list[_Sent] = []
        late: set[tuple[int, int]] = set()
        watermark: datetime | None = None
        reached = {0: 0, 1: 0}
        for batch in batches(world().cluster.bootstrap, flow):
            times = []
            for number, (start, to) in batch["inputs"][self.events.name].items():
                if start != reached[int(number)]:
                    self.outcome.problems.append(
                        f"{flow}: from {start}, and {reached[int(number)]} was reached"
                    )
                reached[int(number)] = to
                for offset in range(start, to):
                    one = self.sent[int(number), offset]
                    if one.at is None:
                        continue
                    times.append(one.at)
                    if watermark is not None and one.at < watermark:
                        late.add((int(number), offset))
                    else:
                        counted.append(one)
            told = batch["watermark_us"]
            if told != (None if watermark is None else (watermark - _EPOCH) // timedelta(microseconds=1)):
                self.outcome.problems.append(
                    f"{flow}: batch {batch['batch']} had the watermark {told}, not {watermark}"
                )
            if times:
                watermark = max(filter(None, (watermark, max(times) - _LATE)))
        if sum(reached.values()) != len(self.sent):
            self.outcome.problems.append(f"{flow} has read {reached} of {len(self.sent)}")
        return counted, late

    def _judge_sides(
        self, flow: str, late: set[tuple[int, int]], dead: set[tuple[int, int]], counted: int
    ) -> None:
        bootstrap = world().cluster.bootstrap
        told = [json.loads(one.value()) for one in committed(bootstrap, f"{flow}.late")]
        self._same(f"{flow}.late", Counter((one["partition"], one["offset"]) for one in told), Counter(late))
        letters = [dict(one.headers() or []) for one in committed(bootstrap, f"{flow}.dead")]
        names = [(f"__headrace.errors.{name}") for name in ("partition", "offset")]
        places = Counter((int(one[names[0]]), int(one[names[1]])) for one in letters)
        self._same(f"{flow}.dead", places, Counter(dead))
        last = batches(bootstrap, flow)[-1]["totals"]
        if (last["rows_in"], last["late"], last["dead"]) != (len(self.sent), len(late), len(dead)):
            self.outcome.problems.append(
                f"{flow}: {last} for {len(self.sent)} in, {len(late)} late, {len(dead)} dead"
            )
        if last["rows_in"] != counted + last["late"] + last["dead"]:
            self.outcome.problems.append(f"{flow}: {last} with {counted} counted")

    def _judge_kept(self, counted: list[_Sent]) -> None:
        rows = [json.loads(one.value()) for one in committed(world().cluster.bootstrap, f"kept-{self.mark}")]
        found = Counter((row["event"], row["place"], row["at"]) for row in rows)
        expected = Counter((one.event, one.place, _text(one.at)) for one in counted)
        self.outcome.lost += (expected - found).total()
        self.outcome.duplicated += (found - expected).total()

    def _judge_counts(self, counted: list[_Sent]) -> None:
        found: dict[tuple[str, str], int] = {}
        for one in committed(world().cluster.bootstrap, f"counts-{self.mark}"):
            row = json.loads(one.value())
            found[row["place"], row["minute"]] = row["count"]
        minutes = [(one.place, one.at.replace(second=0, microsecond=0)) for one in counted if one.at]
        expected = Counter((place, _text(minute)) for place, minute in minutes)
        self._same("the counts", Counter(found), expected)

    def _same(self, what: str, found: Counter[Any], expected: Counter[Any]) -> None:
        if found != expected:
            more, less = found - expected, expected - found
            self.outcome.problems.append(f"{what}: {dict(more)} too many, {dict(less)} missing")


def _text(moment: datetime | None) -> str:
    assert moment is not None
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _value(one: _Sent) -> bytes:
    return json.dumps({"event": one.event, "place": one.place, "at": _text(one.at)}).encode()
