"""What the cases of ``amplifiers`` are made of: requests that set something up, or write what is to be looked for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from bench.faults.attacker import Attacker
from bench.faults.batches import build_batch
from bench.faults.strict import ZSTD, packed, record, sealed
from headrace.wire import Api
from headrace.wire import messages as m

__all__ = [
    "PARTITIONS",
    "WIDE",
    "WIDE_CHAR",
    "Holder",
    "add_partitions",
    "commit",
    "create",
    "form_group",
    "hold",
    "join_request",
    "long_text",
    "new_names",
    "produce",
    "write_by_producers",
    "zstd_bomb",
]

#: A topic, and how many partitions it has.
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
    answer = attacker.ask(Api.CREATE_TOPICS, request(topics=[topic], timeout_ms=60_000))
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
    """A group of one member. Version 3 does not give an id out first."""
    joined = attacker.ask(Api.JOIN_GROUP, join_request(group, [("range", subscription)], **fields), 3)
    if joined.error_code:
        return False
    sync = m.SyncGroupRequest(group_id=group, generation_id=joined.generation_id, member_id=joined.member_id)
    return not attacker.ask(Api.SYNC_GROUP, sync, 3).error_code


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
    answer = attacker.ask(Api.OFFSET_COMMIT, message, 8)
    return [row.error_code for row in answer.topics[0].partitions]


Holder = tuple[str, int, int]


def hold(attacker: Attacker, transactional_id: str) -> Holder:
    message = m.InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=900_000)
    answer = attacker.ask(Api.INIT_PRODUCER_ID, message, 4)
    return transactional_id, answer.producer_id, answer.producer_epoch


def add_partitions(attacker: Attacker, holder: Holder, topic: str, indexes: range) -> None:
    request = m.AddPartitionsToTxnRequest
    message = request(
        v3_and_below_transactional_id=holder[0],
        v3_and_below_producer_id=holder[1],
        v3_and_below_producer_epoch=holder[2],
        v3_and_below_topics=[request.AddPartitionsToTxnTopic(name=topic, partitions=list(indexes))],
    )
    attacker.ask(Api.ADD_PARTITIONS_TO_TXN, message, 3)


def produce(attacker: Attacker, topic: str, batches: list[tuple[int, bytes]]) -> list[int]:
    request = m.ProduceRequest
    data = [request.PartitionProduceData(index=index, records=batch) for index, batch in batches]
    message = request(
        acks=-1, timeout_ms=60_000, topic_data=[request.TopicProduceData(name=topic, partition_data=data)]
    )
    answer = attacker.ask(Api.PRODUCE, message, 9)
    return [row.error_code for row in answer.responses[0].partition_responses]


def write_by_producers(attacker: Attacker, index: int, producers: int) -> None:
    """One batch of a record for each of many producers that nobody gave an id to."""
    now_ms = int(time.time() * 1000)
    first = attacker.rng.getrandbits(40)
    while producers > 0:
        taken = min(producers, 3_000)
        batches = [
            (index, build_batch([b""], now_ms, producer_id=first + number, epoch=0, sequence=0))
            for number in range(taken)
        ]
        produce(attacker, WIDE, batches)
        producers, first = producers - taken, first + taken


def new_names(attacker: Attacker, count: int) -> Iterator[str]:
    stem = f"{attacker.rng.getrandbits(32):08x}"
    return (f"{stem}-{number}" for number in range(count))


def long_text(attacker: Attacker, size: int) -> str:
    """A text that takes four times its bytes in memory."""
    return f"{attacker.rng.getrandbits(64):016x}" + "x" * (size - 20) + WIDE_CHAR


def zstd_bomb(records: int) -> bytes:
    plain = b"".join(record(index, b"") for index in range(records))
    return sealed(packed(ZSTD, plain), records, int(time.time() * 1000), codec=ZSTD)
