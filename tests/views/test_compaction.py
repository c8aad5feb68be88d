"""Views of topics that are compacted before their follower reads them serve only states that existed."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from faults.views.follower_thread import produce
from faults.views.scripted_flow import ScriptedFlow
from faults.wait import until, unwatch, watch
from headrace.client.cluster import Cluster
from headrace.follow.follower import Follower
from headrace.model.declarations import Flow, View
from headrace.stores.position import Position
from headrace.stores.sqlite.writer import SqliteWriter
from headrace.stores.writer import Changes, Fence, Part
from tests.support.compaction import COMPACTED, FILL, RacingCluster, until_compacted
from tests.views.test_flow_views import row
from tests.views.test_topic_views import orders, record

Fresh = Callable[[str], str]
State = dict[str, Any]


@dataclass
class Served:
    """Every state that the store served, with its position."""

    states: list[tuple[Position, State]] = field(default_factory=list)

    @property
    def last(self) -> tuple[Position, State] | None:
        return self.states[-1] if self.states else None


class RecordingStore(SqliteWriter):
    def __init__(self, path: Path, view: str, served: Served) -> None:
        super().__init__(path, view)
        self._served = served

    def apply(self, part: Part, changes: Changes, before: Position, after: Position, fence: Fence) -> None:
        super().apply(part, changes, before, after, fence)
        if part is Part.SERVING:
            self._record(after)

    def swap(self, fence: Fence, keep: bool = False) -> None:
        super().swap(fence, keep)
        state = self.state(Part.SERVING)
        assert state is not None
        self._record(state.position)

    def _record(self, position: Position) -> None:
        self._served.states.append((position, {str(row[0]): row[1] for row in self.rows()}))


@contextlib.contextmanager
def recording(
    cluster: Cluster, view: View, flows: Sequence[Flow], home: Path, *, max_rows: int = 3
) -> Iterator[tuple[Follower, Served]]:
    """Run a follower that applies few rows at a time."""
    served, stop = Served(), threading.Event()
    follower = Follower(
        view, flows, cluster, lambda: RecordingStore(home / "shop.db", view.name, served), max_rows=max_rows
    )
    thread = threading.Thread(target=follower.run, args=(stop,))
    thread.start()
    watch(thread, lambda: None if thread.is_alive() else "the follower ended")
    try:
        yield follower, served
    finally:
        unwatch(thread)
        stop.set()
        thread.join(60)


def write_orders(
    cluster: Cluster, topic: str, states: list[State], changes: Sequence[tuple[str, int]]
) -> None:
    """Write orders one by one, because a segment ends with a batch; ``states`` has the state before each offset."""
    for order, amount in changes:
        produce(cluster, topic, [record(order, amount, note=FILL)])
        states.append(states[-1] | {order: amount})


@pytest.mark.parametrize(("max_rows", "rebuilds"), [(1_000, 0), (3, 1)], ids=["in one step", "rebuilt"])
def test_a_follower_behind_compaction_serves_only_states_that_existed(
    cluster: Cluster, fresh: Fresh, tmp_path: Path, max_rows: int, rebuilds: int
) -> None:
    view = orders(fresh("orders"))
    topic = cluster.ensure_topic(view.topic.name, 1, COMPACTED).name
    states: list[State] = [{}]
    write_orders(cluster, topic, states, [(f"o{number}", 0) for number in range(6)])
    with recording(cluster, view, [], tmp_path) as (_, served):
        until(lambda: served.last and served.last[1] == states[-1], "the first state")
    write_orders(cluster, topic, states, [(f"o{number % 6}", number) for number in range(1, 40)])
    until_compacted(cluster, topic, 12)
    with recording(cluster, view, [], tmp_path, max_rows=max_rows) as (follower, served):
        until(lambda: served.last and served.last[1] == states[-1], "the last state")
        assert follower.status.rebuilds == rebuilds
    for position, rows in served.states:
        assert rows == states[position.offsets[0]], position


def test_a_view_of_a_compacted_output_serves_only_states_after_a_batch(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    flow, rng = ScriptedFlow(cluster, fresh("sales"), partitions=2), random.Random(5)
    flow.begin(configs=COMPACTED)
    flow.batch([row(f"p{number}", 0) for number in range(8)])
    with recording(cluster, flow.view, [flow.flow], tmp_path) as (_, served):
        until(lambda: served.last and served.last[0].batch == 0, "the first batch")
    for number in range(1, 40):
        flow.batch([row(f"p{product}", number, FILL) for product in rng.sample(range(8), 2)])
    until_compacted(cluster, flow.output, 40)
    with recording(cluster, flow.view, [flow.flow], tmp_path) as (_, served):
        until(lambda: served.last and served.last[0].batch == 39, "the last batch")
    for position, rows in served.states:
        derived = flow.derived.states[position.batch + 1]
        assert rows == {product: values[1] for product, values in derived.items()}, position.batch


def test_a_build_overtaken_by_compaction_serves_only_states_that_existed(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    view = orders(fresh("orders"))
    topic = cluster.ensure_topic(view.topic.name, 1, COMPACTED).name
    states: list[State] = [{}]
    write_orders(cluster, topic, states, [(f"o{number}", 0) for number in range(8)])

    def overtake() -> None:
        write_orders(cluster, topic, states, [(f"o{number % 8}", number) for number in range(1, 24)])
        until_compacted(cluster, topic, 14)

    RacingCluster.overtake = staticmethod(overtake)
    with recording(RacingCluster(cluster.bootstrap), view, [], tmp_path) as (follower, served):
        until(lambda: served.last and served.last[1] == states[-1], "the last state")
        assert follower.status.rebuilds == 1
    for position, rows in served.states:
        assert rows == states[position.offsets[0]], position
