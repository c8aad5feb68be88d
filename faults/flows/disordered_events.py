"""Sends out-of-order, late, duplicate, invalid and absurdly timed events, runs flows over them, and checks the results.

The expected results are computed from the sent events alone: which events are late depends only on the order of each
partition. The batches are read only to check that their watermark is behind every event that counts.
"""

from __future__ import annotations

import json
import random
import uuid
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from faults.committed_records import committed, committed_json, headers_of
from faults.flows.shared_world import batches, jvm_peak_mb, running, world
from faults.flows.world import RunningApp
from faults.outcome import Outcome
from headrace.app import App
from headrace.ops.verify.errors import CannotVerify
from headrace.ops.verify.verifier import Verifier

__all__ = ["Disorder"]

_EVENTS = 16
_LATE = timedelta(seconds=20)
_NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ABSURD_TIMES = (
    "1970-01-01T00:00:00Z",
    "1969-07-20T20:17:40Z",
    "9999-12-31T23:59:59Z",
    "0001-01-01T00:00:00Z",
    "2099-01-01T00:00:00Z",
)
_INVALID_VALUES = (b"{", b'{"event":1}', b"\xff", None, b'{"event":"x","place":"p","at":"yesterday"}')


@dataclass(frozen=True)
class Event:
    event: str
    place: str
    at: datetime


@dataclass(frozen=True, slots=True)
class _Sent:
    """``at`` is None if the event must become a dead letter."""

    event: str
    place: str
    at: datetime | None


