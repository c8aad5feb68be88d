"""Produce: append each batch, and answer when all of them are as durable as the broker promises.

The appends happen in ``begin``, in the order in which the requests of a connection arrive; only the wait for the disk
is shared out. A batch that is part of a transaction is written only if the coordinator takes the partition for a part
of it.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from headrace.broker.partition import Accepted, Partition, ProduceRefused
from headrace.broker.turns import give_turn
from headrace.errors import StorageError
from headrace.records import HEADER_SIZE
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.request import Request

__all__ = ["APPENDED_AT_ONCE", "Produced", "begin", "begin_in_turns"]

APPENDED_AT_ONCE = 200

_ZSTD = 4
_ZSTD_FROM = 7
_ATTRIBUTES_AT = 22
_TRANSACTIONAL_BIT = 0x10
_PRODUCER = struct.Struct(">qh")
_PRODUCER_AT = 43
_ADDS_FROM = 12
_ABORTABLE_FROM = 11
# What passes by itself. Old clients know this code, and send again.
_RETRIED = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
}


class Produced:
    """A produce request whose appends are done; ``waits`` are the syncs that its answer needs."""

    __slots__ = ("_accepted", "response", "waits")

    def __init__(self, response: Any) -> None:
        self.response = response
        self.waits: list[asyncio.Future[None]] = []
        self._accepted: list[tuple[Any, Accepted]] = []

    def accept(self, answer: Any, accepted: Accepted) -> None:
        answer.base_offset = accepted.appended.base_offset
        answer.log_append_time_ms = accepted.append_time_ms
        if accepted.durable is not None:
            self.waits.append(accepted.durable)
            self._accepted.append((answer, accepted))

    def finish(self) -> Any:
        """The response, once every future in ``waits`` is done."""
        for answer, accepted in self._accepted:
            assert accepted.durable is not None
            error = accepted.durable.exception()
            if error is not None:
                assert isinstance(error, StorageError)
                _refuse(answer, ErrorCode.KAFKA_STORAGE_ERROR, error.message)
        return self.response

    @property
    def failed(self) -> bool:
        """Whether any partition was refused: a client that asked for no answer learns it by a closed
        connection.
        """
        return any(p.error_code for topic in self.response.responses for p in topic.partition_responses)


def begin(broker: Broker, request: Request) -> Produced:
    produced = Produced(m.ProduceResponse())
    for _ in _appends(broker, request, produced):
        pass
    return produced


async def begin_in_turns(broker: Broker, request: Request) -> Produced:
    """As ``begin``, for many batches: others are served between them."""
    produced = Produced(m.ProduceResponse())
    for number, _ in enumerate(_appends(broker, request, produced), 1):
        await give_turn(number, APPENDED_AT_ONCE)
    return produced


def _appends(broker: Broker, request: Request, produced: Produced) -> Iterator[None]:
    """One step for each partition of the request."""
    message = request.message
    response = produced.response
    now_ms = broker.clock.now_ms()
    trusted_ms = broker.trusted_time.now_ms()
    refused_whole = _refused_whole(message)
    for topic in message.topic_data:
        name = topic.name if request.version < 13 else broker.topic_name(topic.topic_id)
        answer_topic = m.ProduceResponse.TopicProduceResponse(name=name or "", topic_id=topic.topic_id)
        response.responses.append(answer_topic)
        for data in topic.partition_data:
            answer = m.ProduceResponse.PartitionProduceResponse(index=data.index, base_offset=-1)
            answer_topic.partition_responses.append(answer)
            try:
                if refused_whole is not None:
                    raise refused_whole
                partition = _find(broker, message, name, data.index)
                if data.records is None or not len(data.records):
                    raise ProduceRefused(ErrorCode.INVALID_RECORD, "the request carries no batch")
                if request.version < _ZSTD_FROM and _codec_of(data.records) == _ZSTD:
                    raise ProduceRefused(
                        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce version 7 or later"
                    )
                producer = _transactional_producer(data.records)
                begins_at_zero = False
                if producer is not None:
                    assert name is not None
                    _admit(broker, request, producer, partition, name, data.index)
                    begins_at_zero = request.version >= _ADDS_FROM
                accepted = partition.append(data.records, now_ms, trusted_ms, begins_at_zero=begins_at_zero)
                produced.accept(answer, accepted)
                answer.log_start_offset = partition.start_offset
            except ProduceRefused as refused:
                _refuse(answer, refused.code, refused.message, refused.log_start_offset)
                answer.record_errors = [
                    m.ProduceResponse.BatchIndexAndErrorMessage(
                        batch_index=index, batch_index_error_message=refused.message
                    )
                    for index in refused.records
                ]
            yield


def _codec_of(records: memoryview) -> int:
    return records[_ATTRIBUTES_AT] & 7 if len(records) > _ATTRIBUTES_AT else 0


def _transactional_producer(records: memoryview | None) -> tuple[int, int] | None:
    """Id and epoch of the producer whose transaction the batch is part of."""
    if records is None or len(records) < HEADER_SIZE or not records[_ATTRIBUTES_AT] & _TRANSACTIONAL_BIT:
        return None
    producer_id, epoch = _PRODUCER.unpack_from(records, _PRODUCER_AT)
    return (producer_id, epoch) if producer_id >= 0 else None


def _refused_whole(message: Any) -> ProduceRefused | None:
    """Why no partition of the request is written to, if that is so."""
    producers = set()
    for topic in message.topic_data:
        for data in topic.partition_data:
            if (producer := _transactional_producer(data.records)) is not None:
                producers.add(producer)
    if producers and message.transactional_id is None:
        return ProduceRefused(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "a transactional batch came without a transactional id",
        )
    if len(producers) > 1:
        return ProduceRefused(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            "transactional batches of more than one producer came together",
        )
    return None


def _admit(
    broker: Broker, request: Request, producer: tuple[int, int], partition: Partition, name: str, index: int
) -> None:
    """See to it that the partition is part of the producer's transaction."""
    producer_id, epoch = producer
    open_one = partition.open_transactions().get(producer_id)
    # Where it is open it was admitted before, and what cannot be written to shall not become part of one.
    is_open = open_one is not None and open_one.producer_epoch == epoch
    if partition.is_lost or (is_open and not broker.transactions.is_marking(producer_id)):
        return
    code = broker.transactions.admit(
        request.message.transactional_id,
        producer_id,
        epoch,
        name,
        index,
        adds=request.version >= _ADDS_FROM,
    )
    message = f"{name}-{index} is not part of a transaction of producer {producer_id}"
    if code is ErrorCode.CONCURRENT_TRANSACTIONS:
        message = f"the last transaction of producer {producer_id} is still being ended; try again"
    elif code in _RETRIED:
        message = "the transaction coordinator is not available; try again"
    if code is ErrorCode.TRANSACTION_ABORTABLE and request.version < _ABORTABLE_FROM:
        code = ErrorCode.INVALID_TXN_STATE
    elif code in _RETRIED or (code is ErrorCode.CONCURRENT_TRANSACTIONS and request.version < _ADDS_FROM):
        code = ErrorCode.NOT_ENOUGH_REPLICAS
    if code is not ErrorCode.NONE:
        raise ProduceRefused(code, message)


def _find(broker: Broker, message: Any, name: str | None, index: int) -> Partition:
    if message.acks not in (-1, 0, 1):
        raise ProduceRefused(
            ErrorCode.INVALID_REQUIRED_ACKS, f"acks is {message.acks}, and may be -1, 0 or 1"
        )
    if name is None:
        raise ProduceRefused(ErrorCode.UNKNOWN_TOPIC_ID)
    partition = broker.partition(name, index)
    if partition is None:
        raise ProduceRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if message.acks == -1 and broker.min_insync_replicas(name) > 1:
        raise ProduceRefused(
            ErrorCode.NOT_ENOUGH_REPLICAS, "min.insync.replicas asks for more than this one node"
        )
    return partition


def _refuse(answer: Any, code: ErrorCode, message: str | None, log_start_offset: int = -1) -> None:
    answer.error_code = code
    answer.error_message = message
    answer.base_offset = -1
    answer.log_append_time_ms = -1
    answer.log_start_offset = log_start_offset
