"""``headrace dead`` lists, shows and replays dead letters."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.servers.server import Server
from headrace.client.cluster import Cluster
from headrace.client.declared_topics import ensure_dead_letter_topic
from headrace.client.records import read
from tests.cli.runner import Headrace

APP = "tests.cli.shop:app"
DEAD = "shop.cli-sell.dead"


@pytest.fixture(scope="module")
def letters(embedded: Server) -> Cluster:
    """Write three dead letters: two for input records, and one for a row without a key. The log still has the original
    record of the first letter, with its headers.
    """
    cluster = Cluster(embedded.bootstrap, timeout_s=5.0)
    cluster.ensure_topic("cli-orders", 1)
    ensure_dead_letter_topic(cluster, DEAD, ["cli-orders"])
    producer = cluster.producer({"linger.ms": 0})
    producer.produce("cli-orders", key=b"k", value=b"one", headers=[("till", b"3")])
    for number, value in enumerate((b"one", b"two")):
        document = {"message": "not JSON", "topic": "cli-orders", "partition": 0, "offset": number * 1_000}
        headers = [(f"__headrace.errors.{name}", str(text).encode()) for name, text in document.items()]
        producer.produce(DEAD, key=b"k", value=value, headers=[*headers])
    producer.produce(DEAD, value=b"\xff", headers=[("__headrace.errors.exception", b"RowWithoutKey")])
    assert producer.flush(30) == 0
    return cluster


def test_the_dead_command_lists_shows_replays_and_dismisses_letters(
    headrace: Headrace, letters: Cluster, tmp_path: Path
) -> None:
    data = ("--data", str(tmp_path), "--json")
    listed = {row["topic"]: row for row in headrace.ok("dead", "list", APP, *data).json}
    assert (listed[DEAD]["kind"], listed[DEAD]["open"], listed[DEAD]["replayed"]) == ("flow", 3, 0)
    assert listed["shop.products.dead"]["of"] == "products"

    shown = headrace.ok("dead", "show", APP, DEAD, *data).json
    assert [(item["offset"], item.get("value")) for item in shown] == [(2, None), (1, "two"), (0, "one")]
    assert (shown[0]["value_base64"], bool(shown[0]["cannot"])) == ("/w==", True)
    (item,) = headrace.ok("dead", "show", APP, DEAD, "0/1", *data).json
    assert (item["state"], item["message"], item["origin"]["offset"]) == ("open", "not JSON", 1_000)
    assert [item["offset"] for item in headrace.ok("dead", "show", APP, DEAD, "-n", "1", *data).json] == [2]

    replay = ("dead", "replay", APP, DEAD)
    before = letters.ends("cli-orders")
    dry_run = headrace.ok(*replay, "--all", "--dry-run", *data)
    assert [row["state"] for row in dry_run.json] == ["ready", "ready", "cannot"]
    assert "2 would be written to topic cli-orders, read by: flow cli-sell" in dry_run.err
    assert letters.ends("cli-orders") == before
    assert [row["state"] for row in headrace.ok(*replay, "0/0", *data).json] == ["written"]
    assert [row["state"] for row in headrace.ok(*replay, "--all", *data).json] == [
        *("skipped", "written", "cannot")
    ]
    repeated = headrace.ok(*replay, "0/1", "--force", "--data", str(tmp_path))
    assert repeated.lines[0].split() == ["LETTER", "STATE", "CAME-FROM", "TO", "NOTE"]
    ends = letters.ends("cli-orders")[0]
    written = [
        (item.value(), dict(item.headers() or ()).get("till"))  # type: ignore[arg-type]
        for item in read(letters, "cli-orders", {0: (before[0], ends)})
    ]
    assert written == [(b"one", b"3"), (b"two", None), (b"two", None)]

    dismiss = ("dead", "dismiss", APP, DEAD)
    assert headrace.run(*dismiss, "0/2", *data).code == 2
    assert [row["state"] for row in headrace.ok(*dismiss, "0/2", "--reason", "a test", *data).json] == [
        "dismissed"
    ]
    listed = {row["topic"]: row for row in headrace.ok("dead", "list", APP, *data).json}
    counts = {state: listed[DEAD][state] for state in ("open", "replayed", "settled", "dismissed")}
    assert counts == {"open": 0, "replayed": 2, "settled": 0, "dismissed": 1}
    assert headrace.ok("dead", "show", APP, DEAD, "--state", "open", *data).json == []
    shown = headrace.ok("dead", "show", APP, DEAD, "--data", str(tmp_path))
    assert "was dismissed: a test" in shown.out


def test_invalid_command_lines_are_rejected(headrace: Headrace, letters: Cluster) -> None:
    correct = ("dead", "correct", APP, DEAD, "0/0")
    assert headrace.run(*correct).code == 2
    assert headrace.run("dead", "show", APP, DEAD, "--state", "lost").code == 2
    for words in (["0/0", "--all"], [], ["seven"], ["0/-1"]):
        assert headrace.run("dead", "replay", APP, DEAD, *words).code == 2
    unknown = headrace.run("dead", "show", APP, "orders")
    assert (unknown.code, "HR-DEAD-TOPIC" in unknown.err) == (1, True)
    missing = headrace.run("dead", "replay", APP, DEAD, "0/99")
    assert (missing.code, "HR-DEAD-LETTER" in missing.err) == (1, True)
