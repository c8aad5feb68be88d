"""Fault X30, exploding input: 100,000 poison records of 600 B in a batch; 100,000 records that ``explode`` turns into a
hundred rows each; a million rows of one key in one task, from a shuffled join.

A driver with the default heap of 1 GB runs the attacked flow and, in the same JVM, a flow that copies a few ticks per
second. No row may be lost or repeated: the oracle counts the rows and checks that each key's rows are in the order of
the log. Each poison record must become one dead letter with its bytes. The JVM and the driver must survive, the ticks
must continue, and the JVM's peak memory must stay below its heap plus its usual overhead.
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

from faults.committed_records import committed, headers_of
from faults.flows.flood_driver import ATTACKS, PARTS, app_of_floods
from faults.flows.scene import Driver
from faults.flows.shared_world import batches, world
from faults.outcome import Outcome
from faults.patch import patched
from faults.run_directory import run_directory
from faults.servers.log_server import log_server
from faults.servers.spark import session_conf
from headrace.client.cluster import Cluster
from headrace.client.declared_topics import ensure_declared

__all__ = ["UNPROTECTED", "Flood", "run", "run_small"]

FAULT = "X30"
UNPROTECTED = {"output-guard": r"the driver did not derive all input"}
_FLOWS = {"poison": "keep", "explode": "explode", "one-key": "look"}
_RECORDS = {"poison": 100_000, "explode": 100_000, "one-key": 10_000}
_RECORDS_SMALL = {"poison": 500, "explode": 200, "one-key": 50}
_SENSORS = 7
_GOOD_NOTES = 10
_POISON_BYTES = 600
_TICK_S = 0.25
_PATIENCE_S = 1_200.0
_PEAK_MB_MAX = 1_024 + 640
"""The heap plus the overhead of a JVM with Spark: classes, compiled code, threads, network buffers."""


def run(seed: int, *, protected: bool = True, without: str = "output-guard") -> Outcome:
    outcome = Outcome(FAULT, seed)
    # Consecutive seeds cover all the attacks.
    attack = ATTACKS[seed % len(ATTACKS)] if protected else "explode"
    options = [] if protected else ["--without", without]
    with run_directory(FAULT, seed) as home, log_server(home, 1, outcome) as bootstrap:
        flood = Flood(bootstrap, "floods")
        flood.send(attack, _RECORDS[attack])
        driver = Driver(bootstrap, home, *options, program="faults.flows.flood_driver")
        try:
            if driver.wait_for("started") and flood.wait(attack, driver):
                outcome.figures |= {f"{part} MB": peak for part, peak in driver.rss_mb("VmHWM").items()}
                (home / "finish").touch()
                driver.wait()
        finally:
            driver.kill()
        if "done" not in driver.output():
            outcome.problems.append(
                f"{attack}: the driver did not derive all input:\n{driver.output()[-2000:]}"
            )
            return outcome
        flood.judge(outcome)
        outcome.hits += sum(
            batch["rows_in"] >= _RECORDS[attack] // 2 for batch in flood.batches(_FLOWS[attack])
        )
    outcome.peak_rss_mb = outcome.figures["Java MB"]
    if outcome.peak_rss_mb > _PEAK_MB_MAX:
        outcome.problems.append(f"{attack}: the JVM's peak memory is {outcome.peak_rss_mb:.0f} MB")
    return outcome


def run_small(seed: int, attacks: Sequence[str] = ATTACKS) -> Outcome:
    """Run all attacks at the same time with few records, on the shared Spark session, with smaller limits to match."""
    from headrace.flow import batch_rows, rejected
    from headrace.flow.batch_rows import OutputGuard
    from headrace.flow.engine import micro_batch

    outcome, flow_world = Outcome(FAULT, seed), world()
    flood = Flood(flow_world.cluster.bootstrap, f"floods-{uuid.uuid4().hex[:8]}", attacks)
    for attack in attacks:
        flood.send(attack, _RECORDS_SMALL[attack])
    flood.send_ticks(20)
    spill, allow = batch_rows.RowCollector._spill, OutputGuard.allow

    def count_and_spill(self: Any, rows: Any) -> Any:
        outcome.hits += 1
        return spill(self, rows)

    with contextlib.ExitStack() as stack:
        stack.enter_context(session_conf(flow_world.spark, {"spark.sql.autoBroadcastJoinThreshold": "-1"}))
        for owner, name, value in (
            (OutputGuard, "allow", lambda guard, _: allow(guard, 50_000)),
            (batch_rows, "_PIECE_BYTES", 100_000),
            (micro_batch, "_MEMORY_FACTOR", 0),
            (rejected, "_PIECE_BYTES", 50_000),
            (batch_rows.RowCollector, "_spill", count_and_spill),
        ):
            stack.enter_context(patched(owner, name, value))
        with flow_world.running(flood.app, follow=False) as run:
            run.wait_until_derived()
    flood.judge(outcome)
    return outcome


class Flood:
    """Sends the input of the attacks, and checks the output."""

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
                "marks",
                [(b"m%02d" % number, b'{"mark":"m%02d","spot":"here"}' % number) for number in range(PARTS)],
            )
            self._produce(
                "visits",
                [(b"%d" % number, b'{"visit":%d,"spot":"here"}' % number) for number in range(records)],
            )

    def send_ticks(self, count: int) -> None:
        first = self._sent["tick"]
        self._sent["tick"] += count
        self._produce(
            "ticks", [(b"%d" % number, b'{"tick":%d}' % number) for number in range(first, first + count)]
        )

    def _produce(self, topic: str, records: list[tuple[bytes, bytes]]) -> None:
        producer = Producer({"bootstrap.servers": self._bootstrap, "linger.ms": 5})
        for number, (key, value) in enumerate(records):
            producer.produce(f"{topic}-{self._name}", value, key)
            if number % 10_000 == 0:
                producer.flush(60)
        assert producer.flush(60) == 0

    def wait(self, attack: str, driver: Driver) -> bool:
        """Send ticks until the attacked flow has read its input. Return whether both flows reached their end."""
        stopping = threading.Event()

        def tick() -> None:
            while not stopping.wait(_TICK_S):
                self.send_ticks(1)

        thread = threading.Thread(target=tick)
        thread.start()
        try:
            is_done = self._wait_until_read(_FLOWS[attack], driver)
        finally:
            stopping.set()
            thread.join()
        return is_done and self._wait_until_read("tick", driver)

    def _wait_until_read(self, flow: str, driver: Driver) -> bool:
        deadline = time.monotonic() + _PATIENCE_S
        while driver.is_running and time.monotonic() < deadline:
            with contextlib.suppress(KeyError, IndexError):
                [(topic, ranges)] = self.batches(flow)[-1]["inputs"].items()
                end_offsets = self._cluster.ends(topic)
                if all(ranges[str(partition)][1] == end for partition, end in end_offsets.items()):
                    return True
            time.sleep(0.5)
        return False

    def batches(self, flow: str) -> list[dict[str, Any]]:
        return batches(self._bootstrap, f"{self._name}.{flow}-{self._name}")

    # Results

    def judge(self, outcome: Outcome) -> None:
        if readings := self._sent["explode"]:
            shares = {
                f"s{number}".encode(): len(range(number, readings, _SENSORS)) for number in range(_SENSORS)
            }
            self._judge_rows("parts", _part, {key: count * PARTS for key, count in shares.items()}, outcome)
        if visits := self._sent["one-key"]:
            self._judge_rows("seen", _seen, {b"here": visits * PARTS}, outcome)
        if self._sent["poison"]:
            self._judge_letters(outcome)
        ticks = Counter(json.loads(message.value() or b"")["tick"] for message in self._committed("ticked"))
        self._count("ticked", ticks, Counter(range(self._sent["tick"])), outcome)
        self._measure_ticks(outcome)

    def _judge_rows(
        self,
        topic: str,
        row: Callable[[bytes, int], bytes],
        expected_counts: dict[bytes, int],
        outcome: Outcome,
    ) -> None:
        """Check that each key has its rows in order. ``row(key, n)`` returns the row that must be row ``n`` of the key,
        counted from 0.
        """
        counts: Counter[bytes] = Counter()
        wrong: list[str] = []
        for message in _stream_committed(self._bootstrap, f"{topic}-{self._name}"):
            key, value = message.key() or b"", message.value() or b""
            if value != row(key, counts[key]):
                wrong.append(f"{key!r} has {value!r} as its row {counts[key]}")
            counts[key] += 1
        self._count(topic, counts, Counter(expected_counts), outcome)
        if wrong:
            outcome.problems.append(f"{topic}: {len(wrong)} rows are out of order: {wrong[0]}")

    def _judge_letters(self, outcome: Outcome) -> None:
        expected_letters = {_GOOD_NOTES + number: _poison(number) for number in range(self._sent["poison"])}
        counts: Counter[int] = Counter()
        for letter in _stream_committed(self._bootstrap, f"{self._name}.keep-{self._name}.dead"):
            offset = int(headers_of(letter)["__headrace.errors.offset"])
            counts[offset] += 1
            if expected_letters.get(offset) != (letter.key(), letter.value()):
                outcome.problems.append(f"the dead letter of offset {offset} does not have the sent bytes")
        self._count("dead letters", counts, Counter(expected_letters.keys()), outcome)
        kept = Counter(json.loads(message.value() or b"")["note"] for message in self._committed("kept"))
        self._count("kept", kept, Counter(range(_GOOD_NOTES)), outcome)

    def _measure_ticks(self, outcome: Outcome) -> None:
        commit_times_ms = [batch["committed_ms"] for batch in self.batches("tick")]
        if len(commit_times_ms) > 1:
            waits_ms = [next_ms - previous for previous, next_ms in itertools.pairwise(commit_times_ms)]
            outcome.figures["longest wait between batches of ticks, s"] = max(waits_ms) / 1_000

    def _committed(self, topic: str) -> list[Message]:
        return committed(self._bootstrap, f"{topic}-{self._name}")

    @staticmethod
    def _count(name: str, actual: Counter[Any], expected: Counter[Any], outcome: Outcome) -> None:
        lost, duplicated = (expected - actual).total(), (actual - expected).total()
        outcome.lost += lost
        outcome.duplicated += duplicated
        if lost or duplicated:
            outcome.problems.append(f"{name}: {lost} missing, {duplicated} too many")


def _poison(number: int) -> tuple[bytes, bytes]:
    """Return a record with a number as text, which does not fit the schema."""
    begin = b'{"note":"%d","text":"' % number
    return b"p%d" % number, begin + b"x" * (_POISON_BYTES - len(begin) - 2) + b'"}'


def _part(key: bytes, number: int) -> bytes:
    reading = int(key[1:]) + _SENSORS * (number // PARTS)
    return b'{"sensor":"%s","reading":%d,"part":%d}' % (key, reading, number % PARTS)


def _seen(key: bytes, number: int) -> bytes:
    return b'{"spot":"%s","visit":%d,"mark":"m%02d"}' % (key, number // PARTS, number % PARTS)


def _stream_committed(bootstrap: str, topic: str) -> Iterator[Message]:
    """Iterate over the committed records of a topic, with at most a few thousand in memory at a time."""
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
