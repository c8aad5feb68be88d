"""Fault X21, invalid batches: the checksum is correct, but the contents are invalid.

The batches have wrong counts, offset deltas and lengths, or payloads mutated byte by byte in every codec. Some are
decompression bombs: zstd × 30,000, gzip × 1,000, LZ4 × 240, and snappy with a false stated length. What must hold:

    a batch that the oracle (``strict_batch``) rejects gets error 87 (2 for a wrong checksum, 76 for an unknown codec,
        32 for a mutated timestamp too far in the future), and any other batch is accepted
    no part of a refused batch is in the log, and offsets stay dense
    the broker's memory stays below its limit plus 64 MB
    stock consumers (librdkafka and Kafka's Java client) read everything that was accepted
    a well-behaved client is served throughout
"""

from __future__ import annotations

import contextlib
import random
import time
from functools import cache
from typing import Any

from faults.log.bystander import Bystander
from faults.log.invalid_batch_samples import DEFECTS, bombs
from faults.outcome import Outcome
from faults.protocol import calls
from faults.protocol.batches import Batch, parse_batches
from faults.protocol.connection import Connection, Gone
from faults.protocol.strict_batch import batch_with_header, compressed, fault_of, record
from faults.run_directory import run_directory
from faults.servers.broker_process import BrokerDied, BrokerProcess

__all__ = ["CASES", "UNPROTECTED", "run"]

FAULT = "X21"
UNPROTECTED = {"record-walk": r"a batch was accepted in which", "unpack-limit": r"the broker grew by"}
CASES = 100

_MIB = 1 << 20
_LIMIT_MIB = 32
_OVERHEAD_MIB = 64
_INVALID_TIMESTAMP, _INVALID = 32, 87
_TOPIC = "invalid"


def run(
    seed: int,
    *,
    protected: bool = True,
    without: str = "record-walk",
    cases: int = CASES,
    reads_in_java: bool = True,
) -> Outcome:
    """``reads_in_java``: also read with the Java client. Quick runs omit it, because a JVM takes seconds to start."""
    rng = random.Random(seed)
    outcome = Outcome(FAULT, seed, cases=cases)
    starter = [] if protected else ["--without", without]
    options = ["--set", f"headrace.batch.unpacked.max.bytes={_LIMIT_MIB * _MIB}"]
    with (
        run_directory(FAULT, seed, in_memory=True) as home,
        BrokerProcess(home, starter=starter, options=options, forked=True) as broker,
        contextlib.ExitStack() as stack,
    ):
        broker.start()
        bystander = Bystander(broker.port, pause_s=0.002)
        bystander.prepare()
        bystander.start()
        try:
            connection = stack.enter_context(Connection(broker.port, timeout_s=30))
            attack = _Attack(broker, connection, rng, outcome)
            base_mb = broker.reset_peak_mb()
            attack.run(cases)
            growth_mb = broker.rss_mb("VmHWM") - base_mb
            if growth_mb > _LIMIT_MIB + _OVERHEAD_MIB:
                outcome.problems.append(f"the broker grew by {growth_mb:.0f} MB")
            attack.expect_readable(in_java=reads_in_java and protected)
            broker.expect_alive()
        except (BrokerDied, Gone, ValueError) as failure:
            outcome.problems.append(f"{type(failure).__name__}: {failure}")
        outcome.problems += bystander.finish()
        outcome.problems += [
            f"the broker logged an unexpected exception:\n{trace}" for trace in broker.unexpected_exceptions()
        ]
        outcome.figures["slowest_ms"] = bystander.slowest_s * 1000
        outcome.peak_rss_mb = broker.rss_mb("VmHWM")
    return outcome


