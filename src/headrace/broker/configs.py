"""Topic and broker configuration put to use: checked, changed, resolved and described.

A topic's overrides are a mapping of Kafka's names to texts in their normal spelling. What is in force for a
topic is its override, else what the broker-wide layers say, else the key's default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from headrace.broker.broker_configs import BROKER_CONFIGS, BrokerConfigs, Scope, Setting, Source
from headrace.broker.config_key import ConfigKey, ConfigType, items_of
from headrace.broker.refusal import Refusal
from headrace.broker.topic_configs import TOPIC_CONFIGS
from headrace.broker.volatile import volatile_log_config
from headrace.errors import ConfigError
from headrace.log.config import LogConfig
from headrace.truth import VOLATILE_CONFIG, is_volatile
from headrace.wire.codes import ErrorCode

__all__ = [
    "RESTORED",
    "TOMBSTONES_REMOVED_BELOW",
    "Change",
    "ConfigEntry",
    "Operation",
    "altered",
    "check_broker_configs",
    "check_topic_configs",
    "describe_broker",
    "describe_layer",
    "describe_topic",
    "log_config",
    "min_insync_replicas",
    "topic_value",
]


_VOLATILE_BYTES_MAX = 64 << 20
_INDEX_INTERVAL_BYTES_MAX = 64 << 10

TOMBSTONES_REMOVED_BELOW = ConfigKey(
    "headrace.tombstones.removed.below",
    ConfigType.LIST,
    None,
    "Per partition, as partition:offset. Whoever has read a compacted topic up to an offset below it, stayed away and"
    " comes back may have missed the deletion of a key, because the marker has expired and is gone: it must start again"
    " from the first offset with nothing kept. At or above it, no deletion was missed. Cannot be set.",
)

RESTORED = ConfigKey(
    "headrace.restored",
    ConfigType.LIST,
    None,
    "Of a log that was restored from a backup: per restore and partition the time, the partition and its end then, as"
    " ms:partition:offset. Whoever had read further by that time has read what this log never had, and must start again"
    " from the first offset with nothing kept. Cannot be set.",
)


class Operation(IntEnum):
    """What IncrementalAlterConfigs does to one key."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Change(NamedTuple):
    name: str
    operation: Operation
    value: str | None


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One key as DescribeConfigs and CreateTopics show it."""

    key: ConfigKey
    value: str | None
    source: Source
    synonyms: tuple[Setting, ...]
    read_only: bool = False


# What is in force


def topic_value(name: str, overrides: Mapping[str, str], defaults: BrokerConfigs) -> str | None:
    """What is in force for a topic's key."""
    return overrides[name] if name in overrides else defaults.fallback(TOPIC_CONFIGS[name])


def log_config(overrides: Mapping[str, str], defaults: BrokerConfigs) -> LogConfig:
    """What the topic's partitions are told."""

    def text(name: str) -> str:
        value = topic_value(name, overrides, defaults)
        assert value is not None, name
        return value

    def number(name: str) -> int:
        return int(text(name))

    smaller = topic_value("internal.segment.bytes", overrides, defaults)
    config = LogConfig(
        segment_bytes=number("segment.bytes") if smaller is None else int(smaller),
        segment_ms=number("segment.ms"),
        retention_ms=number("retention.ms"),
        retention_bytes=max(-1, number("retention.bytes")),
        max_message_bytes=number("max.message.bytes"),
        timestamp_type=text("message.timestamp.type"),
        timestamp_before_max_ms=number("message.timestamp.before.max.ms"),
        timestamp_after_max_ms=number("message.timestamp.after.max.ms"),
        compression_type=text("compression.type"),
        cleanup_policy=text("cleanup.policy"),
        # A reader walks what lies between two entries of the index, and others wait meanwhile.
        index_interval_bytes=min(number("index.interval.bytes"), _INDEX_INTERVAL_BYTES_MAX),
        min_compaction_lag_ms=number("min.compaction.lag.ms"),
        max_compaction_lag_ms=number("max.compaction.lag.ms"),
        min_cleanable_dirty_ratio=float(text("min.cleanable.dirty.ratio")),
        delete_retention_ms=number("delete.retention.ms"),
        is_archived=topic_value("headrace.archive.enable", overrides, defaults) == "true",
    )
    return volatile_log_config(config) if is_volatile(overrides) else config


def min_insync_replicas(overrides: Mapping[str, str], defaults: BrokerConfigs) -> int:
    value = topic_value("min.insync.replicas", overrides, defaults)
    assert value is not None
    return int(value)


# Checking


def check_topic_configs(
    configs: Mapping[str, str], defaults: BrokerConfigs, *, waits_for_sync: bool, has_archive: bool = False
) -> dict[str, str]:
    """A topic's overrides in their normal spelling; ``Refusal`` with INVALID_CONFIG and the reason where
    one does not fit.
    """
    normal = {}
    for name, value in configs.items():
        key = TOPIC_CONFIGS.get(name)
        if key is None:
            raise Refusal(ErrorCode.INVALID_CONFIG, f"topics have no configuration {name!r}")
        try:
            normal[name] = key.normal(value)
        except ConfigError as error:
            raise Refusal(ErrorCode.INVALID_CONFIG, error.message) from error
        if name in ("flush.messages", "flush.ms") and not waits_for_sync and normal[name] != key.default:
            raise Refusal(
                ErrorCode.INVALID_CONFIG,
                f"{name}: this broker runs with durability os and leaves syncing to the operating system;"
                " with durability"
                " synced it syncs before every acknowledgement",
            )
    _check_lags(lambda name: topic_value(name, normal, defaults))
    if normal.get("headrace.archive.enable") == "true":
        _check_archive(topic_value("cleanup.policy", normal, defaults), has_archive)
    return _bounded(normal, defaults) if is_volatile(normal) else normal


