"""``headrace dead``: letters from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.client.cluster import Cluster
from headrace.client.declaring import ensure_letters
from headrace.client.reading import read
from tests.cli.runner import Headrace
from tests.support.server import Server

APP = "tests.cli.shop:app"
DEAD = "cli-sell.dead"


@pytest.fixture(scope="module")
def letters(embedded: Server) -> Cluster:
    """Two of the flow's input, of which one is still in the log with its headers; and a row without a key."""
    cluster = Cluster(embedded.bootstrap, timeout_s=5.0)
    cluster.ensure_topic("cli-orders", 1)
    ensure_letters(cluster, DEAD, ["cli-orders"])
    producer = cluster.producer({"linger.ms": 0})
    producer.produce("cli-orders", key=b"k", value=b"one", headers=[("till", b"3")])
    for number, value in enumerate((b"one", b"two")):
        told = {"message": "not JSON", "topic": "cli-orders", "partition": 0, "offset": number * 1_000}
        headers = [(f"__headrace.errors.{name}", str(text).encode()) for name, text in told.items()]
        producer.produce(DEAD, key=b"k", value=value, headers=[*headers])
    producer.produce(DEAD, value=b"\xff", headers=[("__headrace.errors.exception", b"RowWithoutKey")])
    assert producer.flush(30) == 0
    return cluster


def test_letters_are_listed_shown_tried_and_written_back_once(
    headrace: Headrace, letters: Cluster, tmp_path: Path
) -> None:
    data = ("--data", str(tmp_path), "--json")
    listed = {row["topic"]: row for row in headrace.ok("dead", "list", APP, *data).json}
    assert (listed[DEAD]["kind"], listed[DEAD]["letters"], listed[DEAD]["replayed"]) == ("flow", 3, 0)
    assert listed["products.dead"]["of"] == "products"

    shown = headrace.ok("dead", "show", APP, DEAD, *data).json
    assert [(one["offset"], one.get("value")) for one in shown] == [(2, None), (1, "two"), (0, "one")]
    assert (shown[0]["value_base64"], bool(shown[0]["cannot"])) == ("/w==", True)
    (one,) = headrace.ok("dead", "show", APP, DEAD, "0/1", *data).json
    assert (one["reason"], one["origin"]["offset"]) == ("not JSON", 1_000)

    replay = ("dead", "replay", APP, DEAD)
    before = letters.ends("cli-orders")
    tried = headrace.ok(*replay, "--all", "--dry-run", *data)
    assert [row["state"] for row in tried.json] == ["ready", "ready", "cannot"]
    assert "2 would be written to topic cli-orders, for all who read there: flow cli-sell" in tried.err
    assert letters.ends("cli-orders") == before
    assert [row["state"] for row in headrace.ok(*replay, "0/0", *data).json] == ["written"]
    assert [row["state"] for row in headrace.ok(*replay, "--all", *data).json] == [
        *("already", "written", "cannot")
    ]
    again = headrace.ok(*replay, "0/1", "--again", "--data", str(tmp_path))
    assert again.lines[0].split() == ["LETTER", "STATE", "CAME-FROM", "TO", "NOTE"]
    ends = letters.ends("cli-orders")[0]
    found = [
        (one.value(), dict(one.headers() or ()).get("till"))  # type: ignore[arg-type]
        for one in read(letters, "cli-orders", {0: (before[0], ends)})
    ]
    assert found == [(b"one", b"3"), (b"two", None), (b"two", None)]


def test_lines_that_make_no_sense_are_refused(headrace: Headrace, letters: Cluster) -> None:
    for words in (["0/0", "--all"], [], ["seven"], ["0/-1"]):
        assert headrace.run("dead", "replay", APP, DEAD, *words).code == 2
    unknown = headrace.run("dead", "show", APP, "orders")
    assert (unknown.code, "HR-DEAD-TOPIC" in unknown.err) == (1, True)
    missing = headrace.run("dead", "replay", APP, DEAD, "0/99")
    assert (missing.code, "HR-DEAD-LETTER" in missing.err) == (1, True)
