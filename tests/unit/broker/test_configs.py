from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.refusal import Refusal
from headrace.broker.settings import BrokerSettings
from headrace.broker.topics import configs
from headrace.broker.topics.broker_configs import (
    BROKER_CONFIGS,
    BrokerConfigs,
    Scope,
    Setting,
    Source,
    static_configs,
)
from headrace.broker.topics.configs import AlterOperation, Change
from headrace.broker.topics.topic_configs import TOPIC_CONFIGS
from headrace.errors import ConfigError
from headrace.log.config import DEFAULT_LOG_CONFIG, LogConfig
from headrace.wire.codes import ErrorCode

NONE_SET = BrokerConfigs()
OF_KAFKA: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "fixtures" / "topic_configs_of_kafka_4_3.json").read_text()
)


def check(*, waits_for_sync: bool = True, **overrides: str) -> dict[str, str]:
    dotted = {name.replace("_", "."): value for name, value in overrides.items()}
    return configs.check_topic_configs(dotted, NONE_SET, waits_for_sync=waits_for_sync)


# As in Kafka


def test_the_topic_configs_are_those_of_kafka() -> None:
    names = {name for name, key in TOPIC_CONFIGS.items() if not key.internal}
    assert names == {of_kafka["name"] for of_kafka in OF_KAFKA}


@pytest.mark.parametrize("of_kafka", OF_KAFKA, ids=lambda of_kafka: of_kafka["name"])
def test_a_topic_config_has_kafkas_type_default_and_fallback(of_kafka: dict[str, Any]) -> None:
    (entry,) = [e for e in configs.describe_topic({}, NONE_SET) if e.key.name == of_kafka["name"]]
    assert (entry.key.type, entry.value) == (of_kafka["type"], of_kafka["default"])
    assert [setting.name for setting in entry.synonyms] == of_kafka["broker_keys"]


def test_every_key_has_documentation() -> None:
    for key in (*TOPIC_CONFIGS.values(), *BROKER_CONFIGS.values()):
        assert key.documentation.endswith("."), key.name


def test_every_default_is_a_value_of_its_key() -> None:
    for key in (*TOPIC_CONFIGS.values(), *BROKER_CONFIGS.values()):
        if key.default is not None:
            assert key.normal(key.default) == key.default


# Settings of partitions


def test_a_topic_that_sets_nothing_has_the_defaults() -> None:
    assert configs.log_config({}, NONE_SET) == DEFAULT_LOG_CONFIG


def test_every_topic_override_sets_its_log_config_field() -> None:
    overrides = check(
        segment_bytes="2000000",
        segment_ms="11",
        retention_ms="12",
        retention_bytes="13",
        max_message_bytes="14",
        message_timestamp_type="LogAppendTime",
        message_timestamp_before_max_ms="15",
        message_timestamp_after_max_ms="16",
        compression_type="zstd",
        cleanup_policy="compact, delete",
        index_interval_bytes="17",
    )
    assert configs.log_config(overrides, NONE_SET) == LogConfig(
        segment_bytes=2_000_000,
        segment_ms=11,
        retention_ms=12,
        retention_bytes=13,
        max_message_bytes=14,
        timestamp_type="LogAppendTime",
        timestamp_before_max_ms=15,
        timestamp_after_max_ms=16,
        compression_type="zstd",
        cleanup_policy="compact,delete",
        index_interval_bytes=17,
    )


def test_the_internal_segment_size_may_be_smaller_than_the_public_one() -> None:
    with pytest.raises(Refusal):
        check(segment_bytes="1024")
    assert configs.log_config(check(internal_segment_bytes="1024"), NONE_SET).segment_bytes == 1024


def test_any_negative_retention_in_bytes_means_no_limit() -> None:
    assert configs.log_config(check(retention_bytes="-5"), NONE_SET).retention_bytes == -1


