"""X21, lying batches: the checksum is right, and what it covers is not true.

Counts, offset deltas and lengths that are wrong, payloads bent byte by byte in every codec, and bombs: zstd of 30,000
times, gzip of 1,000, LZ4 of 240, snappy that states a length. What must hold: a batch that the oracle's own reading
(``strict``) finds fault with is refused with error 87 (2 where the checksum is wrong, 76 for an unknown codec, 32 where
a time that chance has bent is too far ahead), and any other is taken; nothing of a refused one is in the log, offsets
stay dense; the broker's memory stays below its limit and 64 MB; stock consumers, librdkafka and Kafka's own in Java,
read everything that was taken, and a good client is answered throughout.
"""

from __future__ import annotations

import contextlib
import random
import time
from functools import cache
from typing import Any

from bench.faults import calls
from bench.faults.batch_lies import LIES, bombs
from bench.faults.batches import Batch, parse_batches
from bench.faults.bystander import Bystander
from bench.faults.connection import Connection, Gone
from bench.faults.outcome import Outcome
from bench.faults.process import BrokerDied, BrokerProcess
from bench.faults.strict import fault_of, packed, record, sealed
from bench.faults.workplace import workplace

__all__ = ["CASES", "UNPROTECTED", "run"]

FAULT = "X21"
UNPROTECTED = {"record-walk": r"a batch was taken in which", "unpack-limit": r"the broker grew by"}
CASES = 100

_MIB = 1 << 20
_LIMIT_MIB = 32
_ROOM_MIB = 64
_INVALID_TIMESTAMP, _INVALID = 32, 87
_TOPIC = "lies"


