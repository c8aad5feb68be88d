"""``headrace topic`` against both servers."""

from __future__ import annotations

import os
import pty
from collections.abc import Callable

import pytest

from tests.cli.runner import Headrace
from tests.support.server import Server
from tests.support.waiting import until

Fresh = Callable[..., str]


def test_a_topic_lives_from_create_to_delete(either: Headrace, fresh: Fresh) -> None:
    name = fresh()
    made = either.ok("topic", "create", name, "-p", "3", "-c", "retention.ms=1000000", "--json")
    assert made.json == [{"topic": name, "status": "created"}]
    listed = either.ok("topic", "list", "--json").json
    assert {"topic": name, "partitions": 3, "replicas": 1} in listed
    (told,) = either.ok("topic", "describe", name, "--json").json
    assert len(told["partitions"]) == 3
    assert {"config": "retention.ms", "value": "1000000", "source": "topic"} in told["configs"]
    either.ok("topic", "alter", name, "--set", "max.message.bytes=2000", "--unset", "retention.ms")
    (told,) = either.ok("topic", "describe", name, "-c", "--json").json
    configs = {one["config"]: one for one in told["configs"]}
    assert configs["max.message.bytes"]["value"] == "2000"
    assert configs["retention.ms"]["source"] != "topic"
    either.ok("topic", "delete", name, "--yes")
    until(lambda: name not in either.ok("topic", "list").out, "the topic is gone")


def test_a_topic_that_is_there_is_an_error_unless_that_is_fine(either: Headrace, fresh: Fresh) -> None:
    name, other = fresh(), fresh()
    either.ok("topic", "create", name)
    again = either.run("topic", "create", name, other)
    assert again.code == 1
    assert f"topic '{name}' already exists [HR-CLI-TOPIC-EXISTS]" in again.err
    assert other in again.out, "the rest is done all the same"
    fine = either.ok("topic", "create", name, "--if-not-exists", "--json")
    assert fine.json == [{"topic": name, "status": "exists"}]


def test_a_dry_run_of_create_and_alter_changes_nothing(headrace: Headrace, fresh: Fresh) -> None:
    name = fresh()
    headrace.ok("topic", "create", name, "--dry-run")
    assert headrace.run("topic", "describe", name).code == 1
    headrace.ok("topic", "create", name)
    headrace.ok("topic", "alter", name, "--set", "retention.ms=5", "--dry-run")
    (told,) = headrace.ok("topic", "describe", name, "--json").json
    assert not [one for one in told["configs"] if one["source"] == "topic"]


def test_a_config_that_does_not_exist_is_refused_by_name(either: Headrace, fresh: Fresh) -> None:
    name = fresh()
    refused = either.run("topic", "create", name, "-c", "retention.msecs=5")
    assert refused.code == 1
    assert "retention.msecs" in refused.err
    assert "HR-KAFKA-INVALID_CONFIG" in refused.err


def test_what_is_not_there_is_said_and_how_to_make_it(headrace: Headrace, fresh: Fresh) -> None:
    name = fresh()
    for words in (["describe", name], ["delete", name, "--yes"], ["alter", name, "--set", "retention.ms=1"]):
        result = headrace.run("topic", *words)
        assert result.code == 1
        assert f"topic '{name}' does not exist [HR-CLI-TOPIC-UNKNOWN]" in result.err
        assert f"headrace topic create {name}" in result.err


def test_the_list_can_be_narrowed_by_a_pattern_for_the_whole_name(headrace: Headrace, fresh: Fresh) -> None:
    stem = fresh("stem")
    headrace.ok("topic", "create", f"{stem}.a", f"{stem}.b", f"x{stem}.a")
    listed = headrace.ok("topic", "list", rf"{stem}\..*", "--json").json
    assert [one["topic"] for one in listed] == [f"{stem}.a", f"{stem}.b"]


def test_internal_topics_are_shown_only_when_asked_for(either: Headrace, fresh: Fresh) -> None:
    topic = fresh()
    either.ok("topic", "create", topic)
    either.ok("produce", topic, "-q", stdin=b"x\n")
    either.ok("consume", topic, "-g", fresh("group"), "-n", "1")
    assert "__consumer_offsets" not in either.ok("topic", "list").out


