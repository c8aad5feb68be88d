from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace.broker.broker_configs import BROKER_CONFIGS, Scope
from headrace.broker.topic_configs import TOPIC_CONFIGS
from headrace.wire import Api
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

from .desk import Asking

Starting = Callable[..., Awaitable[Asking]]

TOPIC, BROKER = 2, 4


async def describe(
    ask: Asking,
    resource_type: int,
    name: str,
    keys: list[str] | None = None,
    *,
    version: int | None = None,
    **fields: bool,
) -> Any:
    resource = m.DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=resource_type, resource_name=name, configuration_keys=keys
    )
    response = await ask(Api.DESCRIBE_CONFIGS, version, resources=[resource], **fields)
    (result,) = response.results
    assert (result.resource_type, result.resource_name) == (resource_type, name)
    return result


@pytest.mark.parametrize("version", range(1, 5))
async def test_every_version_describes_a_topic(ask: Asking, version: int) -> None:
    await ask.create("orders", retention_ms="5")
    result = await describe(ask, TOPIC, "orders", ["retention.ms"], version=version)
    (config,) = result.configs
    assert (config.name, config.value, config.config_source) == ("retention.ms", "5", 1)
    assert (config.read_only, config.is_sensitive, config.synonyms) == (False, False, [])
    assert config.config_type == (5 if version >= 3 else 0)


async def test_all_keys_are_described_for_null_and_for_an_empty_list(ask: Asking) -> None:
    await ask.create("orders")
    shown = {name for name, key in TOPIC_CONFIGS.items() if not key.internal}
    for keys in (None, []):
        result = await describe(ask, TOPIC, "orders", keys)
        assert {config.name for config in result.configs} == shown


async def test_a_key_that_there_is_not_is_left_out(ask: Asking) -> None:
    await ask.create("orders")
    result = await describe(ask, TOPIC, "orders", ["no.such.key", "retention.ms"])
    assert [config.name for config in result.configs] == ["retention.ms"]


async def test_an_internal_key_is_shown_once_it_is_set(ask: Asking) -> None:
    await ask.create("orders", internal_segment_bytes="2000")
    result = await describe(ask, TOPIC, "orders", ["internal.segment.bytes"])
    assert [config.value for config in result.configs] == ["2000"]


async def test_synonyms_and_documentation_come_only_if_asked_for(ask: Asking) -> None:
    await ask.create("orders", retention_bytes="5")
    quiet = await describe(ask, TOPIC, "orders", ["retention.bytes"])
    assert (quiet.configs[0].synonyms, quiet.configs[0].documentation) == ([], None)
    told = await describe(
        ask, TOPIC, "orders", ["retention.bytes"], include_synonyms=True, include_documentation=True
    )
    (config,) = told.configs
    assert [(s.name, s.value, s.source) for s in config.synonyms] == [
        ("retention.bytes", "5", 1),
        ("log.retention.bytes", "-1", 5),
    ]
    assert "bytes" in config.documentation


@pytest.mark.parametrize(
    ("resource_type", "name", "error_code"),
    [
        (TOPIC, "nope", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (TOPIC, "../x", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (BROKER, "2", ErrorCode.INVALID_REQUEST),
        (BROKER, "one", ErrorCode.INVALID_REQUEST),
        (BROKER, "01", ErrorCode.INVALID_REQUEST),
        (8, "1", ErrorCode.INVALID_REQUEST),
        (0, "x", ErrorCode.INVALID_REQUEST),
        (127, "x", ErrorCode.INVALID_REQUEST),
    ],
)
async def test_what_has_no_configuration_is_refused(
    ask: Asking, resource_type: int, name: str, error_code: ErrorCode
) -> None:
    result = await describe(ask, resource_type, name)
    assert (result.error_code, result.configs) == (error_code, [])
    assert result.error_message


async def test_one_refused_resource_does_not_cost_the_others(ask: Asking) -> None:
    await ask.create("orders")
    resource = m.DescribeConfigsRequest.DescribeConfigsResource
    response = await ask(
        Api.DESCRIBE_CONFIGS,
        resources=[
            resource(resource_type=77, resource_name="x", configuration_keys=None),
            resource(resource_type=TOPIC, resource_name="orders", configuration_keys=["retention.ms"]),
        ],
    )
    assert [(r.error_code, len(r.configs)) for r in response.results] == [
        (ErrorCode.INVALID_REQUEST, 0),
        (0, 1),
    ]


async def test_this_broker_is_described_with_what_it_was_started_with(start: Starting) -> None:
    ask = await start(configs={"log.retention.ms": "77"})
    ask.broker.listens_on(9092)
    result = await describe(ask, BROKER, "1", include_synonyms=True)
    shown = {config.name: config for config in result.configs}
    assert set(shown) == set(BROKER_CONFIGS)
    retention = shown["log.retention.ms"]
    assert (retention.value, retention.config_source, retention.read_only) == ("77", 4, False)
    node = shown["node.id"]
    assert (node.value, node.config_source, node.read_only) == ("1", 4, True)


async def test_a_port_that_was_chosen_at_the_start_is_described(start: Starting) -> None:
    ask = await start(listen_port=0)
    ask.broker.listens_on(12_345)
    result = await describe(ask, BROKER, "1", ["listeners", "advertised.listeners"])
    assert {config.value for config in result.configs} == {"PLAINTEXT://127.0.0.1:12345"}


async def test_all_brokers_have_what_was_set_for_them_at_run_time(ask: Asking) -> None:
    assert (await describe(ask, BROKER, "")).configs == []
    layer = {"log.retention.ms": "5"}
    await ask.broker.catalog.alter_broker([(Scope.CLUSTER, lambda current: layer)])
    result = await describe(ask, BROKER, "")
    assert [(c.name, c.value, c.config_source) for c in result.configs] == [("log.retention.ms", "5", 3)]
