"""A view of a flow's topic applies whole batches exactly once, also when a new generation replaces the old one."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from faults.views.follower_thread import following, read_view
from faults.views.scripted_flow import Change, ScriptedFlow
from faults.wait import until
from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.follow.changelog import FlowProgress
from headrace.follow.flow_changelog import FlowChangelog
from headrace.stores.errors import SchemaRefused, StaleWriter
from headrace.stores.registry import open_writer

Fresh = Callable[[str], str]


@dataclass(frozen=True)
class Sale2:
    product: str
    amount: float
    region: str


def row(product: str, amount: int = 1, note: str | None = None) -> Change:
    return product, {"product": product, "amount": amount, "note": note}


def random_changes(rng: random.Random, count: int = 8, keys: int = 30) -> list[Change]:
    products = [f"p{rng.randrange(keys)}" for _ in range(count)]
    return [(item, None) if rng.random() < 0.2 else row(item, rng.randrange(1000)) for item in products]


def test_a_view_is_the_result_of_the_committed_batches(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    flow, rng = ScriptedFlow(cluster, fresh("sales")), random.Random(1)
    with following(cluster, flow.view, [flow.flow], tmp_path) as followed:
        followed.until_state("waiting", "has not been started")
        flow.begin()
        for number in range(30):
            if number % 5 == 3:
                flow.abort(random_changes(rng))
            flow.batch([] if number == 7 else random_changes(rng))
        followed.expect(flow.derived.rows, batch=29, generation=1)
        applied = followed.follower.status.applied
    for _ in range(5):
        flow.batch(random_changes(rng))
    with following(cluster, flow.view, [flow.flow], tmp_path) as followed:
        followed.expect(flow.derived.rows, batch=34)
        # The follower continued from its position and did not start over.
        assert followed.follower.status.applied == 5 * 8 < applied
        until(lambda: followed.follower.status.lag == 0, "no lag")
        assert followed.follower.status.rebuilds == 0


def test_readers_always_see_the_state_after_a_batch(cluster: Cluster, fresh: Fresh, tmp_path: Path) -> None:
    flow, rng = ScriptedFlow(cluster, fresh("sales")), random.Random(2)
    flow.begin()
    seen: dict[int, dict[str, tuple[object, ...]]] = {}
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            found = read_view(tmp_path / "shop.db", flow.view.name)
            if found is not None:
                assert seen.setdefault(found.batch, found.rows) == found.rows

    watcher = threading.Thread(target=watch)
    watcher.start()
    with following(cluster, flow.view, [flow.flow], tmp_path) as followed:
        for number in range(40):
            # Every third batch is large.
            flow.batch(random_changes(rng, 400 if number % 3 == 0 else 3, keys=200))
        followed.expect(flow.derived.rows, batch=39)
        done.set()
        watcher.join()
    assert len(seen) > 3
    for batch, rows in seen.items():
        assert rows == flow.derived.states[batch + 1], batch


def test_a_new_generation_serves_once_it_has_read_as_much_input_as_the_old_one(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    flow = ScriptedFlow(cluster, fresh("sales"))
    flow.begin()
    flow.batch([row(f"p{number}", 1) for number in range(10)])
    with following(cluster, flow.view, [flow.flow], tmp_path) as followed:
        old = followed.expect(flow.derived.rows, batch=0, generation=1)
        flow.begin()
        flow.batch([row(f"p{number}", 2) for number in range(4)])
        followed.until_state("rebuilding", "generation 2")
        until(lambda: followed.follower.status.applied == 14, "the new generation's first batch")
        assert followed.read() == old
        flow.batch([row(f"p{number}", 2) for number in range(4, 12)])
        followed.expect(flow.derived.rows, batch=1, generation=2)
        flow.batch([row("p0", 3)])
        followed.expect(flow.derived.rows, batch=2, generation=2)


@pytest.mark.parametrize("follower_stopped", [False, True], ids=["follower running", "follower stopped"])
def test_a_generation_with_another_schema_is_built_and_replaces_the_old_one(
    cluster: Cluster, fresh: Fresh, tmp_path: Path, follower_stopped: bool
) -> None:
    flow = ScriptedFlow(cluster, fresh("sales"))
    flow.begin()
    flow.batch([row("a", 1), row("b", 2)])
    with following(cluster, flow.view, [flow.flow], tmp_path) as followed:
        followed.expect(flow.derived.rows, generation=1)
        if not follower_stopped:
            flow.begin(Sale2)
            flow.batch([("a", {"product": "a", "amount": 0.5, "region": "n"})])
            flow.batch([("a", None), ("c", {"product": "c", "amount": "NaN", "region": "s"})])
            followed.expect({"c": ("c", "NaN", "s")}, batch=1, generation=2)
    if follower_stopped:
        # Two more generations begin before the follower starts again.
        for _ in range(2):
            flow.begin(Sale2)
            flow.batch([("a", {"product": "a", "amount": 0.5, "region": "n"})])
        flow.batch([("b", {"product": "b", "amount": 1.0, "region": "s"})])
        with following(cluster, flow.view, [flow.flow], tmp_path) as followed:
            followed.expect(flow.derived.rows, batch=1, generation=3)


def test_a_generation_waits_for_the_new_generation_of_its_input(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    """The second flow reads the output of the first. Both are rebuilt, and the first takes longer."""
    app, name = App("shop"), fresh("chain")
    first, second = ScriptedFlow(cluster, f"{name}-1"), ScriptedFlow(cluster, f"{name}-2")
    second.flow = app.flow(reads=[first.topic], writes=second.topic, name=second.flow.name)(
        lambda frame: frame
    )
    flows = [first.flow, second.flow]
    for item in (first, second):
        item.begin()
        item.batch([row(f"p{number}") for number in range(6)])
    with following(cluster, second.view, flows, tmp_path) as followed:
        old = followed.expect(second.derived.rows, generation=1)
        first.begin()
        first.batch([row("p0", 2)])
        second.begin(inputs=first.output)
        second.batch([row("p0", 2)])
        followed.until_state("rebuilding", "generation 2")
        until(lambda: followed.follower.status.applied == 7, "the new generation's first batch")
        first.batch([row(f"p{number}", 2) for number in range(1, 6)])
        # The first flow has caught up, and the second has not read it yet.
        until(lambda: followed.follower.status.lag == 0, "nothing more to read")
        assert followed.read() == old
        second.consumed = 0
        # Committed rows may become visible a moment after the commit returns.
        ends = max(cluster.ends(first.output, committed=False).values())
        second.batch([row(f"p{number}", 2) for number in range(1, 6)], consumed=ends)
        followed.expect(second.derived.rows, batch=1, generation=2)


def test_a_batch_larger_than_the_read_ahead_is_applied_whole(cluster: Cluster, fresh: Fresh) -> None:
    """The read-ahead limit pauses and resumes partitions repeatedly. No record is lost or duplicated."""
    flow, rng = ScriptedFlow(cluster, fresh("sales"), partitions=4), random.Random(3)
    flow.begin()
    for number in range(6):
        flow.batch(
            [row(f"p{rng.randrange(500)}", number, "x" * 200) for _ in range(200 if number % 4 else 5)]
        )
    progress = flow.flow.progress_topic
    changelog = FlowChangelog(
        cluster, FlowProgress(progress, 1, 1), flow.output, dict.fromkeys(range(4), 0), ahead_bytes=4_000
    )
    keys: list[bytes | None] = []
    offsets: dict[int, int] = {}
    last = -1
    try:
        while last < 5:
            change_batch = changelog.poll(5.0)
            if change_batch is not None:
                assert change_batch.batch is not None
                assert change_batch.batch.batch > last
                last, offsets = change_batch.batch.batch, change_batch.offsets
                keys += [message.key() for message in change_batch.messages]
                coordinates = [(message.partition(), message.offset()) for message in change_batch.messages]
                assert len(coordinates) == len(set(coordinates))
        until(lambda: changelog.poll(0.1) is None and changelog.at_end(), "the end")
    finally:
        changelog.close()
    assert len(keys) == flow.consumed
    ends = cluster.ends(flow.output)
    assert offsets == {number: end - 1 for number, end in ends.items()}  # the marker of the last transaction


def test_foreign_records_between_batches_are_ignored_and_those_within_a_batch_are_reported(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    flow = ScriptedFlow(cluster, fresh("sales"))
    flow.begin()
    producer = cluster.producer()
    with following(cluster, flow.view, [flow.flow], tmp_path) as followed:
        flow.batch([row("a")])
        producer.produce(flow.output, key=b"z", value=b'{"product":"z","amount":1,"note":null}')
        producer.flush(10)
        flow.batch([row("b")])
        followed.expect({"a": ("a", 1, None), "b": ("b", 1, None)}, batch=1)
        assert (followed.follower.status.foreign, followed.lines[1:]) == (0, [])
        # A foreign record between the offsets of a batch looks like a row of the flow.
        producer.produce(flow.output, key=b"y", value=b'{"product":"y","amount":1,"note":null}')
        producer.flush(10)
        flow.batch([row("c")])
        flow_rows = {name: (name, 1, None) for name in ("a", "b", "c")}
        followed.expect({**flow_rows, "y": ("y", 1, None)}, batch=2)
        until(lambda: followed.follower.status.foreign == 1, "the foreign record is counted")
        assert "that its flow did not write" in followed.lines[-1]


def test_a_second_follower_takes_over_and_the_first_reports_why_it_ended(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    flow = ScriptedFlow(cluster, fresh("sales"))
    flow.begin()
    with following(cluster, flow.view, [flow.flow], tmp_path, may_end=True) as older:
        flow.batch([row("a")])
        older.expect(flow.derived.rows)
        with following(cluster, flow.view, [flow.flow], tmp_path) as newer:
            newer.until_state("following")
            flow.batch([row("b")])
            newer.expect(flow.derived.rows, batch=1)
            until(lambda: older.error is not None, "the older follower ends")
            flow.batch([row("c")])
            newer.expect(flow.derived.rows, batch=2)
    assert isinstance(older.error, StaleWriter)
    assert "epoch 1 " in str(older.error)
    assert "epoch 2 " in str(older.error)
    assert older.follower.status.state == "stopped"


def test_the_view_keeps_serving_during_a_requested_rebuild(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    flow = ScriptedFlow(cluster, fresh("sales"))
    flow.begin()
    flow.batch([row("a"), row("b")])
    flow.batch([("a", None)])
    with following(cluster, flow.view, [flow.flow], tmp_path) as followed:
        followed.expect(flow.derived.rows, batch=1)
        store = open_writer(flow.view, "shop", tmp_path)
        store.request_rebuild()
        store.close()
        until(lambda: followed.follower.status.rebuilds == 2, "a rebuild")
        followed.until_state("following")
        followed.expect(flow.derived.rows, batch=1)
    with following(cluster, flow.view, [flow.flow], tmp_path) as followed:
        followed.until_state("following")
        assert followed.follower.status.rebuilds == 0


def test_the_error_names_a_key_that_is_not_a_column(cluster: Cluster, fresh: Fresh, tmp_path: Path) -> None:
    flow = ScriptedFlow(cluster, fresh("sales"))
    flow.begin()
    view = flow.app.view("other", flow.topic, key="shop")
    with following(cluster, view, [flow.flow], tmp_path, may_end=True) as followed:
        until(lambda: followed.error is not None, "the error")
    assert isinstance(followed.error, SchemaRefused)
    assert "'shop'" in str(followed.error)
    assert "product, amount, note" in str(followed.error)