def test_an_empty_cleanup_policy_keeps_everything() -> None:
    config = configs.log_config(check(cleanup_policy=""), NONE_SET)
    assert (config.has_delete_policy, config.is_compacted) == (False, False)


def test_a_topic_may_require_more_replicas_than_exist() -> None:
    assert configs.log_config(check(min_insync_replicas="2"), NONE_SET).min_insync_replicas == 2


# Layers


def test_the_value_of_the_higher_layer_is_effective() -> None:
    layers = BrokerConfigs()
    for scope, value in ((Scope.CLUSTER, "2"), (Scope.NODE, "3")):
        layers = layers.with_layer(scope, {"log.retention.ms": value})
        assert configs.log_config({}, layers).retention_ms == int(value)
    static = BrokerConfigs({"log.retention.ms": "1"}, {"log.retention.ms": "2"})
    assert configs.log_config({}, static).retention_ms == 2
    assert configs.log_config({"retention.ms": "4"}, layers).retention_ms == 4


def test_log_retention_ms_wins_over_log_retention_hours() -> None:
    layers = BrokerConfigs({"log.retention.ms": "5", "log.retention.hours": "1"})
    assert configs.log_config({}, layers).retention_ms == 5


def test_retention_in_hours_or_minutes_is_converted_to_milliseconds() -> None:
    assert configs.log_config({}, BrokerConfigs({"log.retention.hours": "2"})).retention_ms == 7_200_000
    assert configs.log_config({}, BrokerConfigs({"log.retention.minutes": "2"})).retention_ms == 120_000
    assert configs.log_config({}, BrokerConfigs({"log.retention.hours": "-1"})).retention_ms == -1


def test_a_description_lists_every_source_of_a_value_with_the_effective_one_first() -> None:
    layers = BrokerConfigs(
        {"log.retention.bytes": "1"}, {"log.retention.bytes": "2"}, {"log.retention.bytes": "3"}
    )
    (entry,) = [
        e for e in configs.describe_topic({"retention.bytes": "4"}, layers) if e.key.name == "retention.bytes"
    ]
    assert (entry.value, entry.source) == ("4", Source.TOPIC)
    assert entry.synonyms == (
        Setting("retention.bytes", "4", Source.TOPIC),
        Setting("log.retention.bytes", "3", Source.NODE),
        Setting("log.retention.bytes", "2", Source.CLUSTER),
        Setting("log.retention.bytes", "1", Source.STATIC),
        Setting("log.retention.bytes", "-1", Source.DEFAULT),
    )


def test_the_brokers_settings_are_its_static_layer() -> None:
    settings = BrokerSettings(
        data_dir=Path("/somewhere"),
        node_id=5,
        listen_port=1234,
        auto_create_topics=False,
        num_partitions=3,
        configs={"log.retention.ms": " 9 "},
    )
    layers = BrokerConfigs(static_configs(settings))
    assert layers.value("node.id") == "5"
    assert layers.value("listeners") == "PLAINTEXT://127.0.0.1:1234"
    assert layers.value("log.dirs") == "/somewhere"
    assert layers.value("num.partitions") == "3"
    assert not layers.auto_create_topics
    assert configs.log_config({}, layers).retention_ms == 9


@pytest.mark.parametrize("name", ["no.such.key", "num.partitions", "retention.ms"])
def test_static_configs_refuse_unknown_keys_topic_keys_and_keys_with_their_own_setting(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        static_configs(BrokerSettings(data_dir=Path("data"), configs={name: "1"}))


# Refused values


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention.ms", "-2"),
        ("segment.bytes", "1048575"),
        ("segment.ms", "0"),
        ("max.message.bytes", "-1"),
        ("compression.type", "gzip,lz4"),
        ("compression.type", "LZ4"),
        ("cleanup.policy", "delete,zap"),
        ("message.timestamp.type", "createtime"),
        ("min.insync.replicas", "0"),
        ("min.cleanable.dirty.ratio", "1.1"),
        ("compression.gzip.level", "0"),
        ("compression.zstd.level", "23"),
        ("leader.replication.throttled.replicas", "0-1"),
        ("remote.storage.enable", "true"),
        ("no.such.key", "1"),
        ("message.format.version", "3.0"),
    ],
)
def test_a_value_that_does_not_fit_is_an_invalid_config(name: str, value: str) -> None:
    with pytest.raises(Refusal, match=name) as raised:
        configs.check_topic_configs({name: value}, NONE_SET, waits_for_sync=True)
    assert raised.value.error_code is ErrorCode.INVALID_CONFIG