def _bounded(normal: dict[str, str], defaults: BrokerConfigs) -> dict[str, str]:
    """A volatile topic's overrides: memory has an end, so it is given one where it states none."""
    if topic_value("cleanup.policy", normal, defaults) != "delete":
        raise Refusal(
            ErrorCode.INVALID_CONFIG,
            f"{VOLATILE_CONFIG}: a volatile topic drops its oldest records, so its cleanup.policy is delete",
        )
    if normal.get("headrace.archive.enable") == "true":
        raise Refusal(
            ErrorCode.INVALID_CONFIG,
            f"{VOLATILE_CONFIG}: a volatile topic has no files that could be archived",
        )
    if int(topic_value("retention.bytes", normal, defaults) or -1) < 0:
        return normal | {"retention.bytes": str(_VOLATILE_BYTES_MAX)}
    return normal


def _check_archive(cleanup_policy: str | None, has_archive: bool) -> None:
    if not has_archive:
        raise Refusal(
            ErrorCode.INVALID_CONFIG,
            "headrace.archive.enable: this broker was started without an archive "
            " (--set headrace.archive.dir=FOLDER or s3://BUCKET/PREFIX)",
        )
    if "compact" in (cleanup_policy or ""):
        raise Refusal(
            ErrorCode.INVALID_CONFIG,
            "headrace.archive.enable: a compacted topic cannot be archived, because a deletion that has expired here"
            " would leave the deleted record in the archive",
        )


def check_broker_configs(configs: Mapping[str, str], defaults: BrokerConfigs, scope: Scope) -> dict[str, str]:
    """One layer of broker-wide overrides in their normal spelling; ``Refusal`` with INVALID_REQUEST, as
    Kafka, where one does not fit.
    """
    normal = {}
    for name, value in configs.items():
        key = _dynamic_broker_key(name)
        try:
            normal[name] = key.normal(value)
        except ConfigError as error:
            raise Refusal(ErrorCode.INVALID_REQUEST, error.message) from error
    after = defaults.with_layer(scope, normal)
    _check_lags(lambda name: topic_value(name, {}, after))
    return normal


def _dynamic_broker_key(name: str) -> ConfigKey:
    key = BROKER_CONFIGS.get(name)
    if key is None:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"this broker has no configuration {name!r}")
    if not key.dynamic:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"{name} cannot be changed while the broker runs")
    return key


def _check_lags(value_of: Callable[[str], str | None]) -> None:
    least, most = value_of("min.compaction.lag.ms"), value_of("max.compaction.lag.ms")
    assert least is not None
    assert most is not None
    if int(least) > int(most):
        raise Refusal(
            ErrorCode.INVALID_CONFIG,
            f"min.compaction.lag.ms ({least}) is more than max.compaction.lag.ms ({most})",
        )


# Changing


def altered(
    current: Mapping[str, str], changes: Iterable[Change], keys: Mapping[str, ConfigKey]
) -> dict[str, str]:
    """``current`` after the changes, not checked yet. Lists grow from and shrink to what is in force by
    default.
    """
    after = dict(current)
    for name, operation, value in changes:
        if operation is Operation.DELETE:
            after.pop(name, None)
            continue
        assert value is not None
        if operation is Operation.SET:
            after[name] = value
            continue
        key = keys.get(name)
        if key is None or key.type is not ConfigType.LIST:
            raise Refusal(
                ErrorCode.INVALID_CONFIG, f"{operation.name} needs a list, and {name} is not one: use SET"
            )
        items = dict.fromkeys(items_of(after.get(name, key.default or "")))
        for item in items_of(value):
            if operation is Operation.APPEND:
                items.setdefault(item)
            else:
                items.pop(item, None)
        after[name] = ",".join(items)
    return after


# Describing


def describe_topic(overrides: Mapping[str, str], defaults: BrokerConfigs) -> list[ConfigEntry]:
    """Every key of a topic, by name."""
    entries = []
    for name, key in TOPIC_CONFIGS.items():
        if key.internal and name not in overrides:
            continue
        synonyms = defaults.settings_of(key.synonyms[0].name) if key.synonyms else []
        if name in overrides:
            synonyms.insert(0, Setting(name, overrides[name], Source.TOPIC))
        source = synonyms[0].source if synonyms else Source.DEFAULT
        entries.append(ConfigEntry(key, topic_value(name, overrides, defaults), source, tuple(synonyms)))
    return entries


def describe_broker(configs: BrokerConfigs) -> list[ConfigEntry]:
    """Every key of this broker, by name."""
    entries = []
    for name, key in BROKER_CONFIGS.items():
        synonyms = configs.settings_of(name)
        source = synonyms[0].source if synonyms else Source.DEFAULT
        entries.append(
            ConfigEntry(key, configs.value(name), source, tuple(synonyms), read_only=not key.dynamic)
        )
    return entries


def describe_layer(configs: BrokerConfigs) -> list[ConfigEntry]:
    """What was set at run time for all brokers."""
    return [
        ConfigEntry(BROKER_CONFIGS[name], value, Source.CLUSTER, (Setting(name, value, Source.CLUSTER),))
        for name, value in sorted(configs.cluster.items())
    ]
