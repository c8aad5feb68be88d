"""A proof compares the stable topic of a rebuilt flow with the rows of the generation that serves."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import TopicPartition
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.generations import find_generations, own_progress_topic
from headrace.client.generations_writer import GenerationsWriter
from headrace.client.records import write
from headrace.flow.switch.difference import Difference
from headrace.model.progress import Batch, Generation, encode
from headrace.ops.verify.report import Report
from headrace.ops.verify.stable_topic import StableTopic, follows_switch

Rows = Sequence[tuple[str, str | None]]
_KEYS = st.sampled_from(["a", "b", "c"])
_ROWS = st.lists(st.tuples(_KEYS, st.none() | st.sampled_from(["1", "2", "3"])), max_size=8)
_CASES = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@dataclass(frozen=True)
class Ride:
    ride: str


class Rebuilt:
    """A flow with two generations, whose topics a test fills. Switches publish the difference with the real code."""

    def __init__(self, cluster: Cluster, folder: Path, *, replaces: bool, latency: str = "batch") -> None:
        self.cluster = cluster
        self._folder = folder
        self._replaces = replaces
        mark = uuid.uuid4().hex[:8]
        app = App(f"stable-{mark}")
        rides = app.topic(f"rides-{mark}", Ride, key="ride")
        known = app.topic(f"known-{mark}", key="ride")
        self.flow = app.flow(reads=[rides], writes=known, name=f"know-{mark}")(lambda rides: rides)
        self.stable = known.name
        self.own = {1: f"{self.stable}.g1", 2: f"{self.stable}.g2"}
        for topic in (self.stable, *self.own.values()):
            cluster.ensure_topic(topic, 2)
        self._begin(1, latency)
        with GenerationsWriter(cluster, self.flow) as writer:
            writer.begin_generation("a function", "a test")
            now = writer.read()
            entries = tuple(self._with_own_topic(now.entries))
            writer.write(msgspec.structs.replace(now, is_published=True, entries=entries))
        self._begin(2, latency)

    def _with_own_topic(self, entries: Any) -> list[Any]:
        return [msgspec.structs.replace(entry, topic=self.own[entry.number]) for entry in entries]

    def progress_topic(self, number: int) -> str:
        return self.flow.progress_topic if number == 1 else own_progress_topic(self.flow, number)

    def _begin(self, number: int, latency: str) -> None:
        generation = Generation(
            *("app", self.flow.name, number, "a function", [], self.own[number], "", ["ride"], [], "", 0),
            updates=self._replaces,
            latency=latency,  # type: ignore[arg-type]
        )
        self.cluster.ensure_topic(self.progress_topic(number), 1)
        self.record(number, generation)

    def record(self, number: int, record: Generation | Batch) -> None:
        key, value = encode(record)
        write(self.cluster, self.progress_topic(number), key.decode(), value, "a test")

    def put(self, topics: Sequence[str], rows: Rows) -> None:
        producer = self.cluster.producer({"linger.ms": 0})
        for topic in topics:
            for key, value in rows:
                producer.produce(topic, value, key)
        assert producer.flush(30) == 0

    def switch(self, number: int, skip: Sequence[int] = (), replace: dict[int, bytes] | None = None) -> None:
        """Publish the difference, without the records at the indexes ``skip``, and with other values (``replace``)."""
        generations = find_generations(self.cluster, self.stable)
        assert generations is not None
        header = f"{generations.serving}>{number}".encode()
        path = self._folder / f"{uuid.uuid4().hex}.db"
        producer = self.cluster.producer({"transactional.id": self.stable})
        producer.init_transactions(30)
        producer.begin_transaction()
        arguments = (self.cluster, self.stable, self.own[number])
        with Difference(*arguments, only_last=self._replaces, path=path) as difference:
            difference.advance()
            for index, record in enumerate(difference.changes(header)):
                if index not in skip:
                    value = (replace or {}).get(index, record.value)
                    producer.produce(record.topic, value, record.key, headers=[*record.headers])
        producer.commit_transaction(30)
        with GenerationsWriter(self.cluster, self.flow) as writer:
            now = writer.read()
            if number == now.serving:
                return
            switched = now.with_switch(number, "a test", 0).switched(0, 0)
            writer.write(
                msgspec.structs.replace(switched, entries=tuple(self._with_own_topic(switched.entries)))
            )

    def report(self, sample: int = 10) -> Report:
        report = Report(app="app", what="flow", name=self.flow.name, topic="")
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            StableTopic(self.cluster, self.flow, Path(folder), sample, lambda line: None).check(report)
        report.judge()
        return report

    def expect_proven(self) -> None:
        report = self.report()
        assert report.proven, report.lines()
        assert any(self.stable in note for note in report.notes)


def test_a_wrong_row_a_missing_row_and_a_missing_tombstone_are_named(
    cluster: Cluster, tmp_path: Path
) -> None:
    rebuilt = Rebuilt(cluster, tmp_path, replaces=True)
    rebuilt.put([rebuilt.stable, rebuilt.own[1]], [("a", "1"), ("b", "1"), ("gone", "1"), ("same", "1")])
    rebuilt.put([rebuilt.own[2]], [("a", "2"), ("b", "2"), ("same", "1"), ("new", "2")])
    with Difference(
        cluster, rebuilt.stable, rebuilt.own[2], only_last=True, path=tmp_path / "order.db"
    ) as difference:
        difference.advance()
        order = [(record.key or b"").decode() for record in difference.changes(b"1>2")]
    assert sorted(order) == ["a", "b", "gone", "new"]
    rebuilt.switch(2, skip=[order.index("gone"), order.index("new")], replace={order.index("b"): b"3"})
    report = rebuilt.report()
    assert (report.verdict, report.missing, report.extra, report.different) == ("different", 1, 1, 1)
    assert [
        (difference.kind, difference.key["key"], difference.expected, difference.found)
        for difference in report.differences
    ] == [
        ("different", "b", {"value": "2"}, {"value": "3"}),
        ("extra", "gone", None, {"value": "1"}),
        ("missing", "new", {"value": "2"}, None),
    ]
    assert [finding.kind for finding in report.findings] == ["topic"]
    assert f"{rebuilt.stable}, the flow's stable topic" in report.findings[0].message
    assert f"extra      key=gone in {rebuilt.stable}" in "\n".join(report.lines())
    # The switch of a rebuild publishes what is still missing.
    rebuilt.switch(2)
    rebuilt.expect_proven()


def test_of_events_a_wrong_row_a_missing_row_and_a_missing_tombstone_are_named(
    cluster: Cluster, tmp_path: Path
) -> None:
    rebuilt = Rebuilt(cluster, tmp_path, replaces=False)
    rebuilt.put(
        [rebuilt.stable, rebuilt.own[1]], [("a", "1"), ("a", "2"), ("b", "1"), ("gone", "1"), ("c", "1")]
    )
    rebuilt.put([rebuilt.own[2]], [("a", "1"), ("a", "3"), ("a", "4"), ("b", "2"), ("c", "1")])
    with Difference(
        cluster, rebuilt.stable, rebuilt.own[2], only_last=False, path=tmp_path / "order.db"
    ) as difference:
        difference.advance()
        order = [((record.key or b"").decode(), record.value) for record in difference.changes(b"1>2")]
    rebuilt.switch(
        2,
        skip=[order.index(("gone", None)), order.index(("a", b"3"))],
        replace={order.index(("b", b"2")): b"9"},
    )
    rebuilt.put([rebuilt.stable, rebuilt.own[2]], [("a", "5"), ("c", "2")])
    rebuilt.put([rebuilt.stable], [("c", "planted")])
    report = rebuilt.report()
    assert [
        (difference.kind, difference.key["key"], difference.expected, difference.found)
        for difference in report.differences
    ] == [
        ("missing", "a", {"value": "3"}, None),
        ("different", "b", {"value": "2"}, {"value": "9"}),
        ("extra", "c", None, {"value": "planted"}),
        ("extra", "gone", None, {"value": "1"}),
    ]
    assert rebuilt.report(sample=1).differences == report.differences[:1]


@given(old=_ROWS, new=_ROWS, later=_ROWS, replaces=st.booleans())
@_CASES
def test_after_switches_there_and_back_the_stable_topic_is_proven(
    cluster: Cluster, tmp_path: Path, old: Rows, new: Rows, later: Rows, replaces: bool
) -> None:
    rebuilt = Rebuilt(cluster, tmp_path, replaces=replaces)
    rebuilt.put([rebuilt.stable, rebuilt.own[1]], old)
    rebuilt.put([rebuilt.own[2]], new)
    rebuilt.switch(2)
    rebuilt.expect_proven()
    rebuilt.put([rebuilt.stable, rebuilt.own[2]], later)
    rebuilt.expect_proven()
    rebuilt.put([rebuilt.own[1]], later[1:])
    rebuilt.switch(1)
    rebuilt.expect_proven()
    rebuilt.put([rebuilt.stable, rebuilt.own[1]], new)
    rebuilt.switch(2)
    rebuilt.expect_proven()


def test_rows_follow_a_switch_only_from_the_first_difference_on() -> None:
    def found(*rows: str) -> list[tuple[bytes, int | None]]:
        return [(row.rstrip("!?").encode(), {"!": 1, "?": 2}.get(row[-1])) for row in rows]

    def own(*rows: str) -> list[bytes]:
        return [row.encode() for row in rows]

    assert follows_switch(own("1", "2"), found("1", "2"))
    assert follows_switch(own("1", "3", "4"), found("1", "2", "3!", "4"))
    assert follows_switch(own("1"), found("1", "2", "1!"))
    assert not follows_switch(own("1", "3", "4"), found("1", "2", "3!", "2?", "4?"))
    assert follows_switch(own("1", "2", "4"), found("1", "3!", "2?", "4?"))
    # The difference begins too early, too late, or not at all.
    assert not follows_switch(own("1", "3"), found("1", "2", "1!", "3!"))
    assert not follows_switch(own("1", "3", "4"), found("1", "2", "4!"))
    assert not follows_switch(own("1", "3"), found("1", "2", "3"))
    # A row that a switch did not publish, and rows in another order.
    assert not follows_switch(own("1", "3"), found("1", "2", "3!", "9"))
    assert not follows_switch(own("1", "3", "4"), found("1", "4!", "3!"))


def test_under_load_the_topics_are_compared_at_the_end_of_a_batch(cluster: Cluster, tmp_path: Path) -> None:
    rebuilt = Rebuilt(cluster, tmp_path, replaces=True)
    rebuilt.put([rebuilt.own[2]], [("a", "2")])
    rebuilt.switch(2)
    producer = cluster.producer({"transactional.id": rebuilt.stable, "transaction.timeout.ms": 60_000})
    producer.init_transactions(30)
    producer.begin_transaction()
    # An open transaction: the stable topic has a row that no batch has yet.
    producer.produce(rebuilt.stable, "3", "a")
    producer.produce(rebuilt.own[2], "3", "a")
    assert producer.flush(30) == 0
    ends = {topic: cluster.ends(topic) for topic in (rebuilt.stable, rebuilt.own[2])}
    outputs = {topic: {str(n): (0, end) for n, end in by_number.items()} for topic, by_number in ends.items()}
    facts: dict[str, Any] = {"watermark_us": None, "next_watermark_us": None, "seen_us": {}}
    counts: dict[str, Any] = {"rows_in": 1, "rows_out": 1, "late": 0, "dead": 0, "fingerprint": ""}
    batch = Batch("flow", 2, 0, {}, {}, outputs, **facts, **counts)

    class CommitsMeanwhile(StableTopic):
        def _find_position(self, *arguments: Any) -> Any:
            rebuilt.record(2, batch)
            return super()._find_position(*arguments)

    checked = CommitsMeanwhile(cluster, rebuilt.flow, tmp_path, 10, lambda line: None)
    report = Report(app="app", what="flow", name="flow", topic="")
    checked.check(report)
    producer.abort_transaction(30)
    assert (report.findings, report.unprovable) == ([], [])
    assert report.notes


@pytest.mark.parametrize("replaces", [True, False])
def test_deleted_records_make_only_their_rows_unprovable(
    cluster: Cluster, tmp_path: Path, replaces: bool
) -> None:
    rebuilt = Rebuilt(cluster, tmp_path, replaces=replaces)
    rebuilt.put([rebuilt.own[2]], [("a", "1"), ("b", "1"), ("c", "1"), ("d", "1")])
    rebuilt.switch(2)
    starts = [TopicPartition(rebuilt.stable, n, 1) for n, end in cluster.ends(rebuilt.stable).items() if end]
    for future in cluster.admin().delete_records(starts).values():
        future.result(30)
    report = rebuilt.report()
    assert (report.verdict, report.missing, report.unprovable_rows) == ("unprovable", 0, len(starts))
    assert {item.topic for item in report.unprovable} == {rebuilt.stable}
    rebuilt.put([rebuilt.stable], [("new", "1")])
    assert [(found.kind, found.key["key"]) for found in rebuilt.report().differences] == [("extra", "new")]


def test_a_difference_that_is_not_published_yet_is_unprovable(cluster: Cluster, tmp_path: Path) -> None:
    rebuilt = Rebuilt(cluster, tmp_path, replaces=True)
    rebuilt.put([rebuilt.stable], [("a", "1")])
    with GenerationsWriter(cluster, rebuilt.flow) as writer:
        now = writer.read().with_switch(2, "a test", 0)
        writer.write(now.switched(0, 0, is_published=False))
    report = rebuilt.report()
    assert report.verdict == "unprovable"
    assert "generation 2, which serves, is not published yet" in str(report.unprovable[0])


def test_the_stable_topic_of_a_real_time_flow_is_noted(cluster: Cluster, tmp_path: Path) -> None:
    rebuilt = Rebuilt(cluster, tmp_path, replaces=False, latency="realtime")
    rebuilt.switch(2)
    report = rebuilt.report()
    assert report.proven
    assert f"readers of {rebuilt.stable} see rows of an earlier generation" in report.notes[0]
