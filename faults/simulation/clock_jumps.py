"""Fault X8, clock jumps: the wall clock of a broker that deletes by time jumps by an hour or ten years, or stops.

Hours of simulated time pass. Producers with correct clocks keep writing, a group member sends heartbeats, and offsets
are committed. The clock jumps while the broker runs or while it is down. The jump is undone, or it lasts longer than
the hour after which the broker trusts it. In one case the clock is correct, but the broker was off for nine days. By
the oracle's own time:

    nothing is deleted early, and everything is finally deleted when it is due, even with a stopped clock
    the member stays in its group, and committed offsets stay
    records with the correct time are accepted, and a repeated batch is recognised

Records of a topic with LogAppendTime have the time of the wall clock, jump included. Their time must never be so early
that retention deletes them too soon.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

from faults.outcome import Outcome
from faults.protocol.batches import build_batch
from faults.simulation.machine import Machine
from faults.simulation.partition_oracle import Findings
from faults.simulation.requests import SimulatedBroker
from faults.simulation.unprotected import without_protection
from headrace.broker.groups import GroupSettings

__all__ = ["JUMPS", "UNPROTECTED", "run"]

FAULT = "X8"
UNPROTECTED = {"trusted-time": r"h before its time"}

_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS
_YEARS_MS = 10 * 365 * _DAY_MS
JUMPS = {
    "+1 h": _HOUR_MS,
    "-1 h": -_HOUR_MS,
    "+10 y": _YEARS_MS,
    "-10 y": -_YEARS_MS,
    "frozen": 0,
    "off for 9 days": 0,
}
CASES = [
    (jump, when, stays)
    for jump in JUMPS
    for when in ("running", "down")
    for stays in (False, True)
    if jump not in ("frozen", "off for 9 days") or (stays and (when == "down") == (jump == "off for 9 days"))
]
_RETENTION_MS = {"day": _DAY_MS, "half-hour": _HOUR_MS // 2, "stamped": _DAY_MS, "stamped-new": _DAY_MS}
_STEP_S = 300.0
_GRACE_S = 3600.0
_SESSION_MS = 1_500_000


@dataclass(slots=True)
class _TopicTimes:
    """The oracle's knowledge of a topic: when each of its offsets was written."""

    written_ms: list[int] = field(default_factory=list)