def run(
    seed: int,
    *,
    protected: bool = True,
    without: str = "record-walk",
    cases: int = CASES,
    reads_in_java: bool = True,
) -> Outcome:
    """``reads_in_java``: a JVM takes seconds to start, which a quick share of the runs leaves out."""
    rng = random.Random(seed)
    outcome = Outcome(FAULT, seed, cases=cases)
    starter = [] if protected else ["--without", without]
    options = ["--set", f"headrace.batch.unpacked.max.bytes={_LIMIT_MIB * _MIB}"]
    with (
        workplace(FAULT, seed, in_memory=True) as home,
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
            base_mb = broker.forget_peak()
            attack.run(cases)
            grown = broker.rss_mb("VmHWM") - base_mb
            if grown > _LIMIT_MIB + _ROOM_MIB:
                outcome.problems.append(f"the broker grew by {grown:.0f} MB")
            attack.expect_readable(in_java=reads_in_java and protected)
            broker.expect_alive()
        except (BrokerDied, Gone, ValueError) as failure:
            outcome.problems.append(f"{type(failure).__name__}: {failure}")
        outcome.problems += bystander.finish()
        outcome.problems += [f"the broker did not foresee:\n{trace}" for trace in broker.traces()]
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
            outcome.problems.append("the topic could not be made")

    def run(self, cases: int) -> None:
        for number in range(cases):
            self._outcome.hits += 1
            if number in (cases // 3, cases * 2 // 3):
                self._bomb()
            elif self._rng.random() < 0.5:
                self._lie()
            else:
                self._bent()

    def _send(self, batch: bytes) -> int:
        answer = calls.produce(self._connection, _TOPIC, 0, batch)
        if not answer.error:
            if answer.base_offset != self._next_offset:
                self._object(f"offset {answer.base_offset} was given where {self._next_offset} was due")
            self._next_offset = answer.base_offset + int.from_bytes(batch[57:61], "big", signed=True)
        return answer.error

    def _object(self, problem: str) -> None:
        self._outcome.problems.append(problem)

    # One lie, known for what it is

    def _lie(self) -> None:
        rng = self._rng
        codec = rng.randrange(5)
        count = rng.randint(1, 20)
        records = [record(index, rng.randbytes(rng.randint(0, 60))) for index in range(count)]
        kind, batch, expected = rng.choice(LIES)(rng, records, codec)
        if fault_of(batch) is None:
            raise ValueError(f"{kind} is no lie after all")
        error = self._send(batch)
        if error != expected:
            self._object(f"{kind}, codec {codec}: error {error}, and {expected} was due")

    # A payload bent by chance

    def _bent(self) -> None:
        rng = self._rng
        codec = rng.randrange(5)
        count = rng.randint(1, 12)
        headers = tuple(rng.choice([b"h", b"\xc3\xbc", b""]) for _ in range(rng.randint(0, 3)))
        plain = b"".join(
            record(n, rng.randbytes(rng.randint(0, 40)), key=rng.choice([None, b"", b"k"]), headers=headers)
            for n in range(count)
        )
        if rng.random() < 0.5:
            payload = packed(codec, _with_chance(rng, plain))
        else:
            payload = _with_chance(rng, packed(codec, plain))
        batch = sealed(payload, count, int(time.time() * 1000), codec=codec)
        fault = fault_of(batch)
        error = self._send(batch)
        if fault is not None and error == 0:
            self._object(f"codec {codec}: a batch was taken in which {fault}: {batch[61:200].hex()}")
        elif error not in (0 if fault is None else _INVALID, _INVALID_TIMESTAMP):
            self._object(f"codec {codec}: a bent batch was answered with {error} ({fault})")

    def _bomb(self) -> None:
        name, batch = self._rng.choice(bombs())
        began = time.monotonic()
        error = self._send(batch)
        if error != _INVALID:
            self._object(f"a bomb of {len(batch)} bytes of {name} was answered with {error}")
        self._outcome.figures["bomb_ms"] = (time.monotonic() - began) * 1000

    # What is there in the end

    def expect_readable(self, *, in_java: bool) -> None:
        offset = 0
        while offset < self._next_offset:
            fetched = calls.fetch(self._connection, _TOPIC, 0, offset)
            batches = list(parse_batches(fetched.records, with_values=False))
            if fetched.error or not batches:
                self._object(f"nothing can be read at {offset} of {self._next_offset}: error {fetched.error}")
                return
            for batch in batches:
                if not isinstance(batch, Batch) or batch.base_offset != offset:
                    self._object(f"at offset {offset} there is {batch}")
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
        read: list[int] = []
        deadline = time.monotonic() + 30
        while len(read) < self._next_offset and time.monotonic() < deadline:
            for message in consumer.consume(500, 0.2):
                if message.error() is not None:
                    self._object(f"librdkafka: {message.error()}")
                    deadline = 0
                    break
                read.append(message.offset())
        consumer.close()
        if read != list(range(self._next_offset)):
            self._object(f"librdkafka read {len(read)} of {self._next_offset} records")

    def _expect_consumed_in_java(self) -> None:
        from tests.support.clients.face import START

        with _java().consumer(self._broker.bootstrap) as consumer:
            consumer.assign({(_TOPIC, 0): START})
            try:
                read = [one.offset for one in consumer.take(self._next_offset, timeout_s=60)]
            except AssertionError as stuck:
                self._object(f"Kafka's consumer in Java is stuck: {stuck}")
                return
        if read != list(range(self._next_offset)):
            self._object(f"Kafka's consumer in Java read {len(read)} of {self._next_offset} records")


@cache
def _java() -> Any:
    """Ends with this process, which holds its input."""
    from tests.support.clients.java import JavaClient
    from tests.support.java_driver import JavaDriver

    return JavaClient(JavaDriver())


def _with_chance(rng: random.Random, payload: bytes) -> bytes:
    bent = bytearray(payload)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(bent))
        kind = rng.randrange(4)
        if kind == 0:
            bent[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            bent[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
        elif kind == 2 and len(bent) > 4:
            del bent[at : at + rng.randint(1, 3)]
        else:
            bent[at:at] = rng.randbytes(rng.randint(1, 3))
        if not bent:
            bent += b"\0"
    return bytes(bent)
