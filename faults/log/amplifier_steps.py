"""Requests that the cases in ``amplifiers`` share: they create topics and groups, begin transactions, write records."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from faults.log.attacker import Attacker
from faults.protocol.batches import build_batch
from faults.protocol.strict_batch import ZSTD, batch_with_header, compressed, record
from headrace.wire import Api
from headrace.wire import messages as m

__all__ = [
    "PARTITIONS",
    "WIDE",
    "WIDE_CHAR",
    "TransactionalProducer",
    "add_partitions",
    "commit",
    "create",
    "form_group",
    "init_producer",
    "join_request",
    "long_text",
    "new_names",
    "produce",
    "write_by_producers",
    "zstd_bomb",
]

#: A topic with 1,000 partitions.
WIDE = "wide"
PARTITIONS = 1_000
WIDE_CHAR = "😀"
_SESSION_MS = 1_800_000


def create(attacker: Attacker, name: str, partitions: int, **configs: str) -> int:
    request = m.CreateTopicsRequest
    topic = request.CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=1,
        configs=[request.CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
    )
    answer = attacker.call(Api.CREATE_TOPICS, request(topics=[topic], timeout_ms=60_000))
    return int(answer.topics[0].error_code)


def join_request(group: str, protocols: list[tuple[str, bytes]], **fields: Any) -> Any:
    request = m.JoinGroupRequest
    return request(
        group_id=group,
        session_timeout_ms=_SESSION_MS,
        rebalance_timeout_ms=1_000,
        **{"protocol_type": "consumer", **fields},
        protocols=[request.JoinGroupRequestProtocol(name=name, metadata=data) for name, data in protocols],
    )


def form_group(attacker: Attacker, group: str, subscription: bytes, **fields: Any) -> bool:
    """Form a group of one member. JoinGroup version 3 does not require a member id first."""
    joined = attacker.call(Api.JOIN_GROUP, join_request(group, [("range", subscription)], **fields), 3)
    if joined.error_code:
        return False
    sync = m.SyncGroupRequest(group_id=group, generation_id=joined.generation_id, member_id=joined.member_id)
    return not attacker.call(Api.SYNC_GROUP, sync, 3).error_code


def commit(attacker: Attacker, group: str, indexes: range, metadata: str = "") -> list[int]:
    request = m.OffsetCommitRequest
    rows = [
        request.OffsetCommitRequestPartition(
            partition_index=index, committed_offset=10**6 + index, committed_metadata=metadata
        )
        for index in indexes
    ]
    topics = [request.OffsetCommitRequestTopic(name=WIDE, partitions=rows)]
    message = request(group_id=group, generation_id_or_member_epoch=-1, topics=topics)
    answer = attacker.call(Api.OFFSET_COMMIT, message, 8)
    return [row.error_code for row in answer.topics[0].partitions]


TransactionalProducer = tuple[str, int, int]


def init_producer(attacker: Attacker, transactional_id: str) -> TransactionalProducer:
    message = m.InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=900_000)
    answer = attacker.call(Api.INIT_PRODUCER_ID, message, 4)
    return transactional_id, answer.producer_id, answer.producer_epoch


def add_partitions(attacker: Attacker, producer: TransactionalProducer, topic: str, indexes: range) -> None:
    request = m.AddPartitionsToTxnRequest
    message = request(
        v3_and_below_transactional_id=producer[0],
        v3_and_below_producer_id=producer[1],
        v3_and_below_producer_epoch=producer[2],
        v3_and_below_topics=[request.AddPartitionsToTxnTopic(name=topic, partitions=list(indexes))],
    )
    attacker.call(Api.ADD_PARTITIONS_TO_TXN, message, 3)


def produce(
    attacker: Attacker, topic: str, batches: list[tuple[int, bytes]], transactional_id: str | None = None
) -> list[int]:
    request = m.ProduceRequest
    data = [request.PartitionProduceData(index=index, records=batch) for index, batch in batches]
    message = request(
        transactional_id=transactional_id,
        acks=-1,
        timeout_ms=60_000,
        topic_data=[request.TopicProduceData(name=topic, partition_data=data)],
    )
    answer = attacker.call(Api.PRODUCE, message, 9)
    return [row.error_code for row in answer.responses[0].partition_responses]


def write_by_producers(attacker: Attacker, index: int, producers: int) -> None:
    """Write batches of one record each, from many producers whose ids the broker never assigned."""
    now_ms = int(time.time() * 1000)
    first = attacker.rng.getrandbits(40)
    while producers > 0:
        count = min(producers, 3_000)
        batches = [
            (index, build_batch([b""], now_ms, producer_id=first + number, epoch=0, sequence=0))
            for number in range(count)
        ]
        produce(attacker, WIDE, batches)
        producers, first = producers - count, first + count


def new_names(attacker: Attacker, count: int) -> Iterator[str]:
    prefix = f"{attacker.rng.getrandbits(32):08x}"
    return (f"{prefix}-{number}" for number in range(count))


def long_text(attacker: Attacker, size: int) -> str:
    """Return a text that takes about four times its encoded size in memory."""
    return f"{attacker.rng.getrandbits(64):016x}" + "x" * (size - 20) + WIDE_CHAR


def zstd_bomb(records: int) -> bytes:
    plain = b"".join(record(index, b"") for index in range(records))
    return batch_with_header(compressed(ZSTD, plain), records, int(time.time() * 1000), codec=ZSTD)
