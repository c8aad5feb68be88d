"""Two flows whose generations are written without Spark: the test writes the records of their drivers."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from faults.committed_records import committed
from faults.wait import until
from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.generations import generations_of
from headrace.client.generations_writer import GenerationsWriter
from headrace.client.progress import current
from headrace.flow.switch.coverage import Coverage
from headrace.flow.switch.policy import SwitchPolicy
from headrace.model.declarations import Flow
from headrace.model.generations import Entry, FlowGenerations
from headrace.settings import SwitchSettings
from headrace.testing.clock import DrivenClock
from tests.support.generations import begin_deriving, derive_batch, first_entry

__all__ = ["Rental"]


@dataclass(frozen=True)
class Ride:
    bike: str
    minutes: int


def _as_they_are(rows: Any) -> Any:
    return rows


class Rental:
    """Flow ``know`` derives ``known`` from ``rides``, and flow ``count`` derives ``bikes`` from ``known``."""

    def __init__(self, cluster: Cluster) -> None:
        mark = uuid.uuid4().hex[:8]
        self.cluster = cluster
        self.app = App(f"rental-{mark}")
        rides = self.app.topic(f"rides-{mark}", Ride, key="bike")
        known = self.app.topic(f"known-{mark}", Ride, key="bike")
        bikes = self.app.table(f"bikes-{mark}", Ride, key="bike")
        self.know = self.app.flow(reads=[rides], writes=known, name=f"know-{mark}")(_as_they_are)
        self.count = self.app.flow(reads=[known], writes=bikes, name=f"count-{mark}")(_as_they_are)
        self.rides = rides.name
        cluster.ensure_topic(self.rides, 1)

    def write(self, count: int) -> None:
        producer = self.cluster.producer({"linger.ms": 0})
        for number in range(count):
            producer.produce(self.rides, b"{}", f"b{number}")
        assert producer.flush(30) == 0

    def begin(self, flow: Flow, reads: str = "") -> Entry:
        """Begin the flow's next generation."""
        if generations_of(self.cluster, flow) is None:
            entry = first_entry(flow)
        else:
            with GenerationsWriter(self.cluster, flow) as writer:
                entry = writer.begin_generation("new", "requested")
        begin_deriving(self.cluster, self.app.name, flow, entry, reads)
        return entry

    def derive(self, flow: Flow, entry: Entry, rows: Mapping[str, int], read: int | None = None) -> None:
        values = {bike: {"bike": bike, "minutes": minutes} for bike, minutes in rows.items()}
        derive_batch(self.cluster, flow, entry, values, read)

    def generations(self, flow: Flow) -> FlowGenerations:
        generations = generations_of(self.cluster, flow)
        assert generations is not None
        return generations

    def until_no_switch(self, flow: Flow) -> None:
        """A commit is confirmed a moment before readers see its records."""
        until(lambda: self.generations(flow).switching == 0, "no switch is under way")

    def policy(self, flow: Flow, entry: Entry, clock: DrivenClock, notes: list[str]) -> SwitchPolicy:
        progress = current(self.cluster, entry.progress)
        assert progress is not None
        context: Any = SimpleNamespace(
            flow=flow,
            cluster=self.cluster,
            app=self.app,
            options=SimpleNamespace(switch=SwitchSettings()),
        )
        return SwitchPolicy(context, progress.generation, notes.append, clock)

    def is_covered(self, flow: Flow, entry: Entry) -> bool:
        before = current(self.cluster, self.generations(flow).serving_entry.progress)
        after = current(self.cluster, entry.progress)
        assert before is not None
        assert after is not None
        return Coverage(self.cluster, before, after.generation).is_reached(after.last)

    def keys(self, topic: str) -> list[str]:
        return [message.key().decode() for message in committed(self.cluster.bootstrap, topic)]
