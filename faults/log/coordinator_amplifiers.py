"""Amplification cases of the group and transaction coordinators, by state, comparisons and large responses."""

from __future__ import annotations

import time
from typing import Any

from faults.log.amplifier_steps import (
    PARTITIONS,
    WIDE,
    WIDE_CHAR,
    add_partitions,
    commit,
    form_group,
    init_producer,
    join_request,
    long_text,
    new_names,
    produce,
)
from faults.log.attacker import Attacker
from faults.protocol.batches import build_batch
from headrace.wire import Api
from headrace.wire import messages as m

__all__ = [
    "all_offsets_for_many_clients",
    "all_offsets_of_a_group_again",
    "all_offsets_of_many_groups",
    "assignments_without_members",
    "groups_of_transactions",
    "groups_with_long_names",
    "ids_that_are_never_joined_with",
    "many_protocols",
    "many_wide_groups_described",
    "offsets_of_many_groups",
    "offsets_that_are_deleted",
    "offsets_with_wide_metadata",
    "one_transaction_again",
    "one_wide_group_again",
    "partitions_of_many_transactions",
    "patterns",
    "pending_offsets",
    "short_ids_that_are_never_joined_with",
    "subscriptions_of_many_topics",
    "transactional_ids",
    "transactions_over_many_partitions",
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
    attacker.call(Api.OFFSET_FETCH, request(groups=[group] * 30), 8)


def all_offsets_of_many_groups(attacker: Attacker) -> None:
    attacker.call(Api.OFFSET_FETCH, _all_offsets(attacker, groups=60), 8)


def all_offsets_for_many_clients(attacker: Attacker) -> None:
    attacker.call_from_many(Api.OFFSET_FETCH, _all_offsets(attacker, groups=60), 8, connections=60)


def _all_offsets(attacker: Attacker, groups: int) -> Any:
    """Commit offsets of all partitions for new groups, and return the request for all these offsets."""
    names = list(new_names(attacker, groups))
    for name in names:
        commit(attacker, name, range(PARTITIONS))
    request = m.OffsetFetchRequest
    return request(groups=[request.OffsetFetchRequestGroup(group_id=name, topics=None) for name in names])


def offsets_that_are_deleted(attacker: Attacker) -> None:
    (group,) = new_names(attacker, 1)
    commit(attacker, group, range(PARTITIONS))
    request = m.OffsetDeleteRequest
    rows = [request.OffsetDeleteRequestPartition(partition_index=index) for index in range(PARTITIONS)]
    topics = [request.OffsetDeleteRequestTopic(name=WIDE, partitions=rows)]
    attacker.call(Api.OFFSET_DELETE, request(group_id=group, topics=topics))


def ids_that_are_never_joined_with(attacker: Attacker) -> None:
    client_id = long_text(attacker, 30_000)
    for name in new_names(attacker, 1_000):
        attacker.call(Api.JOIN_GROUP, join_request(name, [("range", b"")]), 5, client_id=client_id)


def short_ids_that_are_never_joined_with(attacker: Attacker) -> None:
    for name in new_names(attacker, 70):
        connection = attacker.connect()
        message = join_request(name, [("range", b"")])
        for _ in range(500):
            attacker.call(Api.JOIN_GROUP, message, 5, client_id="", connection=connection)


def many_protocols(attacker: Attacker) -> None:
    """The coordinator searches all members for a common protocol."""
    names = list(new_names(attacker, 8))
    for name in names:
        _group_of_protocols(attacker, name, [f"a{number}" for number in range(5_000)])
    for name in names:
        _group_of_protocols(attacker, name, [f"b{number}" for number in range(5_000)])
    for name in new_names(attacker, 20):
        _group_of_protocols(attacker, name, [chr(0x4E00 + number) for number in range(11_000)])


def _group_of_protocols(attacker: Attacker, group: str, protocols: list[str]) -> None:
    attacker.call(Api.JOIN_GROUP, join_request(group, [(name, b"") for name in protocols]), 3)


def subscriptions_of_many_topics(attacker: Attacker) -> None:
    for number, name in enumerate(new_names(attacker, 20)):
        topics = b"".join(
            b"\0\4%04x" % (index & 0xFFFF) for index in range(number << 16, (number << 16) + 150_000)
        )
        form_group(attacker, name, b"\0\1" + (150_000).to_bytes(4, "big") + topics + b"\xff\xff\xff\xff")


def assignments_without_members(attacker: Attacker) -> None:
    joined = attacker.call(Api.JOIN_GROUP, join_request("nobody", [("range", b"")]), 3)
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
    attacker.call(Api.SYNC_GROUP, message, 3)


def one_wide_group_again(attacker: Attacker) -> None:
    """An unprotected broker describes the group 120 times. The descriptions fit into the machine's memory."""
    attacker.call(Api.DESCRIBE_GROUPS, m.DescribeGroupsRequest(groups=["group"] * 120), 5)


def many_wide_groups_described(attacker: Attacker) -> None:
    names = list(new_names(attacker, 40))
    for name in names:
        form_group(attacker, name, bytes(900_000))
    attacker.call(Api.DESCRIBE_GROUPS, m.DescribeGroupsRequest(groups=names), 5)


def groups_with_long_names(attacker: Attacker) -> None:
    for _ in range(3_000):
        message = join_request(
            long_text(attacker, 1_000), [("r", b"")], protocol_type=long_text(attacker, 30_000)
        )
        attacker.call(Api.JOIN_GROUP, message, 5)
    attacker.call(Api.LIST_GROUPS, m.ListGroupsRequest())


def transactional_ids(attacker: Attacker) -> None:
    for _ in range(6_000):
        init_producer(attacker, long_text(attacker, 1_000))
    attacker.call(Api.LIST_TRANSACTIONS, m.ListTransactionsRequest())


def patterns(attacker: Attacker) -> None:
    for number in range(200):
        init_producer(attacker, "a" * 1_000 + f"{number:03}")
    nested = "(" * 40 + ")" * 40
    slow = ("(?:a|b)*a(?:a|b){400}c", "(a?){200}a{200}", "(?:a|aa|aaa)*b", "(?i)" + "\\pL" * 100)
    for pattern in (nested, *slow, "(" * 250 + ")" * 250, "x{1000}" * 70, "[" * 500, "\\" * 511):
        attacker.call(Api.LIST_TRANSACTIONS, m.ListTransactionsRequest(transactional_id_pattern=pattern))


def one_transaction_again(attacker: Attacker) -> None:
    """Each item adds a partition that the transaction already has, among many others."""
    producer = init_producer(attacker, "again")
    add_partitions(attacker, producer, WIDE, range(PARTITIONS))
    request = m.AddPartitionsToTxnRequest
    topics = [request.AddPartitionsToTxnTopic(name=WIDE, partitions=[0])]
    transaction = request.AddPartitionsToTxnTransaction(
        transactional_id=producer[0], producer_id=producer[1], producer_epoch=producer[2], topics=topics
    )
    attacker.call(Api.ADD_PARTITIONS_TO_TXN, request(transactions=[transaction] * 3_900), 5)


def transactions_over_many_partitions(attacker: Attacker) -> None:
    """Ending a transaction writes a marker to each of its partitions."""
    for name in new_names(attacker, 2):
        producer = init_producer(attacker, name)
        add_partitions(attacker, producer, WIDE, range(PARTITIONS))
        now_ms = int(time.time() * 1000)
        batch = build_batch(
            [b""], now_ms, producer_id=producer[1], epoch=producer[2], sequence=0, transactional=True
        )
        produce(attacker, WIDE, [(index, batch) for index in range(PARTITIONS)], name)
        message = m.EndTxnRequest(
            transactional_id=name, producer_id=producer[1], producer_epoch=producer[2], committed=True
        )
        attacker.call(Api.END_TXN, message, 3)


def partitions_of_many_transactions(attacker: Attacker) -> None:
    for name in new_names(attacker, 400):
        add_partitions(attacker, init_producer(attacker, name), WIDE, range(PARTITIONS))


def groups_of_transactions(attacker: Attacker) -> None:
    for name in new_names(attacker, 4):
        producer = init_producer(attacker, name)
        for _ in range(400):
            message = m.AddOffsetsToTxnRequest(
                transactional_id=producer[0],
                producer_id=producer[1],
                producer_epoch=producer[2],
                group_id=long_text(attacker, 30_000),
            )
            attacker.call(Api.ADD_OFFSETS_TO_TXN, message, 3)


def pending_offsets(attacker: Attacker) -> None:
    request = m.TxnOffsetCommitRequest
    for name in new_names(attacker, 150):
        producer = init_producer(attacker, name)
        rows = [
            request.TxnOffsetCommitRequestPartition(partition_index=index, committed_offset=index)
            for index in range(PARTITIONS)
        ]
        message = request(
            transactional_id=producer[0],
            producer_id=producer[1],
            producer_epoch=producer[2],
            group_id=name,
            generation_id=-1,
            topics=[request.TxnOffsetCommitRequestTopic(name=WIDE, partitions=rows)],
        )
        attacker.call(Api.TXN_OFFSET_COMMIT, message, 5)
