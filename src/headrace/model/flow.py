"""A flow: a plain function of DataFrames that derives one topic from others. It stays callable as it was written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace.model.place import Place
from headrace.model.topic import Topic

__all__ = ["DELIVERIES", "LATENCIES", "Flow", "Latency"]

Latency = Literal["batch", "realtime"]
LATENCIES: tuple[Latency, ...] = ("batch", "realtime")
DELIVERIES: dict[Latency, str] = {"batch": "exactly once", "realtime": "at least once"}
"""How often a row is in the topic, for whoever reads it."""


@dataclass(frozen=True, slots=True)
class Flow:
    """``reads`` are the function's arguments, in their order."""

    name: str
    function: Callable[..., Any]
    reads: tuple[Topic, ...]
    writes: Topic
    deterministic: bool = False
    """Whether the user says so of the Python functions that it calls for each row."""
    unbounded: bool = False
    """Whether the user says that its state may grow with the number of keys for ever."""
    latency: Latency = "batch"
    """``realtime``: each row is written by itself, within milliseconds, and at least once instead of exactly once."""
    version: str = ""
    """What the user changes when something changes that the fingerprint of the function cannot hold."""
    place: Place | None = field(default=None, compare=False)

    def __call__(self, *frames: Any) -> Any:
        return self.function(*frames)

    @property
    def is_realtime(self) -> bool:
        return self.latency == "realtime"

    @property
    def streams(self) -> tuple[Topic, ...]:
        return tuple(topic for topic in self.reads if topic.kind == "events")

    @property
    def tables(self) -> tuple[Topic, ...]:
        return tuple(topic for topic in self.reads if topic.kind == "table")

    @property
    def progress_topic(self) -> str:
        return f"{self.name}.progress"

    @property
    def late_topic(self) -> str:
        return f"{self.name}.late"

    @property
    def dead_topic(self) -> str:
        return f"{self.name}.dead"
