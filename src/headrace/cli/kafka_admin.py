"""Names of confluent-kafka's administration that its type information does not mark as public."""

from __future__ import annotations

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AlterConfigOpType,
    ClusterMetadata,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ConsumerGroupDescription,
    ConsumerGroupListing,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
    TopicDescription,
)

__all__ = [
    "AlterConfigOpType",
    "ClusterMetadata",
    "ConfigEntry",
    "ConfigResource",
    "ConfigSource",
    "ConsumerGroupDescription",
    "ConsumerGroupListing",
    "NewPartitions",
    "NewTopic",
    "OffsetSpec",
    "ResourceType",
    "TopicDescription",
    "at_earliest",
    "at_latest",
    "at_time",
]


def at_earliest() -> OffsetSpec:
    spec: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
    return spec


def at_latest() -> OffsetSpec:
    spec: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    return spec


def at_time(timestamp_ms: int) -> OffsetSpec:
    spec: OffsetSpec = OffsetSpec.for_timestamp(timestamp_ms)
    return spec
