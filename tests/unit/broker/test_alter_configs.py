"""Both ways of changing configuration: one replaces everything, the other touches single keys."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace.wire import Api
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

from .desk import Asking

Starting = Callable[..., Awaitable[Asking]]

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)


def whole(resource_type: int, name: str, *pairs: tuple[str, str | None]) -> Any:
    request = m.AlterConfigsRequest
    configs = [request.AlterableConfig(name=key, value=value) for key, value in pairs]
    return request.AlterConfigsResource(resource_type=resource_type, resource_name=name, configs=configs)


def single(resource_type: int, name: str, *changes: tuple[str, int, str | None]) -> Any:
    request = m.IncrementalAlterConfigsRequest
    configs = [
        request.AlterableConfig(name=key, config_operation=op, value=value) for key, op, value in changes
    ]
    return request.AlterConfigsResource(resource_type=resource_type, resource_name=name, configs=configs)


async def alter(
    ask: Asking, *resources: Any, version: int | None = None, validate_only: bool = False
) -> list[int]:
    legacy = type(resources[0]) is m.AlterConfigsRequest.AlterConfigsResource
    api = Api.ALTER_CONFIGS if legacy else Api.INCREMENTAL_ALTER_CONFIGS
    response = await ask(api, version, resources=list(resources), validate_only=validate_only)
    asked = [(resource.resource_type, resource.resource_name) for resource in resources]
    assert [(r.resource_type, r.resource_name) for r in response.responses] == asked
    assert all((r.error_message is None) == (r.error_code == 0) for r in response.responses)
    return [int(answer.error_code) for answer in response.responses]


def overrides(ask: Asking, name: str = "orders") -> dict[str, str]:
    topic = ask.broker.catalog.topic(name)
    assert topic is not None
    return dict(topic.configs)


# Replacing everything


@pytest.mark.parametrize("version", range(3))
async def test_the_given_configuration_replaces_all_there_was(ask: Asking, version: int) -> None:
    await ask.create("orders", retention_ms="5", segment_ms="6")
    assert await alter(ask, whole(TOPIC, "orders", ("segment.ms", " 7 ")), version=version) == [0]
    assert overrides(ask) == {"segment.ms": "7"}
    partition = ask.broker.partition("orders", 0)
    assert partition is not None
    assert (partition.log.config.segment_ms, partition.log.config.retention_ms) == (7, 604_800_000)


async def test_an_empty_configuration_takes_everything_back(ask: Asking) -> None:
    await ask.create("orders", retention_ms="5")
    assert await alter(ask, whole(TOPIC, "orders")) == [0]
    assert overrides(ask) == {}


# Single keys


@pytest.mark.parametrize("version", range(2))
async def test_single_keys_are_set_and_taken_back(ask: Asking, version: int) -> None:
    await ask.create("orders", retention_ms="5", segment_ms="6")
    changes = single(TOPIC, "orders", ("segment.ms", DELETE, None), ("retention.bytes", SET, "7"))
    assert await alter(ask, changes, version=version) == [0]
    assert overrides(ask) == {"retention.ms": "5", "retention.bytes": "7"}


async def test_items_are_added_to_and_removed_from_a_list(ask: Asking) -> None:
    await ask.create("orders")
    for operation, item, after in [
        (APPEND, "compact", "delete,compact"),
        (APPEND, "compact", "delete,compact"),
        (SUBTRACT, "delete", "compact"),
        (SUBTRACT, "compact", ""),
    ]:
        assert await alter(ask, single(TOPIC, "orders", ("cleanup.policy", operation, item))) == [0]
        assert overrides(ask) == {"cleanup.policy": after}


# Both


@pytest.mark.parametrize(
    ("resource", "error_code"),
    [
        (whole(TOPIC, "orders", ("retention.ms", None)), ErrorCode.INVALID_REQUEST),
        (whole(TOPIC, "orders", ("retention.ms", "1"), ("retention.ms", "2")), ErrorCode.INVALID_REQUEST),
        (whole(TOPIC, "orders", ("retention.ms", "-2")), ErrorCode.INVALID_CONFIG),
        (whole(TOPIC, "orders", ("no.such.key", "1")), ErrorCode.INVALID_CONFIG),
        (whole(TOPIC, "nope", ("retention.ms", "1")), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (whole(TOPIC, "nope", ("retention.ms", "x")), ErrorCode.INVALID_CONFIG),
        (whole(TOPIC, "", ("retention.ms", "1")), ErrorCode.INVALID_REQUEST),
        (whole(TOPIC, "../x"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (whole(0, "x"), ErrorCode.INVALID_REQUEST),
        (whole(32, "group", ("consumer.session.timeout.ms", "1")), ErrorCode.INVALID_REQUEST),
        (single(TOPIC, "orders", ("retention.ms", SET, None)), ErrorCode.INVALID_REQUEST),
        (
            single(TOPIC, "orders", ("retention.ms", SET, "1"), ("retention.ms", DELETE, None)),
            ErrorCode.INVALID_REQUEST,
        ),
        (single(TOPIC, "orders", ("retention.ms", 4, "1")), ErrorCode.INVALID_REQUEST),
        (single(TOPIC, "orders", ("retention.ms", APPEND, "1")), ErrorCode.INVALID_CONFIG),
        (single(TOPIC, "orders", ("no.such.key", SET, "1")), ErrorCode.INVALID_CONFIG),
        (
            single(TOPIC, "orders", ("retention.ms", SET, "1"), ("segment.ms", SET, "0")),
            ErrorCode.INVALID_CONFIG,
        ),
        (single(TOPIC, "nope", ("retention.ms", SET, "1")), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (single(BROKER, "2", ("log.retention.ms", SET, "1")), ErrorCode.INVALID_REQUEST),
        (single(BROKER, "1", ("num.partitions", SET, "1")), ErrorCode.INVALID_REQUEST),
        (single(BROKER, "1", ("no.such.key", SET, "1")), ErrorCode.INVALID_REQUEST),
        (single(BROKER, "", ("message.max.bytes", SET, "x")), ErrorCode.INVALID_REQUEST),
    ],
)
async def test_a_refused_change_changes_nothing(ask: Asking, resource: Any, error_code: ErrorCode) -> None:
    await ask.create("orders", retention_bytes="5")
    assert await alter(ask, resource) == [error_code]
    assert overrides(ask) == {"retention.bytes": "5"}
    assert (ask.broker.catalog.configs.node, ask.broker.catalog.configs.cluster) == ({}, {})


async def test_taking_back_what_was_never_set_is_no_error(ask: Asking) -> None:
    await ask.create("orders")
    changes = single(TOPIC, "orders", ("retention.ms", DELETE, None), ("no.such.key", DELETE, None))
    assert await alter(ask, changes) == [0]


@pytest.mark.parametrize("make", [whole, single])
async def test_a_resource_named_twice_is_not_changed(ask: Asking, make: Callable[..., Any]) -> None:
    await ask.create("orders", retention_ms="5")
    change = ("retention.ms", "6") if make is whole else ("retention.ms", SET, "6")
    resources = [make(TOPIC, "orders", change)] * 2
    assert await alter(ask, *resources) == [ErrorCode.INVALID_REQUEST] * 2
    assert overrides(ask) == {"retention.ms": "5"}


async def test_one_refused_resource_does_not_cost_the_others(ask: Asking) -> None:
    await ask.create("orders")
    resources = [
        single(TOPIC, "nope", ("retention.ms", SET, "1")),
        single(BROKER, "1", ("log.retention.ms", SET, "2")),
        single(BROKER, "nobody", ("log.retention.ms", SET, "2")),
        single(TOPIC, "orders", ("retention.ms", SET, "3")),
    ]
    assert await alter(ask, *resources) == [3, 0, ErrorCode.INVALID_REQUEST, 0]
    assert overrides(ask) == {"retention.ms": "3"}
    assert ask.broker.catalog.configs.node == {"log.retention.ms": "2"}


@pytest.mark.parametrize(
    "resource",
    [
        whole(TOPIC, "orders"),
        single(TOPIC, "orders", ("retention.ms", SET, "6")),
        whole(BROKER, "1", ("log.retention.ms", "6")),
        single(BROKER, "", ("log.retention.ms", SET, "6")),
    ],
)
async def test_validation_alone_changes_nothing(ask: Asking, resource: Any) -> None:
    await ask.create("orders", retention_ms="5")
    assert await alter(ask, resource, validate_only=True) == [0]
    assert overrides(ask) == {"retention.ms": "5"}
    assert (ask.broker.catalog.configs.node, ask.broker.catalog.configs.cluster) == ({}, {})


async def test_a_brokers_configuration_reaches_its_topics_and_survives_a_restart(start: Starting) -> None:
    ask = await start()
    await ask.create("orders")
    assert await alter(ask, single(BROKER, "", ("log.retention.ms", SET, "6"))) == [0]
    assert await alter(ask, single(BROKER, "1", ("message.max.bytes", SET, "7"))) == [0]
    for asking in (ask, await start()):
        partition = asking.broker.partition("orders", 0)
        assert partition is not None
        assert (partition.log.config.retention_ms, partition.log.config.max_message_bytes) == (6, 7)


async def test_a_topics_own_configuration_survives_a_restart(start: Starting) -> None:
    ask = await start()
    await ask.create("orders")
    assert await alter(ask, single(TOPIC, "orders", ("retention.ms", SET, "6"))) == [0]
    assert overrides(await start()) == {"retention.ms": "6"}
