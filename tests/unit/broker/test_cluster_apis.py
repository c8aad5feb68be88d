"""The small APIs: ApiVersions, DescribeCluster, FindCoordinator, InitProducerId; and the table of handlers."""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import headrace.broker.handlers
from headrace.broker.handlers import HANDLERS, SUPPORTED_APIS, cluster
from headrace.wire import Api, decode_response, encode_response, versions
from headrace.wire.codes import ErrorCode

from .broker_calls import BrokerCalls

StartBroker = Callable[..., Awaitable[BrokerCalls]]

NOT_REQUESTED = -(2**31)


# The table


def test_every_handler_is_in_the_table() -> None:
    directory = Path(headrace.broker.handlers.__file__).parent
    modules = [
        importlib.import_module(f"headrace.broker.handlers.{path.stem}")
        for path in directory.glob("*.py")
        if path.stem not in ("__init__", "produce", "fetch")
    ]
    declared = [api for module in modules for api in module.HANDLERS]
    assert sorted(declared) == sorted(HANDLERS), "a module is missing, or two have the same API"
    assert all(HANDLERS[api].__name__ == api.name.lower() for api in HANDLERS)
    assert SUPPORTED_APIS - set(HANDLERS) == {Api.PRODUCE, Api.FETCH}


async def test_an_empty_request_gets_a_response_in_every_version(call: BrokerCalls) -> None:
    for api in HANDLERS:
        first, last = versions(api)
        for version in range(first, last + 1):
            await call(api, version)


# ApiVersions


@pytest.mark.parametrize("version", range(5))
async def test_a_client_learns_which_versions_it_can_use(call: BrokerCalls, version: int) -> None:
    software = {"client_software_name": "tests", "client_software_version": "1.0"} if version >= 3 else {}
    response = await call(Api.API_VERSIONS, version, **software)
    assert response.error_code == 0
    advertised = {key.api_key: (key.min_version, key.max_version) for key in response.api_keys}
    assert set(advertised) == set(SUPPORTED_APIS)
    assert advertised[Api.METADATA] == (0, 13)
    assert advertised[Api.INIT_PRODUCER_ID] == (0, 5)
    assert advertised[Api.PRODUCE][0] == 0, "kcat does not compress otherwise"


@pytest.mark.parametrize("version", [3, 4])
async def test_clients_learn_that_the_second_transaction_protocol_is_finalized(
    call: BrokerCalls, version: int
) -> None:
    software = {"client_software_name": "tests", "client_software_version": "1.0"}
    response = await call(Api.API_VERSIONS, version, **software)
    finalized = [
        (feature.name, feature.min_version_level, feature.max_version_level)
        for feature in response.finalized_features
    ]
    assert finalized == [("transaction.version", 2, 2)]
    assert response.finalized_features_epoch == 0
    supported = [
        (feature.name, feature.min_version, feature.max_version) for feature in response.supported_features
    ]
    assert supported == ([("transaction.version", 0, 2)] if version >= 4 else [])


@pytest.mark.parametrize(
    ("name", "number"), [("", "1"), ("tests", ""), ("-tests", "1"), ("a b", "1"), ("a", "1-")]
)
async def test_a_client_without_a_software_name_is_refused(call: BrokerCalls, name: str, number: str) -> None:
    response = await call(Api.API_VERSIONS, 3, client_software_name=name, client_software_version=number)
    assert (response.error_code, response.api_keys) == (ErrorCode.INVALID_REQUEST, [])


def test_a_future_version_gets_an_error_in_version_0_with_the_range_of_this_api() -> None:
    answer = encode_response(Api.API_VERSIONS, 0, 7, cluster.unsupported_version())
    _, response = decode_response(Api.API_VERSIONS, 0, answer[4:])
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert [(k.api_key, k.min_version, k.max_version) for k in response.api_keys] == [
        (Api.API_VERSIONS, 0, 4)
    ]


# DescribeCluster


@pytest.mark.parametrize("version", range(3))
async def test_the_cluster_is_one_broker(start: StartBroker, version: int) -> None:
    call = await start(node_id=5, advertised_host="log.example", advertised_port=1234)
    response = await call(Api.DESCRIBE_CLUSTER, version)
    assert (response.error_code, response.cluster_id, response.controller_id) == (
        0,
        call.broker.cluster_id,
        5,
    )
    (node,) = response.brokers
    assert (node.broker_id, node.host, node.port, node.rack) == (5, "log.example", 1234, None)
    assert response.cluster_authorized_operations == NOT_REQUESTED
    described = await call(Api.DESCRIBE_CLUSTER, version, include_cluster_authorized_operations=True)
    assert described.cluster_authorized_operations == 8096


