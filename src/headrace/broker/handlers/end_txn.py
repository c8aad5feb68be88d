"""EndTxn: commit or abort, answered when the decision is on disk.

From version 5 on the producer goes on with the epoch that the answer gives it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.request import Request

__all__ = ["handle"]

_FENCED_SINCE = 2
_BUMPS_SINCE = 5


async def handle(broker: Broker, request: Request) -> Any:
    message = request.message
    answer = await broker.transactions.end(
        message.transactional_id,
        message.producer_id,
        message.producer_epoch,
        commit=message.committed,
        bumps=request.version >= _BUMPS_SINCE,
    )
    error = answer.error
    if error is ErrorCode.PRODUCER_FENCED and request.version < _FENCED_SINCE:
        error = ErrorCode.INVALID_PRODUCER_EPOCH
    return m.EndTxnResponse(error_code=error, producer_id=answer.producer_id, producer_epoch=answer.epoch)
