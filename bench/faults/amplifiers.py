"""What is tried of each API beyond crowded requests: what it can be made to keep, to compute and to answer.

Each case is a function of an attacker. ``CASES`` must have an entry for every API that the broker offers, an empty one
where the crowded requests are all there is to try: a test holds it against the broker's own table.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from bench.faults.attacker import Attacker
from bench.faults.batches import build_batch
from bench.faults.strict import ZSTD, packed, record, sealed
from headrace.wire import Api
from headrace.wire import messages as m

__all__ = ["CASES", "Case", "prepare"]

Case = Callable[[Attacker], None]

WIDE = "wide"
PARTITIONS = 1_000
_WIDE_CHAR = "😀"
_SESSION_MS = 1_800_000


def prepare(attacker: Attacker) -> None:
    """The names that crowded requests repeat: each stands for much."""
    _create(attacker, WIDE, PARTITIONS)
    _group(attacker, "group", bytes(900_000))
    _commit(attacker, "group-offsets", range(PARTITIONS), "m" * 4_000)
    holder = _hold(attacker, "transaction")
    _add_partitions(attacker, holder, WIDE, range(PARTITIONS))
    _write_by_producers(attacker, 0, 5_000)


# -- what the cases are made of


def _create(attacker: Attacker, name: str, partitions: int, **configs: str) -> int:
    request = m.CreateTopicsRequest
    topic = request.CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=1,
        configs=[request.CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
    )
    answer = attacker.ask(Api.CREATE_TOPICS, request(topics=[topic], timeout_ms=60_000))
    return int(answer.topics[0].error_code)


def _join_request(group: str, protocols: list[tuple[str, bytes]], **fields: Any) -> Any:
    request = m.JoinGroupRequest
    return request(
        group_id=group,
        session_timeout_ms=_SESSION_MS,
        rebalance_timeout_ms=1_000,
        **{"protocol_type": "consumer", **fields},
        protocols=[request.JoinGroupRequestProtocol(name=name, metadata=data) for name, data in protocols],
    )


def _group(attacker: Attacker, group: str, subscription: bytes, **fields: Any) -> bool:
    """A group of one member. Version 3 does not give an id out first."""
    joined = attacker.ask(Api.JOIN_GROUP, _join_request(group, [("range", subscription)], **fields), 3)
    if joined.error_code:
        return False
    sync = m.SyncGroupRequest(group_id=group, generation_id=joined.generation_id, member_id=joined.member_id)
    return not attacker.ask(Api.SYNC_GROUP, sync, 3).error_code


def _commit(attacker: Attacker, group: str, indexes: range, metadata: str = "") -> list[int]:
    request = m.OffsetCommitRequest
    rows = [
        request.OffsetCommitRequestPartition(
            partition_index=index, committed_offset=10**6 + index, committed_metadata=metadata
        )
        for index in indexes
    ]
    topics = [request.OffsetCommitRequestTopic(name=WIDE, partitions=rows)]
    message = request(group_id=group, generation_id_or_member_epoch=-1, topics=topics)
    answer = attacker.ask(Api.OFFSET_COMMIT, message, 8)
    return [row.error_code for row in answer.topics[0].partitions]


Holder = tuple[str, int, int]


def _hold(attacker: Attacker, transactional_id: str) -> Holder:
    message = m.InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=900_000)
    answer = attacker.ask(Api.INIT_PRODUCER_ID, message, 4)
    return transactional_id, answer.producer_id, answer.producer_epoch


def _add_partitions(attacker: Attacker, holder: Holder, topic: str, indexes: range) -> None:
    request = m.AddPartitionsToTxnRequest
    message = request(
        v3_and_below_transactional_id=holder[0],
        v3_and_below_producer_id=holder[1],
        v3_and_below_producer_epoch=holder[2],
        v3_and_below_topics=[request.AddPartitionsToTxnTopic(name=topic, partitions=list(indexes))],
    )
    attacker.ask(Api.ADD_PARTITIONS_TO_TXN, message, 3)


def _produce(attacker: Attacker, topic: str, batches: list[tuple[int, bytes]]) -> list[int]:
    request = m.ProduceRequest
    data = [request.PartitionProduceData(index=index, records=batch) for index, batch in batches]
    message = request(
        acks=-1, timeout_ms=60_000, topic_data=[request.TopicProduceData(name=topic, partition_data=data)]
    )
    answer = attacker.ask(Api.PRODUCE, message, 9)
    return [row.error_code for row in answer.responses[0].partition_responses]


def _write_by_producers(attacker: Attacker, index: int, producers: int) -> None:
    """One batch of a record for each of many producers that nobody gave an id to."""
    now_ms = int(time.time() * 1000)
    first = attacker.rng.getrandbits(40)
    while producers > 0:
        taken = min(producers, 3_000)
        batches = [
            (index, build_batch([b""], now_ms, producer_id=first + number, epoch=0, sequence=0))
            for number in range(taken)
        ]
        _produce(attacker, WIDE, batches)
        producers, first = producers - taken, first + taken


def _names(attacker: Attacker, count: int) -> Iterator[str]:
    stem = f"{attacker.rng.getrandbits(32):08x}"
    return (f"{stem}-{number}" for number in range(count))


def _long(attacker: Attacker, size: int) -> str:
    """A text that takes four times its bytes in memory."""
    return f"{attacker.rng.getrandbits(64):016x}" + "x" * (size - 20) + _WIDE_CHAR


# -- Produce, Fetch and what reads the log


def producers_of_every_partition(attacker: Attacker) -> None:
    for index in range(1, 30):
        _write_by_producers(attacker, index, 3_000)


def records_without_keys(attacker: Attacker) -> None:
    """Each record of each batch is at fault by itself."""
    _create(attacker, "compacted", 1, **{"cleanup.policy": "compact"})
    batch = build_batch([b""] * 2_000, int(time.time() * 1000))
    _produce(attacker, "compacted", [(0, batch)] * 50)


def _fetch(topics: dict[str, list[tuple[int, int]]], **fields: Any) -> Any:
    request = m.FetchRequest
    return request(
        **{"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 2**31 - 1, "session_epoch": 0, **fields},
        topics=[
            request.FetchTopic(
                topic=name,
                partitions=[
                    request.FetchPartition(
                        partition=index, fetch_offset=offset, partition_max_bytes=2**31 - 1
                    )
                    for index, offset in places
                ],
            )
            for name, places in topics.items()
        ],
    )


def sessions_of_unknown_topics(attacker: Attacker) -> None:
    for name in _names(attacker, 35):
        attacker.ask(Api.FETCH, _fetch({name: [(index, 2**40 + index) for index in range(11_000)]}), 12)


def sessions_of_known_topics(attacker: Attacker) -> None:
    for _ in range(300):
        attacker.ask(Api.FETCH, _fetch({WIDE: [(index, 10**6) for index in range(40, PARTITIONS)]}), 12)


def fetches_that_wait(attacker: Attacker) -> None:
    message = _fetch(
        {WIDE: [(index, 0) for index in range(40, PARTITIONS)]},
        max_wait_ms=200_000,
        min_bytes=1,
        session_epoch=-1,
    )
    for _ in range(200):
        attacker.send(Api.FETCH, message, 12, connection=attacker.connect())
    time.sleep(0.5)


def small_batches_before_large_ones(attacker: Attacker) -> None:
    """A read that finds a small batch whole, and a large one not."""
    _create(attacker, "uneven", 40)
    now_ms = int(time.time() * 1000)
    large = build_batch([bytes(1_000_000)], now_ms)
    for index in range(40):
        _produce(attacker, "uneven", [(index, build_batch([b""], now_ms))])
        _produce(attacker, "uneven", [(index, large)])
    sent = attacker.sent_bytes
    message = _fetch({"uneven": [(index, 0) for index in range(40)]}, session_epoch=-1)
    for topic in message.topics:
        for place in topic.partitions:
            place.partition_max_bytes = 999_000
    for _ in range(20):
        attacker.ask(Api.FETCH, message, 12)
    # What was written is there to be read, and not for these requests to grow by.
    attacker.sent_bytes -= sent


def _bomb(records: int) -> bytes:
    plain = b"".join(record(index, b"") for index in range(records))
    return sealed(packed(ZSTD, plain), records, int(time.time() * 1000), codec=ZSTD)


def times_in_bombs(attacker: Attacker) -> None:
    """The last record of a batch that unpacks to many is the one that is looked for."""
    _create(attacker, "bombs", 20)
    bomb = _bomb(500_000)
    for index in range(20):
        _produce(attacker, "bombs", [(index, bomb)])
    request = m.ListOffsetsRequest
    for timestamp in (int(time.time() * 1000) - 3_600_000, -3):
        parts = [
            request.ListOffsetsPartition(partition_index=index, timestamp=timestamp) for index in range(20)
        ]
        attacker.ask(
            Api.LIST_OFFSETS, request(topics=[request.ListOffsetsTopic(name="bombs", partitions=parts)]), 8
        )


def topics_made_by_naming_them(attacker: Attacker) -> None:
    request = m.MetadataRequest
    names = [request.MetadataRequestTopic(name=name) for name in _names(attacker, 3_000)]
    attacker.ask(Api.METADATA, request(topics=names, allow_auto_topic_creation=True), 9)
    attacker.ask(Api.METADATA, request(topics=None, include_topic_authorized_operations=True), 9)


# -- groups


def offsets_of_many_groups(attacker: Attacker) -> None:
    for name in _names(attacker, 300):
        _commit(attacker, name, range(PARTITIONS))


def offsets_with_wide_metadata(attacker: Attacker) -> None:
    metadata = "x" * 4_000 + _WIDE_CHAR
    for name in _names(attacker, 30):
        _commit(attacker, name, range(PARTITIONS - 50), metadata)


def all_offsets_of_a_group_again(attacker: Attacker) -> None:
    request = m.OffsetFetchRequest
    group = request.OffsetFetchRequestGroup(group_id="group-offsets", topics=None)
    attacker.ask(Api.OFFSET_FETCH, request(groups=[group] * 30), 8)


def all_offsets_of_many_groups(attacker: Attacker) -> None:
    names = list(_names(attacker, 60))
    for name in names:
        _commit(attacker, name, range(PARTITIONS))
    request = m.OffsetFetchRequest
    groups = [request.OffsetFetchRequestGroup(group_id=name, topics=None) for name in names]
    attacker.ask(Api.OFFSET_FETCH, request(groups=groups), 8)


def ids_that_are_never_joined_with(attacker: Attacker) -> None:
    client_id = _long(attacker, 30_000)
    for name in _names(attacker, 1_000):
        attacker.ask(Api.JOIN_GROUP, _join_request(name, [("range", b"")]), 5, client_id=client_id)


def short_ids_that_are_never_joined_with(attacker: Attacker) -> None:
    for name in _names(attacker, 70):
        connection = attacker.connect()
        message = _join_request(name, [("range", b"")])
        for _ in range(500):
            attacker.ask(Api.JOIN_GROUP, message, 5, client_id="", connection=connection)


def many_protocols(attacker: Attacker) -> None:
    """What members have in common is looked for among all of them."""
    names = list(_names(attacker, 8))
    for name in names:
        _group_of_protocols(attacker, name, [f"a{number}" for number in range(5_000)])
    for name in names:
        _group_of_protocols(attacker, name, [f"b{number}" for number in range(5_000)])
    for name in _names(attacker, 20):
        _group_of_protocols(attacker, name, [chr(0x4E00 + number) for number in range(11_000)])


def _group_of_protocols(attacker: Attacker, group: str, protocols: list[str]) -> None:
    attacker.ask(Api.JOIN_GROUP, _join_request(group, [(name, b"") for name in protocols]), 3)


def subscriptions_of_many_topics(attacker: Attacker) -> None:
    for number, name in enumerate(_names(attacker, 20)):
        topics = b"".join(
            b"\0\4%04x" % (index & 0xFFFF) for index in range(number << 16, (number << 16) + 150_000)
        )
        _group(attacker, name, b"\0\1" + (150_000).to_bytes(4, "big") + topics + b"\xff\xff\xff\xff")


def assignments_for_nobody(attacker: Attacker) -> None:
    joined = attacker.ask(Api.JOIN_GROUP, _join_request("nobody", [("range", b"")]), 3)
    request = m.SyncGroupRequest
    assignments = [
        request.SyncGroupRequestAssignment(member_id=name, assignment=bytes(100))
        for name in _names(attacker, 11_000)
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
    names = list(_names(attacker, 40))
    for name in names:
        _group(attacker, name, bytes(900_000))
    attacker.ask(Api.DESCRIBE_GROUPS, m.DescribeGroupsRequest(groups=names), 5)


def groups_with_long_names(attacker: Attacker) -> None:
    for _ in range(3_000):
        message = _join_request(_long(attacker, 1_000), [("r", b"")], protocol_type=_long(attacker, 30_000))
        attacker.ask(Api.JOIN_GROUP, message, 5)
    attacker.ask(Api.LIST_GROUPS, m.ListGroupsRequest())


# -- transactions


def transactional_ids(attacker: Attacker) -> None:
    for _ in range(6_000):
        _hold(attacker, _long(attacker, 1_000))
    attacker.ask(Api.LIST_TRANSACTIONS, m.ListTransactionsRequest())


def patterns(attacker: Attacker) -> None:
    for number in range(200):
        _hold(attacker, "a" * 1_000 + f"{number:03}")
    nested = "(" * 40 + ")" * 40
    slow = ("(?:a|b)*a(?:a|b){400}c", "(a?){200}a{200}", "(?:a|aa|aaa)*b", "(?i)" + "\\pL" * 100)
    for pattern in (nested, *slow, "(" * 250 + ")" * 250, "x{1000}" * 70, "[" * 500, "\\" * 511):
        attacker.ask(Api.LIST_TRANSACTIONS, m.ListTransactionsRequest(transactional_id_pattern=pattern))


def one_transaction_again(attacker: Attacker) -> None:
    """Each item adds one partition to the many that are there."""
    holder = _hold(attacker, "again")
    _add_partitions(attacker, holder, WIDE, range(PARTITIONS))
    request = m.AddPartitionsToTxnRequest
    topics = [request.AddPartitionsToTxnTopic(name=WIDE, partitions=[0])]
    one = request.AddPartitionsToTxnTransaction(
        transactional_id=holder[0], producer_id=holder[1], producer_epoch=holder[2], topics=topics
    )
    attacker.ask(Api.ADD_PARTITIONS_TO_TXN, request(transactions=[one] * 3_900), 5)


def partitions_of_many_transactions(attacker: Attacker) -> None:
    for name in _names(attacker, 400):
        _add_partitions(attacker, _hold(attacker, name), WIDE, range(PARTITIONS))


def groups_of_transactions(attacker: Attacker) -> None:
    for name in _names(attacker, 4):
        holder = _hold(attacker, name)
        for _ in range(400):
            message = m.AddOffsetsToTxnRequest(
                transactional_id=holder[0],
                producer_id=holder[1],
                producer_epoch=holder[2],
                group_id=_long(attacker, 30_000),
            )
            attacker.ask(Api.ADD_OFFSETS_TO_TXN, message, 3)


def pending_offsets(attacker: Attacker) -> None:
    request = m.TxnOffsetCommitRequest
    for name in _names(attacker, 150):
        holder = _hold(attacker, name)
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


# -- topics and their configurations


def many_partitions(attacker: Attacker) -> None:
    for name in _names(attacker, 5):
        _create(attacker, name, 1_000)


def wide_topics_that_are_deleted(attacker: Attacker) -> None:
    request = m.DeleteTopicsRequest
    for name in _names(attacker, 2):
        _create(attacker, name, 1_000)
        state = request.DeleteTopicState(name=name)
        attacker.ask(Api.DELETE_TOPICS, request(topics=[state], timeout_ms=60_000))


def topics_of_bombs_that_grow(attacker: Attacker) -> None:
    """Whether records have keys is looked for in batches that unpack to many."""
    (name,) = _names(attacker, 1)
    _create(attacker, name, 5)
    plain = b"".join(record(index, bytes(1_000), key=None) for index in range(20_000))
    bomb = sealed(packed(ZSTD, plain), 20_000, int(time.time() * 1000), codec=ZSTD)
    for index in range(5):
        _produce(attacker, name, [(index, bomb)])
    request = m.CreatePartitionsRequest
    topic = request.CreatePartitionsTopic(name=name, count=6)
    attacker.ask(Api.CREATE_PARTITIONS, request(topics=[topic], timeout_ms=60_000))


def topics_that_are_not_made(attacker: Attacker) -> None:
    request = m.CreateTopicsRequest
    topics = [
        request.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        for name in _names(attacker, 1_900)
    ]
    attacker.ask(Api.CREATE_TOPICS, request(topics=topics, validate_only=True, timeout_ms=1_000))


def one_resource_by_many_keys(attacker: Attacker) -> None:
    request = m.DescribeConfigsRequest
    keys = ("headrace.tombstones.removed.below", "retention.ms")
    resources = [
        request.DescribeConfigsResource(
            resource_type=2, resource_name=WIDE, configuration_keys=[*keys, f"none-{number}"]
        )
        for number in range(1_400)
    ]
    attacker.ask(Api.DESCRIBE_CONFIGS, request(resources=resources, include_synonyms=True))


def all_texts_of_the_broker(attacker: Attacker) -> None:
    request = m.DescribeConfigsRequest
    resources = [
        request.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
        for kind, name in ((4, "1"), (4, ""), (2, WIDE))
        for keys in ([], None)
    ]
    message = request(resources=resources * 30, include_synonyms=True, include_documentation=True)
    attacker.ask(Api.DESCRIBE_CONFIGS, message)


def _alter(attacker: Attacker, operation: int, value: str) -> None:
    request = m.IncrementalAlterConfigsRequest
    config = request.AlterableConfig(name="cleanup.policy", config_operation=operation, value=value)
    resource = request.AlterConfigsResource(resource_type=2, resource_name=WIDE, configs=[config])
    attacker.ask(Api.INCREMENTAL_ALTER_CONFIGS, request(resources=[resource], validate_only=True))


def lists_of_many_items(attacker: Attacker) -> None:
    items = ",".join(f"{number:x}" for number in range(7_000))
    for operation in (0, 2, 3, 2):
        _alter(attacker, operation, items)


CASES: dict[Api, tuple[Case, ...]] = {
    Api.PRODUCE: (producers_of_every_partition, records_without_keys),
    Api.FETCH: (
        sessions_of_unknown_topics,
        sessions_of_known_topics,
        fetches_that_wait,
        small_batches_before_large_ones,
    ),
    Api.LIST_OFFSETS: (times_in_bombs,),
    Api.METADATA: (topics_made_by_naming_them,),
    Api.OFFSET_COMMIT: (offsets_of_many_groups, offsets_with_wide_metadata),
    Api.OFFSET_FETCH: (all_offsets_of_a_group_again, all_offsets_of_many_groups),
    Api.FIND_COORDINATOR: (),
    Api.JOIN_GROUP: (
        ids_that_are_never_joined_with,
        short_ids_that_are_never_joined_with,
        many_protocols,
        subscriptions_of_many_topics,
    ),
    Api.HEARTBEAT: (),
    Api.LEAVE_GROUP: (),
    Api.SYNC_GROUP: (assignments_for_nobody,),
    Api.DESCRIBE_GROUPS: (one_wide_group_again, many_wide_groups_described),
    Api.LIST_GROUPS: (groups_with_long_names,),
    Api.API_VERSIONS: (),
    Api.CREATE_TOPICS: (topics_that_are_not_made, many_partitions),
    Api.DELETE_TOPICS: (wide_topics_that_are_deleted,),
    Api.DELETE_RECORDS: (),
    Api.INIT_PRODUCER_ID: (transactional_ids,),
    Api.OFFSET_FOR_LEADER_EPOCH: (),
    Api.ADD_PARTITIONS_TO_TXN: (one_transaction_again, partitions_of_many_transactions),
    Api.ADD_OFFSETS_TO_TXN: (groups_of_transactions,),
    Api.END_TXN: (),
    Api.TXN_OFFSET_COMMIT: (pending_offsets,),
    Api.DESCRIBE_CONFIGS: (one_resource_by_many_keys, all_texts_of_the_broker),
    Api.ALTER_CONFIGS: (),
    Api.DESCRIBE_LOG_DIRS: (),
    Api.CREATE_PARTITIONS: (topics_of_bombs_that_grow,),
    Api.DELETE_GROUPS: (),
    Api.INCREMENTAL_ALTER_CONFIGS: (lists_of_many_items,),
    Api.OFFSET_DELETE: (),
    Api.DESCRIBE_CLUSTER: (),
    Api.DESCRIBE_PRODUCERS: (),
    Api.DESCRIBE_TRANSACTIONS: (),
    Api.LIST_TRANSACTIONS: (patterns,),
    Api.DESCRIBE_TOPIC_PARTITIONS: (),
}