@pytest.mark.parametrize(
    ("endpoint_type", "error_code"),
    [(2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (9, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)],
)
async def test_describe_cluster_refuses_other_endpoint_types(
    call: BrokerCalls, endpoint_type: int, error_code: ErrorCode
) -> None:
    response = await call(Api.DESCRIBE_CLUSTER, 1, endpoint_type=endpoint_type)
    assert (response.error_code, response.brokers) == (error_code, [])


# FindCoordinator


@pytest.mark.parametrize("version", range(4))
async def test_a_group_is_coordinated_here(call: BrokerCalls, version: int) -> None:
    response = await call(Api.FIND_COORDINATOR, version, key="readers")
    assert (response.error_code, response.node_id, response.host, response.port) == (0, 1, "127.0.0.1", 9092)


@pytest.mark.parametrize("version", range(4, 7))
async def test_many_groups_are_coordinated_here(call: BrokerCalls, version: int) -> None:
    response = await call(Api.FIND_COORDINATOR, version, coordinator_keys=["a", "b"])
    assert [(c.key, c.error_code, c.node_id, c.port) for c in response.coordinators] == [
        ("a", 0, 1, 9092),
        ("b", 0, 1, 9092),
    ]


async def test_every_transaction_is_coordinated_here(call: BrokerCalls) -> None:
    old = await call(Api.FIND_COORDINATOR, 3, key="x", key_type=1)
    assert (old.error_code, old.node_id) == (0, call.broker.settings.node_id)
    new = await call(Api.FIND_COORDINATOR, 6, coordinator_keys=["x"], key_type=1)
    assert [(coordinator.error_code, coordinator.node_id) for coordinator in new.coordinators] == [
        (0, call.broker.settings.node_id)
    ]


@pytest.mark.parametrize("key_type", [2, 9])
async def test_other_kinds_of_coordinators_are_refused(call: BrokerCalls, key_type: int) -> None:
    error_code = ErrorCode.INVALID_REQUEST
    old = await call(Api.FIND_COORDINATOR, 3, key="x", key_type=key_type)
    assert (old.error_code, old.node_id, old.port) == (error_code, -1, -1)
    assert old.error_message
    new = await call(Api.FIND_COORDINATOR, 6, coordinator_keys=["x"], key_type=key_type)
    assert [(c.key, c.error_code, c.node_id) for c in new.coordinators] == [("x", error_code, -1)]
    assert new.coordinators[0].error_message


# InitProducerId


async def test_every_producer_has_an_id_of_its_own(call: BrokerCalls) -> None:
    responses = [await call(Api.INIT_PRODUCER_ID, version, transactional_id=None) for version in range(6)]
    assert [(r.error_code, r.producer_epoch) for r in responses] == [(0, 0)] * 6
    assert len({r.producer_id for r in responses}) == 6


async def test_a_producer_that_sends_its_old_id_gets_a_new_one(call: BrokerCalls) -> None:
    first = await call(Api.INIT_PRODUCER_ID, transactional_id=None)
    again = await call(
        Api.INIT_PRODUCER_ID,
        transactional_id=None,
        producer_id=first.producer_id,
        producer_epoch=first.producer_epoch,
    )
    assert (again.error_code, again.producer_epoch) == (0, 0)
    assert again.producer_id != first.producer_id


async def test_no_producer_id_is_reused_after_a_restart(start: StartBroker) -> None:
    ids = set()
    for _ in range(3):
        call = await start()
        for _ in range(5):
            ids.add((await call(Api.INIT_PRODUCER_ID, transactional_id=None)).producer_id)
    assert len(ids) == 15


@pytest.mark.parametrize(
    ("fields", "error_code"),
    [
        ({"transactional_id": "mine"}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"transactional_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"transactional_id": None, "producer_id": 5}, ErrorCode.INVALID_REQUEST),
        ({"transactional_id": None, "producer_epoch": 5}, ErrorCode.INVALID_REQUEST),
    ],
)
async def test_a_producer_that_cannot_get_an_id_gets_an_error(
    call: BrokerCalls, fields: dict[str, object], error_code: ErrorCode
) -> None:
    response = await call(Api.INIT_PRODUCER_ID, **fields)
    assert (response.error_code, response.producer_id, response.producer_epoch) == (error_code, -1, -1)


async def test_a_failed_write_of_the_producer_id_is_a_storage_error(
    call: BrokerCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(call.broker._data_dir, "next_producer_id", full)
    response = await call(Api.INIT_PRODUCER_ID, transactional_id=None)
    assert response.error_code == ErrorCode.KAFKA_STORAGE_ERROR
