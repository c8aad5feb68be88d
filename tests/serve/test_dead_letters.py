"""Dead letters over HTTP: their content, the dry run of a replay, and the replay, each once."""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from faults.serve.local_server import served
from faults.views.follower_thread import following
from faults.wait import until
from headrace import App
from headrace.client.cluster import Cluster
from headrace.client.declared_topics import ensure_declared
from headrace.client.records import read
from headrace.ops.dead.replay_rules import ReplayRules
from tests.serve.dead_letter_app import DeadLetterApp, Headers, Order


def test_a_dead_letter_has_the_bytes_of_its_record_and_replay_writes_them_unchanged(
    dead_letters: DeadLetterApp, tmp_path: Path
) -> None:
    dead_letters.write(dead_letters.topic, b'{"order_id": "o1", "pieces": "many"}', [("till", b"3")])
    with following(dead_letters.cluster, dead_letters.app.views[0], [], tmp_path) as followed:
        until(lambda: followed.follower.status.dead == 1, "the letter")
    (letter,) = dead_letters.letters()["letters"]
    assert letter["value"] == '{"order_id": "o1", "pieces": "many"}'
    assert (letter["state"], letter["reason"], "pieces" in letter["message"]) == ("open", "schema", True)
    origin = letter["origin"]
    assert (origin["topic"], origin["offset"], letter["change"]) == (dead_letters.topic, 0, None)
    assert letter["headers"] == [{"name": "till", "value": "3", "value_bytes": 1}]
    (listed,) = dead_letters.http.get("/v1/dead").expect(200)["topics"]
    assert (listed["topic"], listed["of"], listed["open"]) == (
        dead_letters.dead,
        f"{dead_letters.name}-view",
        1,
    )

    tried = dead_letters.replay(dry_run=True)
    assert (tried["totals"]["ready"], tried["totals"]["written"]) == (1, 0)
    assert tried["results"][0]["unfit"]
    assert f"view {dead_letters.name}-view" in tried["words"][0]
    assert "rejected again" in tried["words"][1]
    (reader,) = tried["results"][0]["readers"]
    assert (reader["reader"], reader["outcome"]) == (f"view {dead_letters.name}-view", "rejects")
    assert len(dead_letters.records()) == 1

    done = dead_letters.replay([{"partition": 0, "offset": 0}])
    assert done["totals"]["written"] == 1
    (_, _, before), (key, value, headers) = dead_letters.records()
    assert (key, value) == (b"k", b'{"order_id": "o1", "pieces": "many"}')
    assert before == {"till": b"3"}
    assert headers.pop("__headrace.replay.at").endswith(b"Z")
    assert headers == {
        "till": b"3",
        "__headrace.replay.letter": f"{dead_letters.dead}/0/0".encode(),
        "__headrace.replay.origin": f"{dead_letters.topic}/{origin['partition']}/0".encode(),
    }
    to = done["results"][0]["to"]
    assert (to["topic"], to["partition"], to["offset"]) == (dead_letters.topic, origin["partition"], 1)
    (letter,) = dead_letters.letters()["letters"]
    assert (letter["state"], letter["change"]["to"]) == ("replayed", to)


def test_a_letter_is_replayed_once_unless_it_is_forced(dead_letters: DeadLetterApp) -> None:
    dead_letters.letter(b"{}", (dead_letters.topic, 0, 7))
    dead_letters.letter(b"{}", (dead_letters.topic, 0, 7))
    dead_letters.letter(b"{}", (dead_letters.topic, 1, 7))
    assert [len(letter["refusals"]) for letter in dead_letters.letters()["letters"]] == [1, 2]
    first = dead_letters.replay()
    assert [result["state"] for result in first["results"]] == ["written", "written"]
    second = dead_letters.replay()
    assert second["totals"]["skipped"] == 2
    assert second["results"][0]["to"] == first["results"][0]["to"]
    assert len(dead_letters.records()) == 2
    named = [{"partition": 0, "offset": 0}, {"partition": 0, "offset": 1}]
    forced = dead_letters.replay(named, force=True)
    assert [result["state"] for result in forced["results"]] == ["written", "skipped"]
    assert "same record" in forced["results"][1]["why"]
    assert len(dead_letters.records()) == 3
    assert dead_letters.http.get("/v1/dead").expect(200)["topics"][0]["replayed"] == 2


