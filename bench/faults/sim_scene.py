"""A simulated broker with all its parts busy, through any number of lives on one disk, and the oracle that judges it at
every start.

Segments hold a few batches, journals are replaced after a few entries, retention runs every other second: whatever a
crash can meet, it meets soon.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from bench.faults.sim_book import Book, Objections, Stored
from bench.faults.sim_door import Door
from bench.faults.sim_facts import ANY_ID, Maybe, TopicFact
from bench.faults.sim_judge import judge
from bench.faults.sim_machine import Machine
from bench.faults.sim_transactions import Transactions, committed_batches
from bench.faults.sim_writers import IdempotentWriter, PlainWriter, Target
from headrace.broker.settings import Durability

__all__ = ["Scene"]

_NAMES = ("kept", "trimmed", "one", "two")
_GROUPS = ("readers", "others")
_FLUSHED_WITHIN_S = 6.5
_SESSION_MS = 1_800_000
_UNKNOWN_TOPIC, _STORAGE = 3, 56
_PAUSES_S = (0.0, 0.0, 0.001, 0.01, 0.3, 1.2)


Allows = Callable[[str, str, int, int], bool]
"""Whether a request of a kind (produce, read, commit, change) for a topic and partition may be answered so."""


class Scene:
    """``allows`` says which errors clients may be answered with while a fault lasts."""

    def __init__(
        self,
        seed: int,
        machine: Machine,
        objections: Objections,
        *,
        durability: Durability = "synced",
        transactional_writers: int = 0,
        allows: Allows = lambda kind, topic, partition, error: False,
    ) -> None:
        self.rng = random.Random(f"scene {seed}")
        self.machine = machine
        self.objections = objections
        self.durability = durability
        self.allows = allows
        self.refused = 0
        """Requests that were answered with an error that is allowed."""
        self.topics: dict[str, Maybe[TopicFact | None]] = {name: Maybe(None) for name in _NAMES}
        self.books: dict[tuple[bytes, int], Book] = {}
        self.offsets: dict[tuple[str, str, int], Maybe[int]] = {}
        self.members: dict[str, tuple[str, int]] = {}
        """The only member of each of some groups, with its generation."""
        self.given_ids: set[int] = set()
        self.cluster_id: str | None = None
        self.epoch = self.judged_epoch = -1
        self.may_lose_since: float | None = None
        self.phase = "down"
        self.starts = 0
        self.read_to: dict[tuple[bytes, int], int] = {}
        self.trails: dict[tuple[bytes, int], list[Stored]] = {}
        self.snapshot_after_bytes = self.rng.choice((200, 600, 3000))
        self._requests = 0
        self._joins = 0
        now, now_ms = machine.clock.steady, machine.clock.now_ms
        self.plain = PlainWriter(self.rng, now, now_ms, self._is_refused)
        self.idempotent = [
            IdempotentWriter(
                self.rng,
                now,
                now_ms,
                self._is_refused,
                may_lose=durability == "os",
                given_ids=self.given_ids,
                object_to=objections.object,
                no_id=lambda error: self._hear("producer id", "", -1, error),
            )
            for _ in range(2)
        ]
        self.transactions = Transactions(self, objections, transactional_writers)

    @property
    def _writers(self) -> list[PlainWriter | IdempotentWriter]:
        return [self.plain, *self.idempotent]

    @property
    def in_flight(self) -> int:
        writers = [*self._writers, *self.transactions.writers]
        return self._requests + sum(writer.in_flight for writer in writers)

    # One life

    async def live(
        self,
        *,
        steps: int,
        stop: bool = True,
        settle: bool = False,
        before_work: Callable[[Door], None] | None = None,
    ) -> None:
        """Start, judge, work, perhaps end all transactions and judge again, and perhaps stop."""
        self.phase = "starting"
        self._requests = 0
        for writer in [*self._writers, *self.transactions.writers]:
            writer.in_flight = 0
        door = self.open_door()
        await door.start()
        self.starts += 1
        await judge(self, door)
        await self.transactions.judge(door)
        self.phase = "working"
        self.machine.meanwhile = lambda: self._meanwhile(door)
        if before_work is not None:
            before_work(door)
        await self.work(door, steps)
        if settle:
            for writer in self.transactions.writers:
                await writer.finish(door)
            await self.transactions.judge(door, all_settled=True)
        for dead in door.dead_tasks():
            self.objections.object(f"a background task has ended: {dead}")
        self.machine.meanwhile = None
        if stop:
            self.phase = "stopping"
            await door.stop()
        self.phase = "down"

    def open_door(self) -> Door:
        return Door(
            self.machine.files,
            self.machine.clock,
            durability=self.durability,
            snapshot_after_bytes=self.snapshot_after_bytes,
            retention_check_s=2.0,
        )

    def power_lost(self) -> None:
        if self.durability == "os":
            since = self.machine.clock.steady() - _FLUSHED_WITHIN_S
            self.may_lose_since = min(since, self.may_lose_since or since)
            self.transactions.void()

    # What clients do

    async def work(self, door: Door, steps: int) -> None:
        await asyncio.gather(
            self._repeat(steps, lambda: self._write(door, self.plain)),
            *(self._repeat(steps, lambda w=writer: self._write(door, w)) for writer in self.idempotent),  # type: ignore[misc]
            *(self._repeat(steps, lambda w=writer: w.step(door)) for writer in self.transactions.writers),  # type: ignore[misc]
            self._repeat(steps, lambda: self.read(door)),
            self._repeat(steps if self.transactions.writers else 0, lambda: self._read_committed(door)),
            self._repeat(steps // 2, lambda: self._commit(door)),
            self._repeat(steps // 2, lambda: self._administer(door)),
        )

    async def _repeat(self, times: int, act: Callable[[], Awaitable[None]]) -> None:
        for _ in range(times):
            await asyncio.sleep(self.rng.choice(_PAUSES_S))
            await act()

    def all_targets(self) -> list[Target]:
        """Every partition that is surely there."""
        return [
            self.target_of(name, fact.sure, partition)
            for name, fact in self.topics.items()
            if fact.sure is not None
            for partition in range(fact.sure.partitions)
        ]

    def any_target(self) -> Target | None:
        targets = self.all_targets()
        return self.rng.choice(targets) if targets else None

    def target_of(self, name: str, fact: TopicFact, partition: int) -> Target:
        return Target(name, partition, (fact.id, partition), self.book_of(name, fact, partition))

    def book_of(self, name: str, fact: TopicFact, partition: int) -> Book:
        key = (fact.id, partition)
        book = self.books.get(key)
        if book is None:
            book = self.books[key] = Book(f"{name}-{partition}", self.objections)
            if name == "trimmed":
                book.allow_start(2**62)
        return book

    def _meanwhile(self, door: Door) -> None:
        target = self.any_target()
        if target is not None and self.rng.random() < 0.3:
            self.plain.write_now(door, target)

    async def _write(self, door: Door, writer: PlainWriter | IdempotentWriter) -> None:
        target = self.any_target()
        if target is not None:
            await writer.write(door, target)

    def _is_refused(self, target: Target, error: int) -> None:
        fact = self.topics[target.topic].sure
        gone = fact is None or fact.id != target.key[0]
        if gone and error in (_UNKNOWN_TOPIC, _STORAGE):
            return
        self._hear("produce", target.topic, target.partition, error)

    def _hear(self, kind: str, topic: str, partition: int, error: int) -> None:
        if self.allows(kind, topic, partition, error):
            self.refused += 1
        else:
            self.objections.object(f"{kind} for {topic}-{partition} was answered with error {error}")

    async def read(self, door: Door) -> None:
        target = self.any_target()
        if target is None:
            return
        key = target.key
        offset = self.read_to.get(key, 0)
        found = await door.fetch(target.topic, target.partition, offset, self.rng.choice((0, 300, 2000)))
        fact = self.topics[target.topic].sure
        if fact is None or fact.id != key[0]:
            return
        if found.error == 1:
            # Deleted meanwhile: begin where the log begins.
            start, _ = await door.range(target.topic, target.partition)
            if offset >= start >= 0:
                self.objections.object(f"{target.topic}: offset {offset} is out of range from {start} on")
            self.read_to[key] = max(start, 0)
            self.trails[key] = []
            return
        if found.error:
            self._hear("read", target.topic, target.partition, found.error)
            return
        trail = self.trails.setdefault(key, [])
        for one in found.batches:
            target.book.give(one, self.machine.clock.steady())
            trail.append(one)
            self.read_to[key] = one.next

    async def _read_committed(self, door: Door) -> None:
        target = self.any_target()
        if target is not None:
            start, _ = await door.range(target.topic, target.partition)
            found = await door.fetch(target.topic, target.partition, start, 1 << 20, committed=True)
            self.transactions.give(committed_batches(found))

    async def _commit(self, door: Door) -> None:
        target = self.any_target()
        if target is None:
            return
        group = self.rng.choice(_GROUPS)
        place = (group, target.topic, target.partition)
        offset = self.rng.randrange(1000)
        known = self.offsets.setdefault(place, Maybe(-1))
        known.perhaps(offset)
        self._requests += 1
        error = await door.commit(*place, offset)
        self._requests -= 1
        if self.offsets.get(place) is not known:
            return
        if not error:
            known.surely(offset)
            if await door.committed(*place) != offset:
                self.objections.object(f"offset {offset} of {place} was answered and is not shown")
        elif error != _UNKNOWN_TOPIC:
            self._hear("commit", target.topic, target.partition, error)

    async def repeat_commits(self, door: Door, times: int) -> None:
        for _ in range(times):
            await self._commit(door)

    async def _administer(self, door: Door) -> None:
        self._requests += 1
        name = self.rng.choice(_NAMES)
        if self.topics[name].values == [None]:
            await self.create(door, name)
        else:
            change = self.rng.choice(("delete", "grow", "configure", "delete_records", "trim", "join"))
            if change != "delete" or name in ("one", "two") or self.rng.random() < 0.1:
                await self.change(door, change, name)
        self._requests -= 1

    async def change(self, door: Door, change: str, name: str) -> None:
        """Do something to a topic, if it is surely there."""
        fact = self.topics[name].sure
        if fact is None:
            return
        changes = {
            "delete": self._delete,
            "grow": self._grow,
            "configure": self._configure,
            "delete_records": self._delete_records,
            "trim": self._trim,
            "join": self._join,
        }
        await changes[change](door, name, fact)

    async def create(self, door: Door, name: str) -> None:
        partitions = self.rng.choice((1, 1, 2))
        max_bytes = self.rng.randrange(10_000, 20_000)
        configs = {
            "internal.segment.bytes": str(self.rng.choice((300, 700, 2000))),
            "max.message.bytes": str(max_bytes),
        }
        if name == "trimmed":
            configs["retention.bytes"] = str(self.rng.choice((0, 500, 2000)))
        self.topics[name].perhaps(TopicFact(ANY_ID, partitions, max_bytes))
        error, topic_id = await door.create_topic(name, partitions, configs)
        if error:
            self._hear("change", name, -1, error)
        else:
            self.topics[name].surely(TopicFact(topic_id, partitions, max_bytes))

    async def _delete(self, door: Door, name: str, fact: TopicFact) -> None:
        self.topics[name].perhaps(None)
        error = await door.delete_topic(name)
        if error:
            self._hear("change", name, -1, error)
        else:
            self.topics[name].surely(None)
            for place in [place for place in self.offsets if place[1] == name]:
                del self.offsets[place]

    async def _grow(self, door: Door, name: str, fact: TopicFact) -> None:
        if fact.partitions >= 4:
            return
        grown = TopicFact(fact.id, fact.partitions + 1, fact.max_message_bytes)
        self.topics[name].perhaps(grown)
        error = await door.grow_topic(name, grown.partitions)
        if error:
            self._hear("change", name, -1, error)
        else:
            self.topics[name].surely(grown)

    async def _configure(self, door: Door, name: str, fact: TopicFact) -> None:
        changed = TopicFact(fact.id, fact.partitions, self.rng.randrange(10_000, 20_000))
        self.topics[name].perhaps(changed)
        error = await door.set_config(name, "max.message.bytes", str(changed.max_message_bytes))
        if error:
            self._hear("change", name, -1, error)
        else:
            self.topics[name].surely(changed)

    async def _delete_records(self, door: Door, name: str, fact: TopicFact) -> None:
        target = self.target_of(name, fact, self.rng.randrange(fact.partitions))
        start, end = await door.range(name, target.partition)
        if end <= 0:
            return
        offset = self.rng.randint(max(start, 0), end)
        target.book.allow_start(offset)
        error, start = await door.delete_records(name, target.partition, offset)
        if error:
            self._hear("change", name, target.partition, error)
        else:
            target.book.promise_start(start)

    async def _join(self, door: Door, name: str, fact: TopicFact) -> None:
        """Found a group. One that was not answered may be there or not, so each try is for another one."""
        self._joins += 1
        group = f"members-{self._joins}"
        error, member, generation = await door.join(group, _SESSION_MS)
        if error:
            self._hear("commit", name, -1, error)
        else:
            self.members[group] = (member, generation)

    async def _trim(self, door: Door, name: str, fact: TopicFact) -> None:
        await door.broker.trim()
