from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from headrace.broker.refusal import Refusal
from headrace.broker.topics.broker_configs import Scope
from headrace.broker.topics.catalog import ConfigChange
from headrace.broker.topics.new_topic import Growth, NewTopic
from headrace.broker.topics.topic import RESERVED_IDS, Topic
from headrace.errors import DamagedState
from headrace.wire.codes import ErrorCode

from .broker_calls import CatalogHarness, MemoryJournal


async def create(harness: CatalogHarness, *names: str, partitions: int = 1, **configs: str) -> list[Topic]:
    dotted = {name.replace("_", "."): value for name, value in configs.items()}
    results = await harness.catalog.create([NewTopic(name, partitions, configs=dotted) for name in names])
    assert all(isinstance(result, Topic) for result in results), results
    return [result for result in results if isinstance(result, Topic)]


def set_configs(**configs: str) -> ConfigChange:
    dotted = {name.replace("_", "."): value for name, value in configs.items()}

    def change(current: Mapping[str, str]) -> Mapping[str, str]:
        return dotted

    return change


def codes(results: list[Topic | Refusal]) -> list[ErrorCode]:
    return [r.error_code if isinstance(r, Refusal) else ErrorCode.NONE for r in results]


# Identity


async def test_a_topic_is_found_by_name_and_by_id(harness: CatalogHarness) -> None:
    (topic,) = await create(harness, "orders", partitions=3, retention_ms="5")
    assert harness.catalog.topic("orders") is harness.catalog.topic_by_id(topic.id) is topic
    assert (topic.partitions, dict(topic.configs)) == (3, {"retention.ms": "5"})
    assert topic.id not in RESERVED_IDS


async def test_a_topic_created_again_is_another_topic(harness: CatalogHarness) -> None:
    (first,) = await create(harness, "orders", retention_ms="5")
    await harness.catalog.delete([first.id])
    assert harness.catalog.topic("orders") is None
    (second,) = await create(harness, "orders")
    assert second.id != first.id
    assert second.configs == {}
    assert harness.catalog.topic_by_id(first.id) is None


async def test_topics_keep_their_ids_after_a_restart(harness: CatalogHarness) -> None:
    before = await create(harness, "b", "a", partitions=2, retention_ms="7")
    await harness.catalog.grow([Growth("a", 5)])
    await harness.catalog.alter_topics([("b", set_configs(segment_ms="9"))])
    await harness.catalog.alter_broker([(Scope.CLUSTER, set_configs(log_retention_ms="11"))])
    after = harness.reload()
    assert [topic.name for topic in after.topics()] == ["a", "b"]
    assert {topic.id for topic in after.topics()} == {topic.id for topic in before}
    a, b = after.topics()
    assert (a.partitions, dict(a.configs)) == (5, {"retention.ms": "7"})
    assert (b.partitions, dict(b.configs)) == (2, {"segment.ms": "9"})
    assert after.log_config(b).retention_ms == 11
    assert b.created_ms == next(topic.created_ms for topic in before if topic.name == "b")


async def test_topic_names_that_differ_in_case_are_different_topics(harness: CatalogHarness) -> None:
    await create(harness, "orders", "Orders", "ORDERS")
    assert len(harness.catalog.topics()) == 3


async def test_a_colliding_name_is_refused_also_within_one_request_and_after_a_restart(
    harness: CatalogHarness,
) -> None:
    await create(harness, "a.b")
    assert codes(await harness.catalog.create([NewTopic("a_b")])) == [ErrorCode.INVALID_TOPIC_EXCEPTION]
    harness.reload()
    assert codes(await harness.catalog.create([NewTopic("a_b")])) == [ErrorCode.INVALID_TOPIC_EXCEPTION]
    results = await harness.catalog.create([NewTopic("c_d"), NewTopic("c.d")])
    assert codes(results) == [ErrorCode.NONE, ErrorCode.INVALID_TOPIC_EXCEPTION]


async def test_a_name_is_free_after_the_topic_that_it_collided_with_is_deleted(
    harness: CatalogHarness,
) -> None:
    (topic,) = await create(harness, "a.b")
    await harness.catalog.delete([topic.id])
    await create(harness, "a_b")


# One change at a time, durable first


async def test_a_topic_is_written_before_its_files_are_created_and_published_after(
    harness: CatalogHarness,
) -> None:
    states_at_open = []

    def record_state(topic: Topic) -> None:
        states_at_open.append((len(harness.journal.durable), harness.catalog.topic(topic.name)))

    harness.partitions.before_open = record_state
    await create(harness, "orders")
    assert states_at_open == [(1, None)]
    assert harness.catalog.topic("orders") is not None


