"""Tables that change while a flow reads them: deletions expire, compaction runs, and partitions are added."""

from __future__ import annotations

import json
import random
import threading
import uuid
from collections.abc import Sequence
from typing import Any

import pytest
from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined]

from faults.flows.world import FlowWorld
from faults.wait import until
from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.flow.codec.codec import TimeBounds
from headrace.flow.errors import TableRepartitioned
from headrace.flow.rejected import RejectedRecord
from headrace.flow.tables import current as tables
from headrace.flow.tables.current import TableState
from headrace.flow.tables.versions import TableVersions
from headrace.model.declarations import Topic
from headrace.model.progress import Input
from tests.flow.test_tables import Name, Shelf
from tests.flow.topic_contents import values
from tests.support.compaction import COMPACTED, FILL, RacingCluster, removed_below, until_compacted
from tests.verify.planted_faults import verifier

Record = tuple[str, str | None, int, int]
"""Key, name (None deletes), partition, timestamp."""


class Names:
    """A table alone, without the flow that reads it."""

    def __init__(self, world: FlowWorld, configs: dict[str, str], partitions: int = 1) -> None:
        self.world = world
        self.table: Topic = App("names").table(f"names-{uuid.uuid4().hex[:8]}", Name, key="thing")
        self.log = self.table.name
        self.id = world.cluster.ensure_topic(self.log, partitions, configs).id
        self._starts = {str(number): 0 for number in range(partitions)}

    def state(self, cluster: Cluster | None = None) -> TableState:
        known = Input(self.log, self.log, self.id, "table", self._starts)
        cluster = cluster or self.world.cluster
        return TableState(self.world.spark, cluster, "f", self.table, known, TimeBounds(), {})

    def past(self, offsets: dict[str, int]) -> dict[str, str]:
        world = self.world
        table = TableVersions(
            world.spark, world.cluster, self.table, self.log, self.id, self._starts, TimeBounds()
        )
        assert table.is_known_at(offsets)
        rows = table.rows(table.last_records(offsets)).collect()
        table.close()
        return {row.thing: row.name for row in rows}

    def write(self, key: str, name: str | None, partition: int = 0, timestamp: int = 0) -> None:
        """Write each record in its own batch, because a segment ends with a batch."""
        self.write_all([(key, name, partition, timestamp)])

    def write_all(self, records: Sequence[Record]) -> None:
        producer = self.world.cluster.producer({"linger.ms": 0})
        for key, name, partition, timestamp in records:
            value = None if name is None else json.dumps({"thing": key, "name": name}).encode()
            producer.produce(self.log, key=key, value=value, partition=partition, timestamp=timestamp)
        assert producer.flush(30) == 0


def rows_of_frame(state: TableState) -> dict[str, str]:
    rows = [(row.thing, row.name) for row in state.frame.collect()]
    assert len(rows) == len(dict(rows))
    return dict(rows)


def new_dead_letters(state: TableState) -> list[RejectedRecord]:
    """Refresh the table and return its new dead letters, as a committed batch does."""
    state.refresh()
    letters = list(state.dead_letters)
    state.dead_letters.clear()
    return letters


def test_a_deletion_that_expired_unread_is_not_missed_and_dead_letters_are_not_repeated(
    flow_world: FlowWorld,
) -> None:
    names = Names(flow_world, COMPACTED | {"delete.retention.ms": "0"})
    names.write("a", "first")
    names.write("b", "first")
    flow_world.write(names.table, [(b"bad", b"{")])
    state = names.state()
    assert [letter.offset for letter in new_dead_letters(state)] == [2]
    assert rows_of_frame(state) == {"a": "first", "b": "first"}
    names.write("a", None)
    for number in range(30):
        names.write("fill", f"{number} {FILL}")
    until(lambda: removed_below(flow_world.cluster, names.log) > 3, "the deletion is gone", pause_s=0.05)
    flow_world.write(names.table, [(b"bad", b"[")])
    assert [letter.value for letter in new_dead_letters(state)] == [b"["]
    assert rows_of_frame(state) == {"b": "first", "fill": f"29 {FILL}"}
    assert state.reached == {"0": flow_world.cluster.ends(names.log)[0]}
    state.close()


def test_a_table_that_is_read_during_compaction_is_a_version_that_existed(flow_world: FlowWorld) -> None:
    names = Names(flow_world, COMPACTED)
    states: list[dict[str, str]] = [{}]

    def write(count: int) -> None:
        for number in range(len(states), len(states) + count):
            key, name = f"t{number % 6}", f"{number} {FILL}"
            names.write(key, name)
            states.append(states[-1] | {key: name})

    def overtake() -> None:
        write(20)
        until_compacted(flow_world.cluster, names.log, 12)

    write(6)
    state = names.state(RacingCluster(flow_world.cluster.bootstrap))
    for _ in ("a load", "a refresh"):
        RacingCluster.overtake = staticmethod(overtake)
        state.refresh()
        assert rows_of_frame(state) == states[state.reached["0"]]
        write(3)
    state.close()


