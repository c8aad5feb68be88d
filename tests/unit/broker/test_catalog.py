from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from headrace.broker.broker_configs import Scope
from headrace.broker.catalog import ConfigChange
from headrace.broker.new_topic import Growth, NewTopic
from headrace.broker.refusal import Refusal
from headrace.broker.topic import RESERVED_IDS, Topic
from headrace.errors import DamagedState
from headrace.wire.codes import ErrorCode

from .desk import CatalogDesk, MemoryJournal


async def create(desk: CatalogDesk, *names: str, partitions: int = 1, **configs: str) -> list[Topic]:
    dotted = {name.replace("_", "."): value for name, value in configs.items()}
    results = await desk.catalog.create([NewTopic(name, partitions, configs=dotted) for name in names])
    assert all(isinstance(result, Topic) for result in results), results
    return [result for result in results if isinstance(result, Topic)]


def to(**configs: str) -> ConfigChange:
    dotted = {name.replace("_", "."): value for name, value in configs.items()}

    def change(current: Mapping[str, str]) -> Mapping[str, str]:
        return dotted

    return change


def codes(results: list[Topic | Refusal]) -> list[ErrorCode]:
    return [r.error_code if isinstance(r, Refusal) else ErrorCode.NONE for r in results]


# Identity


async def test_a_topic_is_found_by_name_and_by_id(desk: CatalogDesk) -> None:
    (topic,) = await create(desk, "orders", partitions=3, retention_ms="5")
    assert desk.catalog.topic("orders") is desk.catalog.topic_by_id(topic.id) is topic
    assert (topic.partitions, dict(topic.configs)) == (3, {"retention.ms": "5"})
    assert topic.id not in RESERVED_IDS


async def test_a_topic_created_again_is_another_topic(desk: CatalogDesk) -> None:
    (first,) = await create(desk, "orders", retention_ms="5")
    await desk.catalog.delete([first.id])
    assert desk.catalog.topic("orders") is None
    (second,) = await create(desk, "orders")
    assert second.id != first.id
    assert second.configs == {}
    assert desk.catalog.topic_by_id(first.id) is None


async def test_topics_come_back_with_their_ids(desk: CatalogDesk) -> None:
    before = await create(desk, "b", "a", partitions=2, retention_ms="7")
    await desk.catalog.grow([Growth("a", 5)])
    await desk.catalog.alter_topics([("b", to(segment_ms="9"))])
    await desk.catalog.alter_broker([(Scope.CLUSTER, to(log_retention_ms="11"))])
    after = desk.reload()
    assert [topic.name for topic in after.topics()] == ["a", "b"]
    assert {topic.id for topic in after.topics()} == {topic.id for topic in before}
    a, b = after.topics()
    assert (a.partitions, dict(a.configs)) == (5, {"retention.ms": "7"})
    assert (b.partitions, dict(b.configs)) == (2, {"segment.ms": "9"})
    assert after.log_config(b).retention_ms == 11
    assert b.created_ms == next(topic.created_ms for topic in before if topic.name == "b")


async def test_case_twins_are_two_topics(desk: CatalogDesk) -> None:
    await create(desk, "orders", "Orders", "ORDERS")
    assert len(desk.catalog.topics()) == 3


async def test_a_dot_twin_is_refused_also_within_one_request_and_after_a_restart(desk: CatalogDesk) -> None:
    await create(desk, "a.b")
    assert codes(await desk.catalog.create([NewTopic("a_b")])) == [ErrorCode.INVALID_TOPIC_EXCEPTION]
    desk.reload()
    assert codes(await desk.catalog.create([NewTopic("a_b")])) == [ErrorCode.INVALID_TOPIC_EXCEPTION]
    pair = await desk.catalog.create([NewTopic("c_d"), NewTopic("c.d")])
    assert codes(pair) == [ErrorCode.NONE, ErrorCode.INVALID_TOPIC_EXCEPTION]


async def test_the_name_of_a_deleted_dot_twin_is_free(desk: CatalogDesk) -> None:
    (topic,) = await create(desk, "a.b")
    await desk.catalog.delete([topic.id])
    await create(desk, "a_b")


# One change at a time, durable first


async def test_a_topic_is_written_before_its_files_are_made_and_shown_after(desk: CatalogDesk) -> None:
    seen = []

    def look(topic: Topic) -> None:
        seen.append((len(desk.journal.durable), desk.catalog.topic(topic.name)))

    desk.partitions.before_open = look
    await create(desk, "orders")
    assert seen == [(1, None)]
    assert desk.catalog.topic("orders") is not None


async def test_a_deletion_is_written_before_the_files_are_removed(desk: CatalogDesk) -> None:
    (topic,) = await create(desk, "orders")
    desk.journal.fails = True
    assert codes(await desk.catalog.delete([topic.id])) == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert desk.partitions.asked == ["open orders"]
    assert desk.catalog.topic("orders") is topic


