"""``headrace group`` and ``headrace lag`` against both servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, Producer

from faults.wait import until
from tests.cli.runner import Headrace

Fresh = Callable[..., str]


def fall_behind(headrace: Headrace, fresh: Fresh) -> tuple[str, str]:
    """Create a topic with two partitions of ten records, and a group that has read three records of partition 0."""
    topic, group = fresh(), fresh("group")
    headrace.ok("topic", "create", topic, "-p", "2")
    lines = b"".join(b"%d %d %d\n" % (number % 2, 1794733200000 + number, number) for number in range(20))
    headrace.ok("produce", topic, "-f", r"%p %d %v\n", "-q", stdin=lines)
    headrace.ok("group", "seek", group, "--to", "3", "--topic", f"{topic}:0")
    return topic, group


@pytest.fixture
def behind(headrace: Headrace, fresh: Fresh) -> tuple[str, str]:
    return fall_behind(headrace, fresh)


@pytest.fixture
def behind_on_any_server(any_server: Headrace, fresh: Fresh) -> tuple[str, str]:
    return fall_behind(any_server, fresh)


@pytest.fixture
def member(any_server: Headrace) -> Iterator[Callable[[str, str], Consumer]]:
    opened: list[Consumer] = []

    def join(topic: str, group: str) -> Consumer:
        consumer = Consumer(
            {
                "bootstrap.servers": any_server.bootstrap,
                "group.id": group,
                "client.id": "someone",
                "log_level": 0,
            }
        )
        opened.append(consumer)
        consumer.subscribe([topic])
        until(lambda: consumer.poll(0.1) or consumer.assignment(), "the member has partitions")
        return consumer

    yield join
    for consumer in opened:
        consumer.close()


def test_lag_counts_the_records_left_to_read(headrace: Headrace, behind: tuple[str, str]) -> None:
    topic, group = behind
    (document,) = headrace.ok("lag", group, "--json").json
    assert document == {
        "group": group,
        "topic": topic,
        "partition": 0,
        "committed": 3,
        "end": 10,
        "lag": 7,
        "gone": 0,
    }
    shown = headrace.ok("lag", group).lines
    assert shown[0].split() == ["GROUP", "TOPIC", "PARTITION", "COMMITTED", "END", "LAG"]
    assert shown[-1].split() == [group, "7"]
    (row_with_age,) = headrace.ok("lag", group, "--age", "--json").json
    assert isinstance(row_with_age["age_s"], float)


def test_lag_can_fail_a_script(headrace: Headrace, behind: tuple[str, str]) -> None:
    _, group = behind
    headrace.ok("lag", group, "--fail-above", "7")
    result = headrace.run("lag", group, "--fail-above", "6")
    assert result.code == 5
    assert f"lag is above 6: {group} has 7" in result.err


def test_lag_of_an_unknown_group_is_an_error(headrace: Headrace, fresh: Fresh) -> None:
    group = fresh("group")
    for words in (["lag", group], ["group", "describe", group], ["group", "seek", group, "--to", "end"]):
        result = headrace.run(*words)
        assert result.code == 1, words
        assert "HR-CLI-GROUP-UNKNOWN" in result.err


def test_lag_continues_when_a_topic_of_the_group_is_deleted(
    headrace: Headrace, behind: tuple[str, str], fresh: Fresh
) -> None:
    topic, group = behind
    other = fresh()
    headrace.ok("topic", "create", other)
    headrace.ok("group", "seek", group, "--to", "end", "--topic", other)
    headrace.ok("topic", "delete", other, "--yes")
    rows = {item["topic"]: item for item in headrace.ok("lag", group, "--json").json}
    assert rows[topic]["lag"] == 7
    assert rows.get(other, {"lag": None})["lag"] is None


def test_lag_watch_repeats(headrace: Headrace, behind: tuple[str, str]) -> None:
    _, group = behind
    with headrace.started("lag", group, "--watch", "--every", "0.1", "--json") as process:
        assert process.stdout is not None
        first, second = process.stdout.readline(), process.stdout.readline()
        assert first == second != b""
        process.terminate()
        process.communicate(timeout=120)


def test_a_dry_run_of_seek_shows_old_and_new_and_changes_nothing(
    any_server: Headrace, behind_on_any_server: tuple[str, str]
) -> None:
    topic, group = behind_on_any_server
    before = any_server.ok("lag", group, "--json").json
    (plan,) = any_server.ok("group", "seek", group, "--to", "end", "--dry-run", "--json").json
    assert (plan["old"], plan["new"], plan["moved"], plan["status"]) == (3, 10, 7, "would move")
    assert any_server.ok("lag", group, "--json").json == before
    assert topic in any_server.ok("group", "seek", group, "--to", "start", "--dry-run").out
    assert any_server.ok("lag", group, "--json").json == before


OFFSETS = {
    "start": 0,
    "end": 10,
    "5": 5,
    "+2": 2,
    "-2": 8,
    "@2026-11-15T09:00:00.006Z": 3,
    "@-1s": 10,
}


def test_seek_moves_a_group_to_any_offset(
    any_server: Headrace, behind_on_any_server: tuple[str, str]
) -> None:
    _, group = behind_on_any_server
    for spec, offset in OFFSETS.items():
        (moved,) = any_server.ok("group", "seek", group, "--to", spec, "--json").json
        assert (moved["new"], moved["status"]) == (offset, "moved"), spec
    (document,) = any_server.ok("lag", group, "--json").json
    assert document["committed"] == list(OFFSETS.values())[-1]


def test_seek_moves_only_the_partitions_that_are_named(headrace: Headrace, behind: tuple[str, str]) -> None:
    topic, group = behind
    headrace.ok("group", "seek", group, "--to", "end", "--topic", f"{topic}:1")
    rows = headrace.ok("lag", group, "--json").json
    assert [(item["partition"], item["committed"]) for item in rows] == [(0, 3), (1, 10)]


def test_seek_rejects_an_offset_that_is_not_in_the_log(headrace: Headrace, behind: tuple[str, str]) -> None:
    topic, group = behind
    headrace.ok("topic", "trim", topic, "--before", "2", "-p", "0", "--yes")
    for offset in ("1", "11"):
        result = headrace.run("group", "seek", group, "--to", offset)
        assert result.code == 2
        assert f"offset {offset} is not in {topic} [0], which starts at 2 and ends at 10" in result.err
    (document,) = headrace.ok("lag", group, "--json").json
    assert document["committed"] == 3


def test_seek_and_delete_fail_while_the_group_has_members(
    any_server: Headrace, behind_on_any_server: tuple[str, str], member: Callable[[str, str], Consumer]
) -> None:
    topic, group = behind_on_any_server
    member(topic, group)
    refused = any_server.run("group", "seek", group, "--to", "end")
    assert refused.code == 1
    assert "has 1 active member: someone at " in refused.err
    assert "HR-CLI-GROUP-ACTIVE" in refused.err
    planned = any_server.ok("group", "seek", group, "--to", "end", "--dry-run")
    assert "stop them before you move the group" in planned.err
    delete_result = any_server.run("group", "delete", group, "--yes")
    assert (delete_result.code, "HR-CLI-GROUP-ACTIVE" in delete_result.err) == (1, True)
    offset_delete_result = any_server.run("group", "offset-delete", group, "-t", topic, "--yes")
    assert (offset_delete_result.code, "HR-CLI-GROUP-ACTIVE" in offset_delete_result.err) == (1, True)


def test_a_group_is_described_with_its_members_and_partitions(
    any_server: Headrace, behind_on_any_server: tuple[str, str], member: Callable[[str, str], Consumer]
) -> None:
    topic, group = behind_on_any_server
    member(topic, group)
    (document,) = any_server.ok("group", "describe", group, "--json").json
    assert (document["state"], document["members"], document["total_lag"]) == ("stable", 1, 7)
    assert [
        (item["partition"], item["committed"], item["lag"], item["client"]) for item in document["partitions"]
    ] == [
        (0, 3, 7, "someone"),
        (1, None, None, "someone"),
    ]
    assert document["partitions"][0]["age_s"] > 0 or document["partitions"][0]["age_s"] == 0
    shown = any_server.ok("group", "describe", group).out
    assert "total lag   7" in shown
    listed = any_server.ok("group", "list", "--state", "stable", "--json").json
    assert {"group": group, "state": "stable", "type": "classic"} in listed


def test_a_group_and_its_offsets_can_be_deleted(
    any_server: Headrace, behind_on_any_server: tuple[str, str]
) -> None:
    topic, group = behind_on_any_server
    any_server.ok("group", "seek", group, "--to", "2", "--topic", f"{topic}:1")
    assert any_server.run("group", "offset-delete", group, "-t", f"{topic}:1").code == 1, "not without a yes"
    (deleted,) = any_server.ok("group", "offset-delete", group, "-t", f"{topic}:1", "--yes", "--json").json
    assert (deleted["partition"], deleted["old"]) == (1, 2)
    assert [item["partition"] for item in any_server.ok("lag", group, "--json").json] == [0]
    assert any_server.run("group", "delete", group).code == 1, "not without a yes"
    any_server.ok("group", "delete", group, "--yes")
    assert any_server.run("group", "describe", group).code == 1
    second_delete = any_server.run("group", "delete", group, "--yes")
    assert (second_delete.code, "HR-CLI-GROUP-UNKNOWN" in second_delete.err) == (1, True)


def test_the_age_of_lag_is_that_of_the_next_record_to_read(headrace: Headrace, fresh: Fresh) -> None:
    """Two groups at different offsets of one partition have different ages."""
    import time

    topic, early, late = fresh(), fresh("early"), fresh("late")
    headrace.ok("topic", "create", topic)
    now_ms = time.time_ns() // 1_000_000
    producer = Producer({"bootstrap.servers": headrace.bootstrap})
    for age_s in (7_200, 3_600):
        producer.produce(topic, b"x", timestamp=now_ms - age_s * 1_000)
    assert producer.flush(30) == 0
    headrace.ok("group", "seek", early, "--to", "0", "--topic", topic)
    headrace.ok("group", "seek", late, "--to", "1", "--topic", topic)
    ages = {item["group"]: item["age_s"] for item in headrace.ok("lag", early, late, "--age", "--json").json}
    assert 7_200 <= ages[early] < 7_300
    assert 3_600 <= ages[late] < 3_700
