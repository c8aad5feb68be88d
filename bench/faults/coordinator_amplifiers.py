"""What the coordinators of groups and transactions can be made to keep, to compare and to answer."""

from __future__ import annotations

from bench.faults.amplifier_steps import (
    PARTITIONS,
    WIDE,
    WIDE_CHAR,
    add_partitions,
    commit,
    form_group,
    hold,
    join_request,
    long_text,
    new_names,
)
from bench.faults.attacker import Attacker
from headrace.wire import Api
from headrace.wire import messages as m

__all__ = [
    "all_offsets_of_a_group_again",
    "all_offsets_of_many_groups",
    "assignments_for_nobody",
    "groups_of_transactions",
    "groups_with_long_names",
    "ids_that_are_never_joined_with",
    "many_protocols",
    "many_wide_groups_described",
    "offsets_of_many_groups",
    "offsets_with_wide_metadata",
    "one_transaction_again",
    "one_wide_group_again",
    "partitions_of_many_transactions",
    "patterns",
    "pending_offsets",
    "short_ids_that_are_never_joined_with",
    "subscriptions_of_many_topics",
    "transactional_ids",
]


def offsets_of_many_groups(attacker: Attacker) -> None:
    for name in new_names(attacker, 300):
        commit(attacker, name, range(PARTITIONS))


def offsets_with_wide_metadata(attacker: Attacker) -> None:
    metadata = "x" * 4_000 + WIDE_CHAR
    for name in new_names(attacker, 30):
        commit(attacker, name, range(PARTITIONS - 50), metadata)


def all_offsets_of_a_group_again(attacker: Attacker) -> None:
    request = m.OffsetFetchRequest
    group = request.OffsetFetchRequestGroup(group_id="group-offsets", topics=None)
    attacker.ask(Api.OFFSET_FETCH, request(groups=[group] * 30), 8)


def all_offsets_of_many_groups(attacker: Attacker) -> None:
    names = list(new_names(attacker, 60))
    for name in names:
        commit(attacker, name, range(PARTITIONS))
    request = m.OffsetFetchRequest
    groups = [request.OffsetFetchRequestGroup(group_id=name, topics=None) for name in names]
    attacker.ask(Api.OFFSET_FETCH, request(groups=groups), 8)


def ids_that_are_never_joined_with(attacker: Attacker) -> None:
    client_id = long_text(attacker, 30_000)
    for name in new_names(attacker, 1_000):
        attacker.ask(Api.JOIN_GROUP, join_request(name, [("range", b"")]), 5, client_id=client_id)


def short_ids_that_are_never_joined_with(attacker: Attacker) -> None:
    for name in new_names(attacker, 70):
        connection = attacker.connect()
        message = join_request(name, [("range", b"")])
        for _ in range(500):
            attacker.ask(Api.JOIN_GROUP, message, 5, client_id="", connection=connection)


def many_protocols(attacker: Attacker) -> None:
    """What members have in common is looked for among all of them."""
    names = list(new_names(attacker, 8))
    for name in names:
        _group_of_protocols(attacker, name, [f"a{number}" for number in range(5_000)])
    for name in names:
        _group_of_protocols(attacker, name, [f"b{number}" for number in range(5_000)])
    for name in new_names(attacker, 20):
        _group_of_protocols(attacker, name, [chr(0x4E00 + number) for number in range(11_000)])


def _group_of_protocols(attacker: Attacker, group: str, protocols: list[str]) -> None:
    attacker.ask(Api.JOIN_GROUP, join_request(group, [(name, b"") for name in protocols]), 3)


def subscriptions_of_many_topics(attacker: Attacker) -> None:
    for number, name in enumerate(new_names(attacker, 20)):
        topics = b"".join(
            b"\0\4%04x" % (index & 0xFFFF) for index in range(number << 16, (number << 16) + 150_000)
        )
        form_group(attacker, name, b"\0\1" + (150_000).to_bytes(4, "big") + topics + b"\xff\xff\xff\xff")


