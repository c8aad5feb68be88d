"""Fault X14, a broker outage under load: the broker is paused for a while and resumed, then killed and restarted.

The usual clients run, and also two group members with librdkafka, a member that this module implements (its session
timeout is shorter than the outage), and ``headrace consume`` in a group. Expected: no process exits; the memory of the
broker and of the command grows by less than 64 MB; groups resume at their committed offsets; all checks for a killed
broker (``broker_kill``) pass. No group may lose a member, because a broker that was paused cannot know which members
were silent.
"""

from __future__ import annotations

import random
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from faults.log.client_thread import ClientThread, finish_all
from faults.log.consumers import partition_offset_value, stock_consumer
from faults.log.oracle import Ledger, PartitionId
from faults.log.scene import Scene
from faults.outcome import Outcome
from faults.protocol import calls
from faults.protocol.connection import Connection, Gone
from faults.run_directory import run_directory
from faults.servers.broker_process import COMMAND, BrokerProcess
from faults.servers.fork_server import parent_death_prefix
from faults.servers.process_tree import rss_mb

__all__ = ["OUTAGE_S", "RSS_MB_MAX", "UNPROTECTED", "run"]

FAULT = "X14"
UNPROTECTED = {"stall-notice": r"a member with a session"}
OUTAGE_S = 60.0
RSS_MB_MAX = 64.0
_GROUP, _COMMAND_GROUP, _RAW_GROUP = "readers", "command", "by-hand"
_MEMBER_ID_REQUIRED = 79
_RECONNECT_MS_MAX = 500
_TOPIC = "kept"
# A client that rejoins as a new member waits until the session of its old member expires.
_WAIT_S_MAX = 480.0
_TRANSIENT = frozenset(
    {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, KafkaError._RESOLVE}
)


class _Member(ClientThread):
    """A librdkafka group member that commits what it received, and records the acknowledgements."""

    def __init__(self, name: str, port: int, ledger: Ledger, session_ms: int) -> None:
        super().__init__(name, port, ledger)
        self._session_ms = session_ms
        self.committed: dict[PartitionId, int] = {}
        self.requested: dict[PartitionId, int] = {}
        self.delivered = 0
        self.assigned: list[TopicPartition] = []

    def work(self) -> None:
        settings: dict[str, Any] = {
            "auto.offset.reset": "earliest",
            "session.timeout.ms": self._session_ms,
            "max.poll.interval.ms": max(self._session_ms, 300_000),
            "client.id": self.name,
            "reconnect.backoff.max.ms": _RECONNECT_MS_MAX,
        }
        consumer = stock_consumer(self.port, _GROUP, settings)
        try:
            consumer.subscribe([_TOPIC], on_assign=self._on_assign)
            while not self.finishing:
                # Commit only the last records received: another member might own the partition by now.
                offsets: dict[PartitionId, int] = {}
                for message in consumer.consume(200, 0.1):
                    if self._is_record(message):
                        partition_id, offset, value = partition_offset_value(message)
                        self.ledger.record_delivery(partition_id, offset, value)
                        offsets[partition_id] = offset + 1
                        self.delivered += 1
                if offsets:
                    self._commit(consumer, offsets)
        finally:
            consumer.close()

    def _on_assign(self, _: Any, partitions: list[TopicPartition]) -> None:
        self.assigned = partitions

    def _is_record(self, message: Any) -> bool:
        error = message.error()
        if error is None:
            return True
        if error.code() not in _TRANSIENT:
            self.ledger.report_problem(f"{self.name} got {error.name()}: {error.str()}")
        return False

    def _commit(self, consumer: Any, offsets: dict[PartitionId, int]) -> None:
        self.requested.update(offsets)
        try:
            consumer.commit(
                offsets=[TopicPartition(*partition_id, offset) for partition_id, offset in offsets.items()],
                asynchronous=False,
            )
        except KafkaException:
            # The commit was refused or got no response, so it is unknown whether the broker stored it.
            return
        self.committed.update(offsets)


