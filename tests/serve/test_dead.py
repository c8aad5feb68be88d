"""Dead letters over HTTP: what they say, what a replay would do, and that it does it once."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace import App
from headrace.client.cluster import Cluster
from headrace.client.declaring import ensure_declared, ensure_letters
from headrace.client.reading import read
from headrace.ops.dead.judge import Judge
from headrace.ops.dead.letters import newest_letters
from tests.serve.http import Http
from tests.serve.serving import served
from tests.support.waiting import until
from tests.views.seeing import following

Headers = Sequence[tuple[str, bytes]]


@dataclass(frozen=True)
class _Order:
    order_id: str
    pieces: int


@dataclass(frozen=True)
class _House:
    http: Http
    cluster: Cluster
    app: App
    name: str

    @property
    def topic(self) -> str:
        return f"{self.name}-orders"

    @property
    def dead(self) -> str:
        return f"{self.name}-view.dead"

    def write(self, topic: str, value: bytes, headers: Headers = (), key: bytes | None = b"k") -> None:
        producer = self.cluster.producer({"linger.ms": 0, "message.max.bytes": 100_000_000})
        producer.produce(topic, key=key, value=value, headers=[*headers] or None)
        assert producer.flush(30) == 0

    def letter(
        self,
        value: bytes,
        origin: tuple[str, int, int],
        headers: Headers = (),
        key: bytes | None = b"k",
        dead: str = "",
    ) -> None:
        """As a follower writes one."""
        dead = dead or self.dead
        ensure_letters(self.cluster, dead, [self.topic])
        told = zip(("topic", "partition", "offset"), map(str, origin), strict=True)
        errors = [(f"__headrace.errors.{name}", text.encode()) for name, text in told]
        reason = ("__headrace.errors.message", b"pieces: not a number")
        self.write(dead, value, [*headers, *errors, reason], key)

    def records(self, topic: str = "") -> list[tuple[bytes | None, bytes | None, dict[str, bytes]]]:
        topic = topic or self.topic
        ranges = {one: (0, end) for one, end in self.cluster.ends(topic).items()}
        return [
            (one.key(), one.value(), dict(one.headers() or ()))  # type: ignore[arg-type]
            for one in read(self.cluster, topic, ranges)
        ]

    def letters(self, **asked: Any) -> Any:
        return self.http.get(f"/v1/dead/{self.dead}/letters", **asked).expect(200)

    def replay(self, letters: Any = "all", dead: str = "", **more: Any) -> Any:
        reply = self.http.post(f"/v1/dead/{dead or self.dead}/replay", {"letters": letters, **more})
        assert reply.status in (200, 202), reply.body
        return until(lambda: self._ended(dead), "the replay")

    def _ended(self, dead: str = "") -> Any:
        told = self.http.get(f"/v1/dead/{dead or self.dead}/replay").expect(200)
        return told if told["state"] != "running" else None


@pytest.fixture
def house(
    cluster: Cluster, fresh: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[_House]:
    name = fresh("dead")
    app = App(name)
    orders = app.topic(f"{name}-orders", _Order, key="order_id")
    app.view(f"{name}-view", orders)
    ensure_declared(cluster, orders, orders.name, 2)
    newest = app.table(f"{name}-newest", _Order, key="order_id")
    ensure_declared(cluster, newest, newest.name, 1)
    with served(app, cluster, tmp_path_factory.mktemp("dead")) as http:
        yield _House(http, cluster, app, name)


def test_what_does_not_fit_is_told_with_its_bytes_and_written_back_as_it_came(
    house: _House, tmp_path: Path
) -> None:
    house.write(house.topic, b'{"order_id": "o1", "pieces": "many"}', [("till", b"3")])
    with following(house.cluster, house.app.views[0], [], tmp_path) as followed:
        until(lambda: followed.follower.status.dead == 1, "the letter")
    (letter,) = house.letters()["letters"]
    assert letter["value"] == '{"order_id": "o1", "pieces": "many"}'
    assert "pieces" in letter["reason"]
    origin = letter["origin"]
    assert (origin["topic"], origin["offset"], letter["replayed"]) == (house.topic, 0, None)
    assert letter["headers"] == [{"name": "till", "value": "3", "value_bytes": 1}]
    (listed,) = house.http.get("/v1/dead").expect(200)["topics"]
    assert (listed["topic"], listed["of"], listed["letters"]) == (house.dead, f"{house.name}-view", 1)

    tried = house.replay(dry_run=True)
    assert (tried["totals"]["ready"], tried["totals"]["written"]) == (1, 0)
    assert tried["results"][0]["unfit"]
    assert f"view {house.name}-view" in tried["words"][0]
    assert "dead letter again" in tried["words"][1]
    assert len(house.records()) == 1

    done = house.replay([{"partition": 0, "offset": 0}])
    assert done["totals"]["written"] == 1
    (_, _, before), (key, value, headers) = house.records()
    assert (key, value) == (b"k", b'{"order_id": "o1", "pieces": "many"}')
    assert before == {"till": b"3"}
    assert headers.pop("__headrace.replay.at").endswith(b"Z")
    assert headers == {
        "till": b"3",
        "__headrace.replay.letter": f"{house.dead}/0/0".encode(),
        "__headrace.replay.origin": f"{house.topic}/{origin['partition']}/0".encode(),
    }
    to = done["results"][0]["to"]
    assert (to["topic"], to["partition"], to["offset"]) == (house.topic, origin["partition"], 1)
    assert house.letters()["letters"][0]["replayed"]["to"] == to


def test_a_letter_is_written_back_once_unless_it_is_asked_for_again(house: _House) -> None:
    house.letter(b"{}", (house.topic, 0, 7))
    house.letter(b"{}", (house.topic, 0, 7))
    house.letter(b"{}", (house.topic, 1, 7))
    first = house.replay()
    assert [one["state"] for one in first["results"]] == ["written", "already", "written"]
    assert "same record" in first["results"][1]["why"]
    second = house.replay()
    assert second["totals"]["already"] == 3
    assert second["results"][0]["to"] == first["results"][0]["to"]
    assert len(house.records()) == 2
    again = house.replay([{"partition": 0, "offset": 0}], again=True)
    assert again["totals"]["written"] == 1
    assert len(house.records()) == 3
    assert house.http.get("/v1/dead").expect(200)["topics"][0]["replayed"] == 2


def test_what_cannot_be_written_back_is_said_with_the_reason_and_the_rest_is(house: _House) -> None:
    large = b"x" * 3_000_000
    house.letter(b"gone", (f"{house.name}-other", 0, 1))
    house.letter(large, (house.topic, 0, 2))
    house.write(house.dead, b"row", [("__headrace.errors.exception", b"RowWithoutKey")])
    house.write(house.dead, b"stranger")
    house.letter(b"inside", (f"headrace.replays.{house.name}", 0, 0))
    house.letter(b"{}", (house.topic, 0, 3))
    for how in ({"dry_run": True}, {}):
        told = house.replay(**how)
        assert [one["state"] for one in told["results"][:5]] == ["cannot"] * 5
        whys = [one["why"] for one in told["results"]]
        assert "does not declare" in whys[0]
        assert "bytes" in whys[1]
        assert "no key" in whys[2]
        assert "does not say" in whys[3]
        assert "does not declare" in whys[4]
        assert told["totals"]["cannot"] == 5
    assert [value for _, value, _ in house.records()] == [b"{}"]
    shown = house.letters()["letters"]
    assert [bool(one["cannot"]) for one in shown] == [False, True, True, True, False, True]
    assert (shown[4]["value_bytes"], shown[4]["value_cut"], len(shown[4]["value"])) == (
        3_000_000,
        True,
        16_384,
    )


@pytest.mark.parametrize("is_known", [True, False])
def test_a_record_that_the_log_does_not_take_keeps_none_of_its_neighbours_back(
    is_known: bool, house: _House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic that is kept by key takes no record without one. It may have become one a moment ago."""
    if not is_known:
        target = Judge.target
        monkeypatch.setattr(
            Judge, "target", lambda self, name: dataclasses.replace(target(self, name), by_key=False)
        )
    topic = f"{house.name}-newest"
    dead = f"{topic}.DLT"
    for number in range(5):
        key = None if number == 2 else b"k%d" % number
        house.letter(b"%d" % number, (topic, 0, number), key=key, dead=dead)
    done = house.replay(dead=dead)
    assert [one["state"] for one in done["results"]] == ["written", "written", "cannot", "written", "written"]
    assert ("kept by key" if is_known else "the log refuses it") in done["results"][2]["why"]
    assert [value for _, value, _ in house.records(topic)] == [b"0", b"1", b"3", b"4"]