class _Attack:
    def __init__(
        self, broker: BrokerProcess, connection: Connection, rng: random.Random, outcome: Outcome
    ) -> None:
        self._broker = broker
        self._rng = rng
        self._outcome = outcome
        self._connection = connection
        self._next_offset = 0
        if calls.create_topic(self._connection, _TOPIC, 1):
            outcome.problems.append("the topic could not be created")

    def run(self, cases: int) -> None:
        for number in range(cases):
            self._outcome.hits += 1
            if number in (cases // 3, cases * 2 // 3):
                self._send_bomb()
            elif self._rng.random() < 0.5:
                self._send_known_defect()
            else:
                self._send_mutated()

    def _send(self, batch: bytes) -> int:
        answer = calls.produce(self._connection, _TOPIC, 0, batch)
        if not answer.error:
            if answer.base_offset != self._next_offset:
                self._report_problem(
                    f"offset {answer.base_offset} was assigned instead of {self._next_offset}"
                )
            self._next_offset = answer.base_offset + int.from_bytes(batch[57:61], "big", signed=True)
        return answer.error

    def _report_problem(self, problem: str) -> None:
        self._outcome.problems.append(problem)

    # One known defect

    def _send_known_defect(self) -> None:
        rng = self._rng
        codec = rng.randrange(5)
        count = rng.randint(1, 20)
        records = [record(index, rng.randbytes(rng.randint(0, 60))) for index in range(count)]
        kind, batch, expected = rng.choice(DEFECTS)(rng, records, codec)
        if fault_of(batch) is None:
            raise ValueError(f"{kind}: the batch is valid, so the sample is wrong")
        error = self._send(batch)
        if error != expected:
            self._report_problem(f"{kind}, codec {codec}: error {error} instead of {expected}")

    # A randomly mutated payload

    def _send_mutated(self) -> None:
        rng = self._rng
        codec = rng.randrange(5)
        count = rng.randint(1, 12)
        headers = tuple(rng.choice([b"h", b"\xc3\xbc", b""]) for _ in range(rng.randint(0, 3)))
        plain = b"".join(
            record(n, rng.randbytes(rng.randint(0, 40)), key=rng.choice([None, b"", b"k"]), headers=headers)
            for n in range(count)
        )
        mutates_first = rng.random() < 0.5
        payload = (
            compressed(codec, _mutate(rng, plain))
            if mutates_first
            else _mutate(rng, compressed(codec, plain))
        )
        batch = batch_with_header(payload, count, int(time.time() * 1000), codec=codec)
        fault = fault_of(batch)
        error = self._send(batch)
        if fault is not None and error == 0:
            self._report_problem(
                f"codec {codec}: a batch was accepted in which {fault}: {batch[61:200].hex()}"
            )
        elif error not in (0 if fault is None else _INVALID, _INVALID_TIMESTAMP):
            self._report_problem(f"codec {codec}: a mutated batch got error {error} ({fault})")

    def _send_bomb(self) -> None:
        name, batch = self._rng.choice(bombs())
        began = time.monotonic()
        error = self._send(batch)
        if error != _INVALID:
            self._report_problem(f"a bomb of {len(batch)} bytes of {name} got error {error}")
        self._outcome.figures["bomb_ms"] = (time.monotonic() - began) * 1000

    # The log at the end

    def expect_readable(self, *, in_java: bool) -> None:
        offset = 0
        while offset < self._next_offset:
            fetched = calls.fetch(self._connection, _TOPIC, 0, offset)
            batches = list(parse_batches(fetched.records, with_values=False))
            if fetched.error or not batches:
                self._report_problem(
                    f"no record can be read at {offset} of {self._next_offset}: error {fetched.error}"
                )
                return
            for batch in batches:
                if not isinstance(batch, Batch) or batch.base_offset != offset:
                    self._report_problem(f"offset {offset} has the unexpected batch {batch}")
                    return
                offset = batch.next_offset
        self._expect_consumed()
        if in_java:
            self._expect_consumed_in_java()

    def _expect_consumed(self) -> None:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            {"bootstrap.servers": self._broker.bootstrap, "group.id": "x21", "check.crcs": True}
        )
        consumer.assign([TopicPartition(_TOPIC, 0, 0)])
        offsets: list[int] = []
        deadline = time.monotonic() + 30
        while len(offsets) < self._next_offset and time.monotonic() < deadline:
            for message in consumer.consume(500, 0.2):
                if message.error() is not None:
                    self._report_problem(f"librdkafka: {message.error()}")
                    deadline = 0
                    break
                offsets.append(message.offset() or 0)
        consumer.close()
        if offsets != list(range(self._next_offset)):
            self._report_problem(f"librdkafka read {len(offsets)} of {self._next_offset} records")

    def _expect_consumed_in_java(self) -> None:
        from faults.clients.port import START

        with _java().consumer(self._broker.bootstrap) as consumer:
            consumer.assign({(_TOPIC, 0): START})
            try:
                offsets = [message.offset for message in consumer.take(self._next_offset, timeout_s=60)]
            except AssertionError as error:
                self._report_problem(f"Kafka's consumer in Java is stuck: {error}")
                return
        if offsets != list(range(self._next_offset)):
            self._report_problem(
                f"Kafka's consumer in Java read {len(offsets)} of {self._next_offset} records"
            )


@cache
def _java() -> Any:
    """Return the shared driver. It exits with this process, which holds its input open."""
    from faults.clients.java import JavaClient
    from faults.clients.java_driver import JavaDriver

    return JavaClient(JavaDriver())


def _mutate(rng: random.Random, payload: bytes) -> bytes:
    mutated = bytearray(payload)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(mutated))
        kind = rng.randrange(4)
        if kind == 0:
            mutated[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            mutated[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
        elif kind == 2 and len(mutated) > 4:
            del mutated[at : at + rng.randint(1, 3)]
        else:
            mutated[at:at] = rng.randbytes(rng.randint(1, 3))
        if not mutated:
            mutated += b"\0"
    return bytes(mutated)