@dataclass
class Disorder:
    rng: random.Random
    outcome: Outcome
    absurd: bool = False
    verified: bool = False
    """Whether to also follow the counts with a view and run the product's verifier, which takes longer."""
    sent: dict[tuple[int, int], _Sent] = field(default_factory=dict)
    """The sent events, by partition and offset."""

    def __post_init__(self) -> None:
        self.suffix = suffix = uuid.uuid4().hex[:8]
        self.skew_s = self.rng.choice((0, 150))
        """How far the events of partition 1 are behind those of partition 0. This makes none of them late."""
        self.app = app = App(f"disorder-{suffix}")
        self.events = app.topic(f"events-{suffix}", Event, key="event", time="at", late=_LATE, partitions=2)
        kept = app.topic(f"kept-{suffix}", key="event", time="at", late=_LATE)
        counts = app.topic(f"counts-{suffix}", key=["place", "minute"])

        @app.flow(
            reads=[self.events], writes=kept, name=f"keep-{suffix}", late=self.rng.choice(("drop", "side"))
        )
        def keep(events: Any) -> Any:
            return events

        @app.flow(reads=[self.events], writes=counts, name=f"count-{suffix}")
        def count(events: Any) -> Any:
            from pyspark.sql import functions as F

            counted = events.groupBy("place", F.window("at", "1 minute").alias("window")).count()
            return counted.select("place", F.col("window.start").alias("minute"), "count")

        if self.verified:
            app.view(f"counts_{suffix}", counts)

    def run(self, rounds: int = 2) -> None:
        """Run the flows several times, each time with another batch size and with more input."""
        world().declare(self.app)
        busiest = self.rng.randrange(rounds)
        for number in range(rounds):
            with running(self.app, self.rng.choice((9, 20, 100_000))) as run:
                for part in range(2 if number == busiest else 1):
                    self._send(number * 60 + part * 30, late=number + part > 0)
                    run.wait_until_derived()
                if self.verified and number == rounds - 1:
                    run.wait_until_followed()
                    self._verify(run)
        self.outcome.peak_rss_mb = jvm_peak_mb()

    def _verify(self, run: RunningApp) -> None:
        """Run the product's verifier: the topics and the store must equal a batch run over the same events."""
        flow_world = world()
        with Verifier(
            flow_world.spark, flow_world.cluster, self.app, flow_world.settings(), run.compiled, run.schemas
        ) as verifier:
            for report in verifier.all():
                if isinstance(report, CannotVerify) or report.verdict != "proven":
                    self.outcome.problems.append(f"not proven: {report}")

    def _send(self, begin_s: int, *, late: bool) -> None:
        """Most events are within the allowed lateness, some at its limit, some far beyond it."""
        rng, events_sent = self.rng, []
        for number in range(_EVENTS):
            delay_s = rng.choice((0, 0, rng.uniform(0, 19), 20))
            if (late and number == 3) or rng.random() < 0.05:
                delay_s = rng.uniform(80, 3_000)
            at = _NOON + timedelta(seconds=begin_s + number * 30 // _EVENTS - delay_s)
            events_sent.append(_Sent(f"e{begin_s + number}", f"p{rng.randrange(3)}", at))
            if rng.random() < 0.1:
                events_sent.append(rng.choice(events_sent[-5:]))
        invalid_values = [rng.choice(_INVALID_VALUES) for _ in range(rng.randrange(3))]
        if self.absurd:
            invalid_values += [f'{{"event":"x","place":"p","at":"{at}"}}'.encode() for at in _ABSURD_TIMES]
        records: list[tuple[_Sent, bytes | None]] = [(event, _value(event)) for event in events_sent]
        for value in invalid_values:
            records.insert(rng.randrange(len(records)), (_Sent("", "", None), value))
        producer = world().cluster.producer({"linger.ms": 5})
        for chosen, chosen_value in records:
            record, value = chosen, chosen_value
            partition = rng.randrange(2)
            if partition and record.at is not None:
                record = _Sent(record.event, record.place, record.at - timedelta(seconds=self.skew_s))
                value = _value(record)
            offset = sum(coordinates[0] == partition for coordinates in self.sent)
            self.sent[partition, offset] = record
            producer.produce(self.events.name, value, record.event.encode(), partition=partition)
        assert producer.flush(30) == 0

    # Results

    def judge(self) -> None:
        late = self._late()
        invalid = {coordinates for coordinates, event in self.sent.items() if event.at is None}
        for flow in ("keep", "count"):
            behind = self._judge_batches(f"{flow}-{self.suffix}", late, has_state=flow == "count")
            rejected = late | invalid | behind
            counted = [event for coordinates, event in self.sent.items() if coordinates not in rejected]
            self._judge_side_topics(f"{flow}-{self.suffix}", late, invalid | behind, len(counted))
            if flow == "keep":
                self._judge_kept(counted)
            else:
                self._judge_counts(counted)
        self.outcome.hits += len(late) + (len(invalid) if self.absurd else 0)

    def _late(self) -> set[tuple[int, int]]:
        """Return the late events: those too far behind the newest earlier event of their partition."""
        late: set[tuple[int, int]] = set()
        newest: dict[int, datetime] = {}
        for (partition, offset), event in sorted(self.sent.items()):
            if event.at is not None:
                known = newest.setdefault(partition, event.at)
                if event.at < known - _LATE:
                    late.add((partition, offset))
                newest[partition] = max(known, event.at)
        return late

    def _judge_batches(
        self, flow: str, late: set[tuple[int, int]], *, has_state: bool
    ) -> set[tuple[int, int]]:
        """Return the events that are before the watermark of their batch, but not late. They can only exist if a
        partition had no events at first.
        """
        behind: set[tuple[int, int]] = set()
        read_until = {0: 0, 1: 0}
        newest: dict[int, datetime] = {}
        for batch in batches(world().cluster.bootstrap, f"{self.app.name}.{flow}"):
            recorded = batch["watermark_us"]
            watermark = None if recorded is None else _EPOCH + timedelta(microseconds=recorded)
            latest = min(newest.values()) - _LATE if newest.keys() == read_until.keys() else None
            if has_state and watermark is not None and latest is not None and watermark > latest:
                self.outcome.problems.append(
                    f"{flow}: batch {batch['batch']} had the watermark {watermark} instead of {latest} or earlier"
                )
            for number, (start, to) in batch["inputs"][self.events.name].items():
                partition = int(number)
                if start != read_until[partition]:
                    self.outcome.problems.append(
                        f"{flow}: a batch starts at {start}, but the last one ended at {read_until[partition]}"
                    )
                read_until[partition] = to
                for offset in range(start, to):
                    at = self.sent[partition, offset].at
                    if at is None:
                        continue
                    newest[partition] = max(newest.get(partition, at), at)
                    is_old = has_state and watermark is not None and at < watermark
                    if is_old and (partition, offset) not in late:
                        behind.add((partition, offset))
        if sum(read_until.values()) != len(self.sent):
            self.outcome.problems.append(
                f"{flow} read up to {read_until}, but {len(self.sent)} events were sent"
            )
        return behind

    def _judge_side_topics(
        self, flow: str, late: set[tuple[int, int]], dead: set[tuple[int, int]], counted: int
    ) -> None:
        bootstrap, own_name = world().cluster.bootstrap, f"{self.app.name}.{flow}"
        notes = [_note(record) for record in committed(bootstrap, f"{own_name}.late")]
        self._compare(
            f"{own_name}.late", Counter((note["partition"], note["offset"]) for note in notes), Counter(late)
        )
        letters = [headers_of(letter) for letter in committed(bootstrap, f"{own_name}.dead")]
        names = [(f"__headrace.errors.{name}") for name in ("partition", "offset")]
        coordinates = Counter((int(letter[names[0]]), int(letter[names[1]])) for letter in letters)
        self._compare(f"{own_name}.dead", coordinates, Counter(dead))
        last = batches(bootstrap, own_name)[-1]["totals"]
        if (last["rows_in"], last["late"], last["dead"]) != (len(self.sent), len(late), len(dead)):
            self.outcome.problems.append(
                f"{flow}: the totals are {last} for {len(self.sent)} in, {len(late)} late, {len(dead)} dead"
            )
        if last["rows_in"] != counted + last["late"] + last["dead"]:
            self.outcome.problems.append(f"{flow}: the totals {last} do not add up with {counted} counted")

    def _judge_kept(self, counted: list[_Sent]) -> None:
        rows = committed_json(world().cluster.bootstrap, f"kept-{self.suffix}")
        actual = Counter((row["event"], row["place"], row["at"]) for row in rows)
        expected = Counter((event.event, event.place, _text(event.at)) for event in counted)
        self.outcome.lost += (expected - actual).total()
        self.outcome.duplicated += (actual - expected).total()

    def _judge_counts(self, counted: list[_Sent]) -> None:
        actual: dict[tuple[str, str], int] = {}
        for row in committed_json(world().cluster.bootstrap, f"counts-{self.suffix}"):
            actual[row["place"], row["minute"]] = row["count"]
        minutes = [(event.place, event.at.replace(second=0, microsecond=0)) for event in counted if event.at]
        expected = Counter((place, _text(minute)) for place, minute in minutes)
        self._compare("the counts", Counter(actual), expected)

    def _compare(self, name: str, actual: Counter[Any], expected: Counter[Any]) -> None:
        if actual != expected:
            extra, missing = actual - expected, expected - actual
            self.outcome.problems.append(f"{name}: {dict(extra)} too many, {dict(missing)} missing")


def _note(record: Any) -> dict[str, Any]:
    """Return the note about a late event. It is in a header if the record has the event itself."""
    in_header = headers_of(record).get("__headrace.late")
    note: dict[str, Any] = json.loads(in_header or record.value())
    return note


def _text(moment: datetime | None) -> str:
    assert moment is not None
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _value(event: _Sent) -> bytes:
    return json.dumps({"event": event.event, "place": event.place, "at": _text(event.at)}).encode()
