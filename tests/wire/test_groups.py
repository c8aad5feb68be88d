"""Groups: who gets which partitions, where a successor goes on, and what members do not do to each other."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.clients import Client, Consumer, Partition, Record, Seen
from tests.support.clients.face import wait_for
from tests.support.refused import refusal
from tests.support.server import Server
from tests.support.waiting import until
from tests.wire.having import clients_that_can

Fresh = Callable[[str], str]


def filled(client: Client, cluster: Server, topic: str, per_partition: int, partitions: int) -> None:
    client.admin(cluster.bootstrap).create_topic(topic, partitions)
    more(client, cluster, topic, per_partition, partitions)


def more(client: Client, cluster: Server, topic: str, per_partition: int, partitions: int) -> None:
    records = [
        Record(b"%d" % n, partition=partition)
        for n in range(per_partition)
        for partition in range(partitions)
    ]
    client.produce(cluster.bootstrap, topic, records)


def shares(consumers: Sequence[Consumer]) -> list[int]:
    return sorted(len(consumer.assignment()) for consumer in consumers)


def is_settled(consumers: Sequence[Consumer], topic: str, partitions: int) -> bool:
    """Whether every partition has exactly one owner and every member that can have one has its share."""
    wanted = {(topic, partition) for partition in range(partitions)}
    held = [consumer.held for consumer in consumers]
    each_once = sum(map(len, held)) == partitions and set().union(*held) == wanted
    return each_once and all(len(share) >= partitions // len(consumers) for share in held)


def settled(consumers: Sequence[Consumer], topic: str, partitions: int) -> list[Seen]:
    return wait_for(lambda: is_settled(consumers, topic, partitions), consumers)


def read(consumers: Sequence[Consumer], count: int, already: Sequence[Seen] = ()) -> list[Seen]:
    seen = list(already)
    return wait_for(lambda: len(seen) >= count, consumers, seen)


def places(seen: Sequence[Seen]) -> list[tuple[int, int]]:
    return sorted((one.partition, one.offset) for one in seen)


def through(consumers: Sequence[Consumer], last: int) -> list[tuple[int, int]]:
    """All places up to an offset but 0, which a client gives once more that was paused before it carried out a seek."""
    seen: list[Seen] = []
    wait_for(lambda: any(one.offset == last for one in seen), consumers, seen)
    return [place for place in places(seen) if place[1]]


def test_a_successor_goes_on_at_the_committed_offset(cluster: Server, client: Client, fresh: Fresh) -> None:
    topic, group = fresh("t"), fresh("g")
    filled(client, cluster, topic, 20, 1)
    with client.consumer(cluster.bootstrap, group) as first:
        first.subscribe(topic)
        first.take(20)
        first.commit({(topic, 0): 12})
        assert first.committed((topic, 0)) == {(topic, 0): 12}
    with client.consumer(cluster.bootstrap, group) as second:
        second.subscribe(topic)
        # What was read but not committed comes again; what was committed does not.
        assert [one.offset for one in second.take(8)] == list(range(12, 20))
        second.commit()
        assert second.committed((topic, 0)) == {(topic, 0): 20}
    with client.consumer(cluster.bootstrap, group) as third:
        third.subscribe(topic)
        wait_for(lambda: bool(third.held), [third])
        more(client, cluster, topic, 1, 1)
        assert [one.offset for one in third.take(1)] == [20]


def test_a_new_group_starts_where_its_reset_says(cluster: Server, client: Client, fresh: Fresh) -> None:
    topic = fresh("t")
    filled(client, cluster, topic, 3, 1)
    with client.consumer(cluster.bootstrap, fresh("g"), reset="earliest") as early:
        early.subscribe(topic)
        assert [one.offset for one in early.take(3)] == [0, 1, 2]
    with client.consumer(cluster.bootstrap, fresh("g"), reset="latest") as late:
        late.subscribe(topic)
        wait_for(lambda: bool(late.held), [late])
        # A position of its own comes with the first poll after the assignment; commit makes it visible.
        assert late.poll(0.5) == []
        more(client, cluster, topic, 1, 1)
        assert [one.offset for one in late.take(1)] == [3]


def test_two_members_share_the_partitions_and_the_one_that_stays_takes_over(
    cluster: Server, client: Client, fresh: Fresh
) -> None:
    topic, group = fresh("t"), fresh("g")
    filled(client, cluster, topic, 5, 4)
    with client.consumer(cluster.bootstrap, group) as stays:
        stays.subscribe(topic)
        assert places(read([stays], 20)) == [(p, n) for p in range(4) for n in range(5)]
        stays.commit()
        leaves = client.consumer(cluster.bootstrap, group)
        leaves.subscribe(topic)
        settled([stays, leaves], topic, 4)
        assert shares([stays, leaves]) == [2, 2]
        more(client, cluster, topic, 5, 4)
        seen = read([stays, leaves], 20)
        assert places(seen) == [(p, n) for p in range(4) for n in range(5, 10)]
        stays.commit()
        leaves.commit()
        leaves.close()
        settled([stays], topic, 4)
        more(client, cluster, topic, 1, 4)
        assert places(read([stays], 4)) == [(p, 10) for p in range(4)]


def test_an_eager_rebalance_takes_all_and_gives_anew(cluster: Server, client: Client, fresh: Fresh) -> None:
    topic, group = fresh("t"), fresh("g")
    filled(client, cluster, topic, 1, 4)
    everything = [(topic, partition) for partition in range(4)]
    with client.consumer(cluster.bootstrap, group) as first:
        first.subscribe(topic)
        settled([first], topic, 4)
        first.events()
        with client.consumer(cluster.bootstrap, group) as second:
            second.subscribe(topic)
            settled([first, second], topic, 4)
            # Some clients need a further round to settle; each begins by giving up all that one has.
            told = [event for event in first.events() if event[1]]
            assert told[0] == ("revoked", everything)
            assert told[-1] == ("assigned", sorted(first.assignment()))


@clients_that_can("cooperative")
def test_a_cooperative_rebalance_takes_only_what_moves(cluster: Server, client: Client, fresh: Fresh) -> None:
    topic, group = fresh("t"), fresh("g")
    filled(client, cluster, topic, 1, 4)
    with client.consumer(cluster.bootstrap, group, assignor="cooperative") as first:
        first.subscribe(topic)
        settled([first], topic, 4)
        first.events()
        with client.consumer(cluster.bootstrap, group, assignor="cooperative") as second:
            second.subscribe(topic)
            settled([first, second], topic, 4)
            moved = [event for event in first.events() if event[1]]
            assert [what for what, _ in moved] == ["revoked"]
            assert set(moved[0][1]) == second.assignment()
            assert shares([first, second]) == [2, 2]
        wait_for(lambda: len(first.held) == 4, [first])
        assert [event for event in first.events() if event[1]] == [("assigned", moved[0][1])]


def test_a_static_member_that_returns_keeps_its_partitions_without_a_rebalance(
    cluster: Server, client: Client, fresh: Fresh
) -> None:
    topic, group = fresh("t"), fresh("g")
    filled(client, cluster, topic, 1, 2)
    with client.consumer(cluster.bootstrap, group, instance="one") as one:
        one.subscribe(topic)
        two = client.consumer(cluster.bootstrap, group, instance="two")
        two.subscribe(topic)
        settled([one, two], topic, 2)
        held = two.assignment()
        one.events()
        # A static member that closes does not leave; it is expected back within its session.
        two.close()
        with client.consumer(cluster.bootstrap, group, instance="two") as again:
            again.subscribe(topic)
            wait_for(lambda: bool(again.held), [one, again])
            assert again.assignment() == held
            assert one.events() == []


def test_fan_out_gives_every_group_everything(cluster: Server, client: Client, fresh: Fresh) -> None:
    topic = fresh("t")
    filled(client, cluster, topic, 10, 2)
    for group in (fresh("a"), fresh("b"), fresh("c")):
        with client.consumer(cluster.bootstrap, group) as consumer:
            consumer.subscribe(topic)
            assert places(read([consumer], 20)) == [(p, n) for p in range(2) for n in range(10)]


def test_load_balancing_gives_every_record_to_one_member_and_fan_out_to_each_group(
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
        # A group that is settled is polled on until the other is as well, as its users would.
        wait_for(lambda: all(is_settled(group, topic, 4) for group in groups), members)

    try:
        with ThreadPoolExecutor(len(groups)) as threads:
            list(threads.map(settle, groups))
            more(client, cluster, topic, 25, 4)
            for seen in threads.map(lambda members: read(members, 100), groups):
                assert places(seen) == [(p, n) for p in range(4) for n in range(25)]
        assert [shares(members) for members in groups] == [[2, 2], [2, 2]]
    finally:
        for member in everyone:
            member.close()


def test_a_blocked_record_delays_only_its_partition_of_its_group(
    cluster: Server, client: Client, fresh: Fresh
) -> None:
    topic, slow_group, other_group = fresh("t"), fresh("slow"), fresh("other")
    filled(client, cluster, topic, 1, 2)
    members = [client.consumer(cluster.bootstrap, slow_group) for _ in range(2)]
    try:
        for member in members:
            member.subscribe(topic)

        def holding() -> bool:
            """A client that joins once more has its commit refused meanwhile."""
            settled(members, topic, 2)
            return not any(refusal(one.commit, dict.fromkeys(one.assignment(), 1)) for one in members)

        until(holding, "the members hold a partition each")
        for member in members:
            (place,) = member.assignment()
            member.seek(place, 1)
        stuck = next(member for member in members if (topic, 0) in member.assignment())
        free = next(member for member in members if (topic, 1) in member.assignment())
        # The owner of partition 0 works on its record and asks for no more, but stays in the group.
        stuck.pause((topic, 0))
        more(client, cluster, topic, 20, 2)
        assert through([free], 20) == [(1, n) for n in range(1, 21)]
        assert stuck.poll(0.1) == []
        with client.consumer(cluster.bootstrap, other_group) as other:
            other.subscribe(topic)
            assert places(read([other], 42)) == [(p, n) for p in range(2) for n in range(21)]
        stuck.resume((topic, 0))
        assert through([stuck], 20) == [(0, n) for n in range(1, 21)]
    finally:
        for member in members:
            member.close()


def test_a_reader_that_stopped_reading_does_not_hold_up_another(
    cluster: Server, client: Client, fresh: Fresh
) -> None:
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


def test_members_beyond_the_partitions_stay_idle(cluster: Server, client: Client, fresh: Fresh) -> None:
    topic, group = fresh("t"), fresh("g")
    filled(client, cluster, topic, 5, 2)
    members = [client.consumer(cluster.bootstrap, group) for _ in range(3)]
    try:
        for member in members:
            member.subscribe(topic)
        admin = client.admin(cluster.bootstrap)

        def settled_for_all() -> bool:
            if group not in admin.groups():
                return False
            described = admin.describe_group(group)
            told = sorted(len(partitions) for _, partitions in described["members"])
            held = sorted(len(member.held) for member in members)
            return described["state"] == "Stable" and told == held == [0, 1, 1]

        seen = read(members, 10, wait_for(settled_for_all, members))
        assert set(places(seen)) == {(p, n) for p in range(2) for n in range(5)}
    finally:
        for member in members:
            member.close()


def test_a_pattern_takes_in_a_topic_that_is_created_later(
    cluster: Server, client: Client, fresh: Fresh
) -> None:
    stem = fresh("stem")
    names = [f"{stem}.one", f"{stem}.two", f"other-{stem}.one"]
    for name in (names[0], names[2]):
        filled(client, cluster, name, 1, 1)
    with client.consumer(cluster.bootstrap, fresh("g")) as consumer:
        consumer.subscribe_pattern(f"^{re.escape(stem)}\\..*")
        assert [one.topic for one in consumer.take(1)] == [names[0]]
        consumer.commit()
        assert consumer.assignment() == {(names[0], 0)}
        filled(client, cluster, names[1], 1, 1)
        assert [one.topic for one in consumer.take(1)] == [names[1]]
        assert consumer.assignment() == {(names[0], 0), (names[1], 0)}


def test_added_partitions_are_shared_out(cluster: Server, client: Client, fresh: Fresh) -> None:
    topic = fresh("t")
    filled(client, cluster, topic, 2, 1)
    with client.consumer(cluster.bootstrap, fresh("g")) as consumer:
        consumer.subscribe(topic)
        consumer.take(2)
        consumer.commit()
        admin = client.admin(cluster.bootstrap)
        admin.create_partitions(topic, 3)
        until(lambda: len(admin.describe_topic(topic)) == 3, "the partitions are there")
        client.produce(cluster.bootstrap, topic, [Record(b"new", partition=2)])
        assert places(consumer.take(1)) == [(2, 0)]
        assert consumer.assignment() == {(topic, partition) for partition in range(3)}


def test_a_subscription_to_a_missing_topic_works_once_the_topic_is_there(
    cluster: Server, client: Client, librdkafka: Client, fresh: Fresh
) -> None:
    topic = fresh("t")
    with client.consumer(cluster.bootstrap, fresh("g")) as consumer:
        consumer.subscribe(topic)
        assert consumer.poll(0.3) == []
        # Some clients have the topic made by asking for it, some have not; either way producing makes it.
        librdkafka.produce(cluster.bootstrap, topic, [Record(b"at last")])
        assert [one.value for one in consumer.take(1)] == [b"at last"]


def test_a_member_that_was_removed_cannot_commit(cluster: Server, client: Client, fresh: Fresh) -> None:
    """The commit of somebody whom the group no longer knows is refused, and what stands committed stays."""
    topic, group = fresh("t"), fresh("g")
    filled(client, cluster, topic, 5, 1)
    # A heartbeat would tell the client, and some then join anew and commit as a member again.
    with client.consumer(cluster.bootstrap, group, instance="once", heartbeat_ms=10_000) as consumer:
        consumer.subscribe(topic)
        consumer.take(5)
        consumer.commit({(topic, 0): 2})
        with client.consumer(cluster.bootstrap, group, instance="once") as successor:
            successor.subscribe(topic)
            wait_for(lambda: bool(successor.held), [successor])
            code = refusal(consumer.commit, {(topic, 0): 5})
            # librdkafka may have heard of it in the meantime: it then fails for good (-150) without asking.
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
    filled(producer, cluster, topic, 1, 4)
    consumers = [clients[name].consumer(cluster.bootstrap, group) for name in members]
    try:
        for consumer in consumers:
            consumer.subscribe(topic)
        before = settled(consumers, topic, 4)
        assert shares(consumers) == [2, 2]
        more(producer, cluster, topic, 5, 4)
        owners: dict[Partition, int] = {}
        for index, consumer in enumerate(consumers):
            owners.update(dict.fromkeys(consumer.assignment(), index))
        assert len(owners) == 4
        seen = {(one.partition, one.offset) for one in read(consumers, 24, before)}
        assert seen == {(p, n) for p in range(4) for n in range(6)}
    finally:
        for consumer in consumers:
            consumer.close()
