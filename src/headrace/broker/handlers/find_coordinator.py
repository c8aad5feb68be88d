"""FindCoordinator: every group and every transaction is coordinated here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.request import Request

__all__ = ["handle"]

_GROUP = 0
_TRANSACTION = 1
_MANY_SINCE = 4


async def handle(broker: Broker, request: Request) -> Any:
    message = request.message
    place = _place(broker, message.key_type)
    if request.version < _MANY_SINCE:
        return m.FindCoordinatorResponse(**place)
    coordinator = m.FindCoordinatorResponse.Coordinator
    return m.FindCoordinatorResponse(
        coordinators=[coordinator(key=key, **place) for key in dict.fromkeys(message.coordinator_keys)]
    )


def _place(broker: Broker, key_type: int) -> dict[str, object]:
    if key_type in (_GROUP, _TRANSACTION):
        host, port = broker.settings.advertised
        return {"node_id": broker.settings.node_id, "host": host, "port": port}
    nowhere = {"node_id": -1, "host": "", "port": -1}
    return nowhere | {
        "error_code": ErrorCode.INVALID_REQUEST,
        "error_message": f"this broker coordinates groups and transactions, and nothing of type {key_type}",
    }
