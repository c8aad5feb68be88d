"""Fault X18, a lagging reader: it stops, and resumes a million records later, or after the records at its offset were
deleted.

The log deletes its oldest records in one of three ways: by size, by age, or on request. Then every reader that resumes
at a deleted offset must get an error: error 1 in the protocol, an error from stock clients that are configured not to
skip, and the deleted range from ``headrace consume``. No reader may be moved to another offset silently. A reader that
is a million records behind, and whose records still exist, must get all of them. The broker's memory must stay bounded.
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

from faults.log.consumers import stock_consumer
from faults.outcome import Outcome
from faults.protocol import calls
from faults.protocol.batches import build_batch, parse_batches
from faults.protocol.connection import Connection
from faults.run_directory import run_directory
from faults.servers.broker_process import COMMAND, BrokerProcess

__all__ = ["DELETIONS", "RSS_MB_MAX", "UNPROTECTED", "run"]

FAULT = "X18"
UNPROTECTED = {"range-check": r"below the start, got error 0"}
DELETIONS = ("retention.bytes", "retention.ms", "delete-records")
RSS_MB_MAX = 64.0
_TOPIC = "far"
_GROUP = "late"
_BATCH = 5_000
_OUT_OF_RANGE = 1
_WAIT_S_MAX = 240.0
_RECORDS_DELETED_EXIT = 4


def run(
    seed: int, *, protected: bool = True, without: str = "range-check", records: int = 1_000_000
) -> Outcome:
    rng = random.Random(seed)
    outcome = Outcome(FAULT, seed)
    deletion = DELETIONS[seed % len(DELETIONS)]
    durability = ("synced", "os")[seed // len(DELETIONS) % 2]
    starter = [] if protected else ["--without", without]
    with (
        run_directory(FAULT, seed) as home,
        BrokerProcess(
            home, starter=starter, retention_check_ms=100, options=["--durability", durability], forked=True
        ) as broker,
    ):
        broker.start()
        lagging_run = _LaggingRun(broker, rng, outcome, records)
        lagging_run.read_a_little()
        lagging_run.fall_behind()
        lagging_run.catch_up()
        lagging_run.delete_unread_records(deletion)
        lagging_run.resume()
        broker.kill()
        outcome.peak_rss_mb = broker.peak_rss_mb
        if broker.peak_rss_mb > lagging_run.base_mb + RSS_MB_MAX:
            outcome.problems.append(
                f"the broker's memory grew from {lagging_run.base_mb:.0f} to {broker.peak_rss_mb:.0f} MB"
            )
    return outcome


class _LaggingRun:
    def __init__(self, broker: BrokerProcess, rng: random.Random, outcome: Outcome, records: int) -> None:
        self._broker = broker
        self._outcome = outcome
        self._records = records
        self._committed = rng.randint(1, _BATCH)
        self._age_ms = 3_600_000
        # These records are old enough that retention by age can delete them later.
        self._batch = build_batch(
            [b"%016d" % n for n in range(_BATCH)], int(time.time() * 1000) - self._age_ms
        )
        settings: dict[str | bytes, str | bytes | None] = {
            "segment.bytes": str(1 << 20),
            "retention.ms": "-1",
        }
        with Connection(broker.port) as connection:
            if error := calls.create_topic(connection, _TOPIC, 1, settings):
                raise AssertionError(f"the topic could not be created: error {error}")
            self._produce(connection, 2)
        self.base_mb = broker.rss_mb()

    def _report_problem(self, problem: str) -> None:
        self._outcome.problems.append(problem)

    def _produce(self, connection: Connection, batches: int, batch: bytes | None = None) -> None:
        for _ in range(batches):
            if error := calls.produce(connection, _TOPIC, 0, batch or self._batch).error:
                raise AssertionError(f"produce got error {error}")

    def read_a_little(self) -> None:
        """Read some records and commit the offset, so that the reader and the broker have the same offset."""
        consumer = stock_consumer(self._broker.port, _GROUP)
        try:
            consumer.assign([StockPartition(_TOPIC, 0, 0)])
            received = 0
            while received < self._committed:
                received += sum(
                    message.error() is None for message in consumer.consume(self._committed - received, 1.0)
                )
            consumer.commit(offsets=[StockPartition(_TOPIC, 0, self._committed)], asynchronous=False)
        finally:
            consumer.close()

    def fall_behind(self) -> None:
        with Connection(self._broker.port) as connection:
            self._produce(connection, self._records // _BATCH)
            self._produce(connection, 2, build_batch([b"fresh"] * 10, int(time.time() * 1000)))

    def catch_up(self) -> None:
        """Check that a reader that is far behind gets all records in order while they exist."""
        offset = self._committed
        with Connection(self._broker.port) as connection:
            _, end = calls.list_offset(connection, _TOPIC, 0, calls.LATEST)
            while offset < end:
                fetched = calls.fetch(connection, _TOPIC, 0, offset, max_bytes=4 << 20)
                if fetched.error or not fetched.records:
                    self._report_problem(
                        f"a reader at {offset} of {end} got error {fetched.error} and no records"
                    )
                    return
                for batch in parse_batches(fetched.records, with_values=False):
                    if isinstance(batch, str):
                        # A response can end with a part of a batch; the next response contains the whole
                        # batch.
                        break
                    if not batch.base_offset <= offset < batch.next_offset:
                        self._report_problem(f"a reader at {offset} received {batch.base_offset}")
                        return
                    offset = batch.next_offset

    def delete_unread_records(self, deletion: str) -> None:
        """Make the log delete records that the reader has not read."""
        with Connection(self._broker.port) as connection:
            if deletion == "delete-records":
                error, _ = calls.delete_records(connection, _TOPIC, 0, self._records // 2)
            else:
                value = str(1 << 20) if deletion == "retention.bytes" else str(self._age_ms // 2)
                error = calls.alter_topic(connection, _TOPIC, {deletion: value})
            if error:
                raise AssertionError(f"{deletion} got error {error}")
            deadline = time.monotonic() + _WAIT_S_MAX
            while (start := calls.list_offset(connection, _TOPIC, 0, calls.EARLIEST)[1]) <= self._committed:
                if time.monotonic() > deadline:
                    raise AssertionError(f"{deletion} deleted nothing within {_WAIT_S_MAX:.0f} s")
                time.sleep(0.02)
            # Segments are deleted one after the other, so wait until the log start is stable.
            while (new_start := calls.list_offset(connection, _TOPIC, 0, calls.EARLIEST)[1]) != start:
                start = new_start
                time.sleep(0.3)
            self._start = start

    def resume(self) -> None:
        """Resume each kind of reader at a deleted offset. Each reader that resumes counts as a hit."""
        self._resume_raw()
        if self._outcome.problems:
            return
        self._resume_stock()
        asyncio.run(self._resume_aio())
        self._resume_command()

    def _resume_raw(self) -> None:
        self._outcome.hits += 1
        with Connection(self._broker.port) as connection:
            fetched = calls.fetch(connection, _TOPIC, 0, self._committed)
        if fetched.error == _OUT_OF_RANGE and not fetched.records:
            return
        base_offsets = [
            batch.base_offset
            for batch in parse_batches(fetched.records, with_values=False)
            if not isinstance(batch, str)
        ]
        self._report_problem(
            f"a fetch at {self._committed}, below the start, got error {fetched.error}"
            f" and batches from {base_offsets[:1]}"
        )

    def _resume_stock(self) -> None:
        """Resume with librdkafka at the committed offset of its group."""
        self._outcome.hits += 1
        consumer = stock_consumer(self._broker.port, _GROUP)
        try:
            committed = consumer.committed([StockPartition(_TOPIC, 0)], 10)[0].offset
            if committed != self._committed:
                self._report_problem(f"the group had committed {self._committed}, but has {committed}")
            consumer.assign([StockPartition(_TOPIC, 0, self._committed)])
            deadline = time.monotonic() + _WAIT_S_MAX
            while time.monotonic() < deadline:
                message = consumer.poll(1.0)
                if message is None:
                    continue
                error = message.error()
                if error is None:
                    self._report_problem(f"librdkafka was moved from {self._committed} to {message.offset()}")
                elif error.code() not in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                    self._report_problem(f"librdkafka got {error.name()}")
                return
            self._report_problem("librdkafka reported no error")
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
            partition = TopicPartition(_TOPIC, 0)
            consumer.assign([partition])
            consumer.seek(partition, self._committed)
            record = await asyncio.wait_for(consumer.getone(), _WAIT_S_MAX)
            self._report_problem(f"aiokafka was moved from {self._committed} to {record.offset}")
        except OffsetOutOfRangeError:
            pass
        finally:
            await consumer.stop()

    def _resume_command(self) -> None:
        self._outcome.hits += 1
        arguments = ["consume", _TOPIC, "-o", str(self._committed), "-n", "1", "-b", self._broker.bootstrap]
        result = subprocess.run(
            [str(COMMAND), *arguments], capture_output=True, text=True, check=False, timeout=_WAIT_S_MAX
        )
        deleted_range = f"offsets {self._committed} to {self._start - 1} "
        if result.returncode != _RECORDS_DELETED_EXIT or deleted_range not in result.stderr or result.stdout:
            self._report_problem(
                f"headrace consume exited with {result.returncode} and printed: {result.stderr.strip()[:300]}"
            )
