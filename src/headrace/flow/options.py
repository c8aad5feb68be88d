"""How flows run: what a batch may hold, and where Spark keeps its state."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from headrace.flow import placement
from headrace.flow.decoding import TimeBounds
from headrace.settings import Settings

__all__ = ["FlowOptions"]


@dataclass(frozen=True, slots=True)
class FlowOptions:
    checkpoints: str
    """A folder, or any location that Spark can write to."""
    max_rows: int = 100_000
    max_bytes: int = 64 * 1024 * 1024
    trigger_ms: int = 0
    realtime_ms: int = 120_000
    future_ms: int = 3_600_000
    transaction_timeout_ms: int = 60_000
    partitions: int = 1
    fsync: Callable[[int], None] = os.fsync
    """How a file of a checkpoint on this machine is synced, by its descriptor."""

    @classmethod
    def of(cls, settings: Settings) -> FlowOptions:
        flow = settings.flow
        return cls(
            checkpoints=settings.checkpoints.absolute().as_uri(),
            max_rows=flow.max_rows,
            max_bytes=flow.max_bytes,
            trigger_ms=placement.trigger_ms(settings),
            realtime_ms=flow.realtime_ms,
            future_ms=flow.future_ms,
            transaction_timeout_ms=flow.transaction_timeout_ms,
            partitions=settings.topics.partitions,
        )

    def checkpoint_of(self, flow: str, name: str) -> str:
        return f"{self.checkpoints.rstrip('/')}/{flow}/{name}"

    @property
    def bounds(self) -> TimeBounds:
        return TimeBounds(self.future_ms * 1_000)
