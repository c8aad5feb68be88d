"""What every part of ``bench.flow`` receives: a plan, a broker, a host for drivers, and the figures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.flow.driver import Task
from bench.flow.host import Host
from bench.flow.orders import fill
from bench.session import Figures
from faults.servers.server import Server
from headrace.client.cluster import Cluster

__all__ = ["BY_HAND", "QUERIES", "FlowContext", "Plan"]


@dataclass(frozen=True, slots=True)
class Plan:
    rounds: int
    events: int
    """Number of events in the topic that most parts read."""
    batch_events: int
    """Maximum events per batch."""
    partitions: int
    rate: int
    """Events per second in parts where events arrive slowly."""
    warm_s: float
    """Seconds before the first event is counted."""
    seconds: float
    """Seconds during which slow events are sent and counted."""
    small_s: float
    """Like ``seconds``, for the parts that try many settings."""
    store_rows: int
    state_keys: tuple[int, ...]
    """The numbers of keys to which the state grows, ascending. The first number is the reference."""
    state_memory_keys: int
    """The largest number of keys that is also measured with state in memory."""
    state_events: int
    """The number of events to count at each number of keys."""
    state_batch_events: int
    flows: int
    """Number of flows in one app."""
    flow_events: int
    """Events for each of these flows."""
    format_events: int
    memory_s: float
    """Seconds that an app runs before its memory is sampled. The sampling takes as long again."""
    is_quick: bool = False

    @classmethod
    def quick(cls) -> Plan:
        """A plan for a smoke test."""
        return cls(
            rounds=1,
            events=2_000,
            batch_events=1_000,
            partitions=2,
            rate=50,
            warm_s=0.5,
            seconds=1.0,
            small_s=1.5,
            store_rows=2_000,
            state_keys=(1_000, 2_000, 4_000),
            state_memory_keys=2_000,
            state_events=1_500,
            state_batch_events=500,
            flows=3,
            flow_events=2_000,
            format_events=2_000,
            memory_s=5.0,
            is_quick=True,
        )

    @classmethod
    def full(cls, rounds: int, scale: float) -> Plan:
        return cls(
            rounds=rounds,
            events=max(10_000, round(2_000_000 * scale)),
            batch_events=100_000,
            partitions=2,
            rate=100,
            warm_s=max(2.0, 20.0 * scale),
            seconds=max(2.0, 60.0 * scale),
            small_s=max(2.0, 20.0 * scale),
            store_rows=max(10_000, round(500_000 * scale)),
            state_keys=tuple(round(keys * scale) for keys in (100_000, 1_000_000, 10_000_000)),
            state_memory_keys=round(1_000_000 * scale),
            state_events=max(10_000, round(400_000 * scale)),
            state_batch_events=max(1_000, round(20_000 * min(1.0, scale))),
            flows=20,
            flow_events=max(10_000, round(300_000 * scale)),
            format_events=max(10_000, round(1_000_000 * scale)),
            memory_s=max(10.0, 90.0 * scale),
        )


BY_HAND = "Structured Streaming by hand, Spark's Kafka sink (at least once)"
QUERIES = {"large_orders": "map and filter", "per_minute": "window aggregation"}


class FlowContext:
    def __init__(self, plan: Plan, host: Host, server: Server, home: Path) -> None:
        self.plan = plan
        self.host = host
        self.server = server
        self.cluster = Cluster(server.bootstrap)
        self.home = home
        self.figures = Figures()

    def turns(self) -> Iterator[tuple[int, str]]:
        """Yield ``us`` and ``them`` in alternating order, round by round."""
        for number in range(self.plan.rounds):
            for who in ("us", "them") if number % 2 else ("them", "us"):
                yield number, who

    def orders_topic(self, topic: str, events: int) -> str:
        """Return the topic. The first call creates it with this many orders."""
        if self.cluster.topic(topic) is None:
            fill(self.cluster, topic, events, self.plan.partitions)
        return topic

    def default_topic(self) -> str:
        return self.orders_topic("orders", self.plan.events)

    def task(self, who: str, query: str, name: str, topic: str, **more: Any) -> Task:
        """Return a task that reads ``topic``. Its output topic and its folder are both called ``name``."""
        options = {"batch_events": self.plan.batch_events, "partitions": self.plan.partitions, **more}
        return Task(who, query, self.server.bootstrap, topic, name, self.home / name, **options)
