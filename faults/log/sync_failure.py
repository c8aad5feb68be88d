"""Fault X3, a sync fails once: strace makes one fdatasync or fsync of the broker return EIO.

The sync of one of these files fails:

    data        the active segment of a partition        its clients get error 56 and no ack until a restart
    roll        the directory, when a segment is created its clients get error 56 and no ack until a restart
    topics      the journal of topics                    topic changes are refused until a restart; produce works
    commits     the journal of groups                    commits are refused until a restart; produce works
    mark        the file of the synced mark              nothing is refused, because the older mark is still correct
    start       any sync during a start                  the start fails with an error, or the partition is offline

Other partitions must continue. Then the broker is killed, started without the fault, and checked: every record that was
acknowledged or delivered must exist. With the real kernel a failed sync loses no bytes; ``simulation.sync_failure`` has
a file layer that loses them.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaException

from faults.log.client_thread import ClientThread, finish_all
from faults.log.consumers import LiveReader, read_back
from faults.log.durable_state import CommitClient, TopicClient
from faults.log.oracle import Ledger, PartitionId, Sent, partition_files
from faults.log.producers import IdempotentRawProducer, RawProducer
from faults.outcome import Outcome
from faults.protocol import calls
from faults.protocol.batches import build_batch
from faults.protocol.connection import Connection, Gone
from faults.run_directory import run_directory
from faults.servers.broker_process import BrokerDied, BrokerProcess

__all__ = ["AIMS", "UNPROTECTED", "run"]

FAULT = "X3"
UNPROTECTED = {"sync-errors": r"acknowledged after a failed sync"}
AIMS = ("data", "roll", "topics", "commits", "mark", "start")
_WEIGHTS = (10, 2, 2, 2, 1, 3)
_STORAGE_ERROR = 56
_NOT_COORDINATOR = 16
_FAILING: PartitionId = ("failing", 0)
_HEALTHY: PartitionId = ("healthy", 0)
_WAIT_S_MAX = 120.0
_OBSERVE_S = 0.15
_ROLL_BYTES = 20_000


@dataclass(slots=True)
class _Aim:
    """The system call that fails, and the files on which it must fail."""

    call: str
    paths: list[Path]
    when_max: int


class _Run:
    def __init__(self, broker: BrokerProcess, rng: random.Random, aim: str) -> None:
        self.broker = broker
        self.rng = rng
        self.aim = aim
        self.ledger = Ledger()
        self.trace = broker.home / "trace"
        self.workers: list[ClientThread] = []

    def prepare(self) -> _Aim:
        """Create a data directory with content, and stop the broker cleanly, or kill it if the sync of a start will
        fail.
        """
        self.broker.start()
        settings: dict[str | bytes, str | bytes | None] = {"retention.ms": "-1"}
        if self.aim == "roll":
            settings["internal.segment.bytes"] = str(_ROLL_BYTES)
        with Connection(self.broker.port) as connection:
            for topic, _ in (_FAILING, _HEALTHY):
                if error := calls.create_topic(connection, topic, 1, settings):
                    raise AssertionError(f"topic {topic} could not be created: error {error}")
                self._fill(connection, (topic, 0))
            ids = {topic.name: topic.id for topic in calls.topics(connection)}
        if self.aim == "start":
            self.start_clients()
            _wait(lambda: self.ledger.acked > 20, self.broker, "no acks")
            self.broker.kill()
            return _Aim(self.rng.choice(["fdatasync", "fsync"]), [], 3)
        self.broker.stop()
        directory = partition_files(self.broker.data, ids[_FAILING[0]], 0)
        return {
            "data": _Aim("fdatasync", sorted(directory.glob("*.log")), 6),
            "roll": _Aim("fsync", [directory], 2),
            "topics": _Aim("fdatasync", sorted((self.broker.data / "metadata").glob("*.log")), 3),
            "commits": _Aim("fdatasync", sorted((self.broker.data / "groups").glob("*.log")), 4),
            "mark": _Aim("fdatasync", [directory / "mark"], 1),
        }[self.aim]

    def _fill(self, connection: Connection, partition_id: PartitionId) -> None:
        """Write records, so that the partition has files and the next start creates no new ones."""
        sent = [
            Sent(partition_id, f"early:{n}:".encode(), "early", n, 0, once=True, ordered=True)
            for n in range(10)
        ]
        self.ledger.send(sent)
        answer = calls.produce(
            connection, *partition_id, build_batch([record.value for record in sent], int(time.time() * 1000))
        )
        if answer.error:
            raise AssertionError(f"the first batch of {partition_id} got error {answer.error}")
        self.ledger.ack(sent, answer.base_offset)

    def start_clients(self) -> None:
        port, ledger, rng = self.broker.port, self.ledger, self.rng
        refusals = frozenset({_STORAGE_ERROR})
        partition_ids = [_FAILING, _HEALTHY]

        def new_rng() -> random.Random:
            return random.Random(rng.random())

        self.plain = RawProducer(
            "plain", port, ledger, [_FAILING], new_rng(), refusals=refusals, pause_s=0.004
        )
        self.idem = IdempotentRawProducer(
            "idem", port, ledger, [_FAILING], new_rng(), refusals=refusals, pause_s=0.004
        )
        self.other = RawProducer(
            "other", port, ledger, [_HEALTHY], new_rng(), refusals=refusals, pause_s=0.004
        )
        self.commits = CommitClient(
            "commits", port, ledger, partition_ids, new_rng(), refusals=frozenset({_NOT_COORDINATOR})
        )
        self.topics = TopicClient("topics", port, ledger, new_rng(), refusals=refusals)
        self.reader = LiveReader("reader", port, ledger, partition_ids)
        self.workers = [self.plain, self.idem, self.other, self.commits, self.topics, self.reader]
        for worker in self.workers:
            worker.start()

    def strike(self, aim: _Aim) -> int:
        """Run with the failing call, and return the number of hits."""
        when = self.rng.randint(1, aim.when_max)
        if self.aim == "start":
            # A start might have fewer syncs than ``when``, but it has at least one.
            return self._strike_start(aim, when) or self._strike_start(aim, 1)
        self.broker.start(_strace_prefix(self.trace, aim.call, when, aim.paths))
        self.start_clients()
        _wait(lambda: bool(_injection_times(self.trace)), self.broker, "the fault did not strike")
        struck_at = _injection_times(self.trace)[0]
        self._check_consequences(struck_at)
        return 1

    def _strike_start(self, aim: _Aim, when: int) -> int:
        try:
            self.broker.start(_strace_prefix(self.trace, aim.call, when))
            # Kill the broker now: strace counts calls per thread, so one sync would fail in each other thread
            # too.
            self.broker.kill()
        except BrokerDied:
            output = self.broker.output_since_start().decode(errors="replace")
            if "Traceback" in output:
                self.ledger.report_problem(
                    f"a start with a failing sync ended with a traceback:\n{output[-2000:]}"
                )
        return len(_injection_times(self.trace)[:1])

    def _check_consequences(self, struck_at: float) -> None:
        """Check that other partitions continue, and that no write is acknowledged where the sync failed."""
        goal = self._acked_batches(self.other, _HEALTHY) + 5
        _wait(
            lambda: self._acked_batches(self.other, _HEALTHY) >= goal,
            self.broker,
            "the other partition does not continue",
        )
        time.sleep(_OBSERVE_S)
        if self.aim in ("data", "roll"):
            if not self._refused_errors():
                self.ledger.report_problem("no client got error 56 for the failed sync")
            for producer in (self.plain, self.idem):
                acked_later = [
                    result for result in producer.results if not result.error and result.sent_at > struck_at
                ]
                if acked_later:
                    delay_ms = (acked_later[0].answered_at - struck_at) * 1000
                    self.ledger.report_problem(
                        f"{len(acked_later)} batches were acknowledged after a failed sync,"
                        f" the first {delay_ms:.0f} ms later"
                    )
        elif self.aim in ("topics", "commits"):
            client = self.topics if self.aim == "topics" else self.commits
            _wait(lambda: bool(client.refused), self.broker, f"no change of {self.aim} was refused")
            changes_before = client.changes if isinstance(client, TopicClient) else client.commits
            time.sleep(_OBSERVE_S)
            if changes_before != (client.changes if isinstance(client, TopicClient) else client.commits):
                self.ledger.report_problem(
                    f"{self.aim} were acknowledged after a failed sync of their journal"
                )
        self._check_readable(_HEALTHY)
        self._check_readable(_FAILING)
        if not self._is_failure_logged():
            self.ledger.report_problem("the broker did not log that a sync failed")

    @staticmethod
    def _acked_batches(producer: RawProducer, partition_id: PartitionId) -> int:
        return sum(
            not result.error and result.partition_id == partition_id for result in list(producer.results)
        )

    def _refused_errors(self) -> list[int]:
        return [
            result.error
            for producer in (self.plain, self.idem)
            for result in list(producer.results)
            if result.error == _STORAGE_ERROR
        ]

    def _check_readable(self, partition_id: PartitionId) -> None:
        with Connection(self.broker.port) as connection:
            fetched = calls.fetch(connection, *partition_id, 0)
            if fetched.error or (fetched.high_watermark > 0 and not fetched.records):
                self.ledger.report_problem(
                    f"{partition_id} cannot be read while the fault lasts: error {fetched.error}"
                )

    def _is_failure_logged(self) -> bool:
        output = self.broker.output_since_start().decode(errors="replace")
        return any(
            "Input/output error" in line for line in output.splitlines() if "ERROR" in line or "WARN" in line
        )

    def judge(self) -> None:
        """Start without the fault, and check that all clients get responses and all acknowledged records exist."""
        if self.rng.random() < 0.7 or not self.broker.is_running:
            self.broker.kill()
        else:
            self.broker.stop()
        self.broker.start()
        if not self.workers:
            self.start_clients()
        before = self._acked_batches(self.plain, _FAILING)
        _wait(
            lambda: self._acked_batches(self.plain, _FAILING) > before,
            self.broker,
            "writes do not resume after a restart",
        )
        finish_all(self.workers, self.ledger)
        self.broker.kill()
        self.broker.start()
        with Connection(self.broker.port) as connection:
            self.topics.check(connection)
            self.commits.check(connection)
        for view in read_back(self.broker.port, [_FAILING, _HEALTHY]).values():
            self.ledger.check(view)
        self.broker.stop()
        for trace in self.broker.unexpected_exceptions():
            self.ledger.report_problem(f"the broker logged an unexpected exception:\n{trace}")


def run(
    seed: int, *, protected: bool = True, without: str = "sync-errors", aim: str | None = None
) -> Outcome:
    rng = random.Random(seed)
    outcome = Outcome(FAULT, seed)
    random_aim = rng.choices(AIMS, _WEIGHTS)[0]
    if not protected:
        random_aim = "data"
    starter = [] if protected else ["--without", without]
    with run_directory(FAULT, seed) as home, BrokerProcess(home, starter=starter, forked=True) as broker:
        scene = _Run(broker, rng, aim or random_aim)
        try:
            outcome.hits += scene.strike(scene.prepare())
            scene.judge()
        except (AssertionError, KafkaException, Gone) as failure:
            scene.ledger.report_problem(f"{type(failure).__name__}: {failure}")
        finally:
            for worker in scene.workers:
                worker.give_up()
            for worker in scene.workers:
                worker.join(15.0)
        outcome.lost = scene.ledger.lost
        outcome.duplicated = scene.ledger.duplicated
        outcome.problems += scene.ledger.problems
        outcome.peak_rss_mb = broker.peak_rss_mb
        outcome.figures |= {"acked": scene.ledger.acked, "aim": AIMS.index(scene.aim)}
    return outcome


def _wait(condition: Callable[[], bool], broker: BrokerProcess, what: str) -> None:
    deadline = time.monotonic() + _WAIT_S_MAX
    while not condition():
        broker.expect_alive()
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} within {_WAIT_S_MAX:.0f} s")
        time.sleep(0.01)


# Failures of single system calls, injected with strace

_INJECTED = re.compile(rb"^\d+\s+(\d+\.\d+) .*\(INJECTED\)", re.MULTILINE)


def _strace_prefix(trace: Path, call: str, when: int, paths: Sequence[Path] = ()) -> list[str]:
    """Return a command prefix that runs a broker under strace: in each thread, the ``when``-th ``call`` fails with EIO.
    With ``paths``, only calls on them count.
    """
    command = ["strace", "-f", "-qq", "-ttt", "--seccomp-bpf", "-e", "signal=none", "-o", str(trace)]
    for path in paths:
        command += ["-P", str(path)]
    return [*command, "-e", f"trace={call}", "-e", f"inject={call}:error=EIO:when={when}", "--"]


def _injection_times(trace: Path) -> list[float]:
    """Return the wall-clock times of the injected failures."""
    if not trace.exists():
        return []
    return [float(time_text) for time_text in _INJECTED.findall(trace.read_bytes())]
