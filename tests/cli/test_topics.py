"""``headrace topic`` against both servers."""

from __future__ import annotations

import os
import pty
from collections.abc import Callable

import pytest

from faults.servers.server import Server
from faults.wait import until
from tests.cli.runner import Headrace

Fresh = Callable[..., str]


def test_a_topic_can_be_created_listed_altered_and_deleted(any_server: Headrace, fresh: Fresh) -> None:
    name = fresh()
    created = any_server.ok("topic", "create", name, "-p", "3", "-c", "retention.ms=1000000", "--json")
    assert created.json == [{"topic": name, "status": "created"}]
    listed = any_server.ok("topic", "list", "--json").json
    assert {"topic": name, "partitions": 3, "replicas": 1} in listed
    (document,) = any_server.ok("topic", "describe", name, "--json").json
    assert len(document["partitions"]) == 3
    assert {"config": "retention.ms", "value": "1000000", "source": "topic"} in document["configs"]
    any_server.ok("topic", "alter", name, "--set", "max.message.bytes=2000", "--unset", "retention.ms")
    (document,) = any_server.ok("topic", "describe", name, "-c", "--json").json
    configs = {item["config"]: item for item in document["configs"]}
    assert configs["max.message.bytes"]["value"] == "2000"
    assert configs["retention.ms"]["source"] != "topic"
    any_server.ok("topic", "delete", name, "--yes")
    until(lambda: name not in any_server.ok("topic", "list").out, "the topic is gone")


def test_an_existing_topic_is_an_error_unless_if_not_exists_is_set(
    any_server: Headrace, fresh: Fresh
) -> None:
    name, other = fresh(), fresh()
    any_server.ok("topic", "create", name)
    repeated = any_server.run("topic", "create", name, other)
    assert repeated.code == 1
    assert f"topic '{name}' already exists [HR-CLI-TOPIC-EXISTS]" in repeated.err
    assert other in repeated.out, "the other topic is created anyway"
    accepted = any_server.ok("topic", "create", name, "--if-not-exists", "--json")
    assert accepted.json == [{"topic": name, "status": "exists"}]


def test_a_dry_run_of_create_and_alter_changes_nothing(headrace: Headrace, fresh: Fresh) -> None:
    name = fresh()
    headrace.ok("topic", "create", name, "--dry-run")
    assert headrace.run("topic", "describe", name).code == 1
    headrace.ok("topic", "create", name)
    headrace.ok("topic", "alter", name, "--set", "retention.ms=5", "--dry-run")
    (document,) = headrace.ok("topic", "describe", name, "--json").json
    assert not [item for item in document["configs"] if item["source"] == "topic"]


def test_an_unknown_config_is_rejected_by_name(any_server: Headrace, fresh: Fresh) -> None:
    name = fresh()
    refused = any_server.run("topic", "create", name, "-c", "retention.msecs=5")
    assert refused.code == 1
    assert "retention.msecs" in refused.err
    assert "HR-KAFKA-INVALID_CONFIG" in refused.err


def test_an_unknown_topic_is_reported_with_how_to_create_it(headrace: Headrace, fresh: Fresh) -> None:
    name = fresh()
    for words in (["describe", name], ["delete", name, "--yes"], ["alter", name, "--set", "retention.ms=1"]):
        result = headrace.run("topic", *words)
        assert result.code == 1
        assert f"topic '{name}' does not exist [HR-CLI-TOPIC-UNKNOWN]" in result.err
        assert f"headrace topic create {name}" in result.err


@pytest.mark.parametrize(
    "command", [["topic", "describe"], ["topic", "delete", "--yes"], ["consume"], ["produce"]]
)
def test_an_empty_topic_name_is_a_usage_error(headrace: Headrace, command: list[str]) -> None:
    refused = headrace.run(*command, "", stdin=b"x\n")
    assert refused.code == 2
    assert "a topic name must not be empty [HR-CLI-USAGE]" in refused.err


def test_topic_list_accepts_a_pattern_for_the_whole_name(headrace: Headrace, fresh: Fresh) -> None:
    stem = fresh("stem")
    headrace.ok("topic", "create", f"{stem}.a", f"{stem}.b", f"x{stem}.a")
    listed = headrace.ok("topic", "list", rf"{stem}\..*", "--json").json
    assert [item["topic"] for item in listed] == [f"{stem}.a", f"{stem}.b"]


def test_internal_topics_are_listed_only_with_the_option(any_server: Headrace, fresh: Fresh) -> None:
    topic = fresh()
    any_server.ok("topic", "create", topic)
    any_server.ok("produce", topic, "-q", stdin=b"x\n")
    any_server.ok("consume", topic, "-g", fresh("group"), "-n", "1")
    assert "__consumer_offsets" not in any_server.ok("topic", "list").out


