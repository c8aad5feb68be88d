"""DescribeCluster: the one broker there is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.broker.operations import CLUSTER_OPERATIONS
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.request import Request

__all__ = ["handle"]

_BROKERS = 1
_CONTROLLERS = 2


async def handle(broker: Broker, request: Request) -> Any:
    message = request.message
    if message.endpoint_type == _CONTROLLERS:
        return m.DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            error_message="this port serves brokers' requests, and controllers were asked for",
        )
    if message.endpoint_type != _BROKERS:
        return m.DescribeClusterResponse(
            error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message=f"there is no endpoint type {message.endpoint_type}",
        )
    node_id = broker.settings.node_id
    host, port = broker.settings.advertised
    response = m.DescribeClusterResponse(
        cluster_id=broker.cluster_id,
        controller_id=node_id,
        brokers=[m.DescribeClusterResponse.DescribeClusterBroker(broker_id=node_id, host=host, port=port)],
    )
    if message.include_cluster_authorized_operations:
        response.cluster_authorized_operations = CLUSTER_OPERATIONS
    return response