def test_compaction_lags_must_not_contradict_each_other() -> None:
    with pytest.raises(Refusal, match="larger than"):
        check(min_compaction_lag_ms="10", max_compaction_lag_ms="9")
    layers = BrokerConfigs(cluster={"log.cleaner.max.compaction.lag.ms": "9"})
    with pytest.raises(Refusal, match="larger than"):
        configs.check_topic_configs({"min.compaction.lag.ms": "10"}, layers, waits_for_sync=True)


@pytest.mark.parametrize("name", ["flush_messages", "flush_ms"])
def test_a_flush_setting_without_effect_is_refused(name: str) -> None:
    """With durability os, the broker never flushes. With durability synced, it flushes before every acknowledgement."""
    check(**{name: "1"})
    check(**{name: str(2**63 - 1)}, waits_for_sync=False)
    with pytest.raises(Refusal, match="durability os"):
        check(**{name: "1"}, waits_for_sync=False)


@pytest.mark.parametrize(
    "name", ["num.partitions", "log.retention.hours", "node.id", "no.such.key", "retention.ms"]
)
def test_broker_configs_that_cannot_change_at_run_time_are_an_invalid_request(name: str) -> None:
    with pytest.raises(Refusal, match=name) as raised:
        configs.check_broker_configs({name: "5"}, NONE_SET, Scope.NODE)
    assert raised.value.error_code is ErrorCode.INVALID_REQUEST


# Changing


@pytest.mark.parametrize(
    ("before", "change", "after"),
    [
        ({}, Change("retention.ms", AlterOperation.SET, "1"), {"retention.ms": "1"}),
        ({"retention.ms": "1"}, Change("retention.ms", AlterOperation.SET, "2"), {"retention.ms": "2"}),
        ({"retention.ms": "1"}, Change("retention.ms", AlterOperation.DELETE, None), {}),
        ({}, Change("no.such.key", AlterOperation.DELETE, None), {}),
        (
            {},
            Change("cleanup.policy", AlterOperation.APPEND, "compact"),
            {"cleanup.policy": "delete,compact"},
        ),
        (
            {"cleanup.policy": "compact"},
            Change("cleanup.policy", AlterOperation.APPEND, "compact"),
            {"cleanup.policy": "compact"},
        ),
        ({}, Change("cleanup.policy", AlterOperation.SUBTRACT, "delete"), {"cleanup.policy": ""}),
        (
            {"cleanup.policy": "compact,delete"},
            Change("cleanup.policy", AlterOperation.SUBTRACT, "delete"),
            {"cleanup.policy": "compact"},
        ),
    ],
)
def test_alter_operations_set_delete_append_and_subtract(
    before: dict[str, str], change: Change, after: dict[str, str]
) -> None:
    assert configs.apply_changes(before, [change], TOPIC_CONFIGS) == after


@pytest.mark.parametrize("operation", [AlterOperation.APPEND, AlterOperation.SUBTRACT])
@pytest.mark.parametrize("name", ["retention.ms", "no.such.key"])
def test_append_and_subtract_need_a_list(operation: AlterOperation, name: str) -> None:
    with pytest.raises(Refusal, match="list"):
        configs.apply_changes({}, [Change(name, operation, "1")], TOPIC_CONFIGS)
