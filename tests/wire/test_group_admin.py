"""Groups from outside: listed, described, moved, deleted."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.clients import Client, Record
from tests.support.clients.face import wait_for
from tests.support.refused import refusal
from tests.support.server import Server
from tests.support.waiting import until
from tests.wire.having import clients_that_can

Fresh = Callable[[str], str]


def filled(client: Client, cluster: Server, topic: str) -> None:
    client.admin(cluster.bootstrap).create_topic(topic, partitions=2)
    client.produce(cluster.bootstrap, topic, [Record(b"v", partition=n % 2) for n in range(20)])


def test_a_group_is_listed_and_described_while_it_lives_and_after(
    cluster: Server, client: Client, fresh: Fresh
) -> None:
    topic, group = fresh("t"), fresh("g")
    filled(client, cluster, topic)
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
def test_offsets_are_moved_only_while_nobody_is_at_work(
    cluster: Server, client: Client, fresh: Fresh
) -> None:
    topic, group = fresh("t"), fresh("g")
    filled(client, cluster, topic)
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
        assert sorted((one.partition, one.offset) for one in consumer.take(7)) == [
            (0, n) for n in range(3, 10)
        ]


@clients_that_can("group_admin")
def test_a_group_without_members_is_deleted_and_one_with_members_is_not(
    cluster: Server, client: Client, fresh: Fresh
) -> None:
    topic, group = fresh("t"), fresh("g")
    filled(client, cluster, topic)
    admin = client.admin(cluster.bootstrap)
    with client.consumer(cluster.bootstrap, group) as consumer:
        consumer.subscribe(topic)
        consumer.take(20)
        consumer.commit()
        assert refusal(admin.delete_group, group) == 68
    admin.delete_group(group)
    assert group not in admin.groups()
    assert refusal(admin.delete_group, group) == 69
    # Its offsets went with it: a group of that name starts anew.
    with client.consumer(cluster.bootstrap, group) as consumer:
        consumer.subscribe(topic)
        assert len(consumer.take(20)) == 20


@clients_that_can("delete_group_offsets")
def test_offsets_of_a_topic_that_a_member_reads_cannot_be_deleted(
    cluster: Server, client: Client, fresh: Fresh
) -> None:
    topic, group = fresh("t"), fresh("g")
    filled(client, cluster, topic)
    admin = client.admin(cluster.bootstrap)
    with client.consumer(cluster.bootstrap, group) as consumer:
        consumer.subscribe(topic)
        consumer.take(20)
        consumer.commit()
        assert refusal(admin.delete_group_offsets, group, (topic, 0)) == 86
    admin.delete_group_offsets(group, (topic, 0))
    assert admin.group_offsets(group) == {(topic, 1): 10}
    assert refusal(admin.delete_group_offsets, fresh("nobody"), (topic, 0)) == 69


def test_a_group_can_commit_without_ever_joining(cluster: Server, client: Client, fresh: Fresh) -> None:
    topic, group = fresh("t"), fresh("g")
    filled(client, cluster, topic)
    with client.consumer(cluster.bootstrap, group) as consumer:
        consumer.assign({(topic, 0): 0, (topic, 1): 0})
        consumer.take(20)
        consumer.commit({(topic, 0): 4})
        assert consumer.committed((topic, 0), (topic, 1)) == {(topic, 0): 4, (topic, 1): None}
    admin = client.admin(cluster.bootstrap)
    assert admin.group_offsets(group) == {(topic, 0): 4}
    assert admin.describe_group(group)["state"] == "Empty"


def test_offsets_of_a_deleted_topic_are_forgotten(cluster: Server, client: Client, fresh: Fresh) -> None:
    kept, doomed, group = fresh("kept"), fresh("doomed"), fresh("g")
    for topic in (kept, doomed):
        filled(client, cluster, topic)
    admin = client.admin(cluster.bootstrap)
    with client.consumer(cluster.bootstrap, group) as consumer:
        consumer.assign({(kept, 0): 0, (doomed, 0): 0})
        consumer.take(20)
        consumer.commit({(kept, 0): 4, (doomed, 0): 4})
    admin.delete_topic(doomed)
    until(lambda: admin.group_offsets(group) == {(kept, 0): 4}, "the offsets of the deleted topic are gone")
