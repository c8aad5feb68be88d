"""What must hold at every start of a simulated broker: everything that the scene's clients were told or given."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from bench.faults.sim_book import Stored
from bench.faults.sim_door import Door, TopicSeen
from bench.faults.sim_facts import TopicFact
from bench.faults.sim_writers import Target

if TYPE_CHECKING:
    from bench.faults.sim_scene import Scene

__all__ = ["judge"]


async def judge(scene: Scene, door: Door, *, but_not: Collection[tuple[bytes, int]] = ()) -> None:
    """``but_not``: partitions that are looked at otherwise."""
    _judge_identity(scene, door)
    seen = await door.topics()
    for name, known in scene.topics.items():
        fact: TopicFact | None = None
        if name in seen:
            value = await door.config(name, "max.message.bytes")
            fact = TopicFact(seen[name].id, seen[name].partitions, int(value or -1))
            _judge_epochs(scene, name, seen[name], but_not)
        possible = list(known.values)
        if not known.settle(fact):
            scene.objections.lost += 1
            scene.objections.object(f"topic {name} is {fact}, and could be {possible}")
        if fact is None:
            for place in [place for place in scene.offsets if place[1] == name]:
                del scene.offsets[place]
            continue
        for partition in range(fact.partitions):
            if (fact.id, partition) not in but_not:
                await _judge_partition(scene, door, scene.target_of(name, fact, partition))
    for name in seen:
        if name not in scene.topics:
            scene.objections.object(f"topic {name} is there, and nobody made it")
    for place, offset in scene.offsets.items():
        found = await door.committed(*place)
        offsets = list(offset.values)
        if not offset.settle(found):
            scene.objections.lost += 1
            scene.objections.object(f"{place} has the offset {found}, and could have {offsets}")
    for group, member in scene.members.items():
        error = await door.heartbeat(group, *member)
        if error:
            scene.objections.lost += 1
            scene.objections.object(f"the member of {group} is answered with error {error}")
    scene.may_lose_since = None
    scene.judged_epoch = scene.epoch


def _judge_identity(scene: Scene, door: Door) -> None:
    if scene.cluster_id is None:
        scene.cluster_id = door.broker.cluster_id
    elif scene.cluster_id != door.broker.cluster_id:
        scene.objections.object("the cluster has another id than before")


def _judge_epochs(scene: Scene, name: str, seen: TopicSeen, but_not: Collection[tuple[bytes, int]]) -> None:
    for partition, epoch in enumerate(seen.leader_epochs):
        if (seen.id, partition) in but_not:
            continue
        if epoch < 0:
            scene.objections.object(f"a partition of {name} is offline")
        elif epoch < scene.epoch:
            scene.objections.object(f"{name} has epoch {epoch}, and {scene.epoch} was there before")
        scene.epoch = max(epoch, scene.epoch)


async def _judge_partition(scene: Scene, door: Door, target: Target) -> None:
    where = f"{target.topic}-{target.partition}"
    found = await door.read_all(target.topic, target.partition, scene.rng.choice((0, 500, 1 << 20)))
    if found.error or found.start < 0:
        scene.objections.object(f"{where} cannot be read, error {found.error}")
        return
    # After a start nothing is under way, so a client finds as much as the broker has. What starts since the last one
    # that was judged have written by themselves, to end transactions, lies behind what they found.
    written = (one.base for one in found.batches if one.epoch > scene.judged_epoch)
    target.book.check(
        found.batches,
        found.start,
        found.end,
        next(written, found.end),
        scene.machine.clock.steady(),
        may_lose_since=scene.may_lose_since,
    )
    await _judge_trail(scene, door, target, found.batches, found.start)
    scene.read_to[target.key] = min(scene.read_to.get(target.key, 0), found.end)


async def _judge_trail(scene: Scene, door: Door, target: Target, stored: list[Stored], start: int) -> None:
    """A consumer that asks how far its last epoch reached keeps nothing that the log has lost."""
    trail = scene.trails.pop(target.key, [])
    if not trail:
        return
    epoch, end = await door.end_of_epoch(target.topic, target.partition, trail[-1].epoch)
    if epoch < 0:
        return
    keeps = trail[-1].next if epoch == trail[-1].epoch and end >= trail[-1].next else end
    now = {one.base: one.body for one in stored}
    for one in trail:
        if one.next <= keeps and one.base >= start and now.get(one.base) != one.body:
            scene.objections.object(
                f"{target.topic}-{target.partition}: a consumer is not told that offset {one.base} was lost"
            )
