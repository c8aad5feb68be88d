"""Views of topics that a flow writes in real time: at least once in the log, each row once in the view."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.faults.flow_by_hand import Change, FlowByHand
from headrace.client.cluster import Cluster
from headrace.client.progress_log import current
from headrace.model.source import HEADER, reaches, source_of
from headrace.ops.lag.meter import LagMeter
from headrace.ops.lag.reader import ViewPlace, view_reader
from headrace.views.piece import Piece
from headrace.views.realtime_changelog import RealtimeChangelog
from tests.cli.runner import Headrace
from tests.support.waiting import until
from tests.views.realtime_by_hand import PARTITIONS, RealtimeByHand, Sourced, output_of
from tests.views.seeing import following

Fresh = Callable[[str], str]
Rows = dict[str, tuple[object, ...]]

_SOURCES = 2
APP = """
from bench.faults.flow_by_hand import Sale
from headrace import App

app = App("shop")
sales = app.topic("{name}-in", Sale, key="product")
out = app.topic("{name}-out", key="product")

@app.flow(reads=[sales], writes=out, name="{name}-flow", latency="realtime")
def keep(sales):
    return sales

app.view("{name}", out)
"""


def row(product: str, amount: int = 1) -> Change:
    return product, {"product": product, "amount": amount, "note": None}


def made_of(places: list[tuple[int, int]], keys: int = 5) -> dict[tuple[int, int], Change]:
    """What follows from each record of the input; from one in five, nothing."""
    rng = random.Random(7)
    found = {}
    for partition, offset in places:
        product = f"p{rng.randrange(keys)}"
        if rng.random() > 0.2:
            gone = rng.random() < 0.2
            found[partition, offset] = (product, None) if gone else row(product, 100 * partition + offset)
    return found


@st.composite
def written(draw: st.DrawFn) -> list[Sourced]:
    """What one writer after the other has sent, each from somewhere at or before where the last one came to; some
    write at the same time, since one that was taken for dead goes on for a while.
    """
    records = draw(st.integers(1, 12))
    follows = made_of([(one, at) for one in range(_SOURCES) for at in range(records)])
    covered = [0] * _SOURCES
    log: list[Sourced] = []
    for _ in range(draw(st.integers(1, 4))):
        writers: list[list[int]] = []
        for _ in range(draw(st.integers(1, 2))):
            begin = [draw(st.integers(0, one)) for one in covered]
            writers.append(begin)
        for _ in range(draw(st.integers(0, 3 * records))):
            writer = draw(st.sampled_from(writers))
            partition = draw(st.integers(0, _SOURCES - 1))
            offset = writer[partition]
            if offset < records:
                writer[partition] += 1
                covered[partition] = max(covered[partition], offset + 1)
                if (partition, offset) in follows:
                    log.append((partition, offset, follows[partition, offset]))
    return log


def each_once(log: list[Sourced]) -> Rows:
    """By the set of what was seen, with no idea of what is the highest."""
    rows: Rows = {}
    seen = set()
    for partition, offset, change in log:
        if (partition, offset) not in seen:
            seen.add((partition, offset))
            product, value = change
            if value is None:
                rows.pop(product, None)
            else:
                rows[product] = tuple(value.values())
    return rows


@dataclass
class Reader:
    """Follows a changelog piece by piece, and begins anew from what it has kept of the last one."""

    cluster: Cluster
    flow: RealtimeByHand
    offsets: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(PARTITIONS), 0))
    sources: dict[str, int] = field(default_factory=dict)
    seen: list[tuple[int, int]] = field(default_factory=list)
    rows: Rows = field(default_factory=dict)
    batch: int = -1
    repeats: int = 0

    def read(self, pieces: int | None, at_once: int = 5) -> None:
        """As many pieces; None for all there are."""
        changelog = RealtimeChangelog(
            self.cluster,
            progress=self.flow.progress,
            progress_offset=1,
            generation=1,
            topic=self.flow.output,
            offsets=self.offsets,
            sources=self.sources,
            max_rows=at_once,
        )
        try:
            while pieces is None or pieces > 0:
                piece = changelog.take(0.05)
                if piece is not None:
                    self._apply(piece)
                    pieces = None if pieces is None else pieces - 1
                elif changelog.at_end():
                    return
        finally:
            changelog.close()

    def _apply(self, piece: Piece) -> None:
        for message in piece.messages:
            source = source_of(message.headers())  # type: ignore[arg-type]
            assert source is not None
            self.seen.append(source)
            product, value = (message.key() or b"").decode(), message.value()
            if value is None:
                self.rows.pop(product, None)
            else:
                self.rows[product] = tuple(_json(value).values())
        self.offsets, self.repeats = piece.offsets, self.repeats + piece.repeats
        assert piece.sources is not None
        self.sources = piece.sources
        if piece.batch is not None:
            self.batch = piece.batch.batch


def _json(value: bytes) -> dict[str, object]:
    import json

    found: dict[str, object] = json.loads(value)
    return found


@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(log=written(), stops=st.lists(st.integers(1, 3), max_size=2))
def test_whatever_is_written_again_each_row_counts_once_and_in_its_first_place(
    cluster: Cluster, fresh: Fresh, log: list[Sourced], stops: list[int]
) -> None:
    flow = RealtimeByHand(cluster, fresh("fast"))
    flow.begin()
    flow.rows(log)
    ends = {
        one: max((at + 1 for source, at, _ in log if source == one), default=0) for one in range(_SOURCES)
    }
    number = flow.note(ends)
    reader = Reader(cluster, flow)
    for pieces in stops:
        reader.read(pieces)
    reader.read(None)
    # Rows of one key are in one partition, so that their order is that of the log.
    assert reader.rows == each_once(log)
    assert len(reader.seen) == len(set(reader.seen))
    assert set(reader.seen) == {(source, at) for source, at, _ in log}
    assert reader.repeats == len(log) - len(reader.seen)
    assert reaches(reader.sources) == {one: end for one, end in ends.items() if end}
    assert reader.batch == number


def test_a_view_leaves_out_what_comes_again_and_says_how_far_it_reaches(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    flow = RealtimeByHand(cluster, fresh("fast"))
    flow.begin()
    old = [(0, at, row(f"p{at % 3}", at)) for at in range(6)]
    newest: Rows = {f"p{at}": (f"p{at}", at + 3, None) for at in range(3)}
    with following(cluster, flow.view, [flow.flow], tmp_path) as followed:
        flow.rows(old)
        # It is seen before the flow has noted anything.
        seen = followed.expect(newest, generation=1)
        assert seen.batch == -1
        flow.note({0: 6})
        followed.expect(newest, batch=0)
    # The driver dies, and the next one begins where the last note was, or even before; a stranger writes too.
    flow.rows(old)
    stranger = cluster.producer()
    stranger.produce(flow.output, key=b"p0", value=b'{"product":"p0","amount":-1,"note":null}', partition=0)
    stranger.produce(
        flow.output, key=b"p1", value=b'{"product":"p1","amount":-2,"note":null}', headers=[(HEADER, b"x/1")]
    )
    # Taken at its word, the first would end the follower, and the second hide every row behind it.
    for offset in (b"9" * 5_000, b"9" * 25):
        stranger.produce(flow.output, key=b"p1", value=None, headers=[(HEADER, b"0/" + offset)])
    assert stranger.flush(10) == 0
    with following(cluster, flow.view, [flow.flow], tmp_path) as followed:
        until(lambda: followed.follower.status.repeats == 6, "what comes again")
        until(lambda: followed.follower.status.foreign == 4, "what is somebody else's")
        assert "that the flow has not written" in followed.told[-1]
        followed.expect(newest, batch=0)
        flow.rows([(0, 6, ("p0", None)), (1, 0, row("p1", 9))])
        flow.note({0: 7, 1: 1})
        followed.expect({"p1": ("p1", 9, None), "p2": newest["p2"]}, batch=1)
        position = followed.follower.status.position
        assert position is not None
        assert reaches(position.sources) == {0: 7, 1: 1}
        assert followed.follower.status.rebuilds == 0


def test_rows_from_before_the_generation_began_are_none_of_it(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    """Its progress was lost, and the flow begins anew with the topic that it wrote before."""
    flow = RealtimeByHand(cluster, fresh("fast"))
    cluster.ensure_topic(flow.output, PARTITIONS)
    flow.rows([(0, at, row(f"p{at}", 7)) for at in range(5)])
    flow.begin()
    with following(cluster, flow.view, [flow.flow], tmp_path) as followed:
        flow.rows([(0, 0, row("p0", 1)), (0, 1, row("p1", 2))])
        followed.expect({"p0": ("p0", 1, None), "p1": ("p1", 2, None)}, generation=1)
        status = followed.follower.status
        assert (status.repeats, status.foreign) == (0, 0)


def test_a_view_in_real_time_is_behind_by_what_is_in_the_topic_noted_or_not(
    cluster: Cluster, fresh: Fresh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = RealtimeByHand(cluster, fresh("fast"))
    flow.begin()
    flow.rows([(0, 0, row("p0"))])
    flow.note({0: 1})
    with following(cluster, flow.view, [flow.flow], tmp_path) as followed:
        followed.expect({"p0": ("p0", 1, None)}, batch=0)
    flow.rows([(0, at, row("p0", at)) for at in range(1, 4)])
    newest = current(cluster, flow.progress)
    position = followed.follower.status.position
    assert newest is not None
    assert position is not None
    place = ViewPlace("serving", position.topic, position.offsets, position.generation, position.batch)
    with contextlib.closing(LagMeter(cluster)) as meter:
        (lag,) = meter.look([view_reader(flow.view.name, place, newest)])
    assert (lag.records, lag.reader.batches) == (3, 0)
    cluster.ensure_topic(flow.flow.reads[0].name, 1)
    module = flow.view.name.replace("-", "_")
    (tmp_path / f"{module}.py").write_text(APP.format(name=flow.view.name))
    monkeypatch.chdir(tmp_path)
    headrace = Headrace(cluster.bootstrap)
    (told,) = headrace.ok("view", "describe", f"{module}:app", "--data", str(tmp_path), "--json").json
    assert (told["behind"], told["reaches"]) == (3, ["0:1"])
    assert told["delivery"] == "at least once in its topic, each row once here"
    (listed,) = headrace.ok("flow", "list", f"{module}:app", "--json").json
    assert (listed["latency"], listed["delivery"]) == ("realtime", "at least once")


def test_a_generation_in_batches_takes_the_place_of_one_in_real_time_when_it_shows_all_that_was_seen(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    name = fresh("fast")
    fast = RealtimeByHand(cluster, name)
    first = fast.begin()
    fast.rows([(0, at, row(f"p{at}")) for at in range(4)])
    fast.note({0: 2})
    with following(cluster, fast.view, [fast.flow], tmp_path) as followed:
        old = followed.expect({f"p{at}": (f"p{at}", 1, None) for at in range(4)}, generation=1)
        slow = FlowByHand(cluster, name, partitions=1)
        slow.generation = 1
        second = slow.begin()
        assert first.inputs[0].topic == second.inputs[0].topic
        # Its input has an id of its own there, so that what it consumes compares.
        slow.batch([row("p0", 2), row("p1", 2)])
        followed.until_state("rebuilding", "generation 2")
        until(lambda: followed.follower.status.applied == 6, "the first batch")
        assert followed.look() == old
        slow.batch([row("p2", 2), row("p3", 2)])
        followed.expect(slow.derived.rows, batch=1, generation=2)


def test_a_compacted_topic_of_a_flow_in_real_time_is_not_followed(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    flow = RealtimeByHand(cluster, fresh("fast"))
    flow.begin({"cleanup.policy": "compact"})
    flow.rows([(0, 0, row("p0"))])
    with following(cluster, flow.view, [flow.flow], tmp_path) as followed:
        followed.until_state("waiting", "compaction keeps the wrong ones")


def test_rows_of_one_key_are_in_one_partition_here_too() -> None:
    assert len({output_of(row(f"p{one}")) for one in range(20)}) == PARTITIONS
