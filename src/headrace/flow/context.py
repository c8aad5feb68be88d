"""The context that all parts of one running flow share, and the flow's options."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.flow.codec.codec import TimeBounds
from headrace.flow.compile.compiler import Compiled
from headrace.flow.spark import conf
from headrace.model.declarations import Flow, Topic
from headrace.model.schema import Schema
from headrace.settings import Settings, SwitchSettings

__all__ = ["FlowContext", "FlowOptions"]


@dataclass(frozen=True, slots=True)
class FlowOptions:
    checkpoints: str
    """A directory, or any location that Spark can write to."""
    max_rows: int = 100_000
    max_bytes: int = 64 * 1024 * 1024
    trigger_ms: int = 0
    realtime_ms: int = 120_000
    future_ms: int = 3_600_000
    idle_ms: int = 600_000
    transaction_timeout_ms: int = 60_000
    partitions: int = 1
    switch: SwitchSettings = field(default_factory=SwitchSettings)
    fsync: Callable[[int], None] = os.fsync
    """Syncs a file of a local checkpoint to disk. It receives the file descriptor."""

    @classmethod
    def of(cls, settings: Settings) -> FlowOptions:
        flow = settings.flow
        return cls(
            checkpoints=settings.checkpoints.absolute().as_uri(),
            max_rows=flow.max_rows,
            max_bytes=flow.max_bytes,
            trigger_ms=conf.trigger_ms(settings),
            realtime_ms=flow.realtime_ms,
            future_ms=flow.future_ms,
            idle_ms=flow.idle_ms,
            transaction_timeout_ms=flow.transaction_timeout_ms,
            partitions=settings.topics.partitions,
            switch=settings.switch,
        )

    def checkpoint_of(self, flow: str, name: str) -> str:
        return f"{self.checkpoints.rstrip('/')}/{flow}/{name}"

    @property
    def bounds(self) -> TimeBounds:
        return TimeBounds(self.future_ms * 1_000)


@dataclass(frozen=True, slots=True)
class FlowContext:
    spark: SparkSession
    cluster: Cluster
    app: App
    compiled: Compiled
    schemas: Mapping[str, Schema]
    """The schema of every topic of the app, by name."""
    options: FlowOptions

    @property
    def flow(self) -> Flow:
        return self.compiled.flow

    def with_schema(self, topic: Topic) -> Topic:
        """Return the topic with its schema, even if the app does not declare the schema."""
        return dataclasses.replace(topic, schema=self.schemas[topic.name])