async def test_a_deletion_is_written_before_the_files_are_removed(harness: CatalogHarness) -> None:
    (topic,) = await create(harness, "orders")
    harness.journal.fails = True
    assert codes(await harness.catalog.delete([topic.id])) == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert harness.partitions.calls == ["open orders"]
    assert harness.catalog.topic("orders") is topic


async def test_a_name_is_free_only_when_its_topic_is_removed_completely(harness: CatalogHarness) -> None:
    (topic,) = await create(harness, "orders")
    order = []

    async def forget(topic: Topic) -> None:
        await asyncio.sleep(0.01)
        order.append(f"forgot {topic.name}")

    async def create_again() -> None:
        await asyncio.sleep(0)
        await create(harness, "orders")
        order.append("created again")

    await asyncio.gather(harness.catalog.delete([topic.id], after_removal=forget), create_again())
    assert order == ["forgot orders", "created again"]


async def test_one_of_many_concurrent_creations_of_a_topic_succeeds(harness: CatalogHarness) -> None:
    results = await asyncio.gather(*(harness.catalog.create([NewTopic("orders")]) for _ in range(20)))
    outcomes = [code for result in results for code in codes(result)]
    assert sorted(outcomes) == [ErrorCode.NONE] + [ErrorCode.TOPIC_ALREADY_EXISTS] * 19
    assert len(harness.journal.durable) == 1


async def test_a_request_with_many_topics_is_one_journal_write(harness: CatalogHarness) -> None:
    await create(harness, *(f"topic-{n}" for n in range(50)))
    assert [len(entries) for entries in harness.journal.written] == [50]


async def test_a_change_is_completed_although_its_client_disconnects(harness: CatalogHarness) -> None:
    creation = asyncio.ensure_future(harness.catalog.create([NewTopic("orders")]))
    await asyncio.sleep(0)
    creation.cancel()
    await asyncio.wait([creation])
    await harness.catalog.settle()
    assert harness.catalog.topic("orders") is not None
    assert list(harness.partitions.open.values()) == [1]


async def test_a_failed_write_changes_nothing_and_is_an_error(harness: CatalogHarness) -> None:
    (topic,) = await create(harness, "orders")
    version = harness.catalog.version
    harness.journal.fails = True
    storage = [ErrorCode.KAFKA_STORAGE_ERROR]
    assert codes(await harness.catalog.create([NewTopic("more")])) == storage
    assert codes(await harness.catalog.grow([Growth("orders", 2)])) == storage
    assert codes(await harness.catalog.alter_topics([("orders", set_configs(retention_ms="1"))])) == storage
    (layer,) = await harness.catalog.alter_broker([(Scope.NODE, set_configs(log_retention_ms="1"))])
    assert isinstance(layer, Refusal)
    assert harness.catalog.topics() == [topic]
    assert harness.catalog.version == version
    assert harness.catalog.configs.node == {}
    assert harness.reload().topics() == [topic]


async def test_a_topic_whose_files_cannot_be_created_exists_all_the_same(harness: CatalogHarness) -> None:
    """The topic is in the journal, so the next start creates the files. Until then the topic must be visible."""
    harness.partitions.open_fails = OSError(28, "No space left on device")
    assert codes(await harness.catalog.create([NewTopic("orders")])) == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert harness.catalog.topic("orders") is not None
    assert harness.reload().topic("orders") is not None


async def test_an_error_in_one_topic_does_not_leave_the_others_incomplete(harness: CatalogHarness) -> None:
    harness.partitions.open_fails = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        await harness.catalog.create([NewTopic("a"), NewTopic("b")])
    assert [topic.name for topic in harness.catalog.topics()] == ["a", "b"]


async def test_a_snapshot_during_a_change_loses_nothing(harness: CatalogHarness) -> None:
    """The journal may write a snapshot after it has the entry of a topic but before the catalog shows the topic."""
    harness.partitions.before_open = lambda topic: harness.journal.write_snapshot()
    await create(harness, "a", "b")
    assert [topic.name for topic in harness.reload().topics()] == ["a", "b"]


