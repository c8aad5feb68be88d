"""X14, broker gone: stopped for a while and woken, then killed and started again after a while, with all parts busy.

Beside the usual clients there are two members of a group on librdkafka, one member that speaks by hand and asks for a
session shorter than the outage, and ``headrace consume`` in a group, as a process of its own. What must hold: no part
exits; the broker's memory stays within 64 MB of what it was; the members of the groups are still members, because a
coordinator that was away cannot know who was silent; groups go on where they had committed; all that holds for a kill.
"""

from __future__ import annotations

import random
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from bench.faults import calls
from bench.faults.connection import Connection, Gone
from bench.faults.consuming import content_of, stock_consumer
from bench.faults.forking import dying_with_us
from bench.faults.oracle import Ledger, Place
from bench.faults.outcome import Outcome
from bench.faults.process import COMMAND, BrokerProcess
from bench.faults.scene import Scene
from bench.faults.worker import Worker, finish_all
from bench.faults.workplace import workplace

__all__ = ["OUTAGE_S", "RSS_MB_MAX", "UNPROTECTED", "run"]

FAULT = "X14"
UNPROTECTED = {"stall-notice": r"a member with a session"}
OUTAGE_S = 60.0
RSS_MB_MAX = 64.0
_GROUP, _COMMAND_GROUP, _BY_HAND = "readers", "command", "by-hand"
_MEMBER_ID_REQUIRED = 79
_RECONNECT_MS_MAX = 500
_TOPIC = "kept"
# A client that comes back as another member waits for the session of the one it was.
_WAIT_S_MAX = 480.0
_PASSING = frozenset(
    {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, KafkaError._RESOLVE}
)


class _Member(Worker):
    """One of a group, on librdkafka; commits what it was given, and notes what was acknowledged."""

    def __init__(self, name: str, port: int, ledger: Ledger, session_ms: int) -> None:
        super().__init__(name, port, ledger)
        self._session_ms = session_ms
        self.committed: dict[Place, int] = {}
        self.asked: dict[Place, int] = {}
        self.given = 0
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
                # Of what it was just given, and no other: a partition may be another member's by now.
                wanted: dict[Place, int] = {}
                for message in consumer.consume(200, 0.1):
                    if self._is_record(message):
                        place, offset, value = content_of(message)
                        self.ledger.give(place, offset, value)
                        wanted[place] = offset + 1
                        self.given += 1
                if wanted:
                    self._commit(consumer, wanted)
        finally:
            consumer.close()

    def _on_assign(self, _: Any, partitions: list[TopicPartition]) -> None:
        self.assigned = partitions

    def _is_record(self, message: Any) -> bool:
        error = message.error()
        if error is None:
            return True
        if error.code() not in _PASSING:
            self.ledger.object(f"{self.name} got {error.name()}: {error.str()}")
        return False

    def _commit(self, consumer: Any, wanted: dict[Place, int]) -> None:
        self.asked.update(wanted)
        try:
            consumer.commit(
                offsets=[TopicPartition(*place, offset) for place, offset in wanted.items()],
                asynchronous=False,
            )
        except KafkaException:
            # Unanswered or refused: it may be there or not.
            return
        self.committed.update(wanted)


class _MemberByHand(Worker):
    """One of another group that asks for a session shorter than the outage. It is silent only while the broker is away,
    so any error that it is answered with is a finding.
    """

    def __init__(self, port: int, ledger: Ledger, session_ms: int, timeout_s: float) -> None:
        super().__init__("by-hand", port, ledger, timeout_s=timeout_s)
        self._session_ms = session_ms
        self._joined: calls.Joined | None = None
        self._may_speak = threading.Event()
        self._may_speak.set()
        self._is_silent = threading.Event()
        self.heartbeats = 0

    def be_silent(self) -> None:
        """Returns when nothing of it is under way."""
        self._is_silent.clear()
        self._may_speak.clear()
        self._is_silent.wait(_WAIT_S_MAX)

    def speak_again(self) -> None:
        self._may_speak.set()

    def work(self) -> None:
        while not self.finishing:
            connection = self.connect()
            if connection is None:
                return
            with connection:
                try:
                    while not self.finishing:
                        self._heartbeat(connection)
                        if not self._may_speak.wait(self._session_ms / 10_000):
                            continue
                        time.sleep(self._session_ms / 10_000)
                except Gone:
                    continue

    def _heartbeat(self, connection: Connection) -> None:
        if not self._may_speak.is_set():
            self._is_silent.set()
            return
        if self._joined is None:
            self._joined = self._join(connection)
        error = calls.heartbeat(connection, _BY_HAND, self._joined.generation, self._joined.member_id)
        self.heartbeats += 1
        if error:
            self.ledger.object(f"a member with a session of {self._session_ms} ms got error {error}")

    def _join(self, connection: Connection) -> calls.Joined:
        session: dict[str, Any] = {"session_ms": self._session_ms, "rebalance_ms": self._session_ms}
        joined = calls.join(connection, _BY_HAND, **session)
        if joined.error == _MEMBER_ID_REQUIRED:
            joined = calls.join(connection, _BY_HAND, member_id=joined.member_id, **session)
        assigned = {joined.member_id: b"all"}
        error, _ = calls.sync(connection, _BY_HAND, joined.generation, joined.member_id, assigned)
        if joined.error or error:
            raise AssertionError(f"the member by hand could not join: errors {joined.error} and {error}")
        return joined


