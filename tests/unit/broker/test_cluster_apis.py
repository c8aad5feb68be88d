"""The small ones: ApiVersions, DescribeCluster, FindCoordinator, InitProducerId, and the table of handlers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import headrace.broker.handlers
from headrace.broker.handlers import HANDLERS, OFFERED, api_versions
from headrace.wire import Api, decode_response, encode_response, versions
from headrace.wire.codes import ErrorCode

from .desk import Asking

Starting = Callable[..., Awaitable[Asking]]

NOT_ASKED = -(2**31)


# The table


def test_every_handler_file_is_in_the_table() -> None:
    directory = Path(headrace.broker.handlers.__file__).parent
    files = {path.stem for path in directory.glob("*.py")} - {"__init__"}
    assert files == {api.name.lower() for api in OFFERED}
    assert OFFERED - set(HANDLERS) == {Api.PRODUCE, Api.FETCH}


async def test_an_empty_request_is_answered_in_every_version(ask: Asking) -> None:
    for api in HANDLERS:
        first, last = versions(api)
        for version in range(first, last + 1):
            await ask(api, version)


# ApiVersions


@pytest.mark.parametrize("version", range(5))
async def test_a_client_learns_which_versions_it_can_use(ask: Asking, version: int) -> None:
    software = {"client_software_name": "tests", "client_software_version": "1.0"} if version >= 3 else {}
    response = await ask(Api.API_VERSIONS, version, **software)
    assert response.error_code == 0
    told = {key.api_key: (key.min_version, key.max_version) for key in response.api_keys}
    assert set(told) == set(OFFERED)
    assert told[Api.METADATA] == (0, 13)
    assert told[Api.INIT_PRODUCER_ID] == (0, 5)
    assert told[Api.PRODUCE][0] == 0, "kcat does not compress otherwise"


@pytest.mark.parametrize("version", [3, 4])
async def test_clients_are_told_to_use_the_second_protocol_of_transactions(ask: Asking, version: int) -> None:
    software = {"client_software_name": "tests", "client_software_version": "1.0"}
    response = await ask(Api.API_VERSIONS, version, **software)
    finalized = [
        (one.name, one.min_version_level, one.max_version_level) for one in response.finalized_features
    ]
    assert finalized == [("transaction.version", 2, 2)]
    assert response.finalized_features_epoch == 0
    supported = [(one.name, one.min_version, one.max_version) for one in response.supported_features]
    assert supported == ([("transaction.version", 0, 2)] if version >= 4 else [])


@pytest.mark.parametrize(
    ("name", "number"), [("", "1"), ("tests", ""), ("-tests", "1"), ("a b", "1"), ("a", "1-")]
)
async def test_a_client_that_does_not_say_what_it_is_is_refused(ask: Asking, name: str, number: str) -> None:
    response = await ask(Api.API_VERSIONS, 3, client_software_name=name, client_software_version=number)
    assert (response.error_code, response.api_keys) == (ErrorCode.INVALID_REQUEST, [])


def test_a_version_from_the_future_is_answered_in_version_0_with_the_range_of_this_api() -> None:
    answer = encode_response(Api.API_VERSIONS, 0, 7, api_versions.unsupported_version())
    _, response = decode_response(Api.API_VERSIONS, 0, answer[4:])
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert [(k.api_key, k.min_version, k.max_version) for k in response.api_keys] == [
        (Api.API_VERSIONS, 0, 4)
    ]


# DescribeCluster


@pytest.mark.parametrize("version", range(3))
async def test_the_cluster_is_one_broker(start: Starting, version: int) -> None:
    ask = await start(node_id=5, advertised_host="log.example", advertised_port=1234)
    response = await ask(Api.DESCRIBE_CLUSTER, version)
    assert (response.error_code, response.cluster_id, response.controller_id) == (0, ask.broker.cluster_id, 5)
    (node,) = response.brokers
    assert (node.broker_id, node.host, node.port, node.rack) == (5, "log.example", 1234, None)
    assert response.cluster_authorized_operations == NOT_ASKED
    asked = await ask(Api.DESCRIBE_CLUSTER, version, include_cluster_authorized_operations=True)
    assert asked.cluster_authorized_operations == 8096


@pytest.mark.parametrize(
    ("endpoint_type", "error_code"),
    [(2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (9, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)],
)
async def test_controllers_are_not_found_here(ask: Asking, endpoint_type: int, error_code: ErrorCode) -> None:
    response = await ask(Api.DESCRIBE_CLUSTER, 1, endpoint_type=endpoint_type)
    assert (response.error_code, response.brokers) == (error_code, [])


# FindCoordinator


@pytest.mark.parametrize("version", range(4))
async def test_a_group_is_coordinated_here(ask: Asking, version: int) -> None:
    response = await ask(Api.FIND_COORDINATOR, version, key="readers")
    assert (response.error_code, response.node_id, response.host, response.port) == (0, 1, "127.0.0.1", 9092)


@pytest.mark.parametrize("version", range(4, 7))
async def test_many_groups_are_coordinated_here(ask: Asking, version: int) -> None:
    response = await ask(Api.FIND_COORDINATOR, version, coordinator_keys=["a", "b"])
    assert [(c.key, c.error_code, c.node_id, c.port) for c in response.coordinators] == [
        ("a", 0, 1, 9092),
        ("b", 0, 1, 9092),
    ]


async def test_every_transaction_is_coordinated_here(ask: Asking) -> None:
    old = await ask(Api.FIND_COORDINATOR, 3, key="x", key_type=1)
    assert (old.error_code, old.node_id) == (0, ask.broker.settings.node_id)
    new = await ask(Api.FIND_COORDINATOR, 6, coordinator_keys=["x"], key_type=1)
    assert [(one.error_code, one.node_id) for one in new.coordinators] == [(0, ask.broker.settings.node_id)]


@pytest.mark.parametrize("key_type", [2, 9])
async def test_nothing_else_is(ask: Asking, key_type: int) -> None:
    error_code = ErrorCode.INVALID_REQUEST
    old = await ask(Api.FIND_COORDINATOR, 3, key="x", key_type=key_type)
    assert (old.error_code, old.node_id, old.port) == (error_code, -1, -1)
    assert old.error_message
    new = await ask(Api.FIND_COORDINATOR, 6, coordinator_keys=["x"], key_type=key_type)
    assert [(c.key, c.error_code, c.node_id) for c in new.coordinators] == [("x", error_code, -1)]
    assert new.coordinators[0].error_message


# InitProducerId


async def test_every_producer_has_an_id_of_its_own(ask: Asking) -> None:
    given = [await ask(Api.INIT_PRODUCER_ID, version, transactional_id=None) for version in range(6)]
    assert [(r.error_code, r.producer_epoch) for r in given] == [(0, 0)] * 6
    assert len({r.producer_id for r in given}) == 6


async def test_a_producer_that_comes_back_gets_a_new_id(ask: Asking) -> None:
    first = await ask(Api.INIT_PRODUCER_ID, transactional_id=None)
    again = await ask(
        Api.INIT_PRODUCER_ID,
        transactional_id=None,
        producer_id=first.producer_id,
        producer_epoch=first.producer_epoch,
    )
    assert (again.error_code, again.producer_epoch) == (0, 0)
    assert again.producer_id != first.producer_id


async def test_no_id_is_given_out_again_after_a_restart(start: Starting) -> None:
    ids = set()
    for _ in range(3):
        ask = await start()
        for _ in range(5):
            ids.add((await ask(Api.INIT_PRODUCER_ID, transactional_id=None)).producer_id)
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
async def test_who_cannot_have_an_id_is_told_so(
    ask: Asking, fields: dict[str, object], error_code: ErrorCode
) -> None:
    response = await ask(Api.INIT_PRODUCER_ID, **fields)
    assert (response.error_code, response.producer_id, response.producer_epoch) == (error_code, -1, -1)


async def test_a_disk_that_cannot_keep_the_id_is_a_storage_error(
    ask: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ask.broker._data_dir, "next_producer_id", full)
    response = await ask(Api.INIT_PRODUCER_ID, transactional_id=None)
    assert response.error_code == ErrorCode.KAFKA_STORAGE_ERROR