class _ClockRun:
    def __init__(self, seed: int, case: tuple[str, str, bool]) -> None:
        self.rng = random.Random(f"{FAULT} {seed}")
        self.jump, self.when, self.stays = case
        self.findings = Findings()
        self.machine = Machine(seed, self.findings.report_problem)
        self.clock = self.machine.clock
        self.started_ms = self.clock.now_ms()
        self.hits = 0
        self.topics: dict[str, _TopicTimes] = {}
        self.member: tuple[str, int] | None = None
        self.committed = -1
        self.repeated_batch: tuple[bytes, int] | None = None
        self.trusted_at: float | None = None
        """The time from which the broker trusts a lasting jump, and clients use the new time: an hour after the jump.
        """

    @property
    def is_trusted(self) -> bool:
        return self.trusted_at is not None and self.clock.steady() >= self.trusted_at

    def true_ms(self) -> int:
        """The correct time."""
        return (
            self.started_ms + int(self.clock.steady() * 1000) + (JUMPS[self.jump] if self.is_trusted else 0)
        )

    def latest_ms(self) -> int:
        """The latest time that retention may use."""
        return max(self.started_ms + int(self.clock.steady() * 1000), self.true_ms())

    def run_all(self) -> None:
        machine = self.machine
        machine.run_process(lambda: self._run_broker(self._before), at_most_s=1e7)
        machine.end("kill")
        if self.when == "down":
            self._jump()
        machine.run_process(lambda: self._run_broker(self._during), at_most_s=1e7)
        machine.end("kill")
        machine.run_process(lambda: self._run_broker(self._after), at_most_s=1e7)

    # The three starts of the broker

    async def _run_broker(self, part: object) -> None:
        broker = SimulatedBroker(
            self.machine.files, self.clock, groups=GroupSettings(tick_interval_ms=60_000, stall_ms_min=60_000)
        )
        await broker.start()
        assert callable(part)
        await part(broker)
        for dead in broker.dead_tasks():
            self.findings.report_problem(f"a background task has ended: {dead}")
        await broker.stop()

    async def _before(self, broker: SimulatedBroker) -> None:
        for name in ("day", "half-hour", "stamped"):
            await self._create(broker, name)
        error, member, generation = await broker.join("members", _SESSION_MS)
        assert not error
        self.member = (member, generation)
        _, producer = await broker.new_producer()
        batch = build_batch([b"once"], self.true_ms(), producer_id=producer, epoch=0, sequence=0)
        await self._write(broker, "day", batch)
        self.repeated_batch = (batch, 0)
        await self._pass_time(broker, self.rng.randint(5, 20) * 60)

    async def _during(self, broker: SimulatedBroker) -> None:
        if self.when == "running":
            self._jump()
        # This topic has no earlier records. Earlier records would keep retention from deleting the new ones.
        await self._create(broker, "stamped-new")
        await self._pass_time(broker, self.rng.randint(10, 50) * 60)
        if self.stays:
            await self._pass_time(broker, 3600)
        elif self.jump != "frozen":
            self.clock.jump_wall(-JUMPS[self.jump])
        await self._pass_time(broker, self.rng.randint(1, 20) * 60)

    async def _after(self, broker: SimulatedBroker) -> None:
        await self._pass_time(broker, 2 * 3600)
        start, _ = await broker.range("half-hour", 0)
        due_before_ms = self.true_ms() - _RETENTION_MS["half-hour"] - 2 * _HOUR_MS
        written_ms = self.topics["half-hour"].written_ms
        # Retention deletes from the front. After a jump back, earlier records are from the future: they stay,
        # and so do all records after them.
        overdue = next(
            (offset for offset, at in enumerate(written_ms) if at >= due_before_ms), len(written_ms)
        )
        if start < overdue:
            self.findings.report_problem(
                f"{overdue} records are two hours overdue for deletion, but the log still starts at {start}"
            )

    async def _create(self, broker: SimulatedBroker, name: str) -> None:
        configs = {"retention.ms": str(_RETENTION_MS[name]), "internal.segment.bytes": "300"}
        if name.startswith("stamped"):
            configs["message.timestamp.type"] = "LogAppendTime"
        error, _ = await broker.create_topic(name, 1, configs)
        assert not error
        self.topics[name] = _TopicTimes()

    def _jump(self) -> None:
        self.hits += 1
        self.repeated_batch = None
        if self.jump == "frozen":
            self.clock.freeze()
        elif self.jump == "off for 9 days":
            self.clock.advance(9 * 24 * 3600)
        else:
            self.clock.jump_wall(JUMPS[self.jump])
        if self.stays:
            self.trusted_at = self.clock.steady() + _GRACE_S

    # Work and checks during all starts

    async def _pass_time(self, broker: SimulatedBroker, seconds: int) -> None:
        until = self.clock.steady() + seconds
        while self.clock.steady() < until:
            await self._work(broker)
            await asyncio.sleep(_STEP_S)
            await self._check(broker)

    async def _work(self, broker: SimulatedBroker) -> None:
        for name in self.topics:
            await self._write(broker, name, build_batch([b"at %d" % self.true_ms()], self.true_ms()))
        self.committed = self.rng.randrange(1000)
        if await broker.commit("loner", "day", 0, self.committed):
            self.findings.report_problem("a commit was refused")
        if self.repeated_batch is None:
            _, producer = await broker.new_producer()
            batch = build_batch([b"once more"], self.true_ms(), producer_id=producer, epoch=0, sequence=0)
            self.repeated_batch = (batch, await self._write(broker, "day", batch))

    async def _write(self, broker: SimulatedBroker, topic: str, batch: bytes) -> int:
        error, offset = await broker.produce(topic, 0, batch)
        written_ms = self.topics[topic].written_ms
        if error:
            self.findings.report_problem(f"{topic} refused a record with the correct time: error {error}")
        elif offset != len(written_ms):
            self.findings.report_problem(f"{topic} assigned the offset {offset} instead of {len(written_ms)}")
        else:
            written_ms.append(self.true_ms())
        return offset

    async def _check(self, broker: SimulatedBroker) -> None:
        for name, times in self.topics.items():
            start, end = await broker.range(name, 0)
            if end != len(times.written_ms):
                self.findings.report_problem(
                    f"{name} ends at {end}, but {len(times.written_ms)} records were written"
                )
            deletable_before_ms = self.latest_ms() - _RETENTION_MS[name]
            early = [offset for offset in range(start) if times.written_ms[offset] > deletable_before_ms]
            if early:
                self.findings.lost += len(early)
                self.findings.report_problem(
                    f"{name} starts at {start}: offset {early[0]} was deleted "
                    f"{(times.written_ms[early[0]] - deletable_before_ms) / _HOUR_MS:.1f} h before its time"
                )
        assert self.member is not None
        error = await broker.heartbeat("members", *self.member)
        if error:
            self.findings.report_problem(f"a heartbeat got error {error}")
        committed = await broker.committed("loner", "day", 0)
        if committed != self.committed:
            self.findings.report_problem(f"the committed offset is {committed} instead of {self.committed}")
        # If the clock was set back, the old batch is from the future and is refused before it is recognised.
        from_future = self.is_trusted and JUMPS[self.jump] < 0
        if self.repeated_batch is not None and not from_future and self.rng.random() < 0.1:
            answer = await broker.produce("day", 0, self.repeated_batch[0])
            if answer != (0, self.repeated_batch[1]):
                self.findings.report_problem(f"a batch was sent again and got (error, offset) {answer}")


def run(
    seed: int,
    *,
    protected: bool = True,
    without: str = "trusted-time",
    case: tuple[str, str, bool] | None = None,
) -> Outcome:
    outcome = Outcome(FAULT, seed)
    chosen_case = case or CASES[seed % len(CASES)]
    if not protected:
        chosen_case = ("+10 y", "running", False)
    clock_run = _ClockRun(seed, chosen_case)
    with without_protection(None if protected else without):
        clock_run.run_all()
    clock_run.findings.report_to(outcome)
    outcome.hits += clock_run.hits
    case_name = f"{chosen_case[0]}, {chosen_case[1]}, {'lasting' if chosen_case[2] else 'undone'}"
    outcome.problems = [f"{case_name}: {problem}" for problem in outcome.problems]
    return outcome
