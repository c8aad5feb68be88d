"""What every part of ``bench.flow`` is given: a plan, a broker, a place for drivers to run, and a book for figures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.driver import Task
from bench.host import Host
from bench.measured import Measured
from bench.orders import fill
from bench.plan import Plan
from headrace.client.cluster import Cluster
from tests.support.server import Server

__all__ = ["BY_HAND", "QUERIES", "Stand"]

BY_HAND = "Structured Streaming by hand, Spark's Kafka sink (at least once)"
QUERIES = {"kept": "map and filter", "per_minute": "window aggregation"}


class Stand:
    def __init__(self, plan: Plan, host: Host, server: Server, home: Path) -> None:
        self.plan = plan
        self.host = host
        self.server = server
        self.cluster = Cluster(server.bootstrap)
        self.home = home
        self.measured = Measured()

    def turns(self) -> Iterator[tuple[int, str]]:
        """Ours and theirs, round by round; who begins alternates."""
        for number in range(self.plan.rounds):
            for who in ("us", "them") if number % 2 else ("them", "us"):
                yield number, who

    def filled(self, topic: str, events: int) -> str:
        """A topic with as many orders, made once."""
        if self.cluster.topic(topic) is None:
            fill(self.cluster, topic, events, self.plan.partitions)
        return topic

    def orders(self) -> str:
        return self.filled("orders", self.plan.events)

    def task(self, who: str, query: str, name: str, topic: str, **more: Any) -> Task:
        """From ``topic`` to a topic of its own, with a folder of its own."""
        given = {"at_once": self.plan.at_once, "partitions": self.plan.partitions, **more}
        return Task(who, query, self.server.bootstrap, topic, name, self.home / name, **given)