def test_delete_does_nothing_without_a_terminal_and_without_yes(headrace: Headrace, fresh: Fresh) -> None:
    name = fresh()
    headrace.ok("topic", "create", name)
    result = headrace.run("topic", "delete", name)
    assert result.code == 1
    assert "--yes" in result.err
    headrace.ok("topic", "describe", name)


@pytest.mark.parametrize(("answer", "deleted"), [("{name}", True), ("yes", False), ("", False)])
def test_delete_requires_the_name_on_a_terminal(
    headrace: Headrace, fresh: Fresh, answer: str, deleted: bool
) -> None:
    name = fresh()
    headrace.ok("topic", "create", name)
    controller, terminal = pty.openpty()
    with headrace.started("topic", "delete", name, stdin=terminal, stderr=terminal) as process:
        os.close(terminal)
        prompt = b""
        while b"to continue" not in prompt:
            prompt += os.read(controller, 1_000)
        os.write(controller, answer.format(name=name).encode() + b"\n")
        assert (process.wait(30) == 0) is deleted
        process.communicate()
        os.close(controller)
        assert (headrace.run("topic", "describe", name).code == 1) is deleted


def test_adding_partitions_to_a_keyed_topic_needs_force(any_server: Headrace, fresh: Fresh) -> None:
    name = fresh()
    any_server.ok("topic", "create", name, "-p", "2")
    assert any_server.ok("topic", "add-partitions", name, "-n", "1", "--json").json == [
        {"topic": name, "before": 2, "after": 3, "status": "added"}
    ]
    any_server.ok("produce", name, "-k", "key", "-q", stdin=b"a\nb\n")
    refused = any_server.run("topic", "add-partitions", name, "-n", "1")
    assert refused.code == 1
    assert "75% of the keys move" in refused.err
    assert "order" in refused.err
    forced = any_server.ok("topic", "add-partitions", name, "-n", "1", "--force")
    assert "75% of the keys move" in forced.err, "the warning is printed with --force too"
    (document,) = any_server.ok("topic", "describe", name, "--json").json
    assert len(document["partitions"]) == 4
    assert any_server.run("topic", "add-partitions", name, "-n", "1").code == 1, "--force applies once"


def test_partitions_are_added_to_a_topic_whose_records_have_no_keys(
    any_server: Headrace, fresh: Fresh
) -> None:
    name = fresh()
    any_server.ok("topic", "create", name)
    any_server.ok("produce", name, "-q", stdin=b"".join(b"%d\n" % number for number in range(200)))
    any_server.ok("topic", "add-partitions", name, "-n", "1")
    (document,) = any_server.ok("topic", "describe", name, "--json").json
    assert len(document["partitions"]) == 2


def test_trim_deletes_older_records_and_its_dry_run_deletes_nothing(
    any_server: Headrace, fresh: Fresh
) -> None:
    name = fresh()
    any_server.ok("topic", "create", name)
    any_server.ok("produce", name, "-q", stdin=b"".join(b"%d\n" % number for number in range(10)))
    plan = any_server.ok("topic", "trim", name, "--before", "4", "--dry-run", "--json").json
    assert plan == [{"topic": name, "partition": 0, "start": 0, "new_start": 4, "deleted": 4}]
    assert len(any_server.ok("consume", name, "--exit").lines) == 10
    assert any_server.run("topic", "trim", name, "--before", "4").code == 1, "not without a yes"
    any_server.ok("topic", "trim", name, "--before", "4", "--yes")
    assert any_server.ok("consume", name, "--exit", "-f", "%v ").out == "4 5 6 7 8 9 "
    beyond = any_server.run("topic", "trim", name, "--before", "99", "--yes")
    assert (beyond.code, "beyond the end" in beyond.err) == (2, True)
    any_server.ok("topic", "trim", name, "--before", "end", "--yes")
    assert any_server.ok("consume", name, "--exit").out == ""


def test_describe_shows_size_rate_retention_and_when_records_are_lost(
    any_server: Headrace, fresh: Fresh
) -> None:
    name = fresh()
    any_server.ok("topic", "create", name, "-c", "retention.ms=3600000", "-c", "retention.bytes=100000")
    any_server.ok("produce", name, "-q", stdin=b"".join(b"%0100d\n" % number for number in range(3000)))
    (document,) = any_server.ok("topic", "describe", name, "--json").json
    assert document["size_bytes"] > 1000
    assert document["records_per_s"] == 10.0
    assert (document["retention_ms"], document["retention_bytes"]) == (3_600_000, 100_000)
    assert document["bytes_per_s"] > 0
    by_size_ms = 100_000 / document["bytes_per_s"] * 1000
    assert document["lost_after_ms"] == pytest.approx(min(by_size_ms, 3_600_000), rel=0.01)
    assert document["lost_by"] == ("retention.bytes" if by_size_ms < 3_600_000 else "retention.ms")
    shown = any_server.ok("topic", "describe", name).out
    assert "10 records/s" in shown
    assert "after it was written, by retention." in shown