class _RawMember(ClientThread):
    """A member of another group with a session timeout shorter than the outage. It sends no requests while the broker
    is unreachable, so any error response is a problem.
    """

    def __init__(self, port: int, ledger: Ledger, session_ms: int, timeout_s: float) -> None:
        super().__init__("by-hand", port, ledger, timeout_s=timeout_s)
        self._session_ms = session_ms
        self._joined: calls.Joined | None = None
        self._may_send = threading.Event()
        self._may_send.set()
        self._is_silent = threading.Event()
        self.heartbeats = 0

    def pause_requests(self) -> None:
        """Stop sending requests, and return when no request is in flight."""
        self._is_silent.clear()
        self._may_send.clear()
        self._is_silent.wait(_WAIT_S_MAX)

    def resume_requests(self) -> None:
        self._may_send.set()

    def work(self) -> None:
        while not self.finishing:
            connection = self.connect()
            if connection is None:
                return
            with connection:
                try:
                    while not self.finishing:
                        self._heartbeat(connection)
                        if not self._may_send.wait(self._session_ms / 10_000):
                            continue
                        time.sleep(self._session_ms / 10_000)
                except Gone:
                    continue

    def _heartbeat(self, connection: Connection) -> None:
        if not self._may_send.is_set():
            self._is_silent.set()
            return
        if self._joined is None:
            self._joined = self._join(connection)
        error = calls.heartbeat(connection, _RAW_GROUP, self._joined.generation, self._joined.member_id)
        self.heartbeats += 1
        if error:
            self.ledger.report_problem(
                f"a member with a session of {self._session_ms} ms received error {error}"
            )

    def _join(self, connection: Connection) -> calls.Joined:
        session: dict[str, Any] = {"session_ms": self._session_ms, "rebalance_ms": self._session_ms}
        joined = calls.join(connection, _RAW_GROUP, **session)
        if joined.error == _MEMBER_ID_REQUIRED:
            joined = calls.join(connection, _RAW_GROUP, member_id=joined.member_id, **session)
        assigned = {joined.member_id: b"all"}
        error, _ = calls.sync(connection, _RAW_GROUP, joined.generation, joined.member_id, assigned)
        if joined.error or error:
            raise AssertionError(f"the raw member could not join: errors {joined.error} and {error}")
        return joined