async def test_validation_alone_changes_nothing(harness: CatalogHarness) -> None:
    (topic,) = await create(harness, "orders")
    catalog = harness.catalog
    assert codes(await catalog.create([NewTopic("more")], validate_only=True)) == [ErrorCode.NONE]
    assert codes(await catalog.create([NewTopic("orders")], validate_only=True)) == [
        ErrorCode.TOPIC_ALREADY_EXISTS
    ]
    assert codes(await catalog.grow([Growth("orders", 9)], validate_only=True)) == [ErrorCode.NONE]
    assert codes(
        await catalog.alter_topics([("orders", set_configs(retention_ms="1"))], validate_only=True)
    ) == [ErrorCode.NONE]
    assert not isinstance(
        (await catalog.alter_broker([(Scope.NODE, set_configs(log_retention_ms="1"))], validate_only=True))[
            0
        ],
        Refusal,
    )
    assert len(harness.journal.written) == 1
    assert catalog.topics() == [topic]


# Configuration reaches the partitions


async def test_a_new_topic_configuration_reaches_its_partitions(harness: CatalogHarness) -> None:
    (topic,) = await create(harness, "orders", retention_ms="5")
    assert harness.partitions.configs[topic.id].retention_ms == 5
    await harness.catalog.alter_topics([("orders", set_configs(retention_ms="6"))])
    assert harness.partitions.configs[topic.id].retention_ms == 6


async def test_a_new_default_reaches_only_the_partitions_that_use_it(harness: CatalogHarness) -> None:
    with_override, other = await create(harness, "own", retention_ms="5") + await create(harness, "other")
    harness.partitions.calls.clear()
    await harness.catalog.alter_broker([(Scope.CLUSTER, set_configs(log_retention_ms="8"))])
    assert harness.partitions.calls == ["reconfigure other"]
    assert harness.partitions.configs[other.id].retention_ms == 8
    assert harness.catalog.log_config(with_override).retention_ms == 5


async def test_min_insync_replicas_follows_topic_and_broker(harness: CatalogHarness) -> None:
    (topic,) = await create(harness, "orders")
    assert harness.catalog.log_config(topic).min_insync_replicas == 1
    await harness.catalog.alter_broker([(Scope.NODE, set_configs(min_insync_replicas="2"))])
    assert harness.catalog.log_config(topic).min_insync_replicas == 2
    await harness.catalog.alter_topics([("orders", set_configs(min_insync_replicas="3"))])
    now = harness.catalog.topic("orders")
    assert now is not None
    assert harness.catalog.log_config(now).min_insync_replicas == 3


# Limits


async def test_the_number_of_topics_is_limited() -> None:
    harness = CatalogHarness(topics_max=2)
    results = await harness.catalog.create([NewTopic(name) for name in "abc"])
    assert codes(results) == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.POLICY_VIOLATION]
    (first, _) = harness.catalog.topics()
    await harness.catalog.delete([first.id])
    await create(harness, "d")


async def test_the_number_of_partitions_of_a_topic_is_limited() -> None:
    harness = CatalogHarness(partitions_per_topic_max=4)
    results = await harness.catalog.create([NewTopic("a", 4), NewTopic("b", 5)])
    assert codes(results) == [ErrorCode.NONE, ErrorCode.INVALID_PARTITIONS]
    assert codes(await harness.catalog.grow([Growth("a", 5)])) == [ErrorCode.INVALID_PARTITIONS]


async def test_the_number_of_all_partitions_is_limited() -> None:
    harness = CatalogHarness(partitions_max=5)
    results = await harness.catalog.create([NewTopic("a", 3), NewTopic("b", 3), NewTopic("c", 2)])
    assert codes(results) == [ErrorCode.NONE, ErrorCode.POLICY_VIOLATION, ErrorCode.NONE]
    assert codes(await harness.catalog.grow([Growth("a", 4)])) == [ErrorCode.POLICY_VIOLATION]
    harness.reload()
    assert codes(await harness.catalog.grow([Growth("a", 4)])) == [ErrorCode.POLICY_VIOLATION]


async def test_topics_that_grow_in_one_request_share_the_limit() -> None:
    harness = CatalogHarness(partitions_max=5)
    await create(harness, "a", "b", "c")
    results = await harness.catalog.grow([Growth("a", 3), Growth("b", 2)])
    assert codes(results) == [ErrorCode.NONE, ErrorCode.POLICY_VIOLATION]


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
def test_the_broker_refuses_to_start_with_an_invalid_journal_entry(raw: bytes) -> None:
    harness = CatalogHarness()
    harness.journal = MemoryJournal([raw])
    with pytest.raises(DamagedState):
        harness.reload()


async def test_the_broker_refuses_to_start_with_two_topics_of_the_same_name(harness: CatalogHarness) -> None:
    await create(harness, "orders")
    other = CatalogHarness()
    await create(other, "orders")
    harness.journal.durable += other.journal.durable
    with pytest.raises(DamagedState, match="orders"):
        harness.reload()