async def test_a_name_is_free_only_when_all_that_hangs_on_it_is_gone(desk: CatalogDesk) -> None:
    (topic,) = await create(desk, "orders")
    order = []

    async def forget(gone: Topic) -> None:
        await asyncio.sleep(0.01)
        order.append(f"forgot {gone.name}")

    async def create_again() -> None:
        await asyncio.sleep(0)
        await create(desk, "orders")
        order.append("created again")

    await asyncio.gather(desk.catalog.delete([topic.id], and_then=forget), create_again())
    assert order == ["forgot orders", "created again"]


async def test_of_many_who_create_the_same_topic_one_succeeds(desk: CatalogDesk) -> None:
    results = await asyncio.gather(*(desk.catalog.create([NewTopic("orders")]) for _ in range(20)))
    outcomes = [code for result in results for code in codes(result)]
    assert sorted(outcomes) == [ErrorCode.NONE] + [ErrorCode.TOPIC_ALREADY_EXISTS] * 19
    assert len(desk.journal.durable) == 1


async def test_a_request_of_many_topics_is_one_write(desk: CatalogDesk) -> None:
    await create(desk, *(f"topic-{n}" for n in range(50)))
    assert [len(entries) for entries in desk.journal.written] == [50]


async def test_a_change_whose_asker_goes_away_is_finished(desk: CatalogDesk) -> None:
    asker = asyncio.ensure_future(desk.catalog.create([NewTopic("orders")]))
    await asyncio.sleep(0)
    asker.cancel()
    await asyncio.wait([asker])
    await desk.catalog.settle()
    assert desk.catalog.topic("orders") is not None
    assert list(desk.partitions.open.values()) == [1]


async def test_a_failed_write_changes_nothing_and_says_so(desk: CatalogDesk) -> None:
    (topic,) = await create(desk, "orders")
    version = desk.catalog.version
    desk.journal.fails = True
    storage = [ErrorCode.KAFKA_STORAGE_ERROR]
    assert codes(await desk.catalog.create([NewTopic("more")])) == storage
    assert codes(await desk.catalog.grow([Growth("orders", 2)])) == storage
    assert codes(await desk.catalog.alter_topics([("orders", to(retention_ms="1"))])) == storage
    (layer,) = await desk.catalog.alter_broker([(Scope.NODE, to(log_retention_ms="1"))])
    assert isinstance(layer, Refusal)
    assert desk.catalog.topics() == [topic]
    assert desk.catalog.version == version
    assert desk.catalog.configs.node == {}
    assert desk.reload().topics() == [topic]


async def test_a_topic_whose_files_cannot_be_made_is_there_all_the_same(desk: CatalogDesk) -> None:
    """It is written, so the next start makes the files; to hide it until then would be to lie."""
    desk.partitions.open_fails = OSError(28, "No space left on device")
    assert codes(await desk.catalog.create([NewTopic("orders")])) == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert desk.catalog.topic("orders") is not None
    assert desk.reload().topic("orders") is not None


async def test_a_mistake_in_one_topic_does_not_leave_the_others_half_done(desk: CatalogDesk) -> None:
    desk.partitions.open_fails = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        await desk.catalog.create([NewTopic("a"), NewTopic("b")])
    assert [topic.name for topic in desk.catalog.topics()] == ["a", "b"]


async def test_a_snapshot_during_a_change_forgets_nothing(desk: CatalogDesk) -> None:
    """The journal may replace its past while a topic is written but not shown yet."""
    desk.partitions.before_open = lambda topic: desk.journal.replace_past()
    await create(desk, "a", "b")
    assert [topic.name for topic in desk.reload().topics()] == ["a", "b"]


async def test_validation_alone_changes_nothing(desk: CatalogDesk) -> None:
    (topic,) = await create(desk, "orders")
    catalog = desk.catalog
    assert codes(await catalog.create([NewTopic("more")], validate_only=True)) == [ErrorCode.NONE]
    assert codes(await catalog.create([NewTopic("orders")], validate_only=True)) == [
        ErrorCode.TOPIC_ALREADY_EXISTS
    ]
    assert codes(await catalog.grow([Growth("orders", 9)], validate_only=True)) == [ErrorCode.NONE]
    assert codes(await catalog.alter_topics([("orders", to(retention_ms="1"))], validate_only=True)) == [
        ErrorCode.NONE
    ]
    assert not isinstance(
        (await catalog.alter_broker([(Scope.NODE, to(log_retention_ms="1"))], validate_only=True))[0], Refusal
    )
    assert len(desk.journal.written) == 1
    assert catalog.topics() == [topic]


# Configuration reaches the partitions


async def test_partitions_are_told_of_their_topics_new_configuration(desk: CatalogDesk) -> None:
    (topic,) = await create(desk, "orders", retention_ms="5")
    assert desk.partitions.configs[topic.id].retention_ms == 5
    await desk.catalog.alter_topics([("orders", to(retention_ms="6"))])
    assert desk.partitions.configs[topic.id].retention_ms == 6


