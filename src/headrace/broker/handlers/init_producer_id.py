"""InitProducerId: a number for an idempotent producer, never given out twice, or a transactional id to hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.errors import StorageError
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.request import Request

__all__ = ["handle"]

_NONE = -1
_FENCED_SINCE = 4


async def handle(broker: Broker, request: Request) -> Any:
    message = request.message
    if (message.producer_id == _NONE) != (message.producer_epoch == _NONE):
        return _refused(ErrorCode.INVALID_REQUEST)
    if message.transactional_id is not None:
        answer = await broker.transactions.init(
            message.transactional_id,
            message.transaction_timeout_ms,
            message.producer_id,
            message.producer_epoch,
        )
        if answer.error is ErrorCode.PRODUCER_FENCED and request.version < _FENCED_SINCE:
            return _refused(ErrorCode.INVALID_PRODUCER_EPOCH)
        return m.InitProducerIdResponse(
            error_code=answer.error, producer_id=answer.producer_id, producer_epoch=answer.epoch
        )
    # An idempotent producer that gives its old id after an error gets a new one, as Kafka does: epochs are
    # only raised for transactional ids.
    try:
        producer_id = await broker.producer_ids.next()
    except StorageError:
        return _refused(ErrorCode.KAFKA_STORAGE_ERROR)
    return m.InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def _refused(error_code: ErrorCode) -> Any:
    return m.InitProducerIdResponse(error_code=error_code, producer_id=_NONE, producer_epoch=_NONE)
