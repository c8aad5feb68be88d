"""Views of topics that flows write: whole batches, once, through generations."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.faults.flow_by_hand import Change, FlowByHand
from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.views.errors import ShapeRefused, StaleWriter
from headrace.views.flow_changelog import FlowChangelog
from headrace.views.opening import open_store
from tests.support.waiting import until
from tests.views.seeing import following, look

Fresh = Callable[[str], str]


@dataclass(frozen=True)
class Sale2:
    product: str
    amount: float
    region: str


def row(product: str, amount: int = 1, note: str | None = None) -> Change:
    return product, {"product": product, "amount": amount, "note": note}


def some(rng: random.Random, count: int = 8, keys: int = 30) -> list[Change]:
    products = [f"p{rng.randrange(keys)}" for _ in range(count)]
    return [(one, None) if rng.random() < 0.2 else row(one, rng.randrange(1000)) for one in products]


def test_a_view_is_what_the_committed_batches_come_to(cluster: Cluster, fresh: Fresh, tmp_path: Path) -> None:
    flow, rng = FlowByHand(cluster, fresh("sales")), random.Random(1)
    with following(cluster, flow.view, [flow.flow], tmp_path) as followed:
        followed.until_state("waiting", "has not been started")
        flow.begin()
        for number in range(30):
            if number % 5 == 3:
                flow.abort(some(rng))
            flow.batch([] if number == 7 else some(rng))
        followed.expect(flow.derived.rows, batch=29, generation=1)
        applied = followed.follower.status.applied
    for _ in range(5):
        flow.batch(some(rng))
    with following(cluster, flow.view, [flow.flow], tmp_path) as followed:
        followed.expect(flow.derived.rows, batch=34)
        # It went on, and did not begin again.
        assert followed.follower.status.applied == 5 * 8 < applied
        until(lambda: followed.follower.status.lag == 0, "no lag")
        assert followed.follower.status.rebuilds == 0


def test_what_is_seen_is_always_the_state_after_a_batch(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    flow, rng = FlowByHand(cluster, fresh("sales")), random.Random(2)
    flow.begin()
    seen: dict[int, dict[str, tuple[object, ...]]] = {}
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            found = look(tmp_path / "shop.db", flow.view.name)
            if found is not None:
                assert seen.setdefault(found.batch, found.rows) == found.rows

    watcher = threading.Thread(target=watch)
    watcher.start()
    with following(cluster, flow.view, [flow.flow], tmp_path) as followed:
        for number in range(40):
            # Several partitions; a third of the batches is large, a third comes in a row.
            flow.batch(some(rng, 400 if number % 3 == 0 else 3, keys=200))
        followed.expect(flow.derived.rows, batch=39)
        done.set()
        watcher.join()
    assert len(seen) > 3
    for batch, rows in seen.items():
        assert rows == flow.derived.states[batch + 1], batch


def test_a_new_generation_serves_when_it_shows_no_less_than_the_old_one(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    flow = FlowByHand(cluster, fresh("sales"))
    flow.begin()
    flow.batch([row(f"p{number}", 1) for number in range(10)])
    with following(cluster, flow.view, [flow.flow], tmp_path) as followed:
        old = followed.expect(flow.derived.rows, batch=0, generation=1)
        flow.begin()
        flow.batch([row(f"p{number}", 2) for number in range(4)])
        followed.until_state("rebuilding", "generation 2")
        until(lambda: followed.follower.status.applied == 14, "the new generation's first batch")
        assert followed.look() == old
        flow.batch([row(f"p{number}", 2) for number in range(4, 12)])
        followed.expect(flow.derived.rows, batch=1, generation=2)
        flow.batch([row("p0", 3)])
        followed.expect(flow.derived.rows, batch=2, generation=2)


@pytest.mark.parametrize("away", [False, True], ids=["at work", "away"])
def test_a_generation_with_another_schema_is_built_and_takes_the_place(
    cluster: Cluster, fresh: Fresh, tmp_path: Path, away: bool
) -> None:
    flow = FlowByHand(cluster, fresh("sales"))
    flow.begin()
    flow.batch([row("a", 1), row("b", 2)])
    with following(cluster, flow.view, [flow.flow], tmp_path) as followed:
        followed.expect(flow.derived.rows, generation=1)
        if not away:
            flow.begin(Sale2)
            flow.batch([("a", {"product": "a", "amount": 0.5, "region": "n"})])
            flow.batch([("a", None), ("c", {"product": "c", "amount": "NaN", "region": "s"})])
            followed.expect({"c": ("c", "NaN", "s")}, batch=1, generation=2)
    if away:
        # It has two more behind it when its follower comes back.
        for _ in range(2):
            flow.begin(Sale2)
            flow.batch([("a", {"product": "a", "amount": 0.5, "region": "n"})])
        flow.batch([("b", {"product": "b", "amount": 1.0, "region": "s"})])
        with following(cluster, flow.view, [flow.flow], tmp_path) as followed:
            followed.expect(flow.derived.rows, batch=1, generation=3)


def test_a_generation_of_which_the_input_is_a_new_generation_waits_for_that_one(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    """Two flows, one behind the other; both are rebuilt, the first one slowly."""
    app, name = App("shop"), fresh("chain")
    first, second = FlowByHand(cluster, f"{name}-1"), FlowByHand(cluster, f"{name}-2")
    second.flow = app.flow(reads=[first.topic], writes=second.topic, name=second.flow.name)(
        lambda frame: frame
    )
    flows = [first.flow, second.flow]
    for one in (first, second):
        one.begin()
        one.batch([row(f"p{number}") for number in range(6)])
    with following(cluster, second.view, flows, tmp_path) as followed:
        old = followed.expect(second.derived.rows, generation=1)
        first.begin()
        first.batch([row("p0", 2)])
        second.begin(inputs=first.output)
        second.batch([row("p0", 2)])
        followed.until_state("rebuilding", "generation 2")
        until(lambda: followed.follower.status.applied == 7, "the new generation's first batch")
        first.batch([row(f"p{number}", 2) for number in range(1, 6)])
        # The first flow is there now, and the second has not read it yet.
        until(lambda: followed.follower.status.lag == 0, "nothing more to read")
        assert followed.look() == old
        second.consumed = 0
        # What is committed may become visible a moment later than the commit returns.
        ends = max(cluster.ends(first.output, committed=False).values())
        second.batch([row(f"p{number}", 2) for number in range(1, 6)], consumed=ends)
        followed.expect(second.derived.rows, batch=1, generation=2)


def test_a_batch_larger_than_what_is_read_ahead_still_comes_whole(cluster: Cluster, fresh: Fresh) -> None:
    """Partitions are paused and resumed all the time, and nothing is lost or doubled by it."""
    flow, rng = FlowByHand(cluster, fresh("sales"), partitions=4), random.Random(3)
    flow.begin()
    for number in range(6):
        flow.batch(
            [row(f"p{rng.randrange(500)}", number, "x" * 200) for _ in range(200 if number % 4 else 5)]
        )
    progress = flow.flow.progress_topic
    changelog = FlowChangelog(
        cluster,
        progress=progress,
        progress_offset=1,
        generation=1,
        topic=flow.output,
        offsets=dict.fromkeys(range(4), 0),
        ahead_bytes=4_000,
    )
    keys: list[bytes | None] = []
    offsets: dict[int, int] = {}
    last = -1
    try:
        while last < 5:
            piece = changelog.take(5.0)
            if piece is not None:
                assert piece.batch is not None
                assert piece.batch.batch > last
                last, offsets = piece.batch.batch, piece.offsets
                keys += [message.key() for message in piece.messages]
                places = [(message.partition(), message.offset()) for message in piece.messages]
                assert len(places) == len(set(places))
        until(lambda: changelog.take(0.1) is None and changelog.at_end(), "the end")
    finally:
        changelog.close()
    assert len(keys) == flow.consumed
    ends = cluster.ends(flow.output)
    assert offsets == {number: end - 1 for number, end in ends.items()}  # the marker of the last transaction


def test_records_of_strangers_between_batches_are_not_part_of_the_view_and_those_within_one_are_told(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    flow = FlowByHand(cluster, fresh("sales"))
    flow.begin()
    producer = cluster.producer()
    with following(cluster, flow.view, [flow.flow], tmp_path) as followed:
        flow.batch([row("a")])
        producer.produce(flow.output, key=b"z", value=b'{"product":"z","amount":1,"note":null}')
        producer.flush(10)
        flow.batch([row("b")])
        followed.expect({"a": ("a", 1, None), "b": ("b", 1, None)}, batch=1)
        assert (followed.follower.status.foreign, followed.told[1:]) == (0, [])
        # Within what the next batch says that it occupies, it cannot be told from a row of the flow's own.
        producer.produce(flow.output, key=b"y", value=b'{"product":"y","amount":1,"note":null}')
        producer.flush(10)
        flow.batch([row("c")])
        mine = {name: (name, 1, None) for name in ("a", "b", "c")}
        followed.expect({**mine, "y": ("y", 1, None)}, batch=2)
        until(lambda: followed.follower.status.foreign == 1, "the stranger is counted")
        assert "that the flow has not written" in followed.told[-1]


def test_the_newer_of_two_followers_has_the_view_and_the_older_one_says_why_it_ended(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    flow = FlowByHand(cluster, fresh("sales"))
    flow.begin()
    with following(cluster, flow.view, [flow.flow], tmp_path, may_end=True) as older:
        flow.batch([row("a")])
        older.expect(flow.derived.rows)
        with following(cluster, flow.view, [flow.flow], tmp_path) as newer:
            newer.until_state("following")
            flow.batch([row("b")])
            newer.expect(flow.derived.rows, batch=1)
            until(lambda: older.error is not None, "the older one ends")
            flow.batch([row("c")])
            newer.expect(flow.derived.rows, batch=2)
    assert isinstance(older.error, StaleWriter)
    assert "epoch 1 " in str(older.error)
    assert "epoch 2 " in str(older.error)
    assert older.follower.status.state == "stopped"


def test_a_rebuild_that_is_asked_for_is_made_beside_what_serves(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    flow = FlowByHand(cluster, fresh("sales"))
    flow.begin()
    flow.batch([row("a"), row("b")])
    flow.batch([("a", None)])
    with following(cluster, flow.view, [flow.flow], tmp_path) as followed:
        followed.expect(flow.derived.rows, batch=1)
        store = open_store(flow.view, "shop", tmp_path)
        store.ask_rebuild()
        store.close()
        until(lambda: followed.follower.status.rebuilds == 2, "a rebuild")
        followed.until_state("following")
        followed.expect(flow.derived.rows, batch=1)
    with following(cluster, flow.view, [flow.flow], tmp_path) as followed:
        followed.until_state("following")
        assert followed.follower.status.rebuilds == 0


def test_a_view_by_a_key_that_is_no_column_says_so(cluster: Cluster, fresh: Fresh, tmp_path: Path) -> None:
    flow = FlowByHand(cluster, fresh("sales"))
    flow.begin()
    view = flow.app.view("other", flow.topic, key="shop")
    with following(cluster, view, [flow.flow], tmp_path, may_end=True) as followed:
        until(lambda: followed.error is not None, "the error")
    assert isinstance(followed.error, ShapeRefused)
    assert "'shop'" in str(followed.error)
    assert "product, amount, note" in str(followed.error)
