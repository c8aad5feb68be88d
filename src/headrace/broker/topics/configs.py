"""Resolves, validates, alters and describes the configuration of topics and of the broker.

A topic's overrides map Kafka's key names to values in normal form. The effective value of a topic key is its override.
Without an override, it is the value in the broker's configuration layers, and otherwise the key's default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple

from headrace.broker.refusal import Refusal
from headrace.broker.topics.broker_configs import BROKER_CONFIGS, BrokerConfigs, Scope, Setting, Source
from headrace.broker.topics.config_key import ConfigKey, ConfigType, items_of
from headrace.broker.topics.topic_configs import TOPIC_CONFIGS
from headrace.errors import ConfigError
from headrace.log.config import LogConfig
from headrace.truth import VOLATILE_CONFIG, is_volatile
from headrace.wire.codes import ErrorCode

__all__ = [
    "RESTORED",
    "TOMBSTONES_REMOVED_BELOW",
    "AlterOperation",
    "Change",
    "ConfigEntry",
    "apply_changes",
    "check_broker_configs",
    "check_topic_configs",
    "describe_broker",
    "describe_layer",
    "describe_topic",
    "log_config",
    "topic_value",
]


_VOLATILE_BYTES_MAX = 64 << 20
_VOLATILE_SEGMENTS = 8
_VOLATILE_SEGMENT_BYTES_MIN = 64 << 10
_INDEX_INTERVAL_BYTES_MAX = 64 << 10

TOMBSTONES_REMOVED_BELOW = ConfigKey(
    "headrace.tombstones.removed.below",
    ConfigType.LIST,
    None,
    "The offset below which compaction has removed tombstones, per partition, as partition:offset. If a reader stopped"
    " below this offset and resumes, it may have missed the deletion of a key. It must then discard its state and read"
    " again from the first offset. A reader that stopped at or above this offset has missed no deletion. Read-only.",
)

RESTORED = ConfigKey(
    "headrace.restored",
    ConfigType.LIST,
    None,
    "The restores of this topic from a backup. Each item is the time of the restore, the partition and its end offset,"
    " as ms:partition:offset. If a reader was beyond that offset at that time, it has read records that the restored"
    " log does not have. It must then discard its state and read again from the first offset. Read-only.",
)


class AlterOperation(IntEnum):
    """The operations of IncrementalAlterConfigs."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Change(NamedTuple):
    name: str
    operation: AlterOperation
    value: str | None


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A key with its value, as DescribeConfigs and CreateTopics return it."""

    key: ConfigKey
    value: str | None
    source: Source
    synonyms: tuple[Setting, ...]
    read_only: bool = False


# Resolving


def topic_value(name: str, overrides: Mapping[str, str], defaults: BrokerConfigs) -> str | None:
    """Return the effective value of a topic key."""
    return overrides[name] if name in overrides else defaults.fallback(TOPIC_CONFIGS[name])


def log_config(overrides: Mapping[str, str], defaults: BrokerConfigs) -> LogConfig:
    """Return the effective settings of the topic's partitions."""

    def text(name: str) -> str:
        value = topic_value(name, overrides, defaults)
        assert value is not None, name
        return value

    def number(name: str) -> int:
        return int(text(name))

    internal_segment_bytes = topic_value("internal.segment.bytes", overrides, defaults)
    config = LogConfig(
        segment_bytes=number("segment.bytes")
        if internal_segment_bytes is None
        else int(internal_segment_bytes),
        segment_ms=number("segment.ms"),
        retention_ms=number("retention.ms"),
        retention_bytes=max(-1, number("retention.bytes")),
        max_message_bytes=number("max.message.bytes"),
        timestamp_type=text("message.timestamp.type"),
        timestamp_before_max_ms=number("message.timestamp.before.max.ms"),
        timestamp_after_max_ms=number("message.timestamp.after.max.ms"),
        compression_type=text("compression.type"),
        cleanup_policy=text("cleanup.policy"),
        # Limited, because the event loop scans the bytes between two index entries on each read.
        index_interval_bytes=min(number("index.interval.bytes"), _INDEX_INTERVAL_BYTES_MAX),
        min_compaction_lag_ms=number("min.compaction.lag.ms"),
        max_compaction_lag_ms=number("max.compaction.lag.ms"),
        min_cleanable_dirty_ratio=float(text("min.cleanable.dirty.ratio")),
        delete_retention_ms=number("delete.retention.ms"),
        is_archived=topic_value("headrace.archive.enable", overrides, defaults) == "true",
        min_insync_replicas=number("min.insync.replicas"),
    )
    if is_volatile(overrides):
        # Retention removes whole segments, so the segments of a volatile topic must be much smaller than its limit.
        segment_bytes_max = max(config.retention_bytes // _VOLATILE_SEGMENTS, _VOLATILE_SEGMENT_BYTES_MIN)
        return replace(config, segment_bytes=min(config.segment_bytes, segment_bytes_max))
    return config


# Checking


def check_topic_configs(
    configs: Mapping[str, str], defaults: BrokerConfigs, *, waits_for_sync: bool, has_archive: bool = False
) -> dict[str, str]:
    """Return a topic's overrides in normal form. Raises ``Refusal`` with INVALID_CONFIG if one is invalid."""
    normal = {}
    for name, value in configs.items():
        key = TOPIC_CONFIGS.get(name)
        if key is None:
            raise Refusal(ErrorCode.INVALID_CONFIG, f"unknown topic configuration {name!r}")
        try:
            normal[name] = key.normal(value)
        except ConfigError as error:
            raise Refusal(ErrorCode.INVALID_CONFIG, error.message) from error
        if name in ("flush.messages", "flush.ms") and not waits_for_sync and normal[name] != key.default:
            raise Refusal(
                ErrorCode.INVALID_CONFIG,
                f"{name}: cannot be set with durability os, because the operating system then decides when to sync;"
                " with durability synced, the broker syncs before every acknowledgement",
            )
    _check_lags(lambda name: topic_value(name, normal, defaults))
    if normal.get("headrace.archive.enable") == "true":
        _check_archive(topic_value("cleanup.policy", normal, defaults), has_archive)
    return _check_volatile(normal, defaults) if is_volatile(normal) else normal


def _check_volatile(normal: dict[str, str], defaults: BrokerConfigs) -> dict[str, str]:
    """Return a volatile topic's overrides, with a default for ``retention.bytes`` if they have no limit."""
    if topic_value("cleanup.policy", normal, defaults) != "delete":
        raise Refusal(
            ErrorCode.INVALID_CONFIG,
            f"{VOLATILE_CONFIG}: the cleanup.policy of a volatile topic must be delete",
        )
    if normal.get("headrace.archive.enable") == "true":
        raise Refusal(
            ErrorCode.INVALID_CONFIG,
            f"{VOLATILE_CONFIG}: a volatile topic has no files to archive; remove headrace.archive.enable",
        )
    if int(topic_value("retention.bytes", normal, defaults) or -1) < 0:
        return normal | {"retention.bytes": str(_VOLATILE_BYTES_MAX)}
    return normal


def _check_archive(cleanup_policy: str | None, has_archive: bool) -> None:
    if not has_archive:
        raise Refusal(
            ErrorCode.INVALID_CONFIG,
            "headrace.archive.enable: this broker has no archive; start it with --set headrace.archive.dir=FOLDER or"
            " --set headrace.archive.dir=s3://BUCKET/PREFIX",
        )
    if "compact" in (cleanup_policy or ""):
        raise Refusal(
            ErrorCode.INVALID_CONFIG,
            "headrace.archive.enable: a compacted topic cannot be archived, because the archive would retain deleted"
            " records whose tombstones have expired",
        )


def check_broker_configs(configs: Mapping[str, str], defaults: BrokerConfigs, scope: Scope) -> dict[str, str]:
    """Return one layer of the broker's configuration in normal form.

    Raises ``Refusal`` with INVALID_REQUEST, as Kafka does, if a value is invalid.
    """
    normal = {}
    for name, value in configs.items():
        key = _dynamic_broker_key(name)
        try:
            normal[name] = key.normal(value)
        except ConfigError as error:
            raise Refusal(ErrorCode.INVALID_REQUEST, error.message) from error
    changed = defaults.with_layer(scope, normal)
    _check_lags(lambda name: topic_value(name, {}, changed))
    return normal


def _dynamic_broker_key(name: str) -> ConfigKey:
    key = BROKER_CONFIGS.get(name)
    if key is None:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"unknown broker configuration {name!r}")
    if not key.dynamic:
        raise Refusal(
            ErrorCode.INVALID_REQUEST, f"{name} cannot be changed at run time: set it when the broker starts"
        )
    return key