def test_delete_does_nothing_without_a_terminal_and_without_yes(headrace: Headrace, fresh: Fresh) -> None:
    name = fresh()
    headrace.ok("topic", "create", name)
    result = headrace.run("topic", "delete", name)
    assert result.code == 1
    assert "--yes" in result.err
    headrace.ok("topic", "describe", name)


@pytest.mark.parametrize(("answer", "deleted"), [("{name}", True), ("yes", False), ("", False)])
def test_delete_asks_for_the_name_on_a_terminal(
    headrace: Headrace, fresh: Fresh, answer: str, deleted: bool
) -> None:
    name = fresh()
    headrace.ok("topic", "create", name)
    ours, theirs = pty.openpty()
    with headrace.started("topic", "delete", name, stdin=theirs, stderr=theirs) as process:
        os.close(theirs)
        asked = b""
        while b"to go on" not in asked:
            asked += os.read(ours, 1_000)
        os.write(ours, answer.format(name=name).encode() + b"\n")
        assert (process.wait(30) == 0) is deleted
        process.communicate()
        os.close(ours)
        assert (headrace.run("topic", "describe", name).code == 1) is deleted


def test_partitions_are_not_added_to_a_topic_with_records_by_accident(either: Headrace, fresh: Fresh) -> None:
    name = fresh()
    either.ok("topic", "create", name, "-p", "2")
    assert either.ok("topic", "add-partitions", name, "-n", "1", "--json").json == [
        {"topic": name, "before": 2, "after": 3, "status": "added"}
    ]
    either.ok("produce", name, "-k", "key", "-q", stdin=b"a\nb\n")
    refused = either.run("topic", "add-partitions", name, "-n", "1")
    assert refused.code == 1
    assert "75% of the keys move" in refused.err
    assert "order" in refused.err
    forced = either.ok("topic", "add-partitions", name, "-n", "1", "--force")
    assert "75% of the keys move" in forced.err, "it is said also when it is done"
    (told,) = either.ok("topic", "describe", name, "--json").json
    assert len(told["partitions"]) == 4
    assert either.run("topic", "add-partitions", name, "-n", "1").code == 1, "leave is given for one growth"


def test_partitions_are_added_to_a_topic_whose_records_have_no_keys(either: Headrace, fresh: Fresh) -> None:
    name = fresh()
    either.ok("topic", "create", name)
    either.ok("produce", name, "-q", stdin=b"".join(b"%d\n" % number for number in range(200)))
    either.ok("topic", "add-partitions", name, "-n", "1")
    (told,) = either.ok("topic", "describe", name, "--json").json
    assert len(told["partitions"]) == 2


def test_trim_deletes_what_is_before_and_its_dry_run_deletes_nothing(either: Headrace, fresh: Fresh) -> None:
    name = fresh()
    either.ok("topic", "create", name)
    either.ok("produce", name, "-q", stdin=b"".join(b"%d\n" % number for number in range(10)))
    plan = either.ok("topic", "trim", name, "--before", "4", "--dry-run", "--json").json
    assert plan == [{"topic": name, "partition": 0, "start": 0, "new_start": 4, "deleted": 4}]
    assert len(either.ok("consume", name, "--exit").lines) == 10
    assert either.run("topic", "trim", name, "--before", "4").code == 1, "not without a yes"
    either.ok("topic", "trim", name, "--before", "4", "--yes")
    assert either.ok("consume", name, "--exit", "-f", "%v ").out == "4 5 6 7 8 9 "
    beyond = either.run("topic", "trim", name, "--before", "99", "--yes")
    assert (beyond.code, "beyond the end" in beyond.err) == (2, True)
    either.ok("topic", "trim", name, "--before", "end", "--yes")
    assert either.ok("consume", name, "--exit").out == ""


def test_describe_tells_size_rate_retention_and_when_records_are_lost(either: Headrace, fresh: Fresh) -> None:
    name = fresh()
    either.ok("topic", "create", name, "-c", "retention.ms=3600000", "-c", "retention.bytes=100000")
    either.ok("produce", name, "-q", stdin=b"".join(b"%0100d\n" % number for number in range(3000)))
    (told,) = either.ok("topic", "describe", name, "--json").json
    assert told["size_bytes"] > 1000
    assert told["records_per_s"] == 10.0
    assert (told["retention_ms"], told["retention_bytes"]) == (3_600_000, 100_000)
    assert told["bytes_per_s"] > 0
    by_size_ms = 100_000 / told["bytes_per_s"] * 1000
    assert told["lost_after_ms"] == pytest.approx(min(by_size_ms, 3_600_000), rel=0.01)
    assert told["lost_by"] == ("retention.bytes" if by_size_ms < 3_600_000 else "retention.ms")
    shown = either.ok("topic", "describe", name).out
    assert "10 records/s" in shown
    assert "after it was written, by retention." in shown


