"""A simulated broker under a mixed load. It starts and crashes many times on one disk, and the oracle checks it at
every start.

A segment has only a few batches, a journal is replaced after a few entries, and retention runs every other second. So
after a short time a crash can hit every operation.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from faults.simulation.facts import ANY_ID, PossibleValues, TopicFact
from faults.simulation.machine import Machine
from faults.simulation.partition_oracle import Findings, PartitionOracle, Stored
from faults.simulation.producers import IdempotentWriter, PlainWriter, Target
from faults.simulation.requests import SimulatedBroker
from faults.simulation.start_oracle import judge
from faults.simulation.transactions import Transactions, committed_batches
from headrace.broker.settings import Durability

__all__ = ["Scene"]

_NAMES = ("kept", "trimmed", "one", "two")
_GROUPS = ("readers", "others")
_FLUSHED_WITHIN_S = 6.5
_SESSION_MS = 1_800_000
_UNKNOWN_TOPIC, _STORAGE = 3, 56
_PAUSES_S = (0.0, 0.0, 0.001, 0.01, 0.3, 1.2)


Allows = Callable[[str, str, int, int], bool]
"""Decides whether a request may get this error, from its kind (produce, read, commit, change), its topic and its
partition.
"""


class Scene:
    """``allows`` decides which errors clients may get while a fault lasts."""

    def __init__(
        self,
        seed: int,
        machine: Machine,
        findings: Findings,
        *,
        durability: Durability = "synced",
        transactional_writers: int = 0,
        allows: Allows = lambda kind, topic, partition, error: False,
    ) -> None:
        self.rng = random.Random(f"scene {seed}")
        self.machine = machine
        self.findings = findings
        self.durability = durability
        self.allows = allows
        self.refused = 0
        """The number of requests that got an allowed error."""
        self.topics: dict[str, PossibleValues[TopicFact | None]] = {
            name: PossibleValues(None) for name in _NAMES
        }
        self.oracles: dict[tuple[bytes, int], PartitionOracle] = {}
        self.offsets: dict[tuple[str, str, int], PossibleValues[int]] = {}
        self.members: dict[str, tuple[str, int]] = {}
        """For some groups, their only member and its generation."""
        self.assigned_ids: set[int] = set()
        self.cluster_id: str | None = None
        self.epoch = self.judged_epoch = -1
        self.may_lose_since: float | None = None
        self.phase = "down"
        self.starts = 0
        self.read_positions: dict[tuple[bytes, int], int] = {}
        self.consumed: dict[tuple[bytes, int], list[Stored]] = {}
        self.snapshot_after_bytes = self.rng.choice((200, 600, 3000))
        self._requests = 0
        self._joins = 0
        now, now_ms = machine.clock.steady, machine.clock.now_ms
        self.plain = PlainWriter(self.rng, now, now_ms, self._on_error)
        self.idempotent = [
            IdempotentWriter(
                self.rng,
                now,
                now_ms,
                self._on_error,
                may_lose_data=durability == "os",
                assigned_ids=self.assigned_ids,
                report_problem=findings.report_problem,
                on_missing_id=lambda error: self._check_error("producer id", "", -1, error),
            )
            for _ in range(2)
        ]
        self.transactions = Transactions(self, findings, transactional_writers)

    @property
    def _writers(self) -> list[PlainWriter | IdempotentWriter]:
        return [self.plain, *self.idempotent]

    @property
    def in_flight(self) -> int:
        writers = [*self._writers, *self.transactions.writers]
        return self._requests + sum(writer.in_flight for writer in writers)

    # One start of the broker

    async def run_broker(
        self,
        *,
        steps: int,
        stop: bool = True,
        settle: bool = False,
        before_work: Callable[[SimulatedBroker], None] | None = None,
    ) -> None:
        """Start, check and work. Optionally end all transactions and check again, and stop."""
        self.phase = "starting"
        self._requests = 0
        for writer in [*self._writers, *self.transactions.writers]:
            writer.in_flight = 0
        broker = self.create_broker()
        await broker.start()
        self.starts += 1
        await judge(self, broker)
        await self.transactions.judge(broker)
        self.phase = "working"
        self.machine.meanwhile = lambda: self._meanwhile(broker)
        if before_work is not None:
            before_work(broker)
        await self.work(broker, steps)
        if settle:
            for writer in self.transactions.writers:
                await writer.finish(broker)
            await self.transactions.judge(broker, all_ended=True)
        for dead in broker.dead_tasks():
            self.findings.report_problem(f"a background task has ended: {dead}")
        self.machine.meanwhile = None
        if stop:
            self.phase = "stopping"
            await broker.stop()
        self.phase = "down"

    def create_broker(self) -> SimulatedBroker:
        return SimulatedBroker(
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
            self.transactions.clear()

    # Client actions

    async def work(self, broker: SimulatedBroker, steps: int) -> None:
        await asyncio.gather(
            self._repeat(steps, lambda: self._write(broker, self.plain)),
            *(self._repeat(steps, lambda w=writer: self._write(broker, w)) for writer in self.idempotent),  # type: ignore[misc]
            *(self._repeat(steps, lambda w=writer: w.step(broker)) for writer in self.transactions.writers),  # type: ignore[misc]
            self._repeat(steps, lambda: self.read(broker)),
            self._repeat(steps if self.transactions.writers else 0, lambda: self._read_committed(broker)),
            self._repeat(steps // 2, lambda: self._commit(broker)),
            self._repeat(steps // 2, lambda: self._administer(broker)),
        )

    async def _repeat(self, times: int, action: Callable[[], Awaitable[None]]) -> None:
        for _ in range(times):
            await asyncio.sleep(self.rng.choice(_PAUSES_S))
            await action()

    def all_targets(self) -> list[Target]:
        """Return every partition whose existence the broker has confirmed."""
        return [
            self.target_of(name, fact.confirmed, partition)
            for name, fact in self.topics.items()
            if fact.confirmed is not None
            for partition in range(fact.confirmed.partitions)
        ]

    def any_target(self) -> Target | None:
        targets = self.all_targets()
        return self.rng.choice(targets) if targets else None

    def target_of(self, name: str, fact: TopicFact, partition: int) -> Target:
        return Target(name, partition, (fact.id, partition), self.oracle_of(name, fact, partition))

    def oracle_of(self, name: str, fact: TopicFact, partition: int) -> PartitionOracle:
        key = (fact.id, partition)
        oracle = self.oracles.get(key)
        if oracle is None:
            oracle = self.oracles[key] = PartitionOracle(f"{name}-{partition}", self.findings)
            if name == "trimmed":
                oracle.allow_start(2**62)
        return oracle

    def _meanwhile(self, broker: SimulatedBroker) -> None:
        target = self.any_target()
        if target is not None and self.rng.random() < 0.3:
            self.plain.write_now(broker, target)

    async def _write(self, broker: SimulatedBroker, writer: PlainWriter | IdempotentWriter) -> None:
        target = self.any_target()
        if target is not None:
            await writer.write(broker, target)

    def _on_error(self, target: Target, error: int) -> None:
        topic = self.topics[target.topic].confirmed
        is_deleted = topic is None or topic.id != target.key[0]
        if is_deleted and error in (_UNKNOWN_TOPIC, _STORAGE):
            return
        self._check_error("produce", target.topic, target.partition, error)

    def _check_error(self, kind: str, topic: str, partition: int, error: int) -> None:
        if self.allows(kind, topic, partition, error):
            self.refused += 1
        else:
            self.findings.report_problem(f"{kind} for {topic}-{partition} got error {error}")

    async def read(self, broker: SimulatedBroker) -> None:
        target = self.any_target()
        if target is None:
            return
        key = target.key
        offset = self.read_positions.get(key, 0)
        fetched = await broker.fetch(target.topic, target.partition, offset, self.rng.choice((0, 300, 2000)))
        fact = self.topics[target.topic].confirmed
        if fact is None or fact.id != key[0]:
            return
        if fetched.error == 1:
            # The records were deleted meanwhile: continue at the start of the log.
            start, _ = await broker.range(target.topic, target.partition)
            if offset >= start >= 0:
                self.findings.report_problem(
                    f"{target.topic}: offset {offset} got error 1, but the log starts at {start}"
                )
            self.read_positions[key] = max(start, 0)
            self.consumed[key] = []
            return
        if fetched.error:
            self._check_error("read", target.topic, target.partition, fetched.error)
            return
        trail = self.consumed.setdefault(key, [])
        for batch in fetched.batches:
            target.oracle.record_delivery(batch, self.machine.clock.steady())
            trail.append(batch)
            self.read_positions[key] = batch.next

    async def _read_committed(self, broker: SimulatedBroker) -> None:
        target = self.any_target()
        if target is not None:
            start, _ = await broker.range(target.topic, target.partition)
            fetched = await broker.fetch(target.topic, target.partition, start, 1 << 20, committed=True)
            self.transactions.record_delivery(committed_batches(fetched))

    async def _commit(self, broker: SimulatedBroker) -> None:
        target = self.any_target()
        if target is None:
            return
        group = self.rng.choice(_GROUPS)
        group_partition = (group, target.topic, target.partition)
        offset = self.rng.randrange(1000)
        possible_offsets = self.offsets.setdefault(group_partition, PossibleValues(-1))
        possible_offsets.add_possible(offset)
        self._requests += 1
        error = await broker.commit(*group_partition, offset)
        self._requests -= 1
        if self.offsets.get(group_partition) is not possible_offsets:
            return
        if not error:
            possible_offsets.confirm(offset)
            returned = await broker.committed(*group_partition)
            may_be_deleted = None in self.topics[target.topic].values
            is_current = self.offsets.get(group_partition) is possible_offsets and not may_be_deleted
            if returned != offset and is_current:
                self.findings.report_problem(
                    f"offset {offset} of {group_partition} was acknowledged, but is not returned"
                )
        elif error != _UNKNOWN_TOPIC:
            self._check_error("commit", target.topic, target.partition, error)

    async def repeat_commits(self, broker: SimulatedBroker, times: int) -> None:
        for _ in range(times):
            await self._commit(broker)

    async def _administer(self, broker: SimulatedBroker) -> None:
        self._requests += 1
        name = self.rng.choice(_NAMES)
        if self.topics[name].values == [None]:
            await self.create(broker, name)
        else:
            change = self.rng.choice(("delete", "grow", "configure", "delete_records", "trim", "join"))
            if change != "delete" or name in ("one", "two") or self.rng.random() < 0.1:
                await self.change(broker, change, name)
        self._requests -= 1

    async def change(self, broker: SimulatedBroker, change: str, name: str) -> None:
        """Change a topic, if the broker has confirmed that it exists."""
        fact = self.topics[name].confirmed
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
        await changes[change](broker, name, fact)

    async def create(self, broker: SimulatedBroker, name: str) -> None:
        partitions = self.rng.choice((1, 1, 2))
        max_bytes = self.rng.randrange(10_000, 20_000)
        configs = {
            "internal.segment.bytes": str(self.rng.choice((300, 700, 2000))),
            "max.message.bytes": str(max_bytes),
        }
        if name == "trimmed":
            configs["retention.bytes"] = str(self.rng.choice((0, 500, 2000)))
        self.topics[name].add_possible(TopicFact(ANY_ID, partitions, max_bytes))
        error, topic_id = await broker.create_topic(name, partitions, configs)
        if error:
            self._check_error("change", name, -1, error)
        else:
            self.topics[name].confirm(TopicFact(topic_id, partitions, max_bytes))

    async def _delete(self, broker: SimulatedBroker, name: str, fact: TopicFact) -> None:
        self.topics[name].add_possible(None)
        error = await broker.delete_topic(name)
        if error:
            self._check_error("change", name, -1, error)
        else:
            self.topics[name].confirm(None)
            for group_partition in [
                group_partition for group_partition in self.offsets if group_partition[1] == name
            ]:
                del self.offsets[group_partition]

    async def _grow(self, broker: SimulatedBroker, name: str, fact: TopicFact) -> None:
        if fact.partitions >= 4:
            return
        grown = TopicFact(fact.id, fact.partitions + 1, fact.max_message_bytes)
        self.topics[name].add_possible(grown)
        error = await broker.create_partitions(name, grown.partitions)
        if error:
            self._check_error("change", name, -1, error)
        else:
            self.topics[name].confirm(grown)

    async def _configure(self, broker: SimulatedBroker, name: str, fact: TopicFact) -> None:
        changed = TopicFact(fact.id, fact.partitions, self.rng.randrange(10_000, 20_000))
        self.topics[name].add_possible(changed)
        error = await broker.set_config(name, "max.message.bytes", str(changed.max_message_bytes))
        if error:
            self._check_error("change", name, -1, error)
        else:
            self.topics[name].confirm(changed)

    async def _delete_records(self, broker: SimulatedBroker, name: str, fact: TopicFact) -> None:
        target = self.target_of(name, fact, self.rng.randrange(fact.partitions))
        start, end = await broker.range(name, target.partition)
        if end <= 0:
            return
        offset = self.rng.randint(max(start, 0), end)
        target.oracle.allow_start(offset)
        error, start = await broker.delete_records(name, target.partition, offset)
        if error:
            self._check_error("change", name, target.partition, error)
        else:
            target.oracle.promise_start(start)

    async def _join(self, broker: SimulatedBroker, name: str, fact: TopicFact) -> None:
        """Create a group. If there is no response, the group might exist, so each attempt uses another name."""
        self._joins += 1
        group = f"members-{self._joins}"
        error, member, generation = await broker.join(group, _SESSION_MS)
        if error:
            self._check_error("commit", name, -1, error)
        else:
            self.members[group] = (member, generation)

    async def _trim(self, broker: SimulatedBroker, name: str, fact: TopicFact) -> None:
        await broker.inner.trim()