class _Command:
    """A command that runs during the whole test."""

    def __init__(self, home: Path, name: str, arguments: list[str]) -> None:
        self.name = name
        self._output = home / f"{name}.out"
        self._errors = home / f"{name}.err"
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [*parent_death_prefix(), str(COMMAND), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    @property
    def rss_mb(self) -> float:
        return rss_mb(self._process.pid)

    @property
    def printed(self) -> str:
        return self._output.read_text(errors="replace")

    @property
    def error_output(self) -> str:
        return self._errors.read_text(errors="replace")[-500:]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


class _Run:
    def __init__(self, broker: BrokerProcess, rng: random.Random, outcome: Outcome, outage_s: float) -> None:
        self.broker = broker
        self.outcome = outcome
        self.outage_s = outage_s
        # Requests of these clients wait until the outage ends: an abandoned request might still be executed later.
        self.scene = Scene(
            broker,
            rng,
            pace=5.0 if outage_s < 10 else 20.0,
            request_timeout_s=outage_s + 60,
            reconnect_ms_max=_RECONNECT_MS_MAX,
            stock_settings={"socket.timeout.ms": int(max(outage_s * 300, 1000))},
        )
        self.members: list[_Member] = []
        self.commands: list[_Command] = []

    def begin(self) -> None:
        self.broker.start()
        self.scene.create_topics()
        self.scene.start_clients()
        ledger, port = self.scene.ledger, self.broker.port
        session_ms = int(self.outage_s * 2_000 + 45_000)
        self.members = [_Member(f"member-{index}", port, ledger, session_ms) for index in range(2)]
        for member in self.members:
            member.start()
        self.raw_member = _RawMember(port, ledger, int(self.outage_s * 700), self.outage_s + 60)
        self.raw_member.start()
        home, bootstrap = self.broker.home, self.broker.bootstrap
        consume = ["consume", _TOPIC, "-g", _COMMAND_GROUP, "-f", "%p %o\\n", "-b", bootstrap]
        self.commands = [_Command(home, "consume", consume)]
        self._wait(
            lambda: all(member.delivered for member in self.members), "the members of the group read nothing"
        )
        self._wait(
            lambda: all(command.printed.count("\n") > 2 for command in self.commands),
            "the commands print nothing",
        )
        self._wait(lambda: self.raw_member.heartbeats > 0, "the raw member did not join")
        self._groups_before = self._groups()
        self.base_mb = {
            "broker": self.broker.rss_mb(),
            **{command.name: command.rss_mb for command in self.commands},
        }

    def pause_and_resume(self) -> None:
        self.raw_member.pause_requests()
        self.outcome.hits += int(self.scene.in_flight > 0)
        self.broker.pause()
        try:
            time.sleep(self.outage_s)
        finally:
            self.broker.resume()
        self._check_progress("after SIGCONT")

    def kill_and_restart(self) -> None:
        self.raw_member.pause_requests()
        self.outcome.hits += int(self.scene.in_flight > 0)
        self.broker.kill()
        time.sleep(self.outage_s)
        self.broker.start()
        self._check_progress("after a restart")

    def _check_progress(self, when: str) -> None:
        """Check that every member is still in its group and receives records again."""
        heartbeats = self.raw_member.heartbeats
        self.raw_member.resume_requests()
        delivered = [member.delivered for member in self.members]
        printed = [len(command.printed) for command in self.commands]
        self.scene.wait_for_acks(20, _WAIT_S_MAX)
        self._wait(lambda: self.raw_member.heartbeats > heartbeats, f"{when} the raw member gets no response")
        self._wait(
            lambda: all(
                member.delivered > before for member, before in zip(self.members, delivered, strict=True)
            ),
            f"{when} the members of the group read nothing",
        )
        self._wait(
            lambda: all(
                len(command.printed) > before for command, before in zip(self.commands, printed, strict=True)
            ),
            f"{when} the commands print nothing",
        )
        groups_now = self._groups()
        if groups_now != self._groups_before:
            self.scene.ledger.report_problem(
                f"{when} the groups are {groups_now}, but were {self._groups_before}"
            )
        now_mb = {
            "broker": self.broker.rss_mb("VmHWM"),
            **{command.name: command.rss_mb for command in self.commands},
        }
        for name, before_mb in self.base_mb.items():
            if now_mb[name] > before_mb + RSS_MB_MAX:
                self.scene.ledger.report_problem(
                    f"{when} {name} has {now_mb[name] - before_mb:.0f} MB more than before"
                )

    def _groups(self) -> dict[str, tuple[str, list[str]]]:
        names = (_GROUP, _COMMAND_GROUP, _RAW_GROUP)
        with Connection(self.broker.port) as connection:
            groups = {group: calls.group_members(connection, group) for group in names}
        # The command's client has the default session timeout of 45 s. In a longer outage it gives up its
        # membership and rejoins with a new member id, so compare only the number of members. All other groups
        # must keep the same members.
        state, members = groups[_COMMAND_GROUP]
        groups[_COMMAND_GROUP] = (state, [f"{len(members)} members"])
        return groups

    def _wait(self, condition: Any, what: str) -> None:
        deadline = time.monotonic() + _WAIT_S_MAX
        while not condition():
            self.broker.expect_alive()
            for command in self.commands:
                if command.exit_code is not None:
                    raise AssertionError(
                        f"headrace {command.name} exited with {command.exit_code}: {command.error_output}"
                    )
            if time.monotonic() > deadline:
                raise AssertionError(f"{what} within {_WAIT_S_MAX:.0f} s")
            time.sleep(0.02)

    def finish_and_judge(self) -> None:
        scene, ledger = self.scene, self.scene.ledger
        for command in self.commands:
            if command.exit_code is not None:
                ledger.report_problem(
                    f"headrace {command.name} exited with {command.exit_code}: {command.error_output}"
                )
        self._check_printed()
        finish_all([*self.members, self.raw_member], ledger)
        scene.finish()
        self.broker.kill()
        self.broker.start()
        self._check_commits()
        scene.judge()

    def _check_printed(self) -> None:
        """The command may print a record again after a rebalance, but must never omit one."""
        last: dict[str, int] = {}
        for line in self.commands[0].printed.splitlines()[:-1]:
            partition, _, offset = line.partition(" ")
            if not offset.isdigit() or int(offset) > last.get(partition, -1) + 1:
                self.scene.ledger.report_problem(
                    f"headrace consume printed {line!r} after {last.get(partition)}"
                )
                return
            last[partition] = max(int(offset), last.get(partition, -1))

    def _check_commits(self) -> None:
        acked: dict[PartitionId, int] = {}
        requested: dict[PartitionId, int] = {}
        for member in self.members:
            for partition_id, offset in member.committed.items():
                acked[partition_id] = max(offset, acked.get(partition_id, 0))
            for partition_id, offset in member.requested.items():
                requested[partition_id] = max(offset, requested.get(partition_id, 0))
        with Connection(self.broker.port) as connection:
            error, committed = calls.committed(connection, _GROUP, list(requested))
        for partition_id, newest in requested.items():
            offset = committed[partition_id][0]
            if error or not acked.get(partition_id, 0) <= offset <= newest:
                self.scene.ledger.report_problem(
                    f"{_GROUP} has offset {offset} of {partition_id}, but its last acknowledged commit is"
                    f" {acked.get(partition_id)} and its last sent commit is {newest}"
                )

    def close(self) -> None:
        for command in self.commands:
            command.close()
        if self.members:
            self.raw_member.resume_requests()
            finish_all([*self.members, self.raw_member], self.scene.ledger)
        self.scene.give_up()


def run(
    seed: int,
    *,
    protected: bool = True,
    without: str = "stall-notice",
    outage_s: float | None = None,
) -> Outcome:
    rng = random.Random(seed)
    outcome = Outcome(FAULT, seed)
    if outage_s is None:
        outage_s = OUTAGE_S if protected else 3.0
    starter = ["--session-min", "100", *([] if protected else ["--without", without])]
    with (
        run_directory(FAULT, seed) as home,
        BrokerProcess(home, starter=starter, retention_check_ms=500, forked=True) as broker,
    ):
        scene = _Run(broker, rng, outcome, outage_s)
        try:
            scene.begin()
            scene.pause_and_resume()
            if not protected and scene.scene.ledger.problems:
                return scene.scene.report(outcome)
            scene.kill_and_restart()
            scene.finish_and_judge()
        except (AssertionError, KafkaException, Gone) as failure:
            scene.scene.ledger.report_problem(f"{type(failure).__name__}: {failure}")
        finally:
            scene.close()
            broker.kill()
        return scene.scene.report(outcome)