def test_describe_of_a_topic_that_keeps_everything_says_so(either: Headrace, fresh: Fresh) -> None:
    name = fresh()
    either.ok("topic", "create", name, "-c", "retention.ms=-1")
    (told,) = either.ok("topic", "describe", name, "--json").json
    assert (told["retention_ms"], told["retention_bytes"], told["lost_after_ms"]) == (None, None, None)
    assert "never by retention" in either.ok("topic", "describe", name).out


def test_describe_of_a_compacted_topic_tells_below_which_offset_deletions_are_gone(
    either: Headrace, cluster: Server, fresh: Fresh
) -> None:
    name, plain = fresh(), fresh()
    configs = (
        "cleanup.policy=compact",
        "internal.segment.bytes=2000",
        "min.cleanable.dirty.ratio=0.001",
        "delete.retention.ms=0",
    )
    either.ok("topic", "create", plain)
    either.ok("topic", "create", name, "-p", "2", *[word for one in configs for word in ("-c", one)])

    def removed_below() -> list[int | None]:
        (told,) = either.ok("topic", "describe", name, "-p", "--json").json
        assert "configs" not in told
        return [one.get("tombstones_removed_below") for one in told["partitions"]]

    to_first = ("produce", name, "-p", "0", "-q")
    either.ok(*to_first, "-k", "a", stdin=b"1\n")
    either.ok(*to_first, "-f", "%k\\n", "--tombstone", stdin=b"a\n")
    if cluster.name == "kafka":
        assert removed_below() == [None, None]
        assert "TOMBSTONES-REMOVED-BELOW" not in either.ok("topic", "describe", name).out
        return
    assert removed_below() == [0, 0]

    def is_gone() -> bool:
        # Two that no segment holds together, so that the deletion is sealed and there is a reason to compact.
        for key in ("b", "c"):
            either.ok(*to_first, "-k", key, stdin=b"%01500d\n" % 1)
        return removed_below() == [2, 0]

    until(is_gone, "the deletion at offset 1 is gone")
    heading, first, second = either.ok("topic", "describe", name, "-p").lines
    assert heading.split()[-1] == "TOMBSTONES-REMOVED-BELOW"
    assert (first.split()[-1], second.split()[-1]) == ("2", "0")
    assert "TOMBSTONES-REMOVED-BELOW" in either.ok("topic", "describe", name).out
    assert "TOMBSTONES-REMOVED-BELOW" not in either.ok("topic", "describe", plain).out


def test_an_archived_topic_is_not_said_to_lose_what_moves_to_the_archive(
    either: Headrace, cluster: Server, fresh: Fresh
) -> None:
    name = fresh()
    made = either.run(
        "topic", "create", name, "-c", "headrace.archive.enable=true", "-c", "retention.ms=3600000"
    )
    if cluster.name == "kafka":
        assert made.code == 1
        assert "headrace.archive.enable" in made.err
        return
    (told,) = either.ok("topic", "describe", name, "--json").json
    assert (told["archived"], told["lost_after_ms"], told["lost_by"]) == (True, None, None)
    shown = either.ok("topic", "describe", name).out
    assert "never by retention" in shown
    assert "archive     takes what is past these limits" in shown


def test_a_volatile_topic_is_said_to_be_one_and_kafka_refuses_to_make_it(
    either: Headrace, cluster: Server, fresh: Fresh
) -> None:
    name = fresh()
    made = either.run(
        "topic", "create", name, "-c", "headrace.volatile=true", "-c", "retention.bytes=1000000"
    )
    if cluster.name == "kafka":
        assert made.code == 1
        assert "headrace.volatile" in made.err
        return
    either.ok("produce", name, "-q", stdin=b"x\n")
    assert "in memory only" in either.ok("topic", "describe", name).out
    (told,) = either.ok("topic", "describe", name, "--json").json
    assert told["volatile"] is True
    listed = {one["topic"]: one["volatile"] for one in either.ok("topic", "list", "--json").json}
    assert listed.pop(name) == "in memory only"
    assert not any(listed.values())
