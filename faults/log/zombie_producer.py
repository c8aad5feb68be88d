"""Fault X12, a zombie producer: it is paused inside a transaction (SIGSTOP), replaced by a successor with the same
transactional id, and resumed (SIGCONT) while the successor works.

The zombie continues as if nothing had happened. It must be fenced (error 47 or 90; librdkafka has one code for both).
No record that it had not committed before the pause may ever be readable as committed, neither through its own
transaction nor as a part of one of the successor's transactions. In a quarter of the runs the broker is killed and
restarted while the zombie is paused: a fenced producer must stay fenced.
"""

from __future__ import annotations

import random
import time
from collections import Counter

from confluent_kafka import KafkaError, TopicPartition

from faults.log.consumers import stock_consumer
from faults.log.transactional_process import Producer, Refused, open_producer, values_of
from faults.outcome import Outcome
from faults.protocol import calls
from faults.protocol.batches import build_batch, parse_batches
from faults.protocol.connection import Connection
from faults.run_directory import run_directory
from faults.servers.broker_process import BrokerProcess
from faults.servers.line_process import LineProcess

__all__ = ["FENCED", "UNPROTECTED", "run"]

FAULT = "X12"
UNPROTECTED = {"fencing": r"after its successor's first|that no client committed"}
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
        run_directory(FAULT, seed) as home,
        BrokerProcess(home, starter=starter, forked=True) as broker,
    ):
        broker.start()
        with Connection(broker.port) as connection:
            if error := calls.create_topic(connection, _TOPIC, _PARTITIONS):
                raise AssertionError(f"the topic could not be created: error {error}")
        scene = _Scene(broker, rng, outcome, zombie_protocol=1 + seed % 2)
        try:
            scene.run(kills_broker=seed % 4 == 3)
        finally:
            scene.zombie.kill()
        scene.judge()
        outcome.problems += broker.unexpected_exceptions()
        broker.kill()
        outcome.peak_rss_mb = broker.peak_rss_mb
    return outcome


class _Zombie(LineProcess):
    def __init__(self, port: int, protocol: int, seed: int) -> None:
        arguments = (str(port), _ID, _TOPIC, str(_PARTITIONS), str(protocol), str(seed))
        super().__init__("faults.log.transactional_process", *arguments)

    def wait_for(self, line: str) -> None:
        deadline = time.monotonic() + _WAIT_S_MAX
        while line not in self.lines:
            if self.has_ended or time.monotonic() > deadline:
                raise AssertionError(f"the producer never printed {line!r}: {self.lines[-5:]}")
            time.sleep(0.0002)

    def numbers(self, event: str, lines: list[str] | None = None) -> set[int]:
        fields_of_lines = (line.split() for line in (self.lines if lines is None else lines))
        return {int(parts[1]) for parts in fields_of_lines if parts[0] == event}