def _check_lags(value_of: Callable[[str], str | None]) -> None:
    min_ms, max_ms = value_of("min.compaction.lag.ms"), value_of("max.compaction.lag.ms")
    assert min_ms is not None
    assert max_ms is not None
    if int(min_ms) > int(max_ms):
        raise Refusal(
            ErrorCode.INVALID_CONFIG,
            f"min.compaction.lag.ms ({min_ms}) is larger than max.compaction.lag.ms ({max_ms})",
        )


# Changing


def apply_changes(
    current: Mapping[str, str], changes: Iterable[Change], keys: Mapping[str, ConfigKey]
) -> dict[str, str]:
    """Apply the changes to ``current``, without validation. A list without an override starts with its default."""
    changed = dict(current)
    for name, operation, value in changes:
        if operation is AlterOperation.DELETE:
            changed.pop(name, None)
            continue
        assert value is not None
        if operation is AlterOperation.SET:
            changed[name] = value
            continue
        key = keys.get(name)
        if key is None or key.type is not ConfigType.LIST:
            raise Refusal(
                ErrorCode.INVALID_CONFIG, f"{name} is not a list: use SET instead of {operation.name}"
            )
        items = dict.fromkeys(items_of(changed.get(name, key.default or "")))
        for item in items_of(value):
            if operation is AlterOperation.APPEND:
                items.setdefault(item)
            else:
                items.pop(item, None)
        changed[name] = ",".join(items)
    return changed


