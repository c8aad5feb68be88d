"""The configuration keys of a topic, as data.

Every key of Kafka 4.3 is here, because tools and frameworks set more of them than they need. Names, types,
defaults and limits are Kafka's. A key that cannot act on a single node, or does not act yet, is accepted
where that breaks no promise and says so in its text; where accepting it would promise something that is not
done, it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.broker.config_key import (
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
    return (
        "this broker keeps everything in its data directory and has no remote tier"
        if value == "true"
        else None
    )


_KEYS = (
    ConfigKey(
        "cleanup.policy",
        ConfigType.LIST,
        "delete",
        "What happens to old records. `delete` removes whole segments past the retention limits;"
        " `compact` keeps the newest record of each key, in the background; both do both. Empty keeps"
        " everything.",
        each_of("compact", "delete"),
        (Synonym("log.cleanup.policy"),),
    ),
    ConfigKey(
        "compression.gzip.level",
        ConfigType.INT,
        "-1",
        "The gzip level for batches that the broker compresses again.",
        gzip_level,
        (Synonym("compression.gzip.level"),),
        acts=False,
    ),
    ConfigKey(
        "compression.lz4.level",
        ConfigType.INT,
        "9",
        "The LZ4 level for batches that the broker compresses again.",
        between(1, 17),
        (Synonym("compression.lz4.level"),),
        acts=False,
    ),
    ConfigKey(
        "compression.type",
        ConfigType.STRING,
        "producer",
        "How batches are stored. `producer` keeps each as it came, which costs nothing; a codec's name"
        " or `uncompressed`"
        " makes the broker pack every other batch anew.",
        one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        (Synonym("compression.type"),),
    ),
    ConfigKey(
        "compression.zstd.level",
        ConfigType.INT,
        "3",
        "The zstd level for batches that the broker compresses again.",
        between(-131072, 22),
        (Synonym("compression.zstd.level"),),
        acts=False,
    ),
    ConfigKey(
        "delete.retention.ms",
        ConfigType.LONG,
        str(_DAY_MS),
        "How long a compacted topic keeps the markers of deleted keys, in milliseconds.",
        at_least(0),
        (Synonym("log.cleaner.delete.retention.ms"),),
    ),
    ConfigKey(
        "file.delete.delay.ms",
        ConfigType.LONG,
        "60000",
        "How long a removed segment's file stays on disk, in milliseconds.",
        at_least(0),
        (Synonym("log.segment.delete.delay.ms"),),
        acts=False,
    ),
    ConfigKey(
        "flush.messages",
        ConfigType.LONG,
        _INT64_MAX,
        "After how many records to sync. With durability `synced` every batch is on disk before it is"
        " acknowledged, which is"
        " at least as often; with durability `os` only the default is accepted.",
        at_least(1),
        (Synonym("log.flush.interval.messages"),),
        acts=False,
    ),
    ConfigKey(
        "flush.ms",
        ConfigType.LONG,
        _INT64_MAX,
        "After how many milliseconds to sync. With durability `synced` every batch is on disk before it"
        " is acknowledged,"
        " which is at least as soon; with durability `os` only the default is accepted.",
        at_least(0),
        (Synonym("log.flush.interval.ms"), Synonym("log.flush.scheduler.interval.ms")),
        acts=False,
    ),
    ConfigKey(
        "follower.replication.throttled.replicas",
        ConfigType.LIST,
        "",
        "Which replicas copy at a limited rate.",
        throttled_replicas,
        acts=False,
    ),
    ConfigKey(
        "headrace.archive.enable",
        ConfigType.BOOLEAN,
        "false",
        "Whether segments past the retention limits move to the broker's archive instead of being deleted. They stay"
        " readable there, and the first offset stays what it was. Needs a broker with an archive and `cleanup.policy`"
        " without `compact`.",
        internal=True,
    ),
    ConfigKey(
        VOLATILE_CONFIG,
        ConfigType.BOOLEAN,
        "false",
        "Whether the topic is kept in memory only. It is then bounded by `retention.bytes`, 64 MiB a partition unless"
        " it is set, and empty after a restart of the broker; nothing may be derived from it that must be derived"
        " again. Chosen when the topic is created.",
        internal=True,
    ),
    ConfigKey(
        FORCE_CONFIG,
        ConfigType.BOOLEAN,
        "false",
        "Whether partitions may be added once although the topic holds records with keys, some of which then move to"
        " another partition. Adding partitions takes it away again.",
        internal=True,
    ),
    ConfigKey(
        "index.interval.bytes",
        ConfigType.INT,
        "4096",
        "Bytes of a segment per entry of its index.",
        at_least(0),
        (Synonym("log.index.interval.bytes"),),
    ),
    ConfigKey(
        "internal.segment.bytes",
        ConfigType.INT,
        None,
        "Stands in for `segment.bytes` and may be smaller: for tests that need many segments from few"
        " records.",
        at_least(1),
        internal=True,
    ),
    ConfigKey(
        "leader.replication.throttled.replicas",
        ConfigType.LIST,
        "",
        "Which replicas are copied from at a limited rate.",
        throttled_replicas,
        acts=False,
    ),
    ConfigKey(
        "local.retention.bytes",
        ConfigType.LONG,
        "-2",
        "How many bytes of a tiered partition stay local.",
        at_least(-2),
        (Synonym("log.local.retention.bytes"),),
        acts=False,
    ),
    ConfigKey(
        "local.retention.ms",
        ConfigType.LONG,
        "-2",
        "How long segments of a tiered partition stay local, in milliseconds.",
        at_least(-2),
        (Synonym("log.local.retention.ms"),),
        acts=False,
    ),
    ConfigKey(
        "max.compaction.lag.ms",
        ConfigType.LONG,
        _INT64_MAX,
        "After how many milliseconds at most a record becomes due for compaction.",
        at_least(1),
        (Synonym("log.cleaner.max.compaction.lag.ms"),),
    ),
    ConfigKey(
        "max.message.bytes",
        ConfigType.INT,
        str((1 << 20) + 12),
        "The largest batch that is taken, in bytes, as it was sent (after compression).",
        at_least(0),
        (Synonym("message.max.bytes"),),
    ),
    ConfigKey(
        "message.timestamp.after.max.ms",
        ConfigType.LONG,
        str(_HOUR_MS),
        "How many milliseconds ahead of the broker's clock a record's own time may be. Does not apply"
        " with LogAppendTime.",
        at_least(0),
        (Synonym("log.message.timestamp.after.max.ms"),),
    ),
    ConfigKey(
        "message.timestamp.before.max.ms",
        ConfigType.LONG,
        _INT64_MAX,
        "How many milliseconds behind the broker's clock a record's own time may be. Does not apply with"
        " LogAppendTime.",
        at_least(0),
        (Synonym("log.message.timestamp.before.max.ms"),),
    ),
    ConfigKey(
        "message.timestamp.type",
        ConfigType.STRING,
        "CreateTime",
        "Whose clock stamps a record: CreateTime keeps the producer's time, LogAppendTime writes the"
        " broker's.",
        one_of("CreateTime", "LogAppendTime"),
        (Synonym("log.message.timestamp.type"),),
    ),
    ConfigKey(
        "min.cleanable.dirty.ratio",
        ConfigType.DOUBLE,
        "0.5",
        "Which share of a compacted log must be new before it is compacted again.",
        between(0, 1),
        (Synonym("log.cleaner.min.cleanable.ratio"),),
    ),
    ConfigKey(
        "min.compaction.lag.ms",
        ConfigType.LONG,
        "0",
        "For how many milliseconds at least a record is safe from compaction.",
        at_least(0),
        (Synonym("log.cleaner.min.compaction.lag.ms"),),
    ),
    ConfigKey(
        "min.insync.replicas",
        ConfigType.INT,
        "1",
        "How many replicas must have a batch before acks=all is answered. There is one here: with more"
        " than 1, such a"
        " produce request is refused, as by a cluster that has lost its other brokers.",
        at_least(1),
        (Synonym("min.insync.replicas"),),
    ),
    ConfigKey(
        "preallocate",
        ConfigType.BOOLEAN,
        "false",
        "Whether a new segment's file is given its full size at once.",
        None,
        (Synonym("log.preallocate"),),
        acts=False,
    ),
    ConfigKey(
        "remote.log.copy.disable",
        ConfigType.BOOLEAN,
        "false",
        "Whether a tiered topic stops copying to its remote tier.",
        acts=False,
    ),
    ConfigKey(
        "remote.log.delete.on.disable",
        ConfigType.BOOLEAN,
        "false",
        "Whether the remote tier's data goes when tiering is switched off.",
        acts=False,
    ),
    ConfigKey(
        "remote.storage.enable",
        ConfigType.BOOLEAN,
        "false",
        "Whether old segments move to a remote tier; there is none here, so only `false` is accepted.",
        _no_tiers,
        acts=False,
    ),
    ConfigKey(
        "retention.bytes",
        ConfigType.LONG,
        "-1",
        "How many bytes a partition keeps: its oldest segments go once what is left still reaches this."
        " Negative: no limit.",
        None,
        (Synonym("log.retention.bytes"),),
    ),
    ConfigKey(
        "retention.ms",
        ConfigType.LONG,
        str(7 * _DAY_MS),
        "How long records are kept, in milliseconds: a segment goes once its newest record is older. -1:"
        " no limit.",
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
        "How large a segment's file grows before the next one begins. Retention removes whole segments.",
        at_least(1 << 20),
        (Synonym("log.segment.bytes"),),
    ),
    ConfigKey(
        "segment.index.bytes",
        ConfigType.INT,
        str(10 << 20),
        "The largest size of a segment's index.",
        at_least(4),
        (Synonym("log.index.size.max.bytes"),),
        acts=False,
    ),
    ConfigKey(
        "segment.jitter.ms",
        ConfigType.LONG,
        "0",
        "By how many milliseconds at most the next segment begins early, so that not all begin at once.",
        at_least(0),
        (Synonym("log.roll.jitter.ms"), Synonym("log.roll.jitter.hours", _HOUR_MS)),
        acts=False,
    ),
    ConfigKey(
        "segment.ms",
        ConfigType.LONG,
        str(7 * _DAY_MS),
        "After how many milliseconds the next segment begins, even if the last one is not full.",
        at_least(1),
        (Synonym("log.roll.ms"), Synonym("log.roll.hours", _HOUR_MS)),
    ),
    ConfigKey(
        "unclean.leader.election.enable",
        ConfigType.BOOLEAN,
        "false",
        "Whether a replica that lacks records may become leader.",
        None,
        (Synonym("unclean.leader.election.enable"),),
        acts=False,
    ),
)

TOPIC_CONFIGS: Mapping[str, ConfigKey] = {key.name: key for key in _KEYS}
