"""Fault X1, kill -9 during compaction, with real processes and files.

A client continuously updates and deletes a few keys. The broker compacts continuously and slowly, and is killed several
times. A kill is a hit if it left temporary files of a compaction. Before the check, the client updates only one key,
until the newest values of all other keys have been compacted. Then the table that a reader builds from the topic must
equal the client's own table.
"""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

from faults.log.compacted_oracle import StoredRecord, Table, build_keyed, parse_keyed
from faults.outcome import Outcome
from faults.protocol import calls
from faults.protocol.calls import Name
from faults.protocol.connection import Connection, Gone
from faults.run_directory import run_directory
from faults.servers.broker_process import BrokerProcess
from faults.simulation.partition_oracle import Findings

__all__ = ["UNPROTECTED", "run"]

FAULT = "X1"
UNPROTECTED = {"wide-hash": r"the newest record of .* is missing"}
_TOPIC = "compacted"
_KEYS = 30
_REMOVED_BELOW = "headrace.tombstones.removed.below"


class _Client(threading.Thread):
    """Writes until ``finish`` is set. If a write gets no response, the broker may or may not have stored it."""

    def __init__(self, port: int, table: Table, rng: random.Random) -> None:
        super().__init__(daemon=True)
        self.table = table
        self.acked = 0
        self.one_key = threading.Event()
        self.finish = threading.Event()
        self._port = port
        self._rng = rng

    def run(self) -> None:
        while not self.finish.is_set():
            try:
                with Connection(self._port) as connection:
                    self._write(connection)
            except Gone:
                time.sleep(0.005)

    def _write(self, connection: Connection) -> None:
        while not self.finish.is_set():
            records = []
            for _ in range(self._rng.choice((1, 3, 10))):
                number = 0 if self.one_key.is_set() else self._rng.randrange(_KEYS)
                value = None if self._rng.random() < 0.1 else self._rng.randbytes(100)
                records.append(self.table.send(b"a-key-longer-than-a-hash-%d" % number, value))
            answer = calls.produce(connection, _TOPIC, 0, build_keyed(records, int(time.time() * 1000)))
            if answer.error:
                self.table.findings.report_problem(f"a write got error {answer.error}")
                return
            self.table.ack(records, answer.base_offset)
            self.acked += len(records)
            if self.one_key.is_set():
                time.sleep(0.002)


def run(
    seed: int, *, protected: bool = True, without: str = "wide-hash", kills: tuple[int, int] = (3, 6)
) -> Outcome:
    rng = random.Random(f"{FAULT} compaction {seed}")
    outcome = Outcome(FAULT, seed)
    findings = Findings()
    table = Table(_TOPIC, findings)
    options = [
        "--set",
        "log.cleaner.backoff.ms=1",
        "--set",
        _io_rate_option(rng.choice((100_000, 1_000_000))),
    ]
    with (
        run_directory(FAULT, seed, in_memory=rng.random() < 0.5) as home,
        BrokerProcess(
            home, starter=[] if protected else ["--without", without], options=options, forked=True
        ) as broker,
    ):
        broker.start()
        with Connection(broker.port) as connection:
            configs: dict[Name, Name | None] = {
                "cleanup.policy": "compact",
                "internal.segment.bytes": str(rng.choice((3_000, 20_000))),
                "min.cleanable.dirty.ratio": "0",
                "delete.retention.ms": str(rng.choice((0, 200, 100_000))),
            }
            assert not calls.create_topic(connection, _TOPIC, 1, configs)
        client = _Client(broker.port, table, random.Random(rng.random()))
        client.start()
        planned_kills = rng.randint(*kills)
        for number in range(planned_kills + 20):
            if number >= planned_kills and outcome.hits:
                break
            goal = client.acked + rng.choice((20, 200))
            broker.wait_until(lambda goal=goal: client.acked >= goal, "no acks")  # type: ignore[misc]
            if number < planned_kills:
                time.sleep(rng.uniform(0.0, 0.1))
            else:
                _wait_for_a_compaction(broker.data)
            broker.kill()
            outcome.hits += _was_compacting(broker.data)
            if number == planned_kills - 1:
                # At this rate a compaction soon writes its first bytes, and then is slow enough to be killed.
                # If a setting is given twice, the last ``--set`` applies.
                broker.options += ["--set", _io_rate_option(1_000_000)]
            broker.start()
        client.one_key.set()
        finished_before = _finished_compactions(broker)
        broker.wait_until(
            lambda: _finished_compactions(broker) >= finished_before + 2, "no compaction has finished"
        )
        client.finish.set()
        client.join(20.0)
        _judge(broker.port, table)
        broker.kill()
        broker.start()
        _judge(broker.port, table)
        if code := broker.stop():
            findings.report_problem(f"a clean stop returned exit code {code}")
        for trace in broker.unexpected_exceptions():
            findings.report_problem(f"the broker logged an unexpected exception:\n{trace}")
        outcome.figures = {"acked": client.acked, "compactions": _finished_compactions(broker)}
        findings.report_to(outcome)
        outcome.peak_rss_mb = broker.peak_rss_mb
    return outcome


def _io_rate_option(bytes_per_second: int) -> str:
    return f"log.cleaner.io.max.bytes.per.second={bytes_per_second}"


def _wait_for_a_compaction(data: Path) -> None:
    """Wait until a compaction runs. Used if none of the random kills hit one."""
    deadline = time.monotonic() + 10.0
    while not _was_compacting(data) and time.monotonic() < deadline:
        time.sleep(0.001)


def _finished_compactions(broker: BrokerProcess) -> int:
    return broker.log.read_bytes().count(b"compacted ")


def _was_compacting(data: Path) -> bool:
    return any(path.suffix in (".compacted", ".swap") for path in data.glob("topics/*/*/*"))


def _judge(port: int, table: Table) -> None:
    with Connection(port) as connection:
        _, end = calls.list_offset(connection, _TOPIC, 0, calls.LATEST)
        records_read: list[StoredRecord] = []
        offset = 0
        while offset < end:
            fetched = calls.fetch(connection, _TOPIC, 0, offset)
            if fetched.error or not fetched.records:
                table.findings.report_problem(
                    f"{_TOPIC} at {offset} of {end} cannot be read: error {fetched.error}"
                )
                return
            for next_offset, records in parse_keyed(fetched.records):
                records_read += [record for record in records if record.offset >= offset]
                offset = max(offset, next_offset)
        _, configs = calls.topic_configs(connection, _TOPIC, [_REMOVED_BELOW])
    table.judge(records_read, end, int((configs.get(_REMOVED_BELOW) or "").partition(":")[2] or 0))
