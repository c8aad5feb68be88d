"""APIs that describe the broker: API versions, address, data directory and coordinators."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.broker.event_loop import Step
from headrace.broker.net.responses import partitions_once
from headrace.broker.permissions import CLUSTER_OPERATIONS, Handler, Operation, Permission, Resource
from headrace.wire import messages as m
from headrace.wire.api import Api, advertised
from headrace.wire.codes import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.net.request import Request

__all__ = ["HANDLERS", "unsupported_version"]

_SOFTWARE_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_SOFTWARE_SINCE = 3
_ALL_FEATURES_SINCE = 4
_FEATURES = {"transaction.version": 2}
_PARTITIONS_PER_STEP = 500


async def api_versions(broker: Broker, request: Request) -> Any:
    """Return the APIs and versions that this broker supports.

    A client sends ApiVersions first, in the newest version that the client knows. If the broker does not support that
    version, it responds in version 0, with an error and the range of supported versions of ApiVersions. The client then
    retries with a version in that range.
    """
    message = request.message
    if request.version >= _SOFTWARE_SINCE and not (
        _SOFTWARE_NAME.fullmatch(message.client_software_name)
        and _SOFTWARE_NAME.fullmatch(message.client_software_version)
    ):
        return m.ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    return _supported_versions(lists_features=request.version >= _ALL_FEATURES_SINCE)


def unsupported_version() -> Any:
    """Return the response, encoded in version 0, to an unsupported version of ApiVersions."""
    return m.ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[_range(Api.API_VERSIONS)]
    )


@cache
def _supported_versions(*, lists_features: bool) -> Any:
    # Imported here, because the package imports this module.
    from headrace.broker.handlers import SUPPORTED_APIS

    # A client uses the second transaction protocol (KIP-890) if transaction.version 2 is finalized. Up to version 3 of
    # ApiVersions, the response cannot list a supported feature whose minimum version is 0.
    supported = m.ApiVersionsResponse.SupportedFeatureKey
    finalized = m.ApiVersionsResponse.FinalizedFeatureKey
    return m.ApiVersionsResponse(
        api_keys=[_range(api) for api in sorted(SUPPORTED_APIS)],
        supported_features=[
            supported(name=name, min_version=0, max_version=level)
            for name, level in _FEATURES.items()
            if lists_features
        ],
        finalized_features_epoch=0,
        finalized_features=[
            finalized(name=name, min_version_level=level, max_version_level=level)
            for name, level in _FEATURES.items()
        ],
    )


def _range(api: Api) -> Any:
    first, last = advertised(api)
    return m.ApiVersionsResponse.ApiVersion(api_key=api, min_version=first, max_version=last)


_BROKERS = 1
_CONTROLLERS = 2


async def describe_cluster(broker: Broker, request: Request) -> Any:
    """Describe the cluster, which consists of this broker."""
    message = request.message
    if message.endpoint_type == _CONTROLLERS:
        return m.DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            error_message="this endpoint is a broker, not a controller",
        )
    if message.endpoint_type != _BROKERS:
        return m.DescribeClusterResponse(
            error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message=f"unknown endpoint type {message.endpoint_type}",
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


_UNKNOWN = -1


async def describe_log_dirs(broker: Broker, request: Request) -> Any:
    """Return the data directory, the size of each partition, and the free disk space."""
    requested = request.message.topics
    requested_partitions: Mapping[str, Iterable[int]]
    await broker.turns.take()
    if requested is None:
        requested_partitions = {topic.name: range(topic.partitions) for topic in broker.catalog.topics()}
    else:
        requested_partitions = partitions_once((topic.topic, topic.partitions) for topic in requested)
    topics = []
    step = Step(broker.clock, _PARTITIONS_PER_STEP)
    for name, indexes in requested_partitions.items():
        partitions = []
        for index in indexes:
            if step.is_over():
                await broker.turns.pause()
                step.restart()
            if (described := _partition(broker, name, index)) is not None:
                partitions.append(described)
        if partitions:
            topics.append(m.DescribeLogDirsResponse.DescribeLogDirsTopic(name=name, partitions=partitions))
    total, usable = _disk_space(broker.settings.data_dir)
    result = m.DescribeLogDirsResponse.DescribeLogDirsResult(
        log_dir=str(broker.settings.data_dir.absolute()),
        topics=topics,
        total_bytes=total,
        usable_bytes=usable,
    )
    return m.DescribeLogDirsResponse(results=[result])


def _partition(broker: Broker, name: str, index: int) -> Any | None:
    partition = broker.partition(name, index)
    if partition is None:
        return None
    return m.DescribeLogDirsResponse.DescribeLogDirsPartition(
        partition_index=index, partition_size=partition.size_bytes
    )


def _disk_space(directory: Path) -> tuple[int, int]:
    """Return the size and the free space of the file system in bytes, or -1 for both if they are unknown."""
    try:
        usage = shutil.disk_usage(directory)
    except OSError:
        return _UNKNOWN, _UNKNOWN
    return usage.total, usage.free


_GROUP = 0
_TRANSACTION = 1
_KEYS_SINCE = 4


async def find_coordinator(broker: Broker, request: Request) -> Any:
    """Return this broker's address: it coordinates every group and every transaction."""
    message = request.message
    address = _coordinator(broker, message.key_type)
    if request.version < _KEYS_SINCE:
        return m.FindCoordinatorResponse(**address)
    coordinator = m.FindCoordinatorResponse.Coordinator
    return m.FindCoordinatorResponse(
        coordinators=[coordinator(key=key, **address) for key in dict.fromkeys(message.coordinator_keys)]
    )


def _coordinator(broker: Broker, key_type: int) -> dict[str, object]:
    if key_type in (_GROUP, _TRANSACTION):
        host, port = broker.settings.advertised
        return {"node_id": broker.settings.node_id, "host": host, "port": port}
    no_coordinator = {"node_id": -1, "host": "", "port": -1}
    return no_coordinator | {
        "error_code": ErrorCode.INVALID_REQUEST,
        "error_message": f"unknown key type {key_type}: this broker coordinates groups (0) and transactions (1)",
    }


HANDLERS = {
    Api.API_VERSIONS: Handler(api_versions, ()),
    Api.DESCRIBE_CLUSTER: Handler(describe_cluster, (Permission(Operation.DESCRIBE, Resource.CLUSTER),)),
    Api.DESCRIBE_LOG_DIRS: Handler(describe_log_dirs, (Permission(Operation.DESCRIBE, Resource.CLUSTER),)),
    Api.FIND_COORDINATOR: Handler(
        find_coordinator,
        (
            Permission(Operation.DESCRIBE, Resource.GROUP),
            Permission(Operation.DESCRIBE, Resource.TRANSACTIONAL_ID),
        ),
    ),
}