# Describing


def describe_topic(overrides: Mapping[str, str], defaults: BrokerConfigs) -> list[ConfigEntry]:
    """Return all keys of a topic, sorted by name."""
    entries = []
    for name, key in TOPIC_CONFIGS.items():
        if key.internal and name not in overrides:
            continue
        synonyms = defaults.settings_by_priority(key.synonyms[0].name) if key.synonyms else []
        if name in overrides:
            synonyms.insert(0, Setting(name, overrides[name], Source.TOPIC))
        source = synonyms[0].source if synonyms else Source.DEFAULT
        entries.append(ConfigEntry(key, topic_value(name, overrides, defaults), source, tuple(synonyms)))
    return entries


def describe_broker(configs: BrokerConfigs) -> list[ConfigEntry]:
    """Return all keys of this broker, sorted by name."""
    entries = []
    for name, key in BROKER_CONFIGS.items():
        synonyms = configs.settings_by_priority(name)
        source = synonyms[0].source if synonyms else Source.DEFAULT
        entries.append(
            ConfigEntry(key, configs.value(name), source, tuple(synonyms), read_only=not key.dynamic)
        )
    return entries


def describe_layer(configs: BrokerConfigs) -> list[ConfigEntry]:
    """Return the keys that were set at run time for all brokers."""
    return [
        ConfigEntry(BROKER_CONFIGS[name], value, Source.CLUSTER, (Setting(name, value, Source.CLUSTER),))
        for name, value in sorted(configs.cluster.items())
    ]
