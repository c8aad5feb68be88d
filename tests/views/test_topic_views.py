"""Views of topics that no flow writes: events and tables, values that do not fit, and replaced logs."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from faults.views.follower_thread import dead_letters, following, produce, read_view
from faults.wait import until
from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.model.declarations import View
from headrace.truth import NotASourceOfTruth

Fresh = Callable[[str], str]
COMPACTED = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "2000",
    "min.cleanable.dirty.ratio": "0.001",
}


@dataclass(frozen=True)
class Order:
    order: str
    amount: int
    share: float = 0.0
    note: str | None = None


@dataclass(frozen=True)
class Price:
    shop: str
    at: datetime
    price: Decimal
    tags: list[str]


def orders(name: str) -> View:
    app = App("shop")
    return app.view(name, app.table(name, Order, key="order"))


def record(order: str, amount: int = 1, **more: Any) -> tuple[bytes, bytes]:
    return order.encode(), json.dumps({"order": order, "amount": amount, **more}).encode()


def rows(*orders_and_amounts: tuple[str, int]) -> dict[str, tuple[Any, ...]]:
    return {order: (order, amount, 0.0, None) for order, amount in orders_and_amounts}


def delete_topic(cluster: Cluster, topic: str) -> None:
    cluster.admin().delete_topics([topic])[topic].result(10)


def test_a_view_of_a_table_is_the_last_row_of_each_key(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    view = orders(fresh("orders"))
    with following(cluster, view, [], tmp_path) as followed:
        followed.until_state("waiting", "does not exist")
        cluster.ensure_topic(view.topic.name, 3)
        produce(
            cluster, view.topic.name, [record("a"), record("b"), record("a", 2), (b"b", None), record("c")]
        )
        followed.expect(rows(("a", 2), ("c", 1)))
        produce(cluster, view.topic.name, [record(f"o{number}", number) for number in range(25_000)])
        followed.expect(rows(("a", 2), ("c", 1), *((f"o{number}", number) for number in range(25_000))))
    produce(
        cluster, view.topic.name, [(b"c", None), record("a", 3, share="Infinity", note="x\0y", other=[1])]
    )
    with following(cluster, view, [], tmp_path) as followed:
        expected = rows(*((f"o{number}", number) for number in range(25_000)))
        followed.expect(expected | {"a": ("a", 3, float("inf"), "x\0y")})
        assert followed.follower.status.applied == 2


def test_a_view_has_a_key_of_several_fields_and_values_of_every_kind(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    app, name = App("shop"), fresh("prices")
    view = app.view(name, app.table(name, Price, key=["shop", "at"]), key=["at", "shop"])
    cluster.ensure_topic(name, 2)
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    value = {"shop": "s", "at": "2026-01-31T13:00:00+01:00", "tags": ["ä", '"']}
    text = json.dumps(value)[:-1] + ', "price": 1.5}'
    key = json.dumps({"shop": "s", "at": noon.isoformat()}).encode()
    with following(cluster, view, [], tmp_path) as followed:
        produce(cluster, name, [(key, text.encode())])
        followed.expect({"s": ("s", "2026-01-31T12:00:00.000000Z", "1.500000", '["ä","\\""]')})
        produce(cluster, name, [(key, None)])
        followed.expect({})


POISON = {
    "not JSON": b"hello",
    "cut off": b'{"order":"x","amount":1',
    "bad UTF-8": b'{"order":"x\xff","amount":1}',
    "lone surrogate": b'{"order":"x\\ud800","amount":1}',
    "2**63": b'{"order":"x","amount":9223372036854775808}',
    "-2**63-1": b'{"order":"x","amount":-9223372036854775809}',
    "5000 digits": b'{"order":"x","amount":' + b"7" * 5_000 + b"}",
    "huge float": b'{"order":"x","amount":1,"share":1e400}',
    "bare NaN": b'{"order":"x","amount":1,"share":NaN}',
    "deep": b'{"order":"x","amount":1,"other":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep object": b'{"a":' * 100_000,
    "twins": b'{"order":"x","amount":1,"amount":2}',
    "hidden twins": b'{"order":"x","amount" :1,"amou\\u006et":2}',
    "no amount": b'{"order":"x"}',
    "null amount": b'{"order":"x","amount":null}',
    "null key": b'{"order":null,"amount":1}',
    "a list": b"[1]",
    "empty": b"",
    "a text": b'"x"',
    "a float": b'{"order":"x","amount":1.5}',
    "number as text": b'{"order":"x","amount":"1"}',
}


def test_values_that_do_not_fit_become_dead_letters_and_the_view_continues(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    view = orders(fresh("orders"))
    topic = cluster.ensure_topic(view.topic.name, 1).name
    kept = [record("nan", 1, share="NaN"), record("nul", 1, note="\0"), record("max", 2**63 - 1)]
    for number, value in enumerate(POISON.values()):
        produce(cluster, topic, [record(f"o{number}"), (b"poison", value)])
    produce(cluster, topic, [*kept, (None, None), (b"\xff", None), record("last")])
    expected = rows(*((f"o{number}", 1) for number in range(len(POISON))), ("max", 2**63 - 1), ("last", 1))
    expected |= {"nan": ("nan", 1, "NaN", None), "nul": ("nul", 1, 0.0, "\0")}
    with following(cluster, view, [], tmp_path) as followed:
        followed.expect(expected)
        status = followed.follower.status
        assert status.dead == len(POISON) + 2
        # Every record that was read was applied or became a dead letter.
        assert status.applied == 2 * len(POISON) + 6
        assert len(expected) == status.applied - status.dead
        assert sum("do not fit" in line for line in followed.lines) == 1
    letters = dead_letters(cluster, view.dead_topic)
    assert [value for _, value, _ in letters] == [*POISON.values(), None, None]
    for number, (key, _, headers) in enumerate(letters[: len(POISON)]):
        assert key == b"poison"
        assert headers["__headrace.errors.topic"] == topic
        assert headers["__headrace.errors.partition"] == "0"
        assert headers["__headrace.errors.offset"] == str(2 * number + 1)
        assert headers["__headrace.errors.exception"] == "ValueDoesNotFit"
        assert headers["__headrace.errors.message"]
    assert "amount" in letters[4][2]["__headrace.errors.message"]
    seen = read_view(tmp_path / "shop.db", view.name)
    assert seen is not None


def test_a_deletion_that_does_not_name_the_view_s_key_is_a_dead_letter(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    app, name = App("shop"), fresh("orders")
    view = app.view(name, app.table(name, Order, key="order"), key="note")
    cluster.ensure_topic(name, 1)
    produce(cluster, name, [record("a", 1, note="n"), (b"a", None), record("b", 2, note="m")])
    with following(cluster, view, [], tmp_path) as followed:
        followed.expect({"a": ("a", 1, 0.0, "n"), "b": ("b", 2, 0.0, "m")})
    ((key, value, headers),) = dead_letters(cluster, view.dead_topic)
    assert (key, value) == (b"a", None)
    assert "order" in headers["__headrace.errors.message"]


@pytest.mark.parametrize("follower_stopped", [False, True], ids=["follower running", "follower stopped"])
def test_a_recreated_topic_counts_as_another_topic(
    cluster: Cluster, fresh: Fresh, tmp_path: Path, follower_stopped: bool
) -> None:
    """The new topic is longer than the old one, so every old offset exists in it too."""
    view = orders(fresh("orders"))
    topic = cluster.ensure_topic(view.topic.name, 2).name
    produce(cluster, topic, [record("old", 1)])

    def recreate() -> None:
        delete_topic(cluster, topic)
        cluster.ensure_topic(topic, 2)
        produce(cluster, topic, [record(f"new{number}", number) for number in range(40)])

    expected = rows(*((f"new{number}", number) for number in range(40)))
    with following(cluster, view, [], tmp_path) as followed:
        followed.expect(rows(("old", 1)))
        if not follower_stopped:
            recreate()
            followed.expect(expected)
    if follower_stopped:
        recreate()
        with following(cluster, view, [], tmp_path) as followed:
            followed.expect(expected)
            assert "was recreated" in "".join(followed.lines)


def test_records_deleted_before_they_were_read_are_reported_and_the_view_is_built_from_the_rest(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    view = orders(fresh("orders"))
    topic = cluster.ensure_topic(view.topic.name, 1).name
    produce(cluster, topic, [record("a"), record("b")])
    with following(cluster, view, [], tmp_path) as followed:
        followed.expect(rows(("a", 1), ("b", 1)))
    produce(cluster, topic, [record("c"), record("d")])
    trim(cluster, topic, 3)
    with following(cluster, view, [], tmp_path) as followed:
        followed.expect(rows(("d", 1)))
        assert any("records 2 to 2" in line for line in followed.lines)


def trim(cluster: Cluster, topic: str, before: int) -> None:
    from confluent_kafka import TopicPartition

    end = TopicPartition(topic, 0, before)
    cluster.admin().delete_records([end])[end].result(10)


def test_added_partitions_are_followed(cluster: Cluster, fresh: Fresh, tmp_path: Path) -> None:
    from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined]

    view = orders(fresh("orders"))
    topic = cluster.ensure_topic(view.topic.name, 1).name
    with following(cluster, view, [], tmp_path) as followed:
        followed.until_state("following")
        cluster.admin().create_partitions([NewPartitions(topic, 3)])[topic].result(10)
        until(lambda: len(cluster.ends(topic)) == 3, "three partitions")
        for partition in range(3):
            produce(cluster, topic, [record(f"in{partition}", partition)], partition)
        followed.expect(rows(("in0", 0), ("in1", 1), ("in2", 2)))
        assert followed.follower.status.rebuilds == 1


@pytest.mark.parametrize("expired", [True, False], ids=["expired", "kept"])
def test_a_follower_rebuilds_only_if_deletions_expired_during_its_absence(
    cluster: Cluster, fresh: Fresh, tmp_path: Path, expired: bool
) -> None:
    view = orders(fresh("orders"))
    kept = {"delete.retention.ms": "0" if expired else "86400000"}
    topic = cluster.ensure_topic(view.topic.name, 1, {**COMPACTED, **kept}).name
    produce(cluster, topic, [record("a"), record("b")])
    with following(cluster, view, [], tmp_path) as followed:
        followed.expect(rows(("a", 1), ("b", 1)))
    produce(cluster, topic, [(b"a", None)])
    # Enough records after it, so that the segment with the deletion is closed and due for compaction.
    for number in range(30 if expired else 6):
        produce(cluster, topic, [record("fill", number, note="x" * 700)])
    if expired:
        until(lambda: removed_below(cluster, topic) > 2, "the deletion is gone", pause_s=0.05)
    last = 29 if expired else 5
    with following(cluster, view, [], tmp_path) as followed:
        followed.expect({**rows(("b", 1)), "fill": ("fill", last, 0.0, "x" * 700)})
        assert followed.follower.status.rebuilds == int(expired)
        assert any("tombstones" in line for line in followed.lines) == expired


def removed_below(cluster: Cluster, topic: str) -> int:
    result = cluster.configs(topic).get("headrace.tombstones.removed.below") or "0:0"
    return int(result.split(":")[1])


def test_a_view_ahead_of_its_log_is_rebuilt(cluster: Cluster, fresh: Fresh, tmp_path: Path) -> None:
    """The log was restored from a backup that is older than the store."""
    view = orders(fresh("orders"))
    topic = cluster.ensure_topic(view.topic.name, 1).name
    produce(cluster, topic, [record("a")])
    with following(cluster, view, [], tmp_path) as followed:
        followed.expect(rows(("a", 1)))
    with contextlib.closing(sqlite3.connect(tmp_path / "shop.db")) as connection, connection:
        connection.execute("UPDATE _headrace_views SET offsets = '{\"0\":77}'")
        connection.execute(f"INSERT INTO \"{view.name}\" VALUES ('lost', 1, 0.0, null)")
    with following(cluster, view, [], tmp_path) as followed:
        followed.expect(rows(("a", 1)))
        assert any("ends at offset 1, but the view is at offset 77" in line for line in followed.lines)


def test_a_changed_schema_or_key_rebuilds_the_view(cluster: Cluster, fresh: Fresh, tmp_path: Path) -> None:
    name = fresh("orders")
    cluster.ensure_topic(name, 1)
    produce(cluster, name, [record("a", 1, note="n"), record("b", 2, note="n")])
    with following(cluster, orders(name), [], tmp_path) as followed:
        followed.expect({"a": ("a", 1, 0.0, "n"), "b": ("b", 2, 0.0, "n")})
    app = App("shop")
    by_note = app.view(name, app.table(name, Order, key="order"), key="note")
    with following(cluster, by_note, [], tmp_path) as followed:
        followed.expect({"b": ("b", 2, 0.0, "n")})
        assert any("schema or the key" in line for line in followed.lines)


@pytest.mark.parametrize("change", ["removed", "restored", "restored in place"])
def test_a_store_removed_or_restored_under_its_follower_becomes_correct_again(
    cluster: Cluster, fresh: Fresh, tmp_path: Path, change: str
) -> None:
    view, path = orders(fresh("orders")), tmp_path / "shop.db"
    topic = cluster.ensure_topic(view.topic.name, 1).name
    produce(cluster, topic, [record("a")])
    with following(cluster, view, [], tmp_path) as followed:
        followed.expect(rows(("a", 1)))
        backup(path, tmp_path / "backup.db")
        produce(cluster, topic, [record("b")])
        followed.expect(rows(("a", 1), ("b", 1)))
        if change == "restored in place":
            backup(tmp_path / "backup.db", path)
        else:
            for suffix in ("", "-wal", "-shm"):
                (tmp_path / f"shop.db{suffix}").unlink(missing_ok=True)
            if change == "restored":
                shutil.copy(tmp_path / "backup.db", path)
        produce(cluster, topic, [record("c")])
        followed.expect(rows(("a", 1), ("b", 1), ("c", 1)))


def backup(source: Path, target: Path) -> None:
    with (
        contextlib.closing(sqlite3.connect(source)) as old,
        contextlib.closing(sqlite3.connect(target)) as new,
    ):
        old.backup(new)


def test_a_volatile_topic_cannot_be_followed(cluster: Cluster, fresh: Fresh, tmp_path: Path) -> None:
    view = orders(fresh("orders"))
    cluster.ensure_topic(view.topic.name, 1, {"headrace.volatile": "true", "retention.bytes": "1000000"})
    with following(cluster, view, [], tmp_path, may_end=True) as followed:
        until(lambda: followed.error is not None, "the error")
    assert isinstance(followed.error, NotASourceOfTruth)
