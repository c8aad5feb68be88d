"""X1, kill -9, while everything is being compacted: real processes, real files.

A client updates and deletes a few keys without pause, the broker compacts without pause, slowly, and is killed several
times. A kill counts as a hit if it left something of a compaction behind. Then the table that a reader folds from the
topic must be the one that the client has kept by hand. At the end the client updates one key alone, until the newest
values of all others have been through a compaction.
"""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

from bench.faults import calls
from bench.faults.connection import Connection, Gone
from bench.faults.outcome import Outcome
from bench.faults.process import BrokerProcess
from bench.faults.sim_book import Objections
from bench.faults.table import Found, Table, build_keyed, parse_keyed
from bench.faults.workplace import workplace

__all__ = ["UNPROTECTED", "run"]

FAULT = "X1"
UNPROTECTED = {"wide-hash": r"the newest record of .* is gone"}
_TOPIC = "compacted"
_KEYS = 30
_REMOVED_BELOW = "headrace.tombstones.removed.below"


class _Client(threading.Thread):
    """Writes until it is told to stop; what was not answered may be there or not."""

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
                self.table.objections.object(f"a record was answered with error {answer.error}")
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
    objections = Objections()
    table = Table(_TOPIC, objections)
    options = ["--set", "log.cleaner.backoff.ms=1", "--set", _at_most(rng.choice((100_000, 1_000_000)))]
    with (
        workplace(FAULT, seed, in_memory=rng.random() < 0.5) as home,
        BrokerProcess(
            home, starter=[] if protected else ["--without", without], options=options, forked=True
        ) as broker,
    ):
        broker.start()
        with Connection(broker.port) as connection:
            configs = {
                "cleanup.policy": "compact",
                "internal.segment.bytes": str(rng.choice((3_000, 20_000))),
                "min.cleanable.dirty.ratio": "0",
                "delete.retention.ms": str(rng.choice((0, 200, 100_000))),
            }
            assert not calls.create_topic(connection, _TOPIC, 1, configs)
        client = _Client(broker.port, table, random.Random(rng.random()))
        client.start()
        planned = rng.randint(*kills)
        for number in range(planned + 20):
            if number >= planned and outcome.hits:
                break
            goal = client.acked + rng.choice((20, 200))
            broker.wait_until(lambda goal=goal: client.acked >= goal, "no acks")  # type: ignore[misc]
            if number < planned:
                time.sleep(rng.uniform(0.0, 0.1))
            else:
                _wait_for_a_compaction(broker.data)
            broker.kill()
            outcome.hits += _was_compacting(broker.data)
            if number == planned - 1:
                # A pace at which one gets to writing soon, and then takes its time; the last setting counts.
                broker.options += ["--set", _at_most(1_000_000)]
            broker.start()
        client.one_key.set()
        ended = _compactions(broker)
        broker.wait_until(lambda: _compactions(broker) >= ended + 2, "no compaction ended")
        client.finish.set()
        client.join(20.0)
        _judge(broker.port, table)
        broker.kill()
        broker.start()
        _judge(broker.port, table)
        if code := broker.stop():
            objections.object(f"a clean stop ended with {code}")
        for trace in broker.traces():
            objections.object(f"the broker did not foresee:\n{trace}")
        outcome.figures = {"acked": client.acked, "compactions": _compactions(broker)}
        objections.tell(outcome)
        outcome.peak_rss_mb = broker.peak_rss_mb
    return outcome


def _at_most(bytes_per_second: int) -> str:
    return f"log.cleaner.io.max.bytes.per.second={bytes_per_second}"


def _wait_for_a_compaction(data: Path) -> None:
    """Where chance has not struck one: look until there is something to strike."""
    deadline = time.monotonic() + 10.0
    while not _was_compacting(data) and time.monotonic() < deadline:
        time.sleep(0.001)


def _compactions(broker: BrokerProcess) -> int:
    return broker.log.read_bytes().count(b"compacted ")


def _was_compacting(data: Path) -> bool:
    return any(path.suffix in (".compacted", ".swap") for path in data.glob("topics/*/*/*"))


def _judge(port: int, table: Table) -> None:
    with Connection(port) as connection:
        _, end = calls.list_offset(connection, _TOPIC, 0, calls.LATEST)
        found: list[Found] = []
        offset = 0
        while offset < end:
            fetched = calls.fetch(connection, _TOPIC, 0, offset)
            if fetched.error or not fetched.records:
                table.objections.object(f"{_TOPIC} at {offset} of {end} is answered with {fetched.error}")
                return
            for behind, records in parse_keyed(fetched.records):
                found += [one for one in records if one.offset >= offset]
                offset = max(offset, behind)
        _, told = calls.topic_configs(connection, _TOPIC, [_REMOVED_BELOW])
    table.judge(found, end, int((told.get(_REMOVED_BELOW) or "").partition(":")[2] or 0))