def test_a_record_that_is_dead_again_and_again_has_the_headers_of_its_last_replay_alone(
    house: _House,
) -> None:
    house.write(house.topic, b"{}")
    (number,) = [one for one, end in house.cluster.ends(house.topic).items() if end]
    # Between two of them is the end of a transaction.
    for turn, offset in enumerate((0, 1, 3)):
        house.letter(b"{}", (house.topic, number, offset))
        done = house.replay([{"partition": 0, "offset": turn}])
        assert done["totals"]["written"] == 1
    ranges = {one: (0, end) for one, end in house.cluster.ends(house.topic).items()}
    named = [[name for name, _ in one.headers() or ()] for one in read(house.cluster, house.topic, ranges)]
    assert named[0] == []
    assert [sorted(one) for one in named[1:]] == [
        ["__headrace.replay.at", "__headrace.replay.letter", "__headrace.replay.origin"]
    ] * 3


def test_letters_of_spring_are_read_and_written_back_without_its_headers(house: _House) -> None:
    topic = f"{house.topic}-dlt"
    house.cluster.ensure_topic(topic, 1)
    headers = [
        ("trace", b"abc"),
        ("kafka_dlt-original-topic", house.topic.encode()),
        ("kafka_dlt-original-partition", struct.pack(">i", 1)),
        ("kafka_dlt-original-offset", struct.pack(">q", 42)),
        ("kafka_dlt-exception-fqcn", b"java.lang.IllegalStateException"),
        ("kafka_dlt-exception-message", b"no such customer"),
    ]
    house.write(topic, b"\xff\x00", headers)
    path = f"/v1/dead/{topic}"
    (letter,) = house.http.get(f"{path}/letters").expect(200)["letters"]
    assert letter["origin"] == {"topic": house.topic, "partition": 1, "offset": 42}
    assert (letter["reason"], letter["value_base64"]) == ("no such customer", "/wA=")
    house.http.post(f"{path}/replay", {"letters": "all"})
    until(lambda: house.http.get(f"{path}/replay").json["state"] == "done", "the replay")
    ((_, value, kept),) = house.records()
    assert (value, kept["trace"]) == (b"\xff\x00", b"abc")
    assert not any(name.startswith("kafka_dlt") for name in kept)
    assert house.cluster.ends(house.topic)[1] > 0


