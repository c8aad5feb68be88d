"""Checks at every start of a simulated broker that everything that was acknowledged or delivered to clients exists."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from faults.simulation.facts import TopicFact
from faults.simulation.partition_oracle import Stored
from faults.simulation.producers import Target
from faults.simulation.requests import SimulatedBroker, TopicState

if TYPE_CHECKING:
    from faults.simulation.scene import Scene

__all__ = ["judge"]


async def judge(
    scene: Scene, broker: SimulatedBroker, *, checked_elsewhere: Collection[tuple[bytes, int]] = ()
) -> None:
    """Check everything except the partitions in ``checked_elsewhere``."""
    _judge_identity(scene, broker)
    topics_seen = await broker.topics()
    for name, possible_facts in scene.topics.items():
        fact: TopicFact | None = None
        if name in topics_seen:
            value = await broker.config(name, "max.message.bytes")
            fact = TopicFact(topics_seen[name].id, topics_seen[name].partitions, int(value or -1))
            _judge_epochs(scene, name, topics_seen[name], checked_elsewhere)
        possible = list(possible_facts.values)
        if not possible_facts.observe(fact):
            scene.findings.lost += 1
            scene.findings.report_problem(f"topic {name} is {fact}, but must be one of {possible}")
        if fact is None:
            for group_partition in [
                group_partition for group_partition in scene.offsets if group_partition[1] == name
            ]:
                del scene.offsets[group_partition]
            continue
        for partition in range(fact.partitions):
            if (fact.id, partition) not in checked_elsewhere:
                await _judge_partition(scene, broker, scene.target_of(name, fact, partition))
    for name in topics_seen:
        if name not in scene.topics:
            scene.findings.report_problem(f"topic {name} exists, but no client created it")
    for group_partition, offset in scene.offsets.items():
        committed = await broker.committed(*group_partition)
        offsets = list(offset.values)
        if not offset.observe(committed):
            scene.findings.lost += 1
            scene.findings.report_problem(
                f"{group_partition} has the offset {committed}, but must have one of {offsets}"
            )
    for group, member in scene.members.items():
        error = await broker.heartbeat(group, *member)
        if error:
            scene.findings.lost += 1
            scene.findings.report_problem(f"the member of {group} got error {error}")
    scene.may_lose_since = None
    scene.judged_epoch = scene.epoch


def _judge_identity(scene: Scene, broker: SimulatedBroker) -> None:
    if scene.cluster_id is None:
        scene.cluster_id = broker.inner.cluster_id
    elif scene.cluster_id != broker.inner.cluster_id:
        scene.findings.report_problem("the cluster has another id than before")


def _judge_epochs(
    scene: Scene, name: str, topic: TopicState, checked_elsewhere: Collection[tuple[bytes, int]]
) -> None:
    for partition, epoch in enumerate(topic.leader_epochs):
        if (topic.id, partition) in checked_elsewhere:
            continue
        if epoch < 0:
            scene.findings.report_problem(f"a partition of {name} is offline")
        elif epoch < scene.epoch:
            scene.findings.report_problem(f"{name} has epoch {epoch}, but had {scene.epoch} before")
        scene.epoch = max(epoch, scene.epoch)


async def _judge_partition(scene: Scene, broker: SimulatedBroker, target: Target) -> None:
    partition_name = f"{target.topic}-{target.partition}"
    fetched = await broker.read_all(target.topic, target.partition, scene.rng.choice((0, 500, 1 << 20)))
    if fetched.error or fetched.start < 0:
        scene.findings.report_problem(f"{partition_name} cannot be read, error {fetched.error}")
        return
    # After a start nothing is in flight, so a client finds everything that the broker has. Starts since the last check
    # may have written records of their own, to end transactions. These come after everything that the starts found.
    written = (batch.base for batch in fetched.batches if batch.epoch > scene.judged_epoch)
    target.oracle.check(
        fetched.batches,
        fetched.start,
        fetched.end,
        next(written, fetched.end),
        scene.machine.clock.steady(),
        may_lose_since=scene.may_lose_since,
    )
    await _judge_consumer(scene, broker, target, fetched.batches, fetched.start)
    scene.read_positions[target.key] = min(scene.read_positions.get(target.key, 0), fetched.end)


async def _judge_consumer(
    scene: Scene, broker: SimulatedBroker, target: Target, stored: list[Stored], start: int
) -> None:
    """Check that a consumer that queries the end offset of its last epoch keeps no record that the log has lost."""
    consumed_batches = scene.consumed.pop(target.key, [])
    if not consumed_batches:
        return
    epoch, end = await broker.end_offset_of_epoch(target.topic, target.partition, consumed_batches[-1].epoch)
    if epoch < 0:
        return
    kept_until = (
        consumed_batches[-1].next
        if epoch == consumed_batches[-1].epoch and end >= consumed_batches[-1].next
        else end
    )
    stored_bodies = {batch.base: batch.body for batch in stored}
    for batch in consumed_batches:
        if batch.next <= kept_until and batch.base >= start and stored_bodies.get(batch.base) != batch.body:
            scene.findings.report_problem(
                f"{target.topic}-{target.partition}: a consumer cannot detect that offset {batch.base} was lost"
            )
