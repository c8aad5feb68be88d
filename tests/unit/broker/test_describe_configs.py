from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace.broker.topics.broker_configs import BROKER_CONFIGS, Scope
from headrace.broker.topics.topic_configs import TOPIC_CONFIGS
from headrace.wire import Api
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

from .broker_calls import BrokerCalls

StartBroker = Callable[..., Awaitable[BrokerCalls]]

TOPIC, BROKER = 2, 4


async def describe(
    call: BrokerCalls,
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
    response = await call(Api.DESCRIBE_CONFIGS, version, resources=[resource], **fields)
    (result,) = response.results
    assert (result.resource_type, result.resource_name) == (resource_type, name)
    return result


@pytest.mark.parametrize("version", range(1, 5))
async def test_every_version_describes_a_topic(call: BrokerCalls, version: int) -> None:
    await call.create("orders", retention_ms="5")
    result = await describe(call, TOPIC, "orders", ["retention.ms"], version=version)
    (config,) = result.configs
    assert (config.name, config.value, config.config_source) == ("retention.ms", "5", 1)
    assert (config.read_only, config.is_sensitive, config.synonyms) == (False, False, [])
    assert config.config_type == (5 if version >= 3 else 0)


async def test_all_keys_are_described_for_null_and_for_an_empty_list(call: BrokerCalls) -> None:
    await call.create("orders")
    configs = {name for name, key in TOPIC_CONFIGS.items() if not key.internal}
    for keys in (None, []):
        result = await describe(call, TOPIC, "orders", keys)
        assert {config.name for config in result.configs} == configs


async def test_an_unknown_key_is_omitted(call: BrokerCalls) -> None:
    await call.create("orders")
    result = await describe(call, TOPIC, "orders", ["no.such.key", "retention.ms"])
    assert [config.name for config in result.configs] == ["retention.ms"]


async def test_an_internal_key_is_described_only_if_it_is_set(call: BrokerCalls) -> None:
    await call.create("orders", internal_segment_bytes="2000")
    result = await describe(call, TOPIC, "orders", ["internal.segment.bytes"])
    assert [config.value for config in result.configs] == ["2000"]


async def test_synonyms_and_documentation_are_sent_only_on_request(call: BrokerCalls) -> None:
    await call.create("orders", retention_bytes="5")
    result = await describe(call, TOPIC, "orders", ["retention.bytes"])
    assert (result.configs[0].synonyms, result.configs[0].documentation) == ([], None)
    described = await describe(
        call, TOPIC, "orders", ["retention.bytes"], include_synonyms=True, include_documentation=True
    )
    (config,) = described.configs
    assert [(s.name, s.value, s.source) for s in config.synonyms] == [
        ("retention.bytes", "5", 1),
        ("log.retention.bytes", "-1", 5),
    ]
    assert config.documentation.startswith("Bytes")


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
async def test_a_resource_without_configuration_is_refused(
    call: BrokerCalls, resource_type: int, name: str, error_code: ErrorCode
) -> None:
    result = await describe(call, resource_type, name)
    assert (result.error_code, result.configs) == (error_code, [])
    assert result.error_message


async def test_a_refused_resource_does_not_affect_the_others(call: BrokerCalls) -> None:
    await call.create("orders")
    resource = m.DescribeConfigsRequest.DescribeConfigsResource
    response = await call(
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


async def test_this_broker_is_described_with_its_static_settings(start: StartBroker) -> None:
    call = await start(configs={"log.retention.ms": "77"})
    call.broker.set_port(9092)
    result = await describe(call, BROKER, "1", include_synonyms=True)
    configs = {config.name: config for config in result.configs}
    assert set(configs) == set(BROKER_CONFIGS)
    retention = configs["log.retention.ms"]
    assert (retention.value, retention.config_source, retention.read_only) == ("77", 4, False)
    node = configs["node.id"]
    assert (node.value, node.config_source, node.read_only) == ("1", 4, True)


async def test_the_port_chosen_at_start_is_described(start: StartBroker) -> None:
    call = await start(listen_port=0)
    call.broker.set_port(12_345)
    result = await describe(call, BROKER, "1", ["listeners", "advertised.listeners"])
    assert {config.value for config in result.configs} == {"PLAINTEXT://127.0.0.1:12345"}


async def test_the_description_of_all_brokers_has_the_settings_of_run_time(call: BrokerCalls) -> None:
    assert (await describe(call, BROKER, "")).configs == []
    layer = {"log.retention.ms": "5"}
    await call.broker.catalog.alter_broker([(Scope.CLUSTER, lambda current: layer)])
    result = await describe(call, BROKER, "")
    assert [(c.name, c.value, c.config_source) for c in result.configs] == [("log.retention.ms", "5", 3)]