def _spring(origin: str) -> Headers:
    return [
        ("kafka_dlt-original-topic", origin.encode()),
        ("kafka_dlt-original-partition", struct.pack(">i", 0)),
        ("kafka_dlt-original-offset", struct.pack(">q", 0)),
    ]


@pytest.mark.parametrize("end", [".DLT", "-dlt"])
def test_a_letter_of_spring_goes_back_to_the_topic_of_its_name_and_to_no_other(
    house: _House, end: str
) -> None:
    victim, dead = f"{house.name}-newest", f"{house.topic}{end}"
    house.cluster.ensure_topic(dead, 1)
    house.write(dead, b"forged", _spring(victim))
    house.write(dead, b"honest", _spring(house.topic))
    shown = house.http.get(f"/v1/dead/{dead}/letters").expect(200)["letters"]
    assert [bool(letter["cannot"]) for letter in shown] == [False, True]
    for again in ({"dry_run": True}, {}):
        first, _ = house.replay(dead=dead, **again)["results"]
        assert first["state"] == "cannot"
        assert f"come from {house.topic}, and this one names '{victim}'" in first["why"]
    assert house.records(victim) == []
    assert [value for _, value, _ in house.records()] == [b"honest"]


def test_a_letter_of_a_view_goes_back_to_the_topic_of_the_view_and_to_no_other(house: _House) -> None:
    house.letter(b"forged", (f"{house.name}-newest", 0, 0))
    (told,) = house.replay()["results"]
    assert (told["state"], told["to"]) == ("cannot", None)
    assert house.records(f"{house.name}-newest") == []