class _Scene:
    def __init__(
        self, broker: BrokerProcess, rng: random.Random, outcome: Outcome, *, zombie_protocol: int
    ) -> None:
        self._broker = broker
        self._rng = rng
        self._outcome = outcome
        self.zombie = _Zombie(broker.port, zombie_protocol, rng.getrandbits(30))
        self._lines_before_pause: list[str] = []
        self._committed_numbers: set[int] = set()

    def _report_problem(self, problem: str) -> None:
        self._outcome.problems.append(problem)

    def run(self, *, kills_broker: bool) -> None:
        rng = self._rng
        self.zombie.wait_for(f"begins {rng.randint(1, 6)}")
        time.sleep(rng.uniform(0, 0.03))
        self.zombie.pause()
        self._lines_before_pause = list(self.zombie.lines)
        if kills_broker:
            self._broker.kill()
            self._broker.start()
        successor = open_producer(rng.choice((1, 2)), self._broker.port, _ID)
        try:
            self._run_successor(successor)
        finally:
            successor.close()

    def _run_successor(self, successor: Producer) -> None:
        rng = self._rng
        resume_at = rng.choice(
            ("after initialization", "inside its first transaction", "after its first transaction")
        )
        if resume_at == "after initialization":
            self.zombie.resume()
        for number in range(4):
            self._transact(
                successor, number, resumes=resume_at == "inside its first transaction" and number == 0
            )
            if resume_at == "after its first transaction" and number == 0:
                self.zombie.resume()
        if not self.zombie.finish():
            self._report_problem(f"the zombie was not fenced within {_WAIT_S_MAX:.0f} s")
        self._transact(successor, 4)

    def _transact(self, successor: Producer, number: int, *, resumes: bool = False) -> None:
        try:
            successor.begin()
            for partition in range(_PARTITIONS):
                for index, value in enumerate(values_of("successor", number, partition)):
                    successor.send(_TOPIC, partition, [value])
                    if resumes and partition == 1 and index == 1:
                        self.zombie.resume()
                    time.sleep(self._rng.uniform(0, 0.003))
            successor.commit()
            self._committed_numbers.add(number)
        except Refused as refused:
            self._report_problem(f"transaction {number} of the successor got error {refused.code}")

    # Results

    def judge(self) -> None:
        self._judge_responses()
        written, committed = self._written(), self._committed()
        for partition, values in enumerate(written):
            first = next(
                (at for at, value in enumerate(values) if value.startswith(b"successor")), len(values)
            )
            late_values = [value for value in values[first:] if value.startswith(b"zombie")]
            if late_values:
                self._report_problem(
                    f"partition {partition} has records of the zombie after its successor's first: {late_values[:3]}"
                )
        self._judge_committed_records(committed)

    def _judge_responses(self) -> None:
        last = self.zombie.lines[-1].split()
        if last[0] != "refused" or int(last[1]) not in FENCED:
            self._report_problem(
                f"the zombie did not get the error of a fenced producer; it printed {self.zombie.lines[-3:]}"
            )
        in_doubt = self.zombie.numbers("ends", self._lines_before_pause)
        late_commits = self.zombie.numbers("committed") - in_doubt
        if late_commits:
            self._report_problem(
                f"the zombie's commits of {sorted(late_commits)} succeeded, although it requested them after the pause"
            )
        # The zombie was paused inside a transaction: it had begun a transaction, and had not received the
        # response to its commit.
        if self.zombie.numbers("begins", self._lines_before_pause) - self.zombie.numbers(
            "committed", self._lines_before_pause
        ):
            self._outcome.hits += 1

    def _judge_committed_records(self, seen: Counter[bytes]) -> None:
        def all_of(producer: str, number: int) -> list[bytes]:
            return [v for partition in range(_PARTITIONS) for v in values_of(producer, number, partition)]

        allowed: set[bytes] = set()
        for producer, numbers in (
            ("zombie", self.zombie.numbers("committed")),
            ("successor", self._committed_numbers),
        ):
            for number in numbers:
                values = all_of(producer, number)
                allowed.update(values)
                self._outcome.lost += sum(not seen[value] for value in values)
        for number in self.zombie.numbers("ends", self._lines_before_pause) - self.zombie.numbers(
            "committed"
        ):
            # The zombie requested this commit before the pause and got no response, so the transaction may be
            # whole or absent.
            values = all_of("zombie", number)
            readable = sum(bool(seen[value]) for value in values)
            if readable not in (0, len(values)):
                self._report_problem(
                    f"{readable} of {len(values)} records of transaction {number} of the zombie are readable"
                )
            allowed.update(values)
        self._outcome.duplicated += sum(count - 1 for count in seen.values() if count > 1)
        unexpected = sorted(value for value in seen if value not in allowed)
        if unexpected:
            self._report_problem(
                f"{len(unexpected)} records are readable that no client committed: {unexpected[:3]}"
            )

    def _written(self) -> list[list[bytes]]:
        """Return all records in the log, committed or not."""
        values_by_partition = []
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
                values_by_partition.append(values)
        return values_by_partition

    def _committed(self) -> Counter[bytes]:
        """Append an end record to each partition. Return what a stock read-committed consumer receives before it."""
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
                        raise AssertionError(f"the reader received the error {message.error()}")
                    if value == _LAST:
                        left -= 1
                    else:
                        seen[value] += 1
            if left:
                self._report_problem(
                    f"{left} partitions were not read to their end: a transaction is still open"
                )
        finally:
            consumer.close()
        return seen
