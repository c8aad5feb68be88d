"""X18, far behind and past retention: a reader stops, a million records later it resumes, and its place is deleted.

The log may have lost its oldest records in three ways: by size, by age, or because somebody asked for it. Every reader
that resumes is told so: error 1 on the wire, an error from stock clients that were told not to skip, and the lost range
from ``headrace consume``. Nobody is moved to another offset in silence. A reader that is a million behind but not too
late gets every record, and the broker's memory stays bounded all the while.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import time

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import OffsetOutOfRangeError
from confluent_kafka import KafkaError
from confluent_kafka import TopicPartition as StockPartition

from bench.faults import calls
from bench.faults.batches import build_batch, parse_batches
from bench.faults.connection import Connection
from bench.faults.consuming import stock_consumer
from bench.faults.outcome import Outcome
from bench.faults.process import COMMAND, BrokerProcess
from bench.faults.workplace import workplace

__all__ = ["RSS_MB_MAX", "UNPROTECTED", "WAYS", "run"]

FAULT = "X18"
UNPROTECTED = {"range-check": r"below the start got error 0"}
WAYS = ("retention.bytes", "retention.ms", "delete-records")
RSS_MB_MAX = 64.0
_TOPIC = "far"
_GROUP = "late"
_BATCH = 5_000
_OUT_OF_RANGE = 1
_WAIT_S_MAX = 240.0
_RECORDS_GONE_EXIT = 4


def run(
    seed: int, *, protected: bool = True, without: str = "range-check", records: int = 1_000_000
) -> Outcome:
    rng = random.Random(seed)
    outcome = Outcome(FAULT, seed)
    way = WAYS[seed % len(WAYS)]
    durability = ("synced", "os")[seed // len(WAYS) % 2]
    starter = [] if protected else ["--without", without]
    with (
        workplace(FAULT, seed) as home,
        BrokerProcess(
            home, starter=starter, retention_check_ms=100, options=["--durability", durability], forked=True
        ) as broker,
    ):
        broker.start()
        behind = _Behind(broker, rng, outcome, records)
        behind.read_a_little()
        behind.fall_behind()
        behind.catch_up()
        behind.lose(way)
        behind.resume()
        broker.kill()
        outcome.peak_rss_mb = broker.peak_rss_mb
        if broker.peak_rss_mb > behind.base_mb + RSS_MB_MAX:
            outcome.problems.append(
                f"the broker took {broker.peak_rss_mb:.0f} MB, from {behind.base_mb:.0f} before"
            )
    return outcome


class _Behind:
    def __init__(self, broker: BrokerProcess, rng: random.Random, outcome: Outcome, records: int) -> None:
        self._broker = broker
        self._outcome = outcome
        self._records = records
        self._place = rng.randint(1, _BATCH)
        self._age_ms = 3_600_000
        # Old enough to be deleted by age later, whatever else happens.
        self._batch = build_batch(
            [b"%016d" % n for n in range(_BATCH)], int(time.time() * 1000) - self._age_ms
        )
        settings: dict[str | bytes, str | bytes | None] = {
            "segment.bytes": str(1 << 20),
            "retention.ms": "-1",
        }
        with Connection(broker.port) as connection:
            if error := calls.create_topic(connection, _TOPIC, 1, settings):
                raise AssertionError(f"the topic could not be made: error {error}")
            self._produce(connection, 2)
        self.base_mb = broker.rss_mb()

    def _object(self, problem: str) -> None:
        self._outcome.problems.append(problem)

    def _produce(self, connection: Connection, batches: int, batch: bytes | None = None) -> None:
        for _ in range(batches):
            if error := calls.produce(connection, _TOPIC, 0, batch or self._batch).error:
                raise AssertionError(f"produce got error {error}")

    def read_a_little(self) -> None:
        """The reader's place is noted by itself, and in a group by the broker."""
        consumer = stock_consumer(self._broker.port, _GROUP)
        try:
            consumer.assign([StockPartition(_TOPIC, 0, 0)])
            got = 0
            while got < self._place:
                got += sum(message.error() is None for message in consumer.consume(self._place - got, 1.0))
            consumer.commit(offsets=[StockPartition(_TOPIC, 0, self._place)], asynchronous=False)
        finally:
            consumer.close()

    def fall_behind(self) -> None:
        with Connection(self._broker.port) as connection:
            self._produce(connection, self._records // _BATCH)
            self._produce(connection, 2, build_batch([b"fresh"] * 10, int(time.time() * 1000)))

    def catch_up(self) -> None:
        """One that is behind but not too late gets everything, in order."""
        offset = self._place
        with Connection(self._broker.port) as connection:
            _, end = calls.list_offset(connection, _TOPIC, 0, calls.LATEST)
            while offset < end:
                fetched = calls.fetch(connection, _TOPIC, 0, offset, max_bytes=4 << 20)
                if fetched.error or not fetched.records:
                    self._object(f"a reader at {offset} of {end} got error {fetched.error} and no records")
                    return
                for batch in parse_batches(fetched.records, with_values=False):
                    if isinstance(batch, str):
                        # The last batch of an answer may be cut short; the next one brings it whole.
                        break
                    if not batch.base_offset <= offset < batch.next_offset:
                        self._object(f"a reader at {offset} was given {batch.base_offset}")
                        return
                    offset = batch.next_offset

    def lose(self, way: str) -> None:
        """Let what the reader has not read yet go away."""
        with Connection(self._broker.port) as connection:
            if way == "delete-records":
                error, _ = calls.delete_records(connection, _TOPIC, 0, self._records // 2)
            else:
                value = str(1 << 20) if way == "retention.bytes" else str(self._age_ms // 2)
                error = calls.alter_topic(connection, _TOPIC, {way: value})
            if error:
                raise AssertionError(f"{way} got error {error}")
            deadline = time.monotonic() + _WAIT_S_MAX
            while (start := calls.list_offset(connection, _TOPIC, 0, calls.EARLIEST)[1]) <= self._place:
                if time.monotonic() > deadline:
                    raise AssertionError(f"{way} deleted nothing within {_WAIT_S_MAX:.0f} s")
                time.sleep(0.02)
            # Segments go one after the other; the readers must find a log that stands still.
            while (later := calls.list_offset(connection, _TOPIC, 0, calls.EARLIEST)[1]) != start:
                start = later
                time.sleep(0.3)
            self._start = start

    def resume(self) -> None:
        """Each reader that is sent to a place which is gone is a hit."""
        self._resume_raw()
        if self._outcome.problems:
            return
        self._resume_stock()
        asyncio.run(self._resume_aio())
        self._resume_command()

    def _resume_raw(self) -> None:
        self._outcome.hits += 1
        with Connection(self._broker.port) as connection:
            fetched = calls.fetch(connection, _TOPIC, 0, self._place)
        if fetched.error == _OUT_OF_RANGE and not fetched.records:
            return
        given = [
            b.base_offset for b in parse_batches(fetched.records, with_values=False) if not isinstance(b, str)
        ]
        self._object(
            f"a fetch at {self._place} below the start got error {fetched.error} and batches from {given[:1]}"
        )

    def _resume_stock(self) -> None:
        """librdkafka, at the place that its group has committed."""
        self._outcome.hits += 1
        consumer = stock_consumer(self._broker.port, _GROUP)
        try:
            committed = consumer.committed([StockPartition(_TOPIC, 0)], 10)[0].offset
            if committed != self._place:
                self._object(f"the group had committed {self._place}, and has {committed}")
            consumer.assign([StockPartition(_TOPIC, 0, self._place)])
            deadline = time.monotonic() + _WAIT_S_MAX
            while time.monotonic() < deadline:
                message = consumer.poll(1.0)
                if message is None:
                    continue
                error = message.error()
                if error is None:
                    self._object(f"librdkafka was moved from {self._place} to {message.offset()}")
                elif error.code() not in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                    self._object(f"librdkafka got {error.name()}")
                return
            self._object("librdkafka was told nothing")
        finally:
            consumer.close()

    async def _resume_aio(self) -> None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self._broker.bootstrap,
            group_id=_GROUP,
            auto_offset_reset="none",
            enable_auto_commit=False,
        )
        self._outcome.hits += 1
        await consumer.start()
        try:
            place = TopicPartition(_TOPIC, 0)
            consumer.assign([place])
            consumer.seek(place, self._place)
            record = await asyncio.wait_for(consumer.getone(), _WAIT_S_MAX)
            self._object(f"aiokafka was moved from {self._place} to {record.offset}")
        except OffsetOutOfRangeError:
            pass
        finally:
            await consumer.stop()

    def _resume_command(self) -> None:
        self._outcome.hits += 1
        words = ["consume", _TOPIC, "-o", str(self._place), "-n", "1", "-b", self._broker.bootstrap]
        done = subprocess.run(
            [str(COMMAND), *words], capture_output=True, text=True, check=False, timeout=_WAIT_S_MAX
        )
        lost = f"offsets {self._place} to {self._start - 1} "
        if done.returncode != _RECORDS_GONE_EXIT or lost not in done.stderr or done.stdout:
            self._object(
                f"headrace consume ended with {done.returncode} and said: {done.stderr.strip()[:300]}"
            )
