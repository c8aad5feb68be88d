"""X12, a zombie producer: stopped inside a transaction (SIGSTOP), replaced by a successor that holds the same
transactional id, and woken again (SIGCONT) while the successor works.

The zombie goes on as if nothing had happened. It must be told that it is fenced (47 or 90; librdkafka has a number of
its own for both), and nothing that it had not committed before may ever be read as committed: not its open transaction,
and not as a part of one of the successor's. In a quarter of the runs the broker is killed and started again while the
zombie sleeps: who is fenced stays fenced.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from typing import IO

from confluent_kafka import KafkaError, TopicPartition

from bench.faults import calls
from bench.faults.batches import build_batch, parse_batches
from bench.faults.connection import Connection
from bench.faults.consuming import stock_consumer
from bench.faults.forking import ROOT, dying_with_us
from bench.faults.outcome import Outcome
from bench.faults.process import BrokerProcess
from bench.faults.transacting import Producer, Refused, open_producer, values_of
from bench.faults.workplace import workplace

__all__ = ["FENCED", "UNPROTECTED", "run"]

FAULT = "X12"
UNPROTECTED = {"fencing": r"after its successor's first|that nobody committed"}
FENCED = {47, 90, KafkaError._FENCED}
_TOPIC = "rows"
_ID = "flow"
_PARTITIONS = 3
_LAST = b"the last"
_WAIT_S_MAX = 240.0


def run(seed: int, *, protected: bool = True, without: str = "fencing") -> Outcome:
    rng = random.Random(seed)
    outcome = Outcome(FAULT, seed)
    starter = [] if protected else ["--without", without]
    with (
        workplace(FAULT, seed) as home,
        BrokerProcess(home, starter=starter, forked=True) as broker,
    ):
        broker.start()
        with Connection(broker.port) as connection:
            if error := calls.create_topic(connection, _TOPIC, _PARTITIONS):
                raise AssertionError(f"the topic could not be made: error {error}")
        scene = _Scene(broker, rng, outcome, zombie_protocol=1 + seed % 2)
        try:
            scene.play(kills_broker=seed % 4 == 3)
        finally:
            scene.zombie.end()
        scene.judge()
        outcome.problems += broker.traces()
        broker.kill()
        outcome.peak_rss_mb = broker.peak_rss_mb
    return outcome


class _Zombie:
    """The process and all that it said."""

    def __init__(self, port: int, protocol: int, seed: int) -> None:
        words = [str(port), _ID, _TOPIC, str(_PARTITIONS), str(protocol), str(seed)]
        self.lines: list[str] = []
        self._process = subprocess.Popen(
            [*dying_with_us(), sys.executable, "-m", "bench.faults.transacting", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert self._process.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    def _read(self, said: IO[str]) -> None:
        for line in said:
            self.lines.append(line.strip())

    def wait_for(self, line: str) -> None:
        deadline = time.monotonic() + _WAIT_S_MAX
        while line not in self.lines:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the producer never said {line!r}: {self.lines[-5:]}")
            time.sleep(0.0002)

    def sleep(self) -> None:
        os.kill(self._process.pid, signal.SIGSTOP)
        # What it said before is in the pipe, or was read already.
        time.sleep(0.05)

    def wake(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def finish(self) -> bool:
        """Whether it ended by itself."""
        try:
            self._process.wait(_WAIT_S_MAX)
        except subprocess.TimeoutExpired:
            return False
        self._reader.join(_WAIT_S_MAX)
        return True

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join(_WAIT_S_MAX)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def numbers(self, word: str, lines: list[str] | None = None) -> set[int]:
        found = (line.split() for line in (self.lines if lines is None else lines))
        return {int(parts[1]) for parts in found if parts[0] == word}


class _Scene:
    def __init__(
        self, broker: BrokerProcess, rng: random.Random, outcome: Outcome, *, zombie_protocol: int
    ) -> None:
        self._broker = broker
        self._rng = rng
        self._outcome = outcome
        self.zombie = _Zombie(broker.port, zombie_protocol, rng.getrandbits(30))
        self._before: list[str] = []
        self._succeeded: set[int] = set()

    def _object(self, problem: str) -> None:
        self._outcome.problems.append(problem)

    def play(self, *, kills_broker: bool) -> None:
        rng = self._rng
        self.zombie.wait_for(f"begins {rng.randint(1, 6)}")
        time.sleep(rng.uniform(0, 0.03))
        self.zombie.sleep()
        self._before = list(self.zombie.lines)
        if kills_broker:
            self._broker.kill()
            self._broker.start()
        successor = open_producer(rng.choice((1, 2)), self._broker.port, _ID)
        try:
            self._succeed(successor)
        finally:
            successor.close()

    def _succeed(self, successor: Producer) -> None:
        rng = self._rng
        wakes_at = rng.choice(("after it holds the id", "inside its first", "after its first"))
        if wakes_at == "after it holds the id":
            self.zombie.wake()
        for number in range(4):
            self._transact(successor, number, wakes=wakes_at == "inside its first" and number == 0)
            if wakes_at == "after its first" and number == 0:
                self.zombie.wake()
        if not self.zombie.finish():
            self._object(f"the zombie was not refused within {_WAIT_S_MAX:.0f} s")
        self._transact(successor, 4)

    def _transact(self, successor: Producer, number: int, *, wakes: bool = False) -> None:
        try:
            successor.begin()
            for partition in range(_PARTITIONS):
                for index, value in enumerate(values_of("successor", number, partition)):
                    successor.send(_TOPIC, partition, [value])
                    if wakes and partition == 1 and index == 1:
                        self.zombie.wake()
                    time.sleep(self._rng.uniform(0, 0.003))
            successor.commit()
            self._succeeded.add(number)
        except Refused as refused:
            self._object(f"transaction {number} of the successor got error {refused.code}")

    # What came of it

    def judge(self) -> None:
        self._judge_what_it_was_told()
        written, seen = self._written(), self._committed()
        for partition, values in enumerate(written):
            first = next(
                (at for at, value in enumerate(values) if value.startswith(b"successor")), len(values)
            )
            late = [value for value in values[first:] if value.startswith(b"zombie")]
            if late:
                self._object(
                    f"partition {partition} took {late[:3]} of the zombie after its successor's first"
                )
        self._judge_seen(seen)

    def _judge_what_it_was_told(self) -> None:
        last = self.zombie.lines[-1].split()
        if last[0] != "refused" or int(last[1]) not in FENCED:
            self._object(f"the zombie was not told that it is fenced; it said {self.zombie.lines[-3:]}")
        in_doubt = self.zombie.numbers("ends", self._before)
        late = self.zombie.numbers("committed") - in_doubt
        if late:
            self._object(f"the zombie was told that {sorted(late)} are committed, which it ended as a zombie")
        # Asleep inside a transaction: begun, and its end not known.
        if self.zombie.numbers("begins", self._before) - self.zombie.numbers("committed", self._before):
            self._outcome.hits += 1

    def _judge_seen(self, seen: Counter[bytes]) -> None:
        def all_of(who: str, number: int) -> list[bytes]:
            return [v for partition in range(_PARTITIONS) for v in values_of(who, number, partition)]

        allowed: set[bytes] = set()
        for who, numbers in (("zombie", self.zombie.numbers("committed")), ("successor", self._succeeded)):
            for number in numbers:
                wanted = all_of(who, number)
                allowed.update(wanted)
                self._outcome.lost += sum(not seen[value] for value in wanted)
        for number in self.zombie.numbers("ends", self._before) - self.zombie.numbers("committed"):
            # It asked for the end before it slept, and did not hear of it: whole, or not at all.
            wanted = all_of("zombie", number)
            shown = sum(bool(seen[value]) for value in wanted)
            if shown not in (0, len(wanted)):
                self._object(
                    f"{shown} of {len(wanted)} records of transaction {number} of the zombie are seen"
                )
            allowed.update(wanted)
        self._outcome.duplicated += sum(count - 1 for count in seen.values() if count > 1)
        strangers = sorted(value for value in seen if value not in allowed)
        if strangers:
            self._object(f"{len(strangers)} records are seen that nobody committed: {strangers[:3]}")

    def _written(self) -> list[list[bytes]]:
        """All records in the log, committed or not."""
        found = []
        with Connection(self._broker.port) as connection:
            for partition in range(_PARTITIONS):
                values: list[bytes] = []
                offset = 0
                _, end = calls.list_offset(connection, _TOPIC, partition, calls.LATEST)
                while offset < end:
                    fetched = calls.fetch(connection, _TOPIC, partition, offset, max_bytes=4 << 20)
                    for batch in parse_batches(fetched.records):
                        if isinstance(batch, str):
                            break
                        values += [v for v in batch.values or () if v.startswith((b"zombie", b"successor"))]
                        offset = batch.next_offset
                found.append(values)
        return found

    def _committed(self) -> Counter[bytes]:
        """What a stock consumer of committed records is given, up to a last record of each partition."""
        with Connection(self._broker.port) as connection:
            for partition in range(_PARTITIONS):
                last = build_batch([_LAST], int(time.time() * 1000))
                if error := calls.produce(connection, _TOPIC, partition, last).error:
                    raise AssertionError(f"the last record got error {error}")
        seen: Counter[bytes] = Counter()
        consumer = stock_consumer(self._broker.port, "judge", {"isolation.level": "read_committed"})
        try:
            consumer.assign([TopicPartition(_TOPIC, partition, 0) for partition in range(_PARTITIONS)])
            left = _PARTITIONS
            deadline = time.monotonic() + _WAIT_S_MAX
            while left and time.monotonic() < deadline:
                for message in consumer.consume(500, 0.5):
                    value = message.value()
                    if message.error() is not None or value is None:
                        raise AssertionError(f"the reader got {message.error()}")
                    if value == _LAST:
                        left -= 1
                    else:
                        seen[value] += 1
            if left:
                self._object(f"a transaction stays open: {left} partitions were not read to their end")
        finally:
            consumer.close()
        return seen
