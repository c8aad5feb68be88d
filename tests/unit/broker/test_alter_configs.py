"""AlterConfigs replaces a whole configuration; IncrementalAlterConfigs changes single keys."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace.wire import Api
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

from .broker_calls import BrokerCalls

StartBroker = Callable[..., Awaitable[BrokerCalls]]

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)


def replace_all(resource_type: int, name: str, *pairs: tuple[str, str | None]) -> Any:
    request = m.AlterConfigsRequest
    configs = [request.AlterableConfig(name=key, value=value) for key, value in pairs]
    return request.AlterConfigsResource(resource_type=resource_type, resource_name=name, configs=configs)


def change_keys(resource_type: int, name: str, *changes: tuple[str, int, str | None]) -> Any:
    request = m.IncrementalAlterConfigsRequest
    configs = [
        request.AlterableConfig(name=key, config_operation=op, value=value) for key, op, value in changes
    ]
    return request.AlterConfigsResource(resource_type=resource_type, resource_name=name, configs=configs)


async def alter(
    call: BrokerCalls, *resources: Any, version: int | None = None, validate_only: bool = False
) -> list[int]:
    is_alter_configs = type(resources[0]) is m.AlterConfigsRequest.AlterConfigsResource
    api = Api.ALTER_CONFIGS if is_alter_configs else Api.INCREMENTAL_ALTER_CONFIGS
    response = await call(api, version, resources=list(resources), validate_only=validate_only)
    expected = [(resource.resource_type, resource.resource_name) for resource in resources]
    assert [(r.resource_type, r.resource_name) for r in response.responses] == expected
    assert all((r.error_message is None) == (r.error_code == 0) for r in response.responses)
    return [int(answer.error_code) for answer in response.responses]


def overrides(call: BrokerCalls, name: str = "orders") -> dict[str, str]:
    topic = call.broker.catalog.topic(name)
    assert topic is not None
    return dict(topic.configs)


# Replacing everything


@pytest.mark.parametrize("version", range(3))
async def test_alter_configs_replaces_the_whole_configuration(call: BrokerCalls, version: int) -> None:
    await call.create("orders", retention_ms="5", segment_ms="6")
    assert await alter(call, replace_all(TOPIC, "orders", ("segment.ms", " 7 ")), version=version) == [0]
    assert overrides(call) == {"segment.ms": "7"}
    partition = call.broker.partition("orders", 0)
    assert partition is not None
    assert (partition.log.config.segment_ms, partition.log.config.retention_ms) == (7, 604_800_000)


async def test_an_empty_configuration_resets_every_key(call: BrokerCalls) -> None:
    await call.create("orders", retention_ms="5")
    assert await alter(call, replace_all(TOPIC, "orders")) == [0]
    assert overrides(call) == {}


# Single keys


@pytest.mark.parametrize("version", range(2))
async def test_single_keys_are_set_and_reset(call: BrokerCalls, version: int) -> None:
    await call.create("orders", retention_ms="5", segment_ms="6")
    changes = change_keys(TOPIC, "orders", ("segment.ms", DELETE, None), ("retention.bytes", SET, "7"))
    assert await alter(call, changes, version=version) == [0]
    assert overrides(call) == {"retention.ms": "5", "retention.bytes": "7"}


async def test_items_are_added_to_and_removed_from_a_list(call: BrokerCalls) -> None:
    await call.create("orders")
    for operation, item, after in [
        (APPEND, "compact", "delete,compact"),
        (APPEND, "compact", "delete,compact"),
        (SUBTRACT, "delete", "compact"),
        (SUBTRACT, "compact", ""),
    ]:
        assert await alter(call, change_keys(TOPIC, "orders", ("cleanup.policy", operation, item))) == [0]
        assert overrides(call) == {"cleanup.policy": after}


# Both


@pytest.mark.parametrize(
    ("resource", "error_code"),
    [
        (replace_all(TOPIC, "orders", ("retention.ms", None)), ErrorCode.INVALID_REQUEST),
        (
            replace_all(TOPIC, "orders", ("retention.ms", "1"), ("retention.ms", "2")),
            ErrorCode.INVALID_REQUEST,
        ),
        (replace_all(TOPIC, "orders", ("retention.ms", "-2")), ErrorCode.INVALID_CONFIG),
        (replace_all(TOPIC, "orders", ("no.such.key", "1")), ErrorCode.INVALID_CONFIG),
        (replace_all(TOPIC, "nope", ("retention.ms", "1")), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (replace_all(TOPIC, "nope", ("retention.ms", "x")), ErrorCode.INVALID_CONFIG),
        (replace_all(TOPIC, "", ("retention.ms", "1")), ErrorCode.INVALID_REQUEST),
        (replace_all(TOPIC, "../x"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (replace_all(0, "x"), ErrorCode.INVALID_REQUEST),
        (replace_all(32, "group", ("consumer.session.timeout.ms", "1")), ErrorCode.INVALID_REQUEST),
        (change_keys(TOPIC, "orders", ("retention.ms", SET, None)), ErrorCode.INVALID_REQUEST),
        (
            change_keys(TOPIC, "orders", ("retention.ms", SET, "1"), ("retention.ms", DELETE, None)),
            ErrorCode.INVALID_REQUEST,
        ),
        (change_keys(TOPIC, "orders", ("retention.ms", 4, "1")), ErrorCode.INVALID_REQUEST),
        (change_keys(TOPIC, "orders", ("retention.ms", APPEND, "1")), ErrorCode.INVALID_CONFIG),
        (change_keys(TOPIC, "orders", ("no.such.key", SET, "1")), ErrorCode.INVALID_CONFIG),
        (
            change_keys(TOPIC, "orders", ("retention.ms", SET, "1"), ("segment.ms", SET, "0")),
            ErrorCode.INVALID_CONFIG,
        ),
        (change_keys(TOPIC, "nope", ("retention.ms", SET, "1")), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (change_keys(BROKER, "2", ("log.retention.ms", SET, "1")), ErrorCode.INVALID_REQUEST),
        (change_keys(BROKER, "1", ("num.partitions", SET, "1")), ErrorCode.INVALID_REQUEST),
        (change_keys(BROKER, "1", ("no.such.key", SET, "1")), ErrorCode.INVALID_REQUEST),
        (change_keys(BROKER, "", ("message.max.bytes", SET, "x")), ErrorCode.INVALID_REQUEST),
    ],
)
async def test_a_refused_change_changes_nothing(
    call: BrokerCalls, resource: Any, error_code: ErrorCode
) -> None:
    await call.create("orders", retention_bytes="5")
    assert await alter(call, resource) == [error_code]
    assert overrides(call) == {"retention.bytes": "5"}
    assert (call.broker.catalog.configs.node, call.broker.catalog.configs.cluster) == ({}, {})


async def test_resetting_a_key_that_was_never_set_is_not_an_error(call: BrokerCalls) -> None:
    await call.create("orders")
    changes = change_keys(TOPIC, "orders", ("retention.ms", DELETE, None), ("no.such.key", DELETE, None))
    assert await alter(call, changes) == [0]


@pytest.mark.parametrize("make", [replace_all, change_keys])
async def test_a_resource_named_twice_is_not_changed(call: BrokerCalls, make: Callable[..., Any]) -> None:
    await call.create("orders", retention_ms="5")
    change = ("retention.ms", "6") if make is replace_all else ("retention.ms", SET, "6")
    resources = [make(TOPIC, "orders", change)] * 2
    assert await alter(call, *resources) == [ErrorCode.INVALID_REQUEST] * 2
    assert overrides(call) == {"retention.ms": "5"}


async def test_a_refused_resource_does_not_affect_the_others(call: BrokerCalls) -> None:
    await call.create("orders")
    resources = [
        change_keys(TOPIC, "nope", ("retention.ms", SET, "1")),
        change_keys(BROKER, "1", ("log.retention.ms", SET, "2")),
        change_keys(BROKER, "nobody", ("log.retention.ms", SET, "2")),
        change_keys(TOPIC, "orders", ("retention.ms", SET, "3")),
    ]
    assert await alter(call, *resources) == [3, 0, ErrorCode.INVALID_REQUEST, 0]
    assert overrides(call) == {"retention.ms": "3"}
    assert call.broker.catalog.configs.node == {"log.retention.ms": "2"}


@pytest.mark.parametrize(
    "resource",
    [
        replace_all(TOPIC, "orders"),
        change_keys(TOPIC, "orders", ("retention.ms", SET, "6")),
        replace_all(BROKER, "1", ("log.retention.ms", "6")),
        change_keys(BROKER, "", ("log.retention.ms", SET, "6")),
    ],
)
async def test_validation_alone_changes_nothing(call: BrokerCalls, resource: Any) -> None:
    await call.create("orders", retention_ms="5")
    assert await alter(call, resource, validate_only=True) == [0]
    assert overrides(call) == {"retention.ms": "5"}
    assert (call.broker.catalog.configs.node, call.broker.catalog.configs.cluster) == ({}, {})


async def test_a_brokers_configuration_reaches_its_topics_and_survives_a_restart(start: StartBroker) -> None:
    call = await start()
    await call.create("orders")
    assert await alter(call, change_keys(BROKER, "", ("log.retention.ms", SET, "6"))) == [0]
    assert await alter(call, change_keys(BROKER, "1", ("message.max.bytes", SET, "7"))) == [0]
    for broker_calls in (call, await start()):
        partition = broker_calls.broker.partition("orders", 0)
        assert partition is not None
        assert (partition.log.config.retention_ms, partition.log.config.max_message_bytes) == (6, 7)


async def test_a_topics_own_configuration_survives_a_restart(start: StartBroker) -> None:
    call = await start()
    await call.create("orders")
    assert await alter(call, change_keys(TOPIC, "orders", ("retention.ms", SET, "6"))) == [0]
    assert overrides(await start()) == {"retention.ms": "6"}