class _Part:
    """A command that runs all the time."""

    def __init__(self, home: Path, name: str, words: list[str]) -> None:
        self.name = name
        self._output = home / f"{name}.out"
        self._errors = home / f"{name}.err"
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [*dying_with_us(), str(COMMAND), *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )

    @property
    def ended(self) -> int | None:
        return self._process.poll()

    @property
    def printed(self) -> str:
        return self._output.read_text(errors="replace")

    @property
    def complained(self) -> str:
        return self._errors.read_text(errors="replace")[-500:]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


class _Run:
    def __init__(self, broker: BrokerProcess, rng: random.Random, outcome: Outcome, outage_s: float) -> None:
        self.broker = broker
        self.outcome = outcome
        self.outage_s = outage_s
        # Requests of the keepers wait through the outage: one that is given up may still be done later.
        self.scene = Scene(
            broker,
            rng,
            pace=5.0 if outage_s < 10 else 20.0,
            request_timeout_s=outage_s + 60,
            reconnect_ms_max=_RECONNECT_MS_MAX,
            stock_settings={"socket.timeout.ms": int(max(outage_s * 300, 1000))},
        )
        self.members: list[_Member] = []
        self.parts: list[_Part] = []

    def begin(self) -> None:
        self.broker.start()
        self.scene.make_topics()
        self.scene.employ()
        ledger, port = self.scene.ledger, self.broker.port
        session_ms = int(self.outage_s * 2_000 + 45_000)
        self.members = [_Member(f"member-{index}", port, ledger, session_ms) for index in range(2)]
        for member in self.members:
            member.start()
        self.by_hand = _MemberByHand(port, ledger, int(self.outage_s * 500), self.outage_s + 60)
        self.by_hand.start()
        home, bootstrap = self.broker.home, self.broker.bootstrap
        consume = ["consume", _TOPIC, "-g", _COMMAND_GROUP, "-f", "%p %o\\n", "-b", bootstrap]
        self.parts = [_Part(home, "consume", consume)]
        self._wait(
            lambda: all(member.given for member in self.members), "the members of the group read nothing"
        )
        self._wait(
            lambda: all(part.printed.count("\n") > 2 for part in self.parts), "the commands print nothing"
        )
        self._wait(lambda: self.by_hand.heartbeats > 0, "the member by hand did not join")
        self._standing = self._groups()
        self.base_mb = self.broker.rss_mb()

    def stop_and_wake(self) -> None:
        self.by_hand.be_silent()
        self.outcome.hits += int(self.scene.in_flight > 0)
        self.broker.pause()
        try:
            time.sleep(self.outage_s)
        finally:
            self.broker.resume()
        self._go_on("after SIGCONT")

    def kill_and_restart(self) -> None:
        self.by_hand.be_silent()
        self.outcome.hits += int(self.scene.in_flight > 0)
        self.broker.kill()
        time.sleep(self.outage_s)
        self.broker.start()
        self._go_on("after a restart")

    def _go_on(self, when: str) -> None:
        """Everybody is still there, and everybody gets something again."""
        heartbeats = self.by_hand.heartbeats
        self.by_hand.speak_again()
        given = [member.given for member in self.members]
        printed = [len(part.printed) for part in self.parts]
        self.scene.wait_for_acks(20, _WAIT_S_MAX)
        self._wait(lambda: self.by_hand.heartbeats > heartbeats, f"{when} the member by hand is not answered")
        self._wait(
            lambda: all(m.given > before for m, before in zip(self.members, given, strict=True)),
            f"{when} the members of the group read nothing",
        )
        self._wait(
            lambda: all(len(p.printed) > before for p, before in zip(self.parts, printed, strict=True)),
            f"{when} the commands print nothing",
        )
        standing = self._groups()
        if standing != self._standing:
            self.scene.ledger.object(f"{when} the groups are {standing}, and were {self._standing}")
        grown = self.broker.rss_mb("VmHWM") - self.base_mb
        if grown > RSS_MB_MAX:
            self.scene.ledger.object(f"{when} the broker has {grown:.0f} MB more than before")

    def _groups(self) -> dict[str, tuple[str, list[str]]]:
        wanted = (_GROUP, _COMMAND_GROUP, _BY_HAND)
        with Connection(self.broker.port) as connection:
            found = {group: calls.group_members(connection, group) for group in wanted}
        # The command's client has the usual session of 45 s and gives up its own membership after that, so that it
        # comes back as another member. The others must be the same.
        state, members = found[_COMMAND_GROUP]
        found[_COMMAND_GROUP] = (state, [f"{len(members)} members"])
        return found

    def _wait(self, condition: Any, what: str) -> None:
        deadline = time.monotonic() + _WAIT_S_MAX
        while not condition():
            self.broker.expect_alive()
            for part in self.parts:
                if part.ended is not None:
                    raise AssertionError(f"headrace {part.name} ended with {part.ended}: {part.complained}")
            if time.monotonic() > deadline:
                raise AssertionError(f"{what} within {_WAIT_S_MAX:.0f} s")
            time.sleep(0.02)

    def end(self) -> None:
        scene, ledger = self.scene, self.scene.ledger
        for part in self.parts:
            if part.ended is not None:
                ledger.object(f"headrace {part.name} ended with {part.ended}: {part.complained}")
        self._check_printed()
        finish_all([*self.members, self.by_hand], ledger)
        scene.finish()
        self.broker.kill()
        self.broker.start()
        self._check_commits()
        scene.judge()

    def _check_printed(self) -> None:
        """The command may print a record again after a rebalance, but never leaves one out."""
        last: dict[str, int] = {}
        for line in self.parts[0].printed.splitlines()[:-1]:
            partition, _, offset = line.partition(" ")
            if not offset.isdigit() or int(offset) > last.get(partition, -1) + 1:
                self.scene.ledger.object(f"headrace consume printed {line!r} behind {last.get(partition)}")
                return
            last[partition] = max(int(offset), last.get(partition, -1))

    def _check_commits(self) -> None:
        acked: dict[Place, int] = {}
        asked: dict[Place, int] = {}
        for member in self.members:
            for place, offset in member.committed.items():
                acked[place] = max(offset, acked.get(place, 0))
            for place, offset in member.asked.items():
                asked[place] = max(offset, asked.get(place, 0))
        with Connection(self.broker.port) as connection:
            error, found = calls.committed(connection, _GROUP, list(asked))
        for place in asked:
            offset = found[place][0]
            if error or not acked.get(place, 0) <= offset <= asked[place]:
                self.scene.ledger.object(
                    f"{_GROUP} committed {acked.get(place)} of {place}, asked for {asked[place]} and has {offset}"
                )

    def close(self) -> None:
        for part in self.parts:
            part.close()
        if self.members:
            self.by_hand.speak_again()
            finish_all([*self.members, self.by_hand], self.scene.ledger)
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
        workplace(FAULT, seed) as home,
        BrokerProcess(home, starter=starter, retention_check_ms=500, forked=True) as broker,
    ):
        scene = _Run(broker, rng, outcome, outage_s)
        try:
            scene.begin()
            scene.stop_and_wake()
            if not protected and scene.scene.ledger.problems:
                return scene.scene.report(outcome)
            scene.kill_and_restart()
            scene.end()
        except (AssertionError, KafkaException, Gone) as failure:
            scene.scene.ledger.object(f"{type(failure).__name__}: {failure}")
        finally:
            scene.close()
            broker.kill()
        return scene.scene.report(outcome)
