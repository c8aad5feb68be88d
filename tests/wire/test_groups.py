"""Groups: the assignment of partitions, the position from which a successor reads, and groups that do not affect each
other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from faults.clients import Client, ConsumedRecord, Consumer, Partition, Record
from faults.clients.port import refusal, wait_for
from faults.servers.server import Server
from faults.wait import until
from tests.wire.client_choice import clients_that_can

Fresh = Callable[[str], str]


def create_filled_topic(
    client: Client, cluster: Server, topic: str, per_partition: int, partitions: int
) -> None:
    client.admin(cluster.bootstrap).create_topic(topic, partitions)
    produce_more(client, cluster, topic, per_partition, partitions)


def produce_more(client: Client, cluster: Server, topic: str, per_partition: int, partitions: int) -> None:
    records = [
        Record(b"%d" % n, partition=partition)
        for n in range(per_partition)
        for partition in range(partitions)
    ]
    client.produce(cluster.bootstrap, topic, records)


def partition_counts(consumers: Sequence[Consumer]) -> list[int]:
    return sorted(len(consumer.assignment()) for consumer in consumers)


def is_settled(consumers: Sequence[Consumer], topic: str, partitions: int) -> bool:
    """Return whether every partition has exactly one owner, and every member has its share of the partitions."""
    all_partitions = {(topic, partition) for partition in range(partitions)}
    held = [consumer.held for consumer in consumers]
    each_once = sum(map(len, held)) == partitions and set().union(*held) == all_partitions
    return each_once and all(len(share) >= partitions // len(consumers) for share in held)


def wait_until_settled(consumers: Sequence[Consumer], topic: str, partitions: int) -> list[ConsumedRecord]:
    return wait_for(lambda: is_settled(consumers, topic, partitions), consumers)


def read(
    consumers: Sequence[Consumer], count: int, already: Sequence[ConsumedRecord] = ()
) -> list[ConsumedRecord]:
    seen = list(already)
    return wait_for(lambda: len(seen) >= count, consumers, seen)


def coordinates(seen: Sequence[ConsumedRecord]) -> list[tuple[int, int]]:
    return sorted((record.partition, record.offset) for record in seen)


def read_up_to(consumers: Sequence[Consumer], last: int) -> list[tuple[int, int]]:
    """Read until offset ``last``. Return all coordinates except offset 0, because a client that is paused before a seek
    returns that record again.
    """
    seen: list[ConsumedRecord] = []
    wait_for(lambda: any(record.offset == last for record in seen), consumers, seen)
    return [coordinate for coordinate in coordinates(seen) if coordinate[1]]


def test_a_successor_continues_at_the_committed_offset(cluster: Server, client: Client, fresh: Fresh) -> None:
    topic, group = fresh("t"), fresh("g")
    create_filled_topic(client, cluster, topic, 20, 1)
    with client.consumer(cluster.bootstrap, group) as first:
        first.subscribe(topic)
        first.take(20)
        first.commit({(topic, 0): 12})
        assert first.committed((topic, 0)) == {(topic, 0): 12}
    with client.consumer(cluster.bootstrap, group) as second:
        second.subscribe(topic)
        # Records that were read but not committed are read again; committed ones are not.
        assert [record.offset for record in second.take(8)] == list(range(12, 20))
        second.commit()
        assert second.committed((topic, 0)) == {(topic, 0): 20}
    with client.consumer(cluster.bootstrap, group) as third:
        third.subscribe(topic)
        wait_for(lambda: bool(third.held), [third])
        produce_more(client, cluster, topic, 1, 1)
        assert [record.offset for record in third.take(1)] == [20]


def test_a_new_group_starts_at_its_reset_policy(cluster: Server, client: Client, fresh: Fresh) -> None:
    topic = fresh("t")
    create_filled_topic(client, cluster, topic, 3, 1)
    with client.consumer(cluster.bootstrap, fresh("g"), reset="earliest") as early:
        early.subscribe(topic)
        assert [record.offset for record in early.take(3)] == [0, 1, 2]
    with client.consumer(cluster.bootstrap, fresh("g"), reset="latest") as late:
        late.subscribe(topic)
        wait_for(lambda: bool(late.held), [late])
        # A consumer has a position only after its first poll with the assignment; a commit makes it visible.
        assert late.poll(0.5) == []
        produce_more(client, cluster, topic, 1, 1)
        assert [record.offset for record in late.take(1)] == [3]


def test_two_members_share_the_partitions_until_one_leaves(
    cluster: Server, client: Client, fresh: Fresh
) -> None:
    topic, group = fresh("t"), fresh("g")
    create_filled_topic(client, cluster, topic, 5, 4)
    with client.consumer(cluster.bootstrap, group) as stays:
        stays.subscribe(topic)
        assert coordinates(read([stays], 20)) == [(p, n) for p in range(4) for n in range(5)]
        stays.commit()
        leaves = client.consumer(cluster.bootstrap, group)
        leaves.subscribe(topic)
        wait_until_settled([stays, leaves], topic, 4)
        assert partition_counts([stays, leaves]) == [2, 2]
        produce_more(client, cluster, topic, 5, 4)
        seen = read([stays, leaves], 20)
        assert coordinates(seen) == [(p, n) for p in range(4) for n in range(5, 10)]
        stays.commit()
        leaves.commit()
        leaves.close()
        wait_until_settled([stays], topic, 4)
        produce_more(client, cluster, topic, 1, 4)
        assert coordinates(read([stays], 4)) == [(p, 10) for p in range(4)]


def test_an_eager_rebalance_revokes_and_assigns_all_partitions(
    cluster: Server, client: Client, fresh: Fresh
) -> None:
    topic, group = fresh("t"), fresh("g")
    create_filled_topic(client, cluster, topic, 1, 4)
    everything = [(topic, partition) for partition in range(4)]
    with client.consumer(cluster.bootstrap, group) as first:
        first.subscribe(topic)
        wait_until_settled([first], topic, 4)
        first.events()
        with client.consumer(cluster.bootstrap, group) as second:
            second.subscribe(topic)
            wait_until_settled([first, second], topic, 4)
            # Some clients need another rebalance; each rebalance first revokes all partitions.
            events = [event for event in first.events() if event[1]]
            assert events[0] == ("revoked", everything)
            assert events[-1] == ("assigned", sorted(first.assignment()))


@clients_that_can("cooperative")
def test_a_cooperative_rebalance_revokes_only_moving_partitions(
    cluster: Server, client: Client, fresh: Fresh
) -> None:
    topic, group = fresh("t"), fresh("g")
    create_filled_topic(client, cluster, topic, 1, 4)
    with client.consumer(cluster.bootstrap, group, assignor="cooperative") as first:
        first.subscribe(topic)
        wait_until_settled([first], topic, 4)
        first.events()
        with client.consumer(cluster.bootstrap, group, assignor="cooperative") as second:
            second.subscribe(topic)
            wait_until_settled([first, second], topic, 4)
            moved = [event for event in first.events() if event[1]]
            assert [what for what, _ in moved] == ["revoked"]
            assert set(moved[0][1]) == second.assignment()
            assert partition_counts([first, second]) == [2, 2]
        wait_for(lambda: len(first.held) == 4, [first])
        assert [event for event in first.events() if event[1]] == [("assigned", moved[0][1])]


def test_a_static_member_that_returns_keeps_its_partitions_without_a_rebalance(
    cluster: Server, client: Client, fresh: Fresh
) -> None:
    topic, group = fresh("t"), fresh("g")
    create_filled_topic(client, cluster, topic, 1, 2)
    with client.consumer(cluster.bootstrap, group, instance="one") as first:
        first.subscribe(topic)
        second = client.consumer(cluster.bootstrap, group, instance="two")
        second.subscribe(topic)
        wait_until_settled([first, second], topic, 2)
        held = second.assignment()
        first.events()
        # A static member that closes does not leave the group; it may return within its session timeout.
        second.close()
        with client.consumer(cluster.bootstrap, group, instance="two") as again:
            again.subscribe(topic)
            wait_for(lambda: bool(again.held), [first, again])
            assert again.assignment() == held
            assert first.events() == []


def test_every_group_gets_all_records(cluster: Server, client: Client, fresh: Fresh) -> None:
    topic = fresh("t")
    create_filled_topic(client, cluster, topic, 10, 2)
    for group in (fresh("a"), fresh("b"), fresh("c")):
        with client.consumer(cluster.bootstrap, group) as consumer:
            consumer.subscribe(topic)
            assert coordinates(read([consumer], 20)) == [(p, n) for p in range(2) for n in range(10)]


def test_every_group_gets_each_record_at_exactly_one_member(
    cluster: Server, client: Client, fresh: Fresh
) -> None:
    topic = fresh("t")
    client.admin(cluster.bootstrap).create_topic(topic, 4)
    groups = [
        [client.consumer(cluster.bootstrap, name) for _ in range(2)] for name in (fresh("a"), fresh("b"))
    ]
    everyone = [member for members in groups for member in members]
    for member in everyone:
        member.subscribe(topic)

    def settle(members: list[Consumer]) -> None:
        # Members of a settled group keep polling until the other group is settled too.
        wait_for(lambda: all(is_settled(group, topic, 4) for group in groups), members)

    try:
        with ThreadPoolExecutor(len(groups)) as threads:
            list(threads.map(settle, groups))
            produce_more(client, cluster, topic, 25, 4)
            for seen in threads.map(lambda members: read(members, 100), groups):
                assert coordinates(seen) == [(p, n) for p in range(4) for n in range(25)]
        assert [partition_counts(members) for members in groups] == [[2, 2], [2, 2]]
    finally:
        for member in everyone:
            member.close()


def test_a_blocked_record_delays_only_its_partition_of_its_group(
    cluster: Server, client: Client, fresh: Fresh
) -> None:
    topic, slow_group, other_group = fresh("t"), fresh("slow"), fresh("other")
    create_filled_topic(client, cluster, topic, 1, 2)
    members = [client.consumer(cluster.bootstrap, slow_group) for _ in range(2)]
    try:
        for member in members:
            member.subscribe(topic)

        def holding() -> bool:
            """Return whether the group is stable, because the commit of a member that is joining again would be
            refused.
            """
            wait_until_settled(members, topic, 2)
            return not any(
                refusal(consumer.commit, dict.fromkeys(consumer.assignment(), 1)) for consumer in members
            )

        until(holding, "the members hold a partition each")
        for member in members:
            (partition,) = member.assignment()
            member.seek(partition, 1)
        stuck = next(member for member in members if (topic, 0) in member.assignment())
        free = next(member for member in members if (topic, 1) in member.assignment())
        # The owner of partition 0 processes its record and fetches no more, but stays in the group.
        stuck.pause((topic, 0))
        produce_more(client, cluster, topic, 20, 2)
        assert read_up_to([free], 20) == [(1, n) for n in range(1, 21)]
        assert stuck.poll(0.1) == []
        with client.consumer(cluster.bootstrap, other_group) as other:
            other.subscribe(topic)
            assert coordinates(read([other], 42)) == [(p, n) for p in range(2) for n in range(21)]
        stuck.resume((topic, 0))
        assert read_up_to([stuck], 20) == [(0, n) for n in range(1, 21)]
    finally:
        for member in members:
            member.close()


def test_a_stopped_reader_does_not_delay_another(cluster: Server, client: Client, fresh: Fresh) -> None:
    topic = fresh("t")
    client.admin(cluster.bootstrap).create_topic(topic)
    records = [Record(b"x" * 1000) for _ in range(300)]
    client.produce(cluster.bootstrap, topic, records)
    with client.consumer(cluster.bootstrap, fresh("stalled")) as stalled:
        stalled.subscribe(topic)
        stalled.take(1)
        with client.consumer(cluster.bootstrap, fresh("busy")) as busy:
            busy.subscribe(topic)
            for turn in range(1, 4):
                client.produce(cluster.bootstrap, topic, records)
                expected = 600 if turn == 1 else 300
                assert len(busy.take(expected)) == expected


def test_members_without_a_partition_stay_idle(cluster: Server, client: Client, fresh: Fresh) -> None:
    topic, group = fresh("t"), fresh("g")
    create_filled_topic(client, cluster, topic, 5, 2)
    members = [client.consumer(cluster.bootstrap, group) for _ in range(3)]
    try:
        for member in members:
            member.subscribe(topic)
        admin = client.admin(cluster.bootstrap)

        def settled_for_all() -> bool:
            if group not in admin.groups():
                return False
            described = admin.describe_group(group)
            assigned = sorted(len(partitions) for _, partitions in described["members"])
            held = sorted(len(member.held) for member in members)
            return described["state"] == "Stable" and assigned == held == [0, 1, 1]

        seen = read(members, 10, wait_for(settled_for_all, members))
        assert set(coordinates(seen)) == {(p, n) for p in range(2) for n in range(5)}
    finally:
        for member in members:
            member.close()


def test_a_pattern_subscribes_to_a_topic_that_is_created_later(
    cluster: Server, client: Client, fresh: Fresh
) -> None:
    stem = fresh("stem")
    names = [f"{stem}.one", f"{stem}.two", f"other-{stem}.one"]
    for name in (names[0], names[2]):
        create_filled_topic(client, cluster, name, 1, 1)
    with client.consumer(cluster.bootstrap, fresh("g")) as consumer:
        consumer.subscribe_pattern(f"^{re.escape(stem)}\\..*")
        assert [record.topic for record in consumer.take(1)] == [names[0]]
        consumer.commit()
        assert consumer.assignment() == {(names[0], 0)}
        create_filled_topic(client, cluster, names[1], 1, 1)
        assert [record.topic for record in consumer.take(1)] == [names[1]]
        assert consumer.assignment() == {(names[0], 0), (names[1], 0)}


def test_added_partitions_are_assigned(cluster: Server, client: Client, fresh: Fresh) -> None:
    topic = fresh("t")
    create_filled_topic(client, cluster, topic, 2, 1)
    with client.consumer(cluster.bootstrap, fresh("g")) as consumer:
        consumer.subscribe(topic)
        consumer.take(2)
        consumer.commit()
        admin = client.admin(cluster.bootstrap)
        admin.create_partitions(topic, 3)
        until(lambda: len(admin.describe_topic(topic)) == 3, "the partitions are there")
        client.produce(cluster.bootstrap, topic, [Record(b"new", partition=2)])
        assert coordinates(consumer.take(1)) == [(2, 0)]
        assert consumer.assignment() == {(topic, partition) for partition in range(3)}


def test_a_subscription_to_a_missing_topic_works_once_the_topic_exists(
    cluster: Server, client: Client, librdkafka: Client, fresh: Fresh
) -> None:
    topic = fresh("t")
    with client.consumer(cluster.bootstrap, fresh("g")) as consumer:
        consumer.subscribe(topic)
        assert consumer.poll(0.3) == []
        # Some clients create the topic by a metadata request, others do not; producing creates it in any case.
        librdkafka.produce(cluster.bootstrap, topic, [Record(b"at last")])
        assert [record.value for record in consumer.take(1)] == [b"at last"]


def test_a_member_that_was_removed_cannot_commit(cluster: Server, client: Client, fresh: Fresh) -> None:
    """The commit of a removed member is refused, and the committed offset stays."""
    topic, group = fresh("t"), fresh("g")
    create_filled_topic(client, cluster, topic, 5, 1)
    # A heartbeat would report the removal, and some clients would then rejoin and commit as members again.
    with client.consumer(cluster.bootstrap, group, instance="once", heartbeat_ms=10_000) as consumer:
        consumer.subscribe(topic)
        consumer.take(5)
        consumer.commit({(topic, 0): 2})
        with client.consumer(cluster.bootstrap, group, instance="once") as successor:
            successor.subscribe(topic)
            wait_for(lambda: bool(successor.held), [successor])
            code = refusal(consumer.commit, {(topic, 0): 5})
            # librdkafka may have learned of its removal meanwhile: it then fails (-150) without sending a request.
            assert code in (25, 82, -150), "neither an unknown member nor a fenced instance"
            assert successor.committed((topic, 0)) == {(topic, 0): 2}


@pytest.mark.parametrize(
    "members", [["librdkafka", "java"], ["kafka-python", "aiokafka"], ["java", "aiokafka"]]
)
def test_members_of_different_clients_share_one_group(
    cluster: Server, clients: dict[str, Client], members: list[str], fresh: Fresh
) -> None:
    topic, group = fresh("t"), fresh("g")
    producer = clients[members[0]]
    create_filled_topic(producer, cluster, topic, 1, 4)
    consumers = [clients[name].consumer(cluster.bootstrap, group) for name in members]
    try:
        for consumer in consumers:
            consumer.subscribe(topic)
        before = wait_until_settled(consumers, topic, 4)
        assert partition_counts(consumers) == [2, 2]
        produce_more(producer, cluster, topic, 5, 4)
        owners: dict[Partition, int] = {}
        for index, consumer in enumerate(consumers):
            owners.update(dict.fromkeys(consumer.assignment(), index))
        assert len(owners) == 4
        seen = {(record.partition, record.offset) for record in read(consumers, 24, before)}
        assert seen == {(p, n) for p in range(4) for n in range(6)}
    finally:
        for consumer in consumers:
            consumer.close()