def test_a_letter_that_cannot_be_replayed_has_a_reason_and_other_letters_are_replayed(
    dead_letters: DeadLetterApp,
) -> None:
    large = b"x" * 3_000_000
    dead_letters.letter(b"gone", (f"{dead_letters.name}-other", 0, 1))
    dead_letters.letter(large, (dead_letters.topic, 0, 2))
    dead_letters.write(dead_letters.dead, b"row", [("__headrace.errors.exception", b"RowWithoutKey")])
    dead_letters.write(dead_letters.dead, b"stranger")
    dead_letters.letter(b"inside", (f"headrace.replays.{dead_letters.name}", 0, 0))
    dead_letters.letter(b"{}", (dead_letters.topic, 0, 3))
    for options in ({"dry_run": True}, {}):
        outcome = dead_letters.replay(**options)
        assert [result["state"] for result in outcome["results"][:5]] == ["cannot"] * 5
        reasons = [result["why"] for result in outcome["results"]]
        assert "does not declare" in reasons[0]
        assert "bytes" in reasons[1]
        assert "without a key" in reasons[2]
        assert "does not name" in reasons[3]
        assert "does not declare" in reasons[4]
        assert outcome["totals"]["cannot"] == 5
    assert [value for _, value, _ in dead_letters.records()] == [b"{}"]
    letters = dead_letters.letters()["letters"]
    assert [bool(letter["cannot"]) for letter in letters] == [False, True, True, True, False, True]
    assert (letters[4]["value_bytes"], letters[4]["value_cut"], len(letters[4]["value"])) == (
        3_000_000,
        True,
        16_384,
    )