def test_describe_shows_that_retention_is_unlimited(any_server: Headrace, fresh: Fresh) -> None:
    name = fresh()
    any_server.ok("topic", "create", name, "-c", "retention.ms=-1")
    (document,) = any_server.ok("topic", "describe", name, "--json").json
    assert (document["retention_ms"], document["retention_bytes"], document["lost_after_ms"]) == (
        None,
        None,
        None,
    )
    assert "never by retention" in any_server.ok("topic", "describe", name).out


def test_describe_shows_the_offset_below_which_tombstones_were_removed(
    any_server: Headrace, cluster: Server, fresh: Fresh
) -> None:
    name, uncompacted = fresh(), fresh()
    configs = (
        "cleanup.policy=compact",
        "internal.segment.bytes=2000",
        "min.cleanable.dirty.ratio=0.001",
        "delete.retention.ms=0",
    )
    any_server.ok("topic", "create", uncompacted)
    any_server.ok("topic", "create", name, "-p", "2", *[word for item in configs for word in ("-c", item)])

    def removed_below() -> list[int | None]:
        (document,) = any_server.ok("topic", "describe", name, "-p", "--json").json
        assert "configs" not in document
        return [item.get("tombstones_removed_below") for item in document["partitions"]]

    to_first = ("produce", name, "-p", "0", "-q")
    any_server.ok(*to_first, "-k", "a", stdin=b"1\n")
    any_server.ok(*to_first, "-f", "%k\\n", "--tombstone", stdin=b"a\n")
    if cluster.name == "kafka":
        assert removed_below() == [None, None]
        assert "TOMBSTONES-REMOVED-BELOW" not in any_server.ok("topic", "describe", name).out
        return
    assert removed_below() == [0, 0]

    def tombstone_is_removed() -> bool:
        # The two records do not fit into one segment. So the segment of the tombstone is sealed, and compaction is due.
        for key in ("b", "c"):
            any_server.ok(*to_first, "-k", key, stdin=b"%01500d\n" % 1)
        return removed_below() == [2, 0]

    until(tombstone_is_removed, "the deletion at offset 1 is gone")
    heading, first, second = any_server.ok("topic", "describe", name, "-p").lines
    assert heading.split()[-1] == "TOMBSTONES-REMOVED-BELOW"
    assert (first.split()[-1], second.split()[-1]) == ("2", "0")
    assert "TOMBSTONES-REMOVED-BELOW" in any_server.ok("topic", "describe", name).out
    assert "TOMBSTONES-REMOVED-BELOW" not in any_server.ok("topic", "describe", uncompacted).out


def test_describe_does_not_report_archived_records_as_lost(
    any_server: Headrace, cluster: Server, fresh: Fresh
) -> None:
    name = fresh()
    result = any_server.run(
        "topic", "create", name, "-c", "headrace.archive.enable=true", "-c", "retention.ms=3600000"
    )
    if cluster.name == "kafka":
        assert result.code == 1
        assert "headrace.archive.enable" in result.err
        return
    (document,) = any_server.ok("topic", "describe", name, "--json").json
    assert (document["archived"], document["lost_after_ms"], document["lost_by"]) == (True, None, None)
    shown = any_server.ok("topic", "describe", name).out
    assert "never by retention" in shown
    assert "archive     records beyond these limits stay readable" in shown


def test_a_volatile_topic_is_marked_and_kafka_refuses_to_create_it(
    any_server: Headrace, cluster: Server, fresh: Fresh
) -> None:
    name = fresh()
    result = any_server.run(
        "topic", "create", name, "-c", "headrace.volatile=true", "-c", "retention.bytes=1000000"
    )
    if cluster.name == "kafka":
        assert result.code == 1
        assert "headrace.volatile" in result.err
        return
    any_server.ok("produce", name, "-q", stdin=b"x\n")
    assert "in memory only" in any_server.ok("topic", "describe", name).out
    (document,) = any_server.ok("topic", "describe", name, "--json").json
    assert document["volatile"] is True
    listed = {item["topic"]: item["volatile"] for item in any_server.ok("topic", "list", "--json").json}
    assert listed.pop(name) == "in memory only"
    assert not any(listed.values())