def test_a_table_is_read_between_batches(flow_world: FlowWorld) -> None:
    names = Names(flow_world, COMPACTED | {"delete.retention.ms": "10000"})
    names.write("a", "first")
    state, stop = names.state(), threading.Event()
    state.refresh()
    names.write("a", "second")
    flow_world.write(names.table, [(b"bad", b"{")])

    def is_up_to_date() -> bool:
        state.read_between_batches(stop)
        return state.reached == {"0": 3}

    until(is_up_to_date, "the new record is read")
    assert rows_of_frame(state) == {"a": "second"}
    # The next batch reports the dead letters that were found meanwhile.
    assert [letter.offset for letter in new_dead_letters(state)] == [2]
    state.close()


def test_rows_of_a_key_in_several_partitions_have_one_order_for_flow_load_and_proof(
    flow_world: FlowWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "_MEMORY_ROWS_MAX", 5)
    names, choose = Names(flow_world, {"cleanup.policy": "compact"}, partitions=3), random.Random(2)
    last: dict[tuple[str, int], tuple[int, int, str | None]] = {}
    state = names.state()
    # The table is small at first, and then too large for memory.
    for number, key_count in enumerate((4, 4, 8, 8)):
        some: list[Record] = []
        for at in range(12):
            name = None if choose.random() < 0.2 else f"{number}-{at}"
            key, timestamp = f"t{choose.randrange(key_count)}", choose.randrange(1, 9) * 1000
            some.append((key, name, choose.randrange(3), timestamp))
        names.write_all(some)
        for key, name, partition, timestamp in some:
            last[key, partition] = (timestamp, partition, name)
        expected: dict[str, Any] = {}
        for (key, _), version in last.items():
            expected[key] = max(version, expected.get(key, version), key=lambda candidate: candidate[:2])
        rows = {key: name for key, (_, _, name) in expected.items() if name is not None}
        state.refresh()
        assert rows_of_frame(state) == rows
    state.close()
    loaded = names.state()
    loaded.refresh()
    assert rows_of_frame(loaded) == rows
    assert names.past(loaded.reached) == rows
    loaded.close()


def test_a_flow_stops_when_a_table_gets_partitions_and_a_rebuild_joins_the_newest_rows(
    flow_world: FlowWorld,
) -> None:
    shelf = Shelf(Name)
    cluster, table = flow_world.cluster, shelf.things.name
    configs = {"delete.retention.ms": "10000", "headrace.partitions.force": "true"}
    cluster.ensure_topic(table, 1, {"cleanup.policy": "compact", **configs})
    flow_world.declare(shelf.app)
    # The newer rows are in the added partition, at lower offsets.
    flow_world.write(shelf.things, [Name(f"t{number % 3}", "old") for number in range(9)])
    shelf.visit(flow_world, "t0")
    with pytest.raises(TableRepartitioned, match="has 2 partitions now but had 1"):
        add_a_partition_while_it_runs(flow_world, shelf)
    flow_world.write(shelf.things, [Name("t0", "new"), Name("t1", "new")], partition=1)
    shelf.visit(flow_world, "t0")
    with pytest.raises(TableRepartitioned, match="flow rebuild"):
        start_until_it_fails(flow_world, shelf)
    shelf.visit(flow_world, "t1", "t2")
    with flow_world.running(shelf.app, follow=False, rebuild=[shelf.see.name]) as run:
        run.wait_until_derived()
    rows = values(cluster.bootstrap, f"{shelf.seen.name}.g2")
    assert sorted((row["thing"], row["name"]) for row in rows) == [
        ("t0", "new"),
        ("t0", "new"),
        ("t1", "new"),
        ("t2", "old"),
    ]
    with verifier(run) as proof:
        report = proof.flow(shelf.see)
    assert report.proven, report.lines()


def add_a_partition_while_it_runs(world: FlowWorld, shelf: Shelf) -> None:
    """Add a partition while no events arrive: the flow reads its tables between batches."""
    table = shelf.things.name
    with world.running(shelf.app, follow=False) as run:
        run.wait_until_derived()
        world.cluster.admin().create_partitions([NewPartitions(table, 2)])[table].result(10)
        until(lambda: run.errors, "the flow stops")


def start_until_it_fails(world: FlowWorld, shelf: Shelf) -> None:
    with world.running(shelf.app, follow=False) as run:
        until(lambda: run.errors, "the flow does not start")
