"""Administration of groups: list, describe, change offsets, delete."""

from __future__ import annotations

from collections.abc import Callable

from faults.clients import Client, Record
from faults.clients.port import refusal, wait_for
from faults.servers.server import Server
from faults.wait import until
from tests.wire.client_choice import clients_that_can

Fresh = Callable[[str], str]


def create_filled_topic(client: Client, cluster: Server, topic: str) -> None:
    client.admin(cluster.bootstrap).create_topic(topic, partitions=2)
    client.produce(cluster.bootstrap, topic, [Record(b"v", partition=n % 2) for n in range(20)])


def test_a_group_is_listed_and_described_with_and_without_members(
    cluster: Server, client: Client, fresh: Fresh
) -> None:
    topic, group = fresh("t"), fresh("g")
    create_filled_topic(client, cluster, topic)
    admin = client.admin(cluster.bootstrap)
    assert group not in admin.groups()
    with client.consumer(cluster.bootstrap, group) as consumer:
        consumer.subscribe(topic)
        wait_for(lambda: len(consumer.held) == 2, [consumer])
        assert group in admin.groups()
        living = admin.describe_group(group)
        consumer.commit({(topic, 0): 5, (topic, 1): 6})
    assert living == {
        "state": "Stable",
        "assignor": "range",
        "members": [("wire", [(topic, 0), (topic, 1)])],
    }
    assert admin.describe_group(group) == {"state": "Empty", "assignor": "", "members": []}
    assert admin.group_offsets(group) == {(topic, 0): 5, (topic, 1): 6}


@clients_that_can("group_admin")
def test_offsets_are_changed_only_in_a_group_without_members(
    cluster: Server, client: Client, fresh: Fresh
) -> None:
    topic, group = fresh("t"), fresh("g")
    create_filled_topic(client, cluster, topic)
    admin = client.admin(cluster.bootstrap)
    with client.consumer(cluster.bootstrap, group) as consumer:
        consumer.subscribe(topic)
        consumer.take(20)
        consumer.commit()
        assert refusal(admin.alter_group_offsets, group, {(topic, 0): 3}) == 25
    admin.alter_group_offsets(group, {(topic, 0): 3})
    assert admin.group_offsets(group) == {(topic, 0): 3, (topic, 1): 10}
    with client.consumer(cluster.bootstrap, group) as consumer:
        consumer.subscribe(topic)
        assert sorted((record.partition, record.offset) for record in consumer.take(7)) == [
            (0, n) for n in range(3, 10)
        ]


@clients_that_can("group_admin")
def test_a_group_without_members_is_deleted_and_one_with_members_is_not(
    cluster: Server, client: Client, fresh: Fresh
) -> None:
    topic, group = fresh("t"), fresh("g")
    create_filled_topic(client, cluster, topic)
    admin = client.admin(cluster.bootstrap)
    with client.consumer(cluster.bootstrap, group) as consumer:
        consumer.subscribe(topic)
        consumer.take(20)
        consumer.commit()
        assert refusal(admin.delete_group, group) == 68
    admin.delete_group(group)
    assert group not in admin.groups()
    assert refusal(admin.delete_group, group) == 69
    # Its offsets were deleted too: a new group of that name starts again.
    with client.consumer(cluster.bootstrap, group) as consumer:
        consumer.subscribe(topic)
        assert len(consumer.take(20)) == 20


@clients_that_can("delete_group_offsets")
def test_offsets_of_a_topic_that_a_member_reads_cannot_be_deleted(
    cluster: Server, client: Client, fresh: Fresh
) -> None:
    topic, group = fresh("t"), fresh("g")
    create_filled_topic(client, cluster, topic)
    admin = client.admin(cluster.bootstrap)
    with client.consumer(cluster.bootstrap, group) as consumer:
        consumer.subscribe(topic)
        consumer.take(20)
        consumer.commit()
        assert refusal(admin.delete_group_offsets, group, (topic, 0)) == 86
    admin.delete_group_offsets(group, (topic, 0))
    assert admin.group_offsets(group) == {(topic, 1): 10}
    assert refusal(admin.delete_group_offsets, fresh("nobody"), (topic, 0)) == 69


def test_a_consumer_that_is_not_a_member_can_commit(cluster: Server, client: Client, fresh: Fresh) -> None:
    topic, group = fresh("t"), fresh("g")
    create_filled_topic(client, cluster, topic)
    with client.consumer(cluster.bootstrap, group) as consumer:
        consumer.assign({(topic, 0): 0, (topic, 1): 0})
        consumer.take(20)
        consumer.commit({(topic, 0): 4})
        assert consumer.committed((topic, 0), (topic, 1)) == {(topic, 0): 4, (topic, 1): None}
    admin = client.admin(cluster.bootstrap)
    assert admin.group_offsets(group) == {(topic, 0): 4}
    assert admin.describe_group(group)["state"] == "Empty"


def test_offsets_of_a_deleted_topic_are_deleted(cluster: Server, client: Client, fresh: Fresh) -> None:
    kept, doomed, group = fresh("kept"), fresh("doomed"), fresh("g")
    for topic in (kept, doomed):
        create_filled_topic(client, cluster, topic)
    admin = client.admin(cluster.bootstrap)
    with client.consumer(cluster.bootstrap, group) as consumer:
        consumer.assign({(kept, 0): 0, (doomed, 0): 0})
        consumer.take(20)
        consumer.commit({(kept, 0): 4, (doomed, 0): 4})
    admin.delete_topic(doomed)
    until(lambda: admin.group_offsets(group) == {(kept, 0): 4}, "the offsets of the deleted topic are gone")
