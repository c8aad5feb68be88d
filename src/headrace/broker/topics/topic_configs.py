"""The table of topic configuration keys.

The table has every key of Kafka 4.3, because tools and frameworks set more keys than they need. Names, types, defaults
and limits are Kafka's. Some keys have no effect on this broker (``has_effect=False``). The broker accepts such keys,
and their documentation states this. The broker refuses a value that requires a feature that it does not have.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.broker.topics.config_key import (
    ConfigKey,
    ConfigType,
    Synonym,
    at_least,
    between,
    each_of,
    gzip_level,
    one_of,
    throttled_replicas,
)
from headrace.key_order import FORCE_CONFIG
from headrace.truth import VOLATILE_CONFIG

__all__ = ["TOPIC_CONFIGS"]

_INT64_MAX = str(2**63 - 1)
_DAY_MS = 24 * 3600 * 1000
_MINUTE_MS = 60 * 1000
_HOUR_MS = 60 * _MINUTE_MS


def _no_tiers(value: str) -> str | None:
    return "this broker has no remote tier" if value == "true" else None


_KEYS = (
    ConfigKey(
        "cleanup.policy",
        ConfigType.LIST,
        "delete",
        "How the broker removes old records. `delete` removes whole segments that exceed the retention limits."
        " `compact` retains the newest record of each key. A topic can have both. With an empty list, the broker"
        " removes nothing.",
        each_of("compact", "delete"),
        (Synonym("log.cleanup.policy"),),
    ),
    ConfigKey(
        "compression.gzip.level",
        ConfigType.INT,
        "-1",
        "The gzip level of batches that the broker recompresses.",
        gzip_level,
        (Synonym("compression.gzip.level"),),
        has_effect=False,
    ),
    ConfigKey(
        "compression.lz4.level",
        ConfigType.INT,
        "9",
        "The LZ4 level of batches that the broker recompresses.",
        between(1, 17),
        (Synonym("compression.lz4.level"),),
        has_effect=False,
    ),
    ConfigKey(
        "compression.type",
        ConfigType.STRING,
        "producer",
        "The codec of stored batches. With `producer`, the broker stores each batch as the producer sent it. With a"
        " codec name or `uncompressed`, the broker recompresses every batch that uses another codec.",
        one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        (Synonym("compression.type"),),
    ),
    ConfigKey(
        "compression.zstd.level",
        ConfigType.INT,
        "3",
        "The zstd level of batches that the broker recompresses.",
        between(-131072, 22),
        (Synonym("compression.zstd.level"),),
        has_effect=False,
    ),
    ConfigKey(
        "delete.retention.ms",
        ConfigType.LONG,
        str(_DAY_MS),
        "Milliseconds for which a compacted topic retains tombstones.",
        at_least(0),
        (Synonym("log.cleaner.delete.retention.ms"),),
    ),
    ConfigKey(
        "file.delete.delay.ms",
        ConfigType.LONG,
        "60000",
        "Milliseconds for which the file of a removed segment remains on disk.",
        at_least(0),
        (Synonym("log.segment.delete.delay.ms"),),
        has_effect=False,
    ),
    ConfigKey(
        "flush.messages",
        ConfigType.LONG,
        _INT64_MAX,
        "Number of records after which the log is synced to disk. With durability `synced`, the broker syncs every"
        " batch before it acknowledges the batch. With durability `os`, the broker accepts only the default.",
        at_least(1),
        (Synonym("log.flush.interval.messages"),),
        has_effect=False,
    ),
    ConfigKey(
        "flush.ms",
        ConfigType.LONG,
        _INT64_MAX,
        "Milliseconds after which the log is synced to disk. With durability `synced`, the broker syncs every batch"
        " before it acknowledges the batch. With durability `os`, the broker accepts only the default.",
        at_least(0),
        (Synonym("log.flush.interval.ms"), Synonym("log.flush.scheduler.interval.ms")),
        has_effect=False,
    ),
    ConfigKey(
        "follower.replication.throttled.replicas",
        ConfigType.LIST,
        "",
        "Follower replicas whose replication rate is limited.",
        throttled_replicas,
        has_effect=False,
    ),
    ConfigKey(
        "headrace.archive.enable",
        ConfigType.BOOLEAN,
        "false",
        "Whether retention moves old segments to the broker's archive instead of deleting them. Archived records remain"
        " readable, and the first offset does not change. The broker must have an archive, and `cleanup.policy` must"
        " not include `compact`.",
        internal=True,
    ),
    ConfigKey(
        VOLATILE_CONFIG,
        ConfigType.BOOLEAN,
        "false",
        "Whether the topic is in memory only. `retention.bytes` then limits each partition (default 64 MiB). A restart"
        " of the broker deletes all records, so the topic cannot be a source of truth. Can only be set when the topic"
        " is created.",
        internal=True,
    ),
    ConfigKey(
        FORCE_CONFIG,
        ConfigType.BOOLEAN,
        "false",
        "Whether partitions can be added to the topic although it has records with keys. New records of some keys then"
        " go to another partition than their older records. Adding partitions removes this setting.",
        internal=True,
    ),
    ConfigKey(
        "index.interval.bytes",
        ConfigType.INT,
        "4096",
        "Bytes of a segment between two entries of its index.",
        at_least(0),
        (Synonym("log.index.interval.bytes"),),
    ),
    ConfigKey(
        "internal.segment.bytes",
        ConfigType.INT,
        None,
        "Overrides `segment.bytes`, and can be smaller than its minimum. For tests that need many small segments.",
        at_least(1),
        internal=True,
    ),
    ConfigKey(
        "leader.replication.throttled.replicas",
        ConfigType.LIST,
        "",
        "Leader replicas whose replication rate is limited.",
        throttled_replicas,
        has_effect=False,
    ),
    ConfigKey(
        "local.retention.bytes",
        ConfigType.LONG,
        "-2",
        "Bytes of a tiered partition that remain on local disk.",
        at_least(-2),
        (Synonym("log.local.retention.bytes"),),
        has_effect=False,
    ),
    ConfigKey(
        "local.retention.ms",
        ConfigType.LONG,
        "-2",
        "Milliseconds for which segments of a tiered partition remain on local disk.",
        at_least(-2),
        (Synonym("log.local.retention.ms"),),
        has_effect=False,
    ),
    ConfigKey(
        "max.compaction.lag.ms",
        ConfigType.LONG,
        _INT64_MAX,
        "Maximum milliseconds before a record becomes eligible for compaction.",
        at_least(1),
        (Synonym("log.cleaner.max.compaction.lag.ms"),),
    ),
    ConfigKey(
        "max.message.bytes",
        ConfigType.INT,
        str((1 << 20) + 12),
        "Maximum size of a batch in bytes, after compression by the producer.",
        at_least(0),
        (Synonym("message.max.bytes"),),
    ),
    ConfigKey(
        "message.timestamp.after.max.ms",
        ConfigType.LONG,
        str(_HOUR_MS),
        "Maximum milliseconds by which a record's timestamp may be ahead of the broker's clock. Has no effect with"
        " LogAppendTime.",
        at_least(0),
        (Synonym("log.message.timestamp.after.max.ms"),),
    ),
    ConfigKey(
        "message.timestamp.before.max.ms",
        ConfigType.LONG,
        _INT64_MAX,
        "Maximum milliseconds by which a record's timestamp may be behind the broker's clock. Has no effect with"
        " LogAppendTime.",
        at_least(0),
        (Synonym("log.message.timestamp.before.max.ms"),),
    ),
    ConfigKey(
        "message.timestamp.type",
        ConfigType.STRING,
        "CreateTime",
        "The source of timestamps. With CreateTime, records have the producer's timestamp. With LogAppendTime, the"
        " broker sets the time at which it appends them.",
        one_of("CreateTime", "LogAppendTime"),
        (Synonym("log.message.timestamp.type"),),
    ),
    ConfigKey(
        "min.cleanable.dirty.ratio",
        ConfigType.DOUBLE,
        "0.5",
        "The fraction of a compacted log that must be new before the broker compacts the log again.",
        between(0, 1),
        (Synonym("log.cleaner.min.cleanable.ratio"),),
    ),
    ConfigKey(
        "min.compaction.lag.ms",
        ConfigType.LONG,
        "0",
        "Minimum milliseconds before a record becomes eligible for compaction.",
        at_least(0),
        (Synonym("log.cleaner.min.compaction.lag.ms"),),
    ),
    ConfigKey(
        "min.insync.replicas",
        ConfigType.INT,
        "1",
        "Number of replicas that must have a batch before the broker acknowledges acks=all. This broker has one"
        " replica. With a value above 1, it refuses Produce requests with acks=all, as Kafka does without enough"
        " replicas.",
        at_least(1),
        (Synonym("min.insync.replicas"),),
    ),
    ConfigKey(
        "preallocate",
        ConfigType.BOOLEAN,
        "false",
        "Whether the broker allocates the full size of a new segment's file at once.",
        None,
        (Synonym("log.preallocate"),),
        has_effect=False,
    ),
    ConfigKey(
        "remote.log.copy.disable",
        ConfigType.BOOLEAN,
        "false",
        "Whether a tiered topic stops copying segments to its remote tier.",
        has_effect=False,
    ),
    ConfigKey(
        "remote.log.delete.on.disable",
        ConfigType.BOOLEAN,
        "false",
        "Whether the topic's data in the remote tier is deleted when tiering is disabled.",
        has_effect=False,
    ),
    ConfigKey(
        "remote.storage.enable",
        ConfigType.BOOLEAN,
        "false",
        "Whether old segments move to a remote tier. This broker has no remote tier, so it accepts only `false`.",
        _no_tiers,
        has_effect=False,
    ),
    ConfigKey(
        "retention.bytes",
        ConfigType.LONG,
        "-1",
        "Bytes that a partition retains. The broker removes the oldest segments while the remaining segments have at"
        " least this size. A negative value means no limit.",
        None,
        (Synonym("log.retention.bytes"),),
    ),
    ConfigKey(
        "retention.ms",
        ConfigType.LONG,
        str(7 * _DAY_MS),
        "Milliseconds for which records are retained. The broker removes a segment when its newest record is older."
        " -1 means no limit.",
        at_least(-1),
        (
            Synonym("log.retention.ms"),
            Synonym("log.retention.minutes", _MINUTE_MS),
            Synonym("log.retention.hours", _HOUR_MS),
        ),
    ),
    ConfigKey(
        "segment.bytes",
        ConfigType.INT,
        str(1 << 30),
        "Maximum size of a segment's file in bytes. Retention removes whole segments.",
        at_least(1 << 20),
        (Synonym("log.segment.bytes"),),
    ),
    ConfigKey(
        "segment.index.bytes",
        ConfigType.INT,
        str(10 << 20),
        "Maximum size of a segment's index in bytes.",
        at_least(4),
        (Synonym("log.index.size.max.bytes"),),
        has_effect=False,
    ),
    ConfigKey(
        "segment.jitter.ms",
        ConfigType.LONG,
        "0",
        "Maximum milliseconds by which a new segment begins early, so that not all partitions begin one at once.",
        at_least(0),
        (Synonym("log.roll.jitter.ms"), Synonym("log.roll.jitter.hours", _HOUR_MS)),
        has_effect=False,
    ),
    ConfigKey(
        "segment.ms",
        ConfigType.LONG,
        str(7 * _DAY_MS),
        "Milliseconds after which a new segment begins, even if the current segment is not full.",
        at_least(1),
        (Synonym("log.roll.ms"), Synonym("log.roll.hours", _HOUR_MS)),
    ),
    ConfigKey(
        "unclean.leader.election.enable",
        ConfigType.BOOLEAN,
        "false",
        "Whether a replica that lacks records can become the leader.",
        None,
        (Synonym("unclean.leader.election.enable"),),
        has_effect=False,
    ),
)

TOPIC_CONFIGS: Mapping[str, ConfigKey] = {key.name: key for key in _KEYS}
