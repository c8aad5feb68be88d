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

from faults.views.follower_thread import following
from faults.views.scripted_flow import Change, ScriptedFlow
from faults.wait import until
from headrace.client.cluster import Cluster
from headrace.client.progress import current
from headrace.follow.changelog import ChangeBatch, FlowProgress
from headrace.follow.realtime_changelog import RealtimeChangelog
from headrace.model.progress import SOURCE_HEADER, source_ends, source_of
from headrace.ops.lag.meter import LagMeter
from headrace.ops.lag.reader import ViewPosition, view_reader
from tests.cli.runner import Headrace
from tests.views.scripted_realtime_flow import PARTITIONS, RowWithSource, ScriptedRealtimeFlow, output_of

Fresh = Callable[[str], str]
Rows = dict[str, tuple[object, ...]]

_INPUT_PARTITIONS = 2
APP = """
from faults.views.scripted_flow import Sale
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


def derived_rows(coordinates: list[tuple[int, int]], keys: int = 5) -> dict[tuple[int, int], Change]:
    """The rows derived from each input record; one record in five has no row."""
    rng = random.Random(7)
    found = {}
    for partition, offset in coordinates:
        product = f"p{rng.randrange(keys)}"
        if rng.random() > 0.2:
            deleted = rng.random() < 0.2
            found[partition, offset] = (product, None) if deleted else row(product, 100 * partition + offset)
    return found


@st.composite
def written(draw: st.DrawFn) -> list[RowWithSource]:
    """Generate the rows of successive writers. Each starts at or before the end of the previous one. Some writers write
    at the same time, because a writer that was considered dead may continue for a while.
    """
    records = draw(st.integers(1, 12))
    derived = derived_rows([(number, at) for number in range(_INPUT_PARTITIONS) for at in range(records)])
    covered = [0] * _INPUT_PARTITIONS
    log: list[RowWithSource] = []
    for _ in range(draw(st.integers(1, 4))):
        writers: list[list[int]] = []
        for _ in range(draw(st.integers(1, 2))):
            begin = [draw(st.integers(0, item)) for item in covered]
            writers.append(begin)
        for _ in range(draw(st.integers(0, 3 * records))):
            writer = draw(st.sampled_from(writers))
            partition = draw(st.integers(0, _INPUT_PARTITIONS - 1))
            offset = writer[partition]
            if offset < records:
                writer[partition] += 1
                covered[partition] = max(covered[partition], offset + 1)
                if (partition, offset) in derived:
                    log.append((partition, offset, derived[partition, offset]))
    return log


def each_once(log: list[RowWithSource]) -> Rows:
    """Remove repeated rows by the set of all seen sources, not by the highest source as followers do."""
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
    """Follows a changelog batch by batch, and restarts from the saved position."""

    cluster: Cluster
    flow: ScriptedRealtimeFlow
    offsets: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(PARTITIONS), 0))
    sources: dict[str, int] = field(default_factory=dict)
    seen: list[tuple[int, int]] = field(default_factory=list)
    rows: Rows = field(default_factory=dict)
    batch: int = -1
    repeats: int = 0

    def read(self, batch_count: int | None, max_rows: int = 5) -> None:
        """Read this many batches; None for all."""
        changelog = RealtimeChangelog(
            self.cluster,
            FlowProgress(self.flow.progress, 1, 1),
            self.flow.output,
            self.offsets,
            self.sources,
            max_rows=max_rows,
        )
        try:
            while batch_count is None or batch_count > 0:
                change_batch = changelog.poll(0.05)
                if change_batch is not None:
                    self._apply(change_batch)
                    batch_count = None if batch_count is None else batch_count - 1
                elif changelog.at_end():
                    return
        finally:
            changelog.close()

    def _apply(self, change_batch: ChangeBatch) -> None:
        for message in change_batch.messages:
            source = source_of(message.headers())  # type: ignore[arg-type]
            assert source is not None
            self.seen.append(source)
            product, value = (message.key() or b"").decode(), message.value()
            if value is None:
                self.rows.pop(product, None)
            else:
                self.rows[product] = tuple(_json(value).values())
        self.offsets, self.repeats = change_batch.offsets, self.repeats + change_batch.repeats
        assert change_batch.sources is not None
        self.sources = change_batch.sources
        if change_batch.batch is not None:
            self.batch = change_batch.batch.batch


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
def test_a_repeated_row_counts_once_at_its_first_offset(
    cluster: Cluster, fresh: Fresh, log: list[RowWithSource], stops: list[int]
) -> None:
    flow = ScriptedRealtimeFlow(cluster, fresh("fast"))
    flow.begin()
    flow.rows(log)
    ends = {
        number: max((at + 1 for source, at, _ in log if source == number), default=0)
        for number in range(_INPUT_PARTITIONS)
    }
    number = flow.write_progress(ends)
    reader = Reader(cluster, flow)
    for batch_count in stops:
        reader.read(batch_count)
    reader.read(None)
    # All rows of a key are in one partition, so their order is the order of the log.
    assert reader.rows == each_once(log)
    assert len(reader.seen) == len(set(reader.seen))
    assert set(reader.seen) == {(source, at) for source, at, _ in log}
    assert reader.repeats == len(log) - len(reader.seen)
    assert source_ends(reader.sources) == {value: end for value, end in ends.items() if end}
    assert reader.batch == number


def test_a_view_skips_repeated_rows_and_reports_its_sources(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    flow = ScriptedRealtimeFlow(cluster, fresh("fast"))
    flow.begin()
    old = [(0, at, row(f"p{at % 3}", at)) for at in range(6)]
    newest: Rows = {f"p{at}": (f"p{at}", at + 3, None) for at in range(3)}
    with following(cluster, flow.view, [flow.flow], tmp_path) as followed:
        flow.rows(old)
        # The rows are visible before the flow has written a progress record.
        seen = followed.expect(newest, generation=1)
        assert seen.batch == -1
        flow.write_progress({0: 6})
        followed.expect(newest, batch=0)
    # The driver dies, and the next driver begins at the last progress record or earlier. Another program writes too.
    flow.rows(old)
    other_program = cluster.producer()
    other_program.produce(
        flow.output, key=b"p0", value=b'{"product":"p0","amount":-1,"note":null}', partition=0
    )
    other_program.produce(
        flow.output,
        key=b"p1",
        value=b'{"product":"p1","amount":-2,"note":null}',
        headers=[(SOURCE_HEADER, b"x/1")],
    )
    # If the follower trusted these sources, the first would stop it, and the second would hide every later row.
    for offset in (b"9" * 5_000, b"9" * 25):
        other_program.produce(flow.output, key=b"p1", value=None, headers=[(SOURCE_HEADER, b"0/" + offset)])
    assert other_program.flush(10) == 0
    with following(cluster, flow.view, [flow.flow], tmp_path) as followed:
        until(lambda: followed.follower.status.repeats == 6, "the repeated rows")
        until(lambda: followed.follower.status.foreign == 4, "the rows of another program")
        assert "that its flow did not write" in followed.lines[-1]
        followed.expect(newest, batch=0)
        flow.rows([(0, 6, ("p0", None)), (1, 0, row("p1", 9))])
        flow.write_progress({0: 7, 1: 1})
        followed.expect({"p1": ("p1", 9, None), "p2": newest["p2"]}, batch=1)
        position = followed.follower.status.position
        assert position is not None
        assert source_ends(position.sources) == {0: 7, 1: 1}
        assert followed.follower.status.rebuilds == 0


def test_rows_written_before_the_generation_began_do_not_belong_to_it(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    """The flow lost its progress and starts again with its existing topic."""
    flow = ScriptedRealtimeFlow(cluster, fresh("fast"))
    cluster.ensure_topic(flow.output, PARTITIONS)
    flow.rows([(0, at, row(f"p{at}", 7)) for at in range(5)])
    flow.begin()
    with following(cluster, flow.view, [flow.flow], tmp_path) as followed:
        flow.rows([(0, 0, row("p0", 1)), (0, 1, row("p1", 2))])
        followed.expect({"p0": ("p0", 1, None), "p1": ("p1", 2, None)}, generation=1)
        status = followed.follower.status
        assert (status.repeats, status.foreign) == (0, 0)


def test_the_lag_of_a_realtime_view_counts_the_unapplied_rows_of_its_topic(
    cluster: Cluster, fresh: Fresh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = ScriptedRealtimeFlow(cluster, fresh("fast"))
    flow.begin()
    flow.rows([(0, 0, row("p0"))])
    flow.write_progress({0: 1})
    with following(cluster, flow.view, [flow.flow], tmp_path) as followed:
        followed.expect({"p0": ("p0", 1, None)}, batch=0)
    flow.rows([(0, at, row("p0", at)) for at in range(1, 4)])
    newest = current(cluster, flow.progress)
    position = followed.follower.status.position
    assert newest is not None
    assert position is not None
    served = ViewPosition("serving", position.topic, position.offsets, position.generation, position.batch)
    with contextlib.closing(LagMeter(cluster)) as meter:
        (lag,) = meter.measure([view_reader(flow.view.name, served, newest)])
    assert (lag.records, lag.reader.batches) == (3, 0)
    cluster.ensure_topic(flow.flow.reads[0].name, 1)
    module = flow.view.name.replace("-", "_")
    (tmp_path / f"{module}.py").write_text(APP.format(name=flow.view.name))
    monkeypatch.chdir(tmp_path)
    headrace = Headrace(cluster.bootstrap)
    (result,) = headrace.ok("view", "describe", f"{module}:app", "--data", str(tmp_path), "--json").json
    assert (result["behind"], result["reaches"]) == (3, ["0:1"])
    assert result["delivery"] == "at least once in its topic, each row once in the view"
    (listed,) = headrace.ok("flow", "list", f"{module}:app", "--json").json
    assert (listed["latency"], listed["delivery"]) == ("realtime", "at least once")


def test_a_batch_generation_replaces_a_realtime_generation_after_deriving_all_its_rows(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    name = fresh("fast")
    fast = ScriptedRealtimeFlow(cluster, name)
    first = fast.begin()
    fast.rows([(0, at, row(f"p{at}")) for at in range(4)])
    fast.write_progress({0: 2})
    with following(cluster, fast.view, [fast.flow], tmp_path) as followed:
        old = followed.expect({f"p{at}": (f"p{at}", 1, None) for at in range(4)}, generation=1)
        slow = ScriptedFlow(cluster, name, partitions=1)
        slow.generation = 1
        second = slow.begin()
        assert first.inputs[0].topic == second.inputs[0].topic
        # Both generations read the same input topic, so their consumed offsets can be compared.
        slow.batch([row("p0", 2), row("p1", 2)])
        followed.until_state("rebuilding", "generation 2")
        until(lambda: followed.follower.status.applied == 6, "the first batch")
        assert followed.read() == old
        slow.batch([row("p2", 2), row("p3", 2)])
        followed.expect(slow.derived.rows, batch=1, generation=2)


def test_a_compacted_topic_of_a_realtime_flow_is_refused(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    flow = ScriptedRealtimeFlow(cluster, fresh("fast"))
    flow.begin({"cleanup.policy": "compact"})
    flow.rows([(0, 0, row("p0"))])
    with following(cluster, flow.view, [flow.flow], tmp_path) as followed:
        followed.until_state("waiting", "compaction could retain an outdated repeated row")


def test_the_keys_of_these_tests_use_all_partitions() -> None:
    assert len({output_of(row(f"p{number}")) for number in range(20)}) == PARTITIONS