def test_pages_of_letters_have_each_once_the_newest_first(house: _House) -> None:
    for number in range(7):
        house.letter(b"%d" % number, (house.topic, 0, number))
    found, page = [], house.letters(limit=3)
    while True:
        found += [one["value"] for one in page["letters"]]
        if page["next"] is None:
            break
        page = house.http.get(page["next"]).expect(200)
    assert found == ["6", "5", "4", "3", "2", "1", "0"]


def test_a_page_of_large_letters_ends_earlier_and_none_is_missed(house: _House) -> None:
    for number in range(9):
        house.letter(b"%d" % number + b"x" * 1_000, (house.topic, 0, number))
    found, before = [], None
    while True:
        page = newest_letters(house.cluster, house.dead, 9, before, bytes_max=3_500)
        assert 0 < len(page.letters) <= 3
        found += [(one.value or b"")[:1] for one in page.letters]
        if page.at_end:
            break
        before = page.before
    assert found == [b"%d" % number for number in reversed(range(9))]


def test_a_replay_is_called_off_between_pieces_and_gone_on_with(house: _House) -> None:
    for number in range(6):
        house.letter(b"%d" % number, (house.topic, 0, number))
    path = f"/v1/dead/{house.dead}"
    begun = house.http.post(f"{path}/replay", {"letters": "all", "per_s": 0.2}).expect(202)
    assert begun["progress"]["of"] >= 6
    busy = house.http.post(f"{path}/replay", {"letters": "all"}).expect(409)
    assert (busy["code"], busy["replay"]) == ("HR-SERVE-REPLAYING", begun["replay"])
    house.http.ask("POST", f"{path}/cancel").expect(200)
    ended = until(house._ended, "the end")
    assert ended["state"] == "cancelled"
    assert 0 < ended["totals"]["written"] < 6
    assert house.replay()["totals"]["written"] == 6 - ended["totals"]["written"]
    assert sorted(value or b"" for _, value, _ in house.records()) == [b"%d" % one for one in range(6)]


def test_requests_that_make_no_sense_are_refused(house: _House) -> None:
    house.letter(b"{}", (house.topic, 0, 0))
    path = f"/v1/dead/{house.dead}"
    assert house.http.get("/v1/dead/other/letters").expect(404)["code"] == "HR-DEAD-TOPIC"
    for body in (
        {"letters": []},
        {"letters": "some"},
        {"letters": "all", "per_s": 0},
        {},
        [],
        {"letters": 1},
    ):
        assert house.http.post(f"{path}/replay", body).expect(400)["code"] == "HR-SERVE-REQUEST"
    failed = house.replay([{"partition": 0, "offset": 99}])
    assert (failed["state"], failed["error"]["code"]) == ("failed", "HR-DEAD-LETTER")
    assert house.http.get(f"{path}/letters", cursor="nonsense").expect(400)["code"] == "HR-SERVE-CURSOR"
