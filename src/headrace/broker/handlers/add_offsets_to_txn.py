"""AddOffsetsToTxn: a group whose offsets a producer is about to commit in its transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.request import Request

__all__ = ["handle"]

_FENCED_SINCE = 2


async def handle(broker: Broker, request: Request) -> Any:
    message = request.message
    error = broker.transactions.add_group(
        message.transactional_id, message.producer_id, message.producer_epoch, message.group_id
    )
    if error is ErrorCode.PRODUCER_FENCED and request.version < _FENCED_SINCE:
        error = ErrorCode.INVALID_PRODUCER_EPOCH
    return m.AddOffsetsToTxnResponse(error_code=error)
