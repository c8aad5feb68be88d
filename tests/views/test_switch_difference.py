"""The records that a switch publishes make the stable topic equal to the rows of a generation."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from faults.committed_records import committed
from headrace.client.cluster import Cluster
from headrace.client.errors import LogError
from headrace.client.records import read
from headrace.flow.switch import difference as difference_module
from headrace.flow.switch.difference import Difference

_KEYS = st.sampled_from(["a", "b", "c", "d"])
_ROWS = st.lists(st.tuples(_KEYS, st.none() | st.sampled_from(["1", "2", "3"])), max_size=12)
_CASES = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

Rows = Sequence[tuple[str, str | None]]


def _write(cluster: Cluster, topic: str, rows: Rows) -> None:
    cluster.ensure_topic(topic, 2)
    producer = cluster.producer({"linger.ms": 0})
    for key, value in rows:
        producer.produce(topic, value, key)
    assert producer.flush(30) == 0


def _read(cluster: Cluster, topic: str) -> dict[str, list[str]]:
    """The rows of each key since its last tombstone, in order."""
    rows: dict[str, list[str]] = {}
    for message in committed(cluster.bootstrap, topic):
        key, value = message.key().decode(), message.value()
        if value is None:
            rows.pop(key, None)
        else:
            rows.setdefault(key, []).append(value.decode())
    return rows


def _publish(cluster: Cluster, difference: Difference) -> int:
    producer, count = cluster.producer({"linger.ms": 0}), 0
    for record in difference.changes(b"1>2"):
        producer.produce(record.topic, record.value, record.key, headers=list(record.headers))
        count += 1
    assert producer.flush(30) == 0
    return count


@given(before=_ROWS, after=_ROWS, later=_ROWS)
@_CASES
def test_after_the_difference_a_reader_has_the_last_row_of_each_key(
    cluster: Cluster, tmp_path: Path, before: Rows, after: Rows, later: Rows
) -> None:
    mark = uuid.uuid4().hex[:8]
    stable, own = f"stable-{mark}", f"stable-{mark}.g2"
    _write(cluster, stable, before)
    _write(cluster, own, after)
    with Difference(cluster, stable, own, only_last=True, path=tmp_path / f"{mark}.db") as difference:
        difference.advance()
        # The second comparison reads only what is new.
        _write(cluster, own, later)
        old, new = _last(_read(cluster, stable)), _last(_read(cluster, own))
        counts = difference.advance()
        assert (counts.before, counts.after) == (len(old), len(new))
        assert counts.gone == len(old.keys() - new.keys())
        assert counts.new == len(new.keys() - old.keys())
        assert counts.changed == sum(old[key] != new[key] for key in old.keys() & new.keys())
        samples = {sample.key: (sample.kind, sample.before, sample.after) for sample in difference.samples()}
        for key, (kind, was, now) in samples.items():
            assert (was, now) == (old.get(key), new.get(key)), kind
        assert _publish(cluster, difference) == counts.gone + counts.changed + counts.new
    assert _last(_read(cluster, stable)) == new


@given(before=_ROWS, after=_ROWS)
@_CASES
def test_a_reader_of_events_sees_every_row_of_the_serving_generation(
    cluster: Cluster, tmp_path: Path, before: Rows, after: Rows
) -> None:
    mark = uuid.uuid4().hex[:8]
    stable, own = f"stable-{mark}", f"stable-{mark}.g2"
    _write(cluster, stable, before)
    _write(cluster, own, after)
    with Difference(cluster, stable, own, only_last=False, path=tmp_path / f"{mark}.db") as difference:
        difference.advance()
        old, new = _read(cluster, stable), _read(cluster, own)
        _publish(cluster, difference)
    published = _read(cluster, stable)
    assert published.keys() == new.keys()
    for key, rows in new.items():
        # Rows that both have are not repeated. From the first difference on, all rows follow, at least the last one.
        known = old.get(key, [])
        same = 0
        while same < min(len(known), len(rows)) and known[same] == rows[same]:
            same += 1
        following = [] if known == rows else rows[min(same, len(rows) - 1) :]
        assert published[key] == known + following, (old, new)
    with Difference(cluster, stable, own, only_last=False, path=tmp_path / f"{mark}.db") as difference:
        # The next switch, to a generation with the same rows, publishes nothing.
        counts = difference.advance()
        assert (counts.is_empty, _publish(cluster, difference)) == (True, 0), (old, new)


def test_rows_written_after_a_switch_are_numbered_after_the_published_ones(
    cluster: Cluster, tmp_path: Path
) -> None:
    mark = uuid.uuid4().hex[:8]
    stable, second, third = f"stable-{mark}", f"stable-{mark}.g2", f"stable-{mark}.g3"
    _write(cluster, stable, [("a", "1"), ("a", "2"), ("a", "3")])
    _write(cluster, second, [("a", "1"), ("a", "5")])
    with Difference(cluster, stable, second, only_last=False, path=tmp_path / "2.db") as difference:
        difference.advance()
        assert _publish(cluster, difference) == 1
    for topic in (stable, second):
        _write(cluster, topic, [("a", "6"), ("b", "1")])
    _write(cluster, third, [("a", "1"), ("a", "5"), ("a", "7"), ("b", "1")])
    with Difference(cluster, stable, third, only_last=False, path=tmp_path / "3.db") as difference:
        counts = difference.advance()
        assert (counts.gone, counts.changed, counts.new) == (0, 1, 0)
        assert difference.change_count == 1
        (record,) = difference.changes(b"2>3")
    assert (record.key, record.value) == (b"a", b"7")
    assert dict(record.headers) == {"headrace.switch": b"2>3", "headrace.row": b"2"}


def test_a_record_that_was_deleted_after_the_comparison_ends_the_switch(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = uuid.uuid4().hex[:8]
    stable, own = f"stable-{mark}", f"stable-{mark}.g2"
    for topic in (stable, own):
        cluster.ensure_topic(topic, 1)
    producer = cluster.producer({"linger.ms": 0})
    for key in "abc":
        producer.produce(own, "1", key)
    assert producer.flush(30) == 0
    with Difference(cluster, stable, own, only_last=True, path=tmp_path / "difference.db") as difference:
        difference.advance()
        monkeypatch.setattr(
            difference_module, "read", lambda *args: (each for each in read(*args) if each.offset() != 1)
        )
        with pytest.raises(LogError, match=f"record 1 of {own}/0 was deleted after it was compared"):
            list(difference.changes(b"1>2"))


def _last(rows: dict[str, list[str]]) -> dict[str, str]:
    return {key: values[-1] for key, values in rows.items()}