async def test_only_partitions_that_go_by_it_are_told_of_a_new_default(desk: CatalogDesk) -> None:
    own, other = await create(desk, "own", retention_ms="5") + await create(desk, "other")
    desk.partitions.asked.clear()
    await desk.catalog.alter_broker([(Scope.CLUSTER, to(log_retention_ms="8"))])
    assert desk.partitions.asked == ["reconfigure other"]
    assert desk.partitions.configs[other.id].retention_ms == 8
    assert desk.catalog.log_config(own).retention_ms == 5


async def test_the_number_of_replicas_asked_for_follows_topic_and_broker(desk: CatalogDesk) -> None:
    (topic,) = await create(desk, "orders")
    assert desk.catalog.min_insync_replicas(topic) == 1
    await desk.catalog.alter_broker([(Scope.NODE, to(min_insync_replicas="2"))])
    assert desk.catalog.min_insync_replicas(topic) == 2
    await desk.catalog.alter_topics([("orders", to(min_insync_replicas="3"))])
    now = desk.catalog.topic("orders")
    assert now is not None
    assert desk.catalog.min_insync_replicas(now) == 3


# Limits


async def test_there_is_a_limit_of_topics() -> None:
    desk = CatalogDesk(topics_max=2)
    results = await desk.catalog.create([NewTopic(name) for name in "abc"])
    assert codes(results) == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.POLICY_VIOLATION]
    (first, _) = desk.catalog.topics()
    await desk.catalog.delete([first.id])
    await create(desk, "d")


async def test_there_is_a_limit_of_partitions_of_one_topic() -> None:
    desk = CatalogDesk(partitions_per_topic_max=4)
    results = await desk.catalog.create([NewTopic("a", 4), NewTopic("b", 5)])
    assert codes(results) == [ErrorCode.NONE, ErrorCode.INVALID_PARTITIONS]
    assert codes(await desk.catalog.grow([Growth("a", 5)])) == [ErrorCode.INVALID_PARTITIONS]


async def test_there_is_a_limit_of_partitions_in_all() -> None:
    desk = CatalogDesk(partitions_max=5)
    results = await desk.catalog.create([NewTopic("a", 3), NewTopic("b", 3), NewTopic("c", 2)])
    assert codes(results) == [ErrorCode.NONE, ErrorCode.POLICY_VIOLATION, ErrorCode.NONE]
    assert codes(await desk.catalog.grow([Growth("a", 4)])) == [ErrorCode.POLICY_VIOLATION]
    desk.reload()
    assert codes(await desk.catalog.grow([Growth("a", 4)])) == [ErrorCode.POLICY_VIOLATION]


async def test_topics_that_grow_in_one_request_share_the_limit() -> None:
    desk = CatalogDesk(partitions_max=5)
    await create(desk, "a", "b", "c")
    grown = await desk.catalog.grow([Growth("a", 3), Growth("b", 2)])
    assert codes(grown) == [ErrorCode.NONE, ErrorCode.POLICY_VIOLATION]


# Damage


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{}",
        b'{"kind":"topic"}',
        b'{"kind":"nobody knows"}',
        b"\xff" * 20,
        b"[" * 5000,
        b'{"kind":"topic","id":"00000000000000000000000000000000","name":"a","partitions":1,"created_ms":1,"configs":{}}',
        b'{"kind":"topic","id":"00000000000000000000000000000001","name":"a","partitions":1,"created_ms":1,"configs":{}}',
        b'{"kind":"topic","id":"11111111111111111111111111111111","name":"../a","partitions":1,"created_ms":1,"configs":{}}',
        b'{"kind":"topic","id":"11111111111111111111111111111111","name":"a","partitions":0,"created_ms":1,"configs":{}}',
        b'{"kind":"topic","id":"../../../../../../etc","name":"a","partitions":1,"created_ms":1,"configs":{}}',
        b'{"kind":"topic","id":"11111111111111111111111111111111","name":"a","partitions":1,"created_ms":1,"configs":{"x":"y"}}',
        b'{"kind":"topic","id":"11111111111111111111111111111111","name":"a","partitions":1,"created_ms":1,"configs":{},"new":1}',
        b'{"kind":"topic-gone","id":"1"}',
        b'{"kind":"broker-configs","scope":"moon","configs":{}}',
        b'{"kind":"broker-configs","scope":"node","configs":{"log.retention.ms":"soon"}}',
    ],
)
def test_a_catalog_that_does_not_read_back_refuses_to_start(raw: bytes) -> None:
    desk = CatalogDesk()
    desk.journal = MemoryJournal([raw])
    with pytest.raises(DamagedState):
        desk.reload()


async def test_two_topics_of_one_name_refuse_to_start(desk: CatalogDesk) -> None:
    await create(desk, "orders")
    other = CatalogDesk()
    await create(other, "orders")
    desk.journal.durable += other.journal.durable
    with pytest.raises(DamagedState, match="orders"):
        desk.reload()