@pytest.mark.parametrize("is_known", [True, False])
def test_a_record_that_the_log_refuses_does_not_prevent_the_replay_of_others(
    is_known: bool, dead_letters: DeadLetterApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compacted topic refuses records without a key. ``is_known`` is whether the server already knows of it."""
    if not is_known:
        target = ReplayRules.target
        monkeypatch.setattr(
            ReplayRules, "target", lambda self, name: dataclasses.replace(target(self, name), by_key=False)
        )
    topic = f"{dead_letters.name}-newest"
    dead = f"{topic}.DLT"
    for number in range(5):
        key = None if number == 2 else b"k%d" % number
        dead_letters.letter(b"%d" % number, (topic, 0, number), key=key, dead=dead)
    done = dead_letters.replay(dead=dead)
    assert [result["state"] for result in done["results"]] == [
        "written",
        "written",
        "cannot",
        "written",
        "written",
    ]
    assert ("is compacted" if is_known else "the log rejects it") in done["results"][2]["why"]
    assert [value for _, value, _ in dead_letters.records(topic)] == [b"0", b"1", b"3", b"4"]


def test_a_record_that_is_replayed_repeatedly_has_only_the_headers_of_its_last_replay(
    dead_letters: DeadLetterApp,
) -> None:
    dead_letters.write(dead_letters.topic, b"{}")
    (number,) = [partition for partition, end in dead_letters.cluster.ends(dead_letters.topic).items() if end]
    # The second replayed record has offset 3, because a transaction marker is at offset 2.
    for letter_offset, offset in enumerate((0, 1, 3)):
        dead_letters.letter(b"{}", (dead_letters.topic, number, offset))
        done = dead_letters.replay([{"partition": 0, "offset": letter_offset}])
        assert done["totals"]["written"] == 1
    ranges = {partition: (0, end) for partition, end in dead_letters.cluster.ends(dead_letters.topic).items()}
    header_names = [
        [name for name, _ in message.headers() or ()]
        for message in read(dead_letters.cluster, dead_letters.topic, ranges)
    ]
    assert header_names[0] == []
    assert [sorted(names) for names in header_names[1:]] == [
        ["__headrace.replay.at", "__headrace.replay.letter", "__headrace.replay.origin"]
    ] * 3


def test_spring_letters_are_replayed_without_the_headers_of_spring(dead_letters: DeadLetterApp) -> None:
    topic = f"{dead_letters.topic}-dlt"
    dead_letters.cluster.ensure_topic(topic, 1)
    headers = [
        ("trace", b"abc"),
        ("kafka_dlt-original-topic", dead_letters.topic.encode()),
        ("kafka_dlt-original-partition", struct.pack(">i", 1)),
        ("kafka_dlt-original-offset", struct.pack(">q", 42)),
        ("kafka_dlt-exception-fqcn", b"java.lang.IllegalStateException"),
        ("kafka_dlt-exception-message", b"no such customer"),
    ]
    dead_letters.write(topic, b"\xff\x00", headers)
    path = f"/v1/dead/{topic}"
    (letter,) = dead_letters.http.get(f"{path}/letters").expect(200)["letters"]
    assert letter["origin"] == {"topic": dead_letters.topic, "partition": 1, "offset": 42}
    assert (letter["reason"], letter["message"]) == ("consumer", "no such customer")
    assert letter["value_base64"] == "/wA="
    dead_letters.http.post(f"{path}/replay", {"letters": "all"})
    until(lambda: dead_letters.http.get(f"{path}/replay").json["state"] == "done", "the replay")
    ((_, value, kept),) = dead_letters.records()
    assert (value, kept["trace"]) == (b"\xff\x00", b"abc")
    assert not any(name.startswith("kafka_dlt") for name in kept)
    assert dead_letters.cluster.ends(dead_letters.topic)[1] > 0


def test_forged_headers_do_not_prevent_the_listing_of_other_letters(dead_letters: DeadLetterApp) -> None:
    dead_letters.letter(b"honest", (dead_letters.topic, 0, 1))
    prefix, huge = "__headrace.errors.", b"9" * 30
    dead_letters.write(
        dead_letters.dead,
        b"forged",
        [
            (f"{prefix}topic", dead_letters.topic.encode()),
            *((f"{prefix}{name}", huge) for name in ("partition", "offset", "generation")),
            (f"{prefix}reason", b"because"),
        ],
    )
    for build in (b"{", b'{"serves":true,"topic":"","topic_id":"","starts":{"0":' + huge + b"}}"):
        dead_letters.write(dead_letters.dead, b"build", [("__headrace.build", build)])
    state = {"letter": ["", 0, 0], "at_ms": 10**30, "job": ""}
    states_topic = f"headrace.replays.{dead_letters.name}"
    dead_letters.cluster.ensure_topic(states_topic, 1, {"cleanup.policy": "compact"})
    for value in (json.dumps(state).encode(), b"[]", b"\xff"):
        dead_letters.write(states_topic, value)
    letters = dead_letters.letters()["letters"]
    assert [letter["value"] for letter in letters] == ["build", "build", "forged", "honest"]
    assert (letters[2]["reason"], letters[2]["origin"]["offset"]) == ("unknown", None)
    assert dead_letters.http.get("/v1/dead").expect(200)["topics"][0]["open"] == 4


def _spring(origin: str) -> Headers:
    return [
        ("kafka_dlt-original-topic", origin.encode()),
        ("kafka_dlt-original-partition", struct.pack(">i", 0)),
        ("kafka_dlt-original-offset", struct.pack(">q", 0)),
    ]


@pytest.mark.parametrize("end", [".DLT", "-dlt"])
def test_a_spring_letter_is_replayed_only_to_the_topic_in_its_name(
    dead_letters: DeadLetterApp, end: str
) -> None:
    foreign_topic, dead = f"{dead_letters.name}-newest", f"{dead_letters.topic}{end}"
    dead_letters.cluster.ensure_topic(dead, 1)
    dead_letters.write(dead, b"forged", _spring(foreign_topic))
    dead_letters.write(dead, b"honest", _spring(dead_letters.topic))
    letters = dead_letters.http.get(f"/v1/dead/{dead}/letters").expect(200)["letters"]
    assert [bool(letter["cannot"]) for letter in letters] == [False, True]
    for again in ({"dry_run": True}, {}):
        first, _ = dead_letters.replay(dead=dead, **again)["results"]
        assert first["state"] == "cannot"
        assert f"come from {dead_letters.topic}, but this letter names '{foreign_topic}'" in first["why"]
    assert dead_letters.records(foreign_topic) == []
    assert [value for _, value, _ in dead_letters.records()] == [b"honest"]


def test_a_letter_of_a_view_is_replayed_only_to_the_topic_of_the_view(dead_letters: DeadLetterApp) -> None:
    dead_letters.letter(b"forged", (f"{dead_letters.name}-newest", 0, 0))
    (result,) = dead_letters.replay()["results"]
    assert (result["state"], result["to"]) == ("cannot", None)
    assert dead_letters.records(f"{dead_letters.name}-newest") == []


def test_pages_return_each_letter_once_and_the_newest_first(dead_letters: DeadLetterApp) -> None:
    for number in range(7):
        dead_letters.letter(b"%d" % number, (dead_letters.topic, 0, number))
    values, page = [], dead_letters.letters(limit=3)
    while True:
        values += [letter["value"] for letter in page["letters"]]
        if page["next"] is None:
            break
        page = dead_letters.http.get(page["next"]).expect(200)
    assert values == ["6", "5", "4", "3", "2", "1", "0"]


def test_a_page_of_large_letters_has_fewer_letters_and_the_next_page_has_the_rest(
    cluster: Cluster, fresh: Callable[[str], str], tmp_path: Path
) -> None:
    name = fresh("large")
    app = App(name)
    orders = app.topic(f"{name}-orders", Order, key="order_id")
    app.view(f"{name}-view", orders)
    ensure_declared(cluster, orders, orders.name, 1)
    with served(app, cluster, tmp_path) as http:
        shop = DeadLetterApp(http, cluster, app, name)
        for number in range(9):
            shop.letter(b"%d" % number + b"x" * 3_000_000, (shop.topic, 0, number))
        values, page = [], shop.letters(limit=9)
        while True:
            assert 0 < len(page["letters"]) < 9
            values += [letter["value"][:1] for letter in page["letters"]]
            if page["next"] is None:
                break
            page = http.get(page["next"]).expect(200)
    assert values == [str(number) for number in reversed(range(9))]


def test_a_replay_is_cancelled_between_transactions_and_resumed(dead_letters: DeadLetterApp) -> None:
    for number in range(6):
        dead_letters.letter(b"%d" % number, (dead_letters.topic, 0, number))
    path = f"/v1/dead/{dead_letters.dead}"
    begun = dead_letters.http.post(f"{path}/replay", {"letters": "all", "per_s": 0.2}).expect(202)
    assert begun["progress"]["of"] >= 6
    busy = dead_letters.http.post(f"{path}/replay", {"letters": "all"}).expect(409)
    assert (busy["code"], busy["job"]) == ("HR-SERVE-REPLAYING", begun["job"])
    dead_letters.http.request("POST", f"{path}/cancel").expect(200)
    ended = until(dead_letters.ended, "the end")
    assert ended["state"] == "cancelled"
    assert 0 < ended["totals"]["written"] < 6
    assert dead_letters.replay()["totals"]["written"] == 6 - ended["totals"]["written"]
    assert sorted(value or b"" for _, value, _ in dead_letters.records()) == [
        b"%d" % number for number in range(6)
    ]


def test_invalid_requests_are_refused(dead_letters: DeadLetterApp) -> None:
    dead_letters.letter(b"{}", (dead_letters.topic, 0, 0))
    path = f"/v1/dead/{dead_letters.dead}"
    assert dead_letters.http.get("/v1/dead/other/letters").expect(404)["code"] == "HR-DEAD-TOPIC"
    for body in (
        {"letters": []},
        {"letters": "some"},
        {"letters": "all", "per_s": 0},
        {},
        [],
        {"letters": 1},
    ):
        assert dead_letters.http.post(f"{path}/replay", body).expect(400)["code"] == "HR-SERVE-REQUEST"
    failed = dead_letters.replay([{"partition": 0, "offset": 99}])
    assert (failed["state"], failed["error"]["code"]) == ("failed", "HR-DEAD-LETTER")
    assert (
        dead_letters.http.get(f"{path}/letters", cursor="nonsense").expect(400)["code"] == "HR-SERVE-CURSOR"
    )
