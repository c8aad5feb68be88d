"""X8, clock jumps: the wall clock goes an hour or ten years away, or stands still, under a broker that deletes by time.

Simulated hours pass. Producers, whose own clocks are right, go on; a member of a group sends heartbeats; offsets are
committed. The clock jumps while the broker runs or while it is down; the jump is taken back, or it stands for longer
than the hour after which the broker believes it. Or nothing is wrong and the broker was simply off for nine days.
What must hold, by a time that the oracle keeps itself:

    nothing is deleted before its time, and what is due goes at last, also by a clock that stands still
    the member stays in its group, and committed offsets stay
    records with the right time are accepted, and a batch that is sent again is known

Records of a topic with LogAppendTime carry the time of the wall clock, jump included, but never one so early that they
would be deleted for it.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

from bench.faults.batches import build_batch
from bench.faults.outcome import Outcome
from bench.faults.sim_book import Objections
from bench.faults.sim_door import Door
from bench.faults.sim_machine import Machine
from bench.faults.sim_unprotected import without_protection
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
    (jump, when, stands)
    for jump in JUMPS
    for when in ("running", "down")
    for stands in (False, True)
    if jump not in ("frozen", "off for 9 days") or (stands and (when == "down") == (jump == "off for 9 days"))
]
_RETENTION_MS = {"day": _DAY_MS, "half-hour": _HOUR_MS // 2, "stamped": _DAY_MS, "stamped-new": _DAY_MS}
_STEP_S = 300.0
_GRACE_S = 3600.0
_SESSION_MS = 1_500_000


@dataclass(slots=True)
class _Kept:
    """One topic as the oracle knows it: when each of its offsets was written."""

    written_ms: list[int] = field(default_factory=list)


class _Days:
    def __init__(self, seed: int, case: tuple[str, str, bool]) -> None:
        self.rng = random.Random(f"{FAULT} {seed}")
        self.jump, self.when, self.stands = case
        self.objections = Objections()
        self.machine = Machine(seed, self.objections.object)
        self.clock = self.machine.clock
        self.began_ms = self.clock.now_ms()
        self.hits = 0
        self.topics: dict[str, _Kept] = {}
        self.member: tuple[str, int] | None = None
        self.committed = -1
        self.once: tuple[bytes, int] | None = None
        self.believed_at: float | None = None
        """When a jump that stands has stood for its hour: it was a correction, and clients follow it."""

    @property
    def is_believed(self) -> bool:
        return self.believed_at is not None and self.clock.steady() >= self.believed_at

    def true_ms(self) -> int:
        """What a right clock says."""
        return self.began_ms + int(self.clock.steady() * 1000) + (JUMPS[self.jump] if self.is_believed else 0)

    def latest_ms(self) -> int:
        """The latest time by which anything may be deleted."""
        return max(self.began_ms + int(self.clock.steady() * 1000), self.true_ms())

    def whole(self) -> None:
        machine = self.machine
        machine.life(lambda: self._live(self._before), at_most_s=1e7)
        machine.end("kill")
        if self.when == "down":
            self._jump()
        machine.life(lambda: self._live(self._during), at_most_s=1e7)
        machine.end("kill")
        machine.life(lambda: self._live(self._after), at_most_s=1e7)

    # The three lives

    async def _live(self, part: object) -> None:
        door = Door(
            self.machine.files, self.clock, groups=GroupSettings(tick_interval_ms=60_000, stall_ms_min=60_000)
        )
        await door.start()
        assert callable(part)
        await part(door)
        for dead in door.dead_tasks():
            self.objections.object(f"a background task has ended: {dead}")
        await door.stop()

    async def _before(self, door: Door) -> None:
        for name in ("day", "half-hour", "stamped"):
            await self._create(door, name)
        error, member, generation = await door.join("members", _SESSION_MS)
        assert not error
        self.member = (member, generation)
        _, producer = await door.new_producer()
        batch = build_batch([b"once"], self.true_ms(), producer_id=producer, epoch=0, sequence=0)
        await self._write(door, "day", batch)
        self.once = (batch, 0)
        await self._pass_time(door, self.rng.randint(5, 20) * 60)

    async def _during(self, door: Door) -> None:
        if self.when == "running":
            self._jump()
        # One that has no records from before, behind which the new ones would be safe.
        await self._create(door, "stamped-new")
        await self._pass_time(door, self.rng.randint(10, 50) * 60)
        if self.stands:
            await self._pass_time(door, 3600)
        elif self.jump != "frozen":
            self.clock.jump_wall(-JUMPS[self.jump])
        await self._pass_time(door, self.rng.randint(1, 20) * 60)

    async def _after(self, door: Door) -> None:
        await self._pass_time(door, 2 * 3600)
        start, _ = await door.range("half-hour", 0)
        past_ms = self.true_ms() - _RETENTION_MS["half-hour"] - 2 * _HOUR_MS
        due = sum(at < past_ms for at in self.topics["half-hour"].written_ms)
        if start < due:
            self.objections.object(
                f"{due} records are two hours past their time, and the log still starts at {start}"
            )

    async def _create(self, door: Door, name: str) -> None:
        configs = {"retention.ms": str(_RETENTION_MS[name]), "internal.segment.bytes": "300"}
        if name.startswith("stamped"):
            configs["message.timestamp.type"] = "LogAppendTime"
        error, _ = await door.create_topic(name, 1, configs)
        assert not error
        self.topics[name] = _Kept()

    def _jump(self) -> None:
        self.hits += 1
        self.once = None
        if self.jump == "frozen":
            self.clock.freeze()
        elif self.jump == "off for 9 days":
            self.clock.advance(9 * 24 * 3600)
        else:
            self.clock.jump_wall(JUMPS[self.jump])
        if self.stands:
            self.believed_at = self.clock.steady() + _GRACE_S

    # What goes on all the time

    async def _pass_time(self, door: Door, seconds: int) -> None:
        until = self.clock.steady() + seconds
        while self.clock.steady() < until:
            await self._work(door)
            await asyncio.sleep(_STEP_S)
            await self._check(door)

    async def _work(self, door: Door) -> None:
        for name in self.topics:
            await self._write(door, name, build_batch([b"at %d" % self.true_ms()], self.true_ms()))
        self.committed = self.rng.randrange(1000)
        if await door.commit("loner", "day", 0, self.committed):
            self.objections.object("a commit was refused")
        if self.once is None:
            _, producer = await door.new_producer()
            batch = build_batch([b"once more"], self.true_ms(), producer_id=producer, epoch=0, sequence=0)
            self.once = (batch, await self._write(door, "day", batch))

    async def _write(self, door: Door, topic: str, batch: bytes) -> int:
        error, offset = await door.produce(topic, 0, batch)
        known = self.topics[topic].written_ms
        if error:
            self.objections.object(f"a record with the right time was refused by {topic} with error {error}")
        elif offset != len(known):
            self.objections.object(f"{topic} gave the offset {offset}, and {len(known)} was next")
        else:
            known.append(self.true_ms())
        return offset

    async def _check(self, door: Door) -> None:
        for name, known in self.topics.items():
            start, end = await door.range(name, 0)
            if end != len(known.written_ms):
                self.objections.object(
                    f"{name} ends at {end}, and {len(known.written_ms)} records were written"
                )
            young = self.latest_ms() - _RETENTION_MS[name]
            early = [offset for offset in range(start) if known.written_ms[offset] > young]
            if early:
                self.objections.lost += len(early)
                self.objections.object(
                    f"{name} starts at {start}: offset {early[0]} was deleted "
                    f"{(known.written_ms[early[0]] - young) / _HOUR_MS:.1f} h before its time"
                )
        assert self.member is not None
        error = await door.heartbeat("members", *self.member)
        if error:
            self.objections.object(f"a heartbeat was answered with error {error}")
        found = await door.committed("loner", "day", 0)
        if found != self.committed:
            self.objections.object(f"the committed offset {self.committed} is {found}")
        # By a clock that was set back the old batch is one from the future, which is refused before it is known.
        from_future = self.is_believed and JUMPS[self.jump] < 0
        if self.once is not None and not from_future and self.rng.random() < 0.1:
            answer = await door.produce("day", 0, self.once[0])
            if answer != (0, self.once[1]):
                self.objections.object(f"a batch was sent again, and got error and offset {answer}")


def run(
    seed: int,
    *,
    protected: bool = True,
    without: str = "trusted-time",
    case: tuple[str, str, bool] | None = None,
) -> Outcome:
    outcome = Outcome(FAULT, seed)
    chosen = case or CASES[seed % len(CASES)]
    if not protected:
        chosen = ("+10 y", "running", False)
    days = _Days(seed, chosen)
    with without_protection(None if protected else without):
        days.whole()
    days.objections.tell(outcome)
    outcome.hits += days.hits
    what = f"{chosen[0]}, {chosen[1]}, {'stands' if chosen[2] else 'taken back'}"
    outcome.problems = [f"{what}: {problem}" for problem in outcome.problems]
    return outcome