def assignments_for_nobody(attacker: Attacker) -> None:
    joined = attacker.ask(Api.JOIN_GROUP, join_request("nobody", [("range", b"")]), 3)
    request = m.SyncGroupRequest
    assignments = [
        request.SyncGroupRequestAssignment(member_id=name, assignment=bytes(100))
        for name in new_names(attacker, 11_000)
    ]
    message = request(
        group_id="nobody",
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=assignments,
    )
    attacker.ask(Api.SYNC_GROUP, message, 3)


def one_wide_group_again(attacker: Attacker) -> None:
    """Not more often than a machine can bear where it is answered each time."""
    attacker.ask(Api.DESCRIBE_GROUPS, m.DescribeGroupsRequest(groups=["group"] * 120), 5)


def many_wide_groups_described(attacker: Attacker) -> None:
    names = list(new_names(attacker, 40))
    for name in names:
        form_group(attacker, name, bytes(900_000))
    attacker.ask(Api.DESCRIBE_GROUPS, m.DescribeGroupsRequest(groups=names), 5)


def groups_with_long_names(attacker: Attacker) -> None:
    for _ in range(3_000):
        message = join_request(
            long_text(attacker, 1_000), [("r", b"")], protocol_type=long_text(attacker, 30_000)
        )
        attacker.ask(Api.JOIN_GROUP, message, 5)
    attacker.ask(Api.LIST_GROUPS, m.ListGroupsRequest())


def transactional_ids(attacker: Attacker) -> None:
    for _ in range(6_000):
        hold(attacker, long_text(attacker, 1_000))
    attacker.ask(Api.LIST_TRANSACTIONS, m.ListTransactionsRequest())


def patterns(attacker: Attacker) -> None:
    for number in range(200):
        hold(attacker, "a" * 1_000 + f"{number:03}")
    nested = "(" * 40 + ")" * 40
    slow = ("(?:a|b)*a(?:a|b){400}c", "(a?){200}a{200}", "(?:a|aa|aaa)*b", "(?i)" + "\\pL" * 100)
    for pattern in (nested, *slow, "(" * 250 + ")" * 250, "x{1000}" * 70, "[" * 500, "\\" * 511):
        attacker.ask(Api.LIST_TRANSACTIONS, m.ListTransactionsRequest(transactional_id_pattern=pattern))


def one_transaction_again(attacker: Attacker) -> None:
    """Each item adds one partition to the many that are there."""
    holder = hold(attacker, "again")
    add_partitions(attacker, holder, WIDE, range(PARTITIONS))
    request = m.AddPartitionsToTxnRequest
    topics = [request.AddPartitionsToTxnTopic(name=WIDE, partitions=[0])]
    one = request.AddPartitionsToTxnTransaction(
        transactional_id=holder[0], producer_id=holder[1], producer_epoch=holder[2], topics=topics
    )
    attacker.ask(Api.ADD_PARTITIONS_TO_TXN, request(transactions=[one] * 3_900), 5)


def partitions_of_many_transactions(attacker: Attacker) -> None:
    for name in new_names(attacker, 400):
        add_partitions(attacker, hold(attacker, name), WIDE, range(PARTITIONS))


def groups_of_transactions(attacker: Attacker) -> None:
    for name in new_names(attacker, 4):
        holder = hold(attacker, name)
        for _ in range(400):
            message = m.AddOffsetsToTxnRequest(
                transactional_id=holder[0],
                producer_id=holder[1],
                producer_epoch=holder[2],
                group_id=long_text(attacker, 30_000),
            )
            attacker.ask(Api.ADD_OFFSETS_TO_TXN, message, 3)


def pending_offsets(attacker: Attacker) -> None:
    request = m.TxnOffsetCommitRequest
    for name in new_names(attacker, 150):
        holder = hold(attacker, name)
        rows = [
            request.TxnOffsetCommitRequestPartition(partition_index=index, committed_offset=index)
            for index in range(PARTITIONS)
        ]
        message = request(
            transactional_id=holder[0],
            producer_id=holder[1],
            producer_epoch=holder[2],
            group_id=name,
            generation_id=-1,
            topics=[request.TxnOffsetCommitRequestTopic(name=WIDE, partitions=rows)],
        )
        attacker.ask(Api.TXN_OFFSET_COMMIT, message, 5)
