"""How flows run: what a batch may hold, and where Spark keeps its state."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.flow.decoding import TimeBounds

__all__ = ["FlowSettings"]


@dataclass(frozen=True, slots=True)
class FlowSettings:
    checkpoints: str
    """A folder, or any location that Spark can write to."""
    max_rows: int = 100_000
    max_bytes: int = 64 * 1024 * 1024
    trigger_ms: int = 0
    future_ms: int = 3_600_000
    transaction_timeout_ms: int = 60_000
    partitions: int = 1

    def checkpoint_of(self, flow: str, name: str) -> str:
        return f"{self.checkpoints.rstrip('/')}/{flow}/{name}"

    @property
    def bounds(self) -> TimeBounds:
        return TimeBounds(self.future_ms * 1_000)
