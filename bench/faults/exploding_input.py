"""X30, input that explodes: 100,000 poison records of 600 B in a batch; 100,000 records of which ``explode`` makes a
hundred rows each; a million rows of one key in one task, out of a join that is shuffled.

A driver with the default heap of 1 GB runs the flow under attack and, in the same JVM, one that derives a tick now and
then. Nothing may be lost or repeated: rows are held against a count by hand, each key's in the order of the log, and
each poison record must be a dead letter once, with its bytes. The JVM and the driver must not end, the ticks must go
on meanwhile, and the peak of the JVM stays below its heap and what a JVM takes besides.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from bench.faults.committed import committed
from bench.faults.flood_driver import ATTACKS, PARTS, app_of_floods
from bench.faults.flow_scene import Driver
from bench.faults.flow_world import batches, world
from bench.faults.log_server import log_server
from bench.faults.outcome import Outcome
from bench.faults.sim_loop import patched
from bench.faults.workplace import workplace
from headrace.client.cluster import Cluster
from headrace.client.declaring import ensure_declared

__all__ = ["UNPROTECTED", "Flood", "run", "run_small"]

FAULT = "X30"
UNPROTECTED = {"guard": r"the driver did not get through"}
_FLOWS = {"poison": "keep", "explode": "explode", "key": "look"}
_RECORDS = {"poison": 100_000, "explode": 100_000, "key": 10_000}
_RECORDS_SMALL = {"poison": 500, "explode": 200, "key": 50}
_SENSORS = 7
_GOOD_NOTES = 10
_POISON_BYTES = 600
_TICK_S = 0.25
_PATIENCE_S = 1_200.0
_PEAK_MB_MAX = 1_024 + 640
"""The heap, and what a JVM with Spark takes besides: classes, compiled code, threads, buffers of the network."""


def run(seed: int, *, protected: bool = True, without: str = "guard") -> Outcome:
    outcome = Outcome(FAULT, seed)
    # Seeds in a row go through all the attacks.
    attack = ATTACKS[seed % len(ATTACKS)] if protected else "explode"
    words = [] if protected else ["--without", without]
    with workplace(FAULT, seed) as home, log_server(home, 1, outcome) as bootstrap:
        flood = Flood(bootstrap, "floods")
        flood.send(attack, _RECORDS[attack])
        driver = Driver(bootstrap, home, *words, program="bench.faults.flood_driver")
        try:
            if driver.wait_for("started") and flood.wait(attack, driver):
                outcome.figures |= {f"{part} MB": peak for part, peak in driver.rss_mb("VmHWM").items()}
                (home / "finish").touch()
                driver.wait()
        finally:
            driver.end()
        if "done" not in driver.said():
            outcome.problems.append(f"{attack}: the driver did not get through:\n{driver.said()[-2000:]}")
            return outcome
        flood.judge(outcome)
        outcome.hits += sum(one["rows_in"] >= _RECORDS[attack] // 2 for one in flood.batches(_FLOWS[attack]))
    outcome.peak_rss_mb = outcome.figures["Java MB"]
    if outcome.peak_rss_mb > _PEAK_MB_MAX:
        outcome.problems.append(f"{attack}: the JVM took {outcome.peak_rss_mb:.0f} MB")
    return outcome


def run_small(seed: int, attacks: Sequence[str] = ATTACKS) -> Outcome:
    """Attacks with few records, all at once, on the shared Spark, with limits that are as much smaller."""
    from headrace.flow import batch_rows, left_out, running
    from headrace.flow.output_guard import OutputGuard

    outcome, where = Outcome(FAULT, seed), world()
    flood = Flood(where.cluster.bootstrap, f"floods-{uuid.uuid4().hex[:8]}", attacks)
    for attack in attacks:
        flood.send(attack, _RECORDS_SMALL[attack])
    flood.send_ticks(20)
    spill, allow = batch_rows.RowCollector._spill, OutputGuard.allow

    def spilled(self: Any, rows: Any) -> Any:
        outcome.hits += 1
        return spill(self, rows)

    conf = where.spark.conf
    conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    with contextlib.ExitStack() as stack:
        stack.callback(conf.unset, "spark.sql.autoBroadcastJoinThreshold")
        for owner, name, value in (
            (OutputGuard, "allow", lambda guard, _: allow(guard, 50_000)),
            (batch_rows, "_PIECE_BYTES", 100_000),
            (running, "_HELD", 0),
            (left_out, "_PIECE_BYTES", 50_000),
            (batch_rows.RowCollector, "_spill", spilled),
        ):
            stack.enter_context(patched(owner, name, value))
        with where.running(flood.app, follow=False) as run:
            run.derived()
    flood.judge(outcome)
    return outcome


class Flood:
    """What is sent, and what must come of it."""

    def __init__(self, bootstrap: str, name: str, attacks: Sequence[str] = ATTACKS) -> None:
        self.app = app_of_floods(name, attacks)
        self._bootstrap = bootstrap
        self._name = name
        self._sent: Counter[str] = Counter()
        self._cluster = Cluster(bootstrap)
        for topic in self.app.topics:
            if self.app.writer_of(topic) is None:
                ensure_declared(self._cluster, topic, topic.name, 1)

    def send(self, attack: str, records: int) -> None:
        self._sent[attack] += records
        if attack == "poison":
            good = [(b"%d" % number, b'{"note":%d,"text":"good"}' % number) for number in range(_GOOD_NOTES)]
            self._produce("notes", [*good, *map(_poison, range(records))])
        elif attack == "explode":
            self._produce(
                "readings",
                [
                    (b"%d" % number, b'{"reading":%d,"sensor":"s%d"}' % (number, number % _SENSORS))
                    for number in range(records)
                ],
            )
        else:
            self._produce(
                "marks", [(b"m%02d" % one, b'{"mark":"m%02d","spot":"here"}' % one) for one in range(PARTS)]
            )
            self._produce(
                "visits",
                [(b"%d" % number, b'{"visit":%d,"spot":"here"}' % number) for number in range(records)],
            )

    def send_ticks(self, count: int) -> None:
        first = self._sent["tick"]
        self._sent["tick"] += count
        self._produce("ticks", [(b"%d" % one, b'{"tick":%d}' % one) for one in range(first, first + count)])

    def _produce(self, topic: str, records: list[tuple[bytes, bytes]]) -> None:
        producer = Producer({"bootstrap.servers": self._bootstrap, "linger.ms": 5})
        for number, (key, value) in enumerate(records):
            producer.produce(f"{topic}-{self._name}", value, key)
            if number % 10_000 == 0:
                producer.flush(60)
        assert producer.flush(60) == 0

    def wait(self, attack: str, driver: Driver) -> bool:
        """Whether the flow under attack gets to the end of its input, and the ticks that are sent meanwhile do too."""
        ending = threading.Event()

        def tick() -> None:
            while not ending.wait(_TICK_S):
                self.send_ticks(1)

        ticking = threading.Thread(target=tick)
        ticking.start()
        try:
            attacked = self._is_reached(_FLOWS[attack], driver)
        finally:
            ending.set()
            ticking.join()
        return attacked and self._is_reached("tick", driver)

    def _is_reached(self, flow: str, driver: Driver) -> bool:
        deadline = time.monotonic() + _PATIENCE_S
        while driver.runs and time.monotonic() < deadline:
            with contextlib.suppress(KeyError, IndexError):
                [(topic, ranges)] = self.batches(flow)[-1]["inputs"].items()
                ends = self._cluster.ends(topic)
                if all(ranges[str(partition)][1] == end for partition, end in ends.items()):
                    return True
            time.sleep(0.5)
        return False

    def batches(self, flow: str) -> list[dict[str, Any]]:
        return batches(self._bootstrap, f"{flow}-{self._name}")

    # What came of it

    def judge(self, outcome: Outcome) -> None:
        if readings := self._sent["explode"]:
            shares = {f"s{one}".encode(): len(range(one, readings, _SENSORS)) for one in range(_SENSORS)}
            self._judge_rows("parts", _part, {key: count * PARTS for key, count in shares.items()}, outcome)
        if visits := self._sent["key"]:
            self._judge_rows("seen", _seen, {b"here": visits * PARTS}, outcome)
        if self._sent["poison"]:
            self._judge_letters(outcome)
        ticks = Counter(json.loads(one.value() or b"")["tick"] for one in self._committed("ticked"))
        self._count("ticked", ticks, Counter(range(self._sent["tick"])), outcome)
        self._note_ticks(outcome)

    def _judge_rows(
        self,
        topic: str,
        row: Callable[[bytes, int], bytes],
        wanted: dict[bytes, int],
        outcome: Outcome,
    ) -> None:
        """Each key has its rows one after the other, as ``row`` gives them by their number."""
        found: Counter[bytes] = Counter()
        wrong: list[str] = []
        for message in _each(self._bootstrap, f"{topic}-{self._name}"):
            key, value = message.key() or b"", message.value() or b""
            if value != row(key, found[key]):
                wrong.append(f"{key!r} has {value!r} as its row {found[key]}")
            found[key] += 1
        self._count(topic, found, Counter(wanted), outcome)
        if wrong:
            outcome.problems.append(f"{topic}: {len(wrong)} rows are not in their place: {wrong[0]}")

    def _judge_letters(self, outcome: Outcome) -> None:
        wanted = {_GOOD_NOTES + number: _poison(number) for number in range(self._sent["poison"])}
        found: Counter[int] = Counter()
        for letter in _each(self._bootstrap, f"keep-{self._name}.dead"):
            offset = int(dict(letter.headers() or [])["__headrace.errors.offset"])
            found[offset] += 1
            if wanted.get(offset) != (letter.key(), letter.value()):
                outcome.problems.append(f"the dead letter of offset {offset} has other bytes")
        self._count("dead letters", found, Counter(wanted.keys()), outcome)
        kept = Counter(json.loads(one.value() or b"")["note"] for one in self._committed("kept"))
        self._count("kept", kept, Counter(range(_GOOD_NOTES)), outcome)

    def _note_ticks(self, outcome: Outcome) -> None:
        moments = [one["committed_ms"] for one in self.batches("tick")]
        if len(moments) > 1:
            waits = [later - before for before, later in itertools.pairwise(moments)]
            outcome.figures["longest wait between batches of ticks, s"] = max(waits) / 1_000

    def _committed(self, topic: str) -> list[Message]:
        return committed(self._bootstrap, f"{topic}-{self._name}")

    @staticmethod
    def _count(what: str, found: Counter[Any], wanted: Counter[Any], outcome: Outcome) -> None:
        lost, more = (wanted - found).total(), (found - wanted).total()
        outcome.lost += lost
        outcome.duplicated += more
        if lost or more:
            outcome.problems.append(f"{what}: {lost} missing, {more} too many")


def _poison(number: int) -> tuple[bytes, bytes]:
    """A number as text, which does not fit."""
    begin = b'{"note":"%d","text":"' % number
    return b"p%d" % number, begin + b"x" * (_POISON_BYTES - len(begin) - 2) + b'"}'


def _part(key: bytes, number: int) -> bytes:
    reading = int(key[1:]) + _SENSORS * (number // PARTS)
    return b'{"sensor":"%s","reading":%d,"part":%d}' % (key, reading, number % PARTS)


def _seen(key: bytes, number: int) -> bytes:
    return b'{"spot":"%s","visit":%d,"mark":"m%02d"}' % (key, number // PARTS, number % PARTS)


def _each(bootstrap: str, topic: str) -> Iterator[Message]:
    """The committed records of a topic, of which only a few thousand are held at a time."""
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "group.id": uuid.uuid4().hex,
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
        "queued.max.messages.kbytes": 64_000,
    }
    consumer = Consumer(settings)
    try:
        partitions = set(consumer.list_topics(topic, 30).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        while partitions:
            for message in consumer.consume(5_000, 1.0):
                error = message.error()
                if error is None:
                    yield message
                else:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    partitions.discard(message.partition())
    finally:
        consumer.close()
