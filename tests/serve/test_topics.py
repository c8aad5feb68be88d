"""Topics over HTTP: records to read, from an offset or a time; records to write, once."""

from __future__ import annotations

import concurrent.futures
import http.client
import itertools
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.declaring import ensure_declared
from headrace.client.reading import read
from headrace.serve.tokens import TokenBook, tokens_path
from tests.serve.http import Http
from tests.serve.serving import Process, served, token_for
from tests.serve.shop import shop
from tests.serve.shops import Shops, several
from tests.support.embedded import start_headrace
from tests.support.server import Server
from tests.support.waiting import until
from tests.views.seeing import produce

Fresh = Callable[[str], str]


@pytest.fixture(scope="module")
def shops(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shops]:
    with several("topics", 5, cluster, tmp_path_factory.mktemp("topics"), partitions=2) as made:
        yield made


@pytest.fixture(scope="module")
def untouched(shops: Shops) -> str:
    """A topic that nothing is ever written to."""
    return shops.take().topics[1].name


@pytest.fixture
def app(cluster: Cluster, fresh: Fresh) -> App:
    made = shop(fresh("topics"))
    for topic in made.topics:
        ensure_declared(cluster, topic, topic.name, 2)
    return made


def order(number: int, pieces: int = 1) -> dict[str, object]:
    return {"value": {"order_id": f"o{number}", "product_id": "p", "pieces": pieces}}


def in_log(cluster: Cluster, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    ranges = {number: (0, end) for number, end in cluster.ends(topic, committed=False).items()}
    return [(one.key(), one.value()) for one in read(cluster, topic, ranges)]


def test_records_are_read_page_by_page_from_the_start_an_offset_or_a_time(shops: Shops) -> None:
    http, app = shops.http, shops.take()
    topic = app.topics[1].name
    path = f"/v1/topics/{topic}/records"
    http.post(path, {"records": [order(one) for one in range(30)]}).expect(200)
    between = time.time()
    time.sleep(0.05)
    late = http.post(path, {"records": [order(one) for one in range(30, 40)]}).expect(200)
    found, told = [], http.get(path, limit=7).expect(200)
    while not told["at_end"]:
        found += told["records"]
        assert len(told["records"]) <= 7
        told = http.get(told["next"]).expect(200)
    found += told["records"]
    assert {one["value"]["order_id"] for one in found} == {f"o{one}" for one in range(40)}
    places = [(one["partition"], one["offset"]) for one in found]
    assert len(set(places)) == 40
    for number in range(2):
        mine = [offset for partition, offset in places if partition == number]
        assert mine == list(range(len(mine)))
    assert found[0]["key"] == found[0]["value"]["order_id"]
    # What comes later is behind the last page.
    assert http.get(told["next"]).expect(200)["records"] == []
    http.post(path, order(99)).expect(200)
    assert [one["value"]["order_id"] for one in http.get(told["next"]).expect(200)["records"]] == ["o99"]
    place = late["records"][0]
    one = http.get(path, partition=place["partition"], offset=place["offset"], limit=1).expect(200)
    assert one["records"][0]["value"]["order_id"] == "o30"
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(between)) + f"{between % 1:.3f}"[1:] + "Z"
    assert len(http.get(path, time=stamp).expect(200)["records"]) == 11
    # To the log, -1 would be the end, -2 the start, and what is less mean nothing.
    for before in ("1969-12-31T23:59:59.999Z", "1969-12-31T23:59:59.998Z", "0001-01-01T00:00:00Z"):
        assert len(http.get(path, time=before).expect(200)["records"]) == 41
    assert http.get(path, time="9999-12-31T23:59:59Z").expect(200)["records"] == []
    described = http.get(f"/v1/topics/{topic}").expect(200)
    assert sum(one["end"] for one in described["partitions"]) == 41
    assert [one["name"] for one in described["fields"]] == ["order_id", "product_id", "pieces"]
    listed = http.get("/v1/topics").expect(200)["topics"]
    assert {one["topic"] for one in listed} >= {one.name for one in app.topics}


def test_what_is_no_json_is_given_in_base64_and_what_is_gone_is_told(cluster: Cluster, shops: Shops) -> None:
    http, topic = shops.http, shops.take().topics[1].name
    produce(cluster, topic, [(b"\xff", b"\xfe"), (None, b'{"a": 1}'), (b"k", None)], partition=0)
    path = f"/v1/topics/{topic}/records"
    first, second, third = http.get(path, partition=0).expect(200)["records"]
    assert (first["key_base64"], first["value_base64"]) == ("/w==", "/g==")
    assert (second["key"], second["value"]) == (None, {"a": 1})
    assert (third["key"], third["value"]) == ("k", None)
    begin = http.get(path, partition=0, limit=1).expect(200)["next"]
    cluster.admin().delete_records([TopicPartition(topic, 0, 2)])[TopicPartition(topic, 0, 2)].result(30)
    gone = http.get(begin).expect(410)
    assert (gone["code"], gone["start"]) == ("HR-SERVE-GONE", 2)
    assert "offsets 1 to 1" in gone["detail"]
    assert http.get(path, partition=0, offset=99).expect(400)["code"] == "HR-SERVE-REQUEST"
    for wrong in (
        {"offset": 1},
        {"partition": 9},
        {"time": "now"},
        {"cursor": "x"},
        {"partition": 0, "cursor": "x"},
    ):
        assert http.get(path, **wrong).status == 400


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"{", "not JSON"),
        (b"[]", "an object with a value"),
        (b'{"records": []}', "1 to 1000 records"),
        (b'{"records": {}}', "1 to 1000 records"),
        (b'{"value": 1}', "expected an object"),
        (b'{"value": {"order_id": "o", "product_id": "p"}}', "value.pieces: missing"),
        (b'{"value": {"order_id": "o", "product_id": "p", "pieces": 1.5}}', "a whole number"),
        (b'{"value": {"order_id": "o", "product_id": "p", "pieces": 1, "x": 1}}', "no field 'x'"),
        (b'{"value": {"order_id": "o", "product_id": "p", "pieces": 1}, "key": "o"}', "the key follows"),
        (b'{"value": null, "key": {"order_id": "o"}}', "never deleted"),
        (b'{"value": {"order_id": "o", "order_id": "p", "pieces": 1}}', "there twice"),
        (b'{"value": {}, "headers": {"__headrace.x": "y"}}', "headers"),
        (b'{"value": ' + b"[" * 5_000 + b"}", "nested deeper"),
        (b'{"value": {"order_id": "o", "product_id": "p", "pieces": NaN}}', "not JSON"),
        (b'{"value": {"order_id": "o", "product_id": "p", "pieces": 1e999}}', "a whole number"),
        (b'{"value": {"order_id": "\xff", "product_id": "p", "pieces": 1}}', "not UTF-8"),
        (b'{"value": {"order_id": "\\ud800", "product_id": "p", "pieces": 1}}', "surrogate"),
        (b"", "not JSON"),
    ],
)
def test_what_does_not_fit_is_refused_as_a_whole_before_anything_is_written(
    cluster: Cluster, shops: Shops, untouched: str, body: bytes, says: str
) -> None:
    told = shops.http.post(f"/v1/topics/{untouched}/records", body).expect(400)
    assert says in told["detail"]
    assert in_log(cluster, untouched) == []


def test_of_several_records_one_that_does_not_fit_keeps_all_from_being_written(
    cluster: Cluster, shops: Shops, untouched: str
) -> None:
    mixed = {"records": [order(1), {"value": {"order_id": "o"}}]}
    told = shops.http.post(f"/v1/topics/{untouched}/records", mixed).expect(400)
    assert "records[1]" in told["detail"]
    assert in_log(cluster, untouched) == []


def test_a_request_with_a_key_is_carried_out_once_however_often_it_comes(
    cluster: Cluster, app: App, tmp_path: Path
) -> None:
    topic = app.topics[1].name
    path = f"/v1/topics/{topic}/records"
    body = {"records": [order(1), order(2)]}
    with served(app, cluster, tmp_path) as http, concurrent.futures.ThreadPoolExecutor(16) as pool:
        asked = [pool.submit(http.post, path, body, headers={"Idempotency-Key": "k1"}) for _ in range(50)]
        others = [
            pool.submit(http.post, path, order(one), headers={"Idempotency-Key": f"other-{one}"})
            for one in range(20, 40)
        ]
        replies = [one.result() for one in asked]
        assert {one.status for one in replies} == {200}
        assert len({one.body for one in replies}) == 1
        assert sum("idempotency-replayed" not in one.headers for one in replies) == 1
        for one in others:
            one.result().expect(200)
        told = http.post(path, order(3), headers={"Idempotency-Key": "k1"}).expect(422)
        assert told["code"] == "HR-SERVE-KEY-REUSED"
        # Another topic's keys are others.
        product = {"value": {"product_id": "p", "name": "n", "price": 1}}
        http.post(
            f"/v1/topics/{app.topics[0].name}/records", product, headers={"Idempotency-Key": "k1"}
        ).expect(200)
        first = replies[0].body
    counts = Counter(key for key, _ in in_log(cluster, topic))
    assert counts == Counter(dict.fromkeys([b"o1", b"o2", *(f"o{one}".encode() for one in range(20, 40))], 1))
    # A server that is started again knows it, also if it has lost its copy; and so does one that runs beside it.
    with served(app, cluster, tmp_path) as http, served(app, cluster, tmp_path / "other") as beside:
        for server in (http, beside, http, beside):
            assert server.post(path, body, headers={"Idempotency-Key": "k1"}).body == first
        http.post(path, order(50), headers={"Idempotency-Key": "k50"}).expect(200)
        again = beside.post(path, order(50), headers={"Idempotency-Key": "k50"})
        assert again.headers["idempotency-replayed"] == "true"
    assert Counter(key for key, _ in in_log(cluster, topic))[b"o50"] == 1


def test_a_key_belongs_to_its_token_and_not_to_the_next_token_of_that_name(
    cluster: Cluster, app: App, tmp_path: Path
) -> None:
    path = f"/v1/topics/{app.topics[1].name}/records"
    key = {"Idempotency-Key": "k1"}
    first = token_for(tmp_path, "till", "write:topic:*")
    with served(app, cluster, tmp_path) as http:
        Http(http.port, first).post(path, order(1), headers=key).expect(200)
        assert "idempotency-replayed" in Http(http.port, first).post(path, order(1), headers=key).headers
        TokenBook(tokens_path(tmp_path)).revoke("till")
        second = Http(http.port, token_for(tmp_path, "till", "write:topic:*"))
        until(lambda: second.get("/v1/topics").status == 200, "the token to be known")
        for body in (order(2), order(2)):
            second.post(path, body, headers=key).expect(200)
    assert Counter(key for key, _ in in_log(cluster, app.topics[1].name)) == Counter([b"o1", b"o2"])


class _Forgetful:
    """A producer that fails now and then, after its work, without a word about why: as the client does when it is
    fenced while it tells what became of records.
    """

    def __init__(self, producer: Producer, flushed: Iterator[int]) -> None:
        self._producer = producer
        self._flushed = flushed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def flush(self, timeout: float) -> int:
        left = self._producer.flush(timeout)
        if next(self._flushed) in (1, 2, 4):
            raise SystemError("returned NULL without setting an exception")
        return left


def test_a_client_that_does_not_say_why_it_failed_is_tried_again_and_nothing_is_written_twice(
    cluster: Cluster, app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed, made = itertools.count(1), Cluster.producer

    def producer(self: Cluster, extra: dict[str, Any]) -> Any:
        found = made(self, extra)
        return _Forgetful(found, flushed) if "transactional.id" in extra else found

    monkeypatch.setattr(Cluster, "producer", producer)
    topic = app.topics[1].name
    with served(app, cluster, tmp_path) as http:
        reply = http.post(f"/v1/topics/{topic}/records", order(1), headers={"Idempotency-Key": "k"})
        reply.expect(200)
        again = http.post(f"/v1/topics/{topic}/records", order(1), headers={"Idempotency-Key": "k"})
        assert again.body == reply.body
    assert next(flushed) > 5
    assert [key for key, _ in in_log(cluster, topic)] == [b"o1"]


def test_a_request_that_cannot_be_written_fails_alone(cluster: Cluster, app: App, tmp_path: Path) -> None:
    topic = app.topics[1].name
    path = f"/v1/topics/{topic}/records"
    huge = {"value": {"order_id": "huge", "product_id": "x" * 1_500_000, "pieces": 1}}
    with (
        served(app, cluster, tmp_path, body_bytes_max=4_000_000) as http,
        concurrent.futures.ThreadPoolExecutor(8) as pool,
    ):
        asked = {
            number: pool.submit(
                http.post,
                path,
                huge if number == 4 else order(number),
                headers={"Idempotency-Key": f"h{number}"},
            )
            for number in range(8)
        }
        for number, one in asked.items():
            reply = one.result()
            if number == 4:
                assert reply.status == 413, reply.body
                assert reply.json["code"] == "HR-KAFKA-MSG_SIZE_TOO_LARGE"
            else:
                reply.expect(200)
    assert len(in_log(cluster, topic)) == 7


def test_a_key_is_good_over_kills_of_the_server_at_any_moment(
    log: Server, fresh: Fresh, tmp_path: Path
) -> None:
    """Requests are sent again until they are answered, while the server is killed; each has one effect."""
    name = fresh("killed")
    environment = {"SHOP_NAME": name}
    cluster = Cluster(log.bootstrap, timeout_s=5.0)
    app = shop(name)
    for declared in app.topics:
        ensure_declared(cluster, declared, declared.name, 2)
    topic = app.topics[1].name
    rng = random.Random(5)
    server = Process("tests.serve.shop:app", log.bootstrap, tmp_path, environment=environment)
    answers: dict[int, set[bytes]] = {}
    tries = Counter[str]()

    def send(number: int) -> None:
        while True:
            try:
                reply = server.http.post(
                    f"/v1/topics/{topic}/records",
                    {"records": [order(number), order(number, 2)]},
                    headers={"Idempotency-Key": f"k{number}"},
                    timeout_s=120,
                )
            except (OSError, http.client.HTTPException):
                tries["cut off"] += 1
                time.sleep(0.02)
                continue
            if reply.status == 200:
                answers.setdefault(number, set()).add(reply.body)
                tries["repeated" if "idempotency-replayed" in reply.headers else "first"] += 1
                return
            assert reply.status in (503, 504), reply.body
            tries["late"] += 1

    def worker(numbers: range) -> None:
        for number in numbers:
            send(number)

    workers = [threading.Thread(target=worker, args=(range(one, 60, 6),)) for one in range(6)]
    for one in workers:
        one.start()
    for answered in (rng.randrange(3, 15), rng.randrange(20, 40)):
        until(lambda answered=answered: len(answers) >= answered, "answers", pause_s=0.001)  # type: ignore[misc]
        server.kill()
        server = Process("tests.serve.shop:app", log.bootstrap, tmp_path, environment=environment)
    for one in workers:
        one.join(120)
    assert not any(one.is_alive() for one in workers)
    # All of them once more.
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        list(pool.map(send, range(60)))
    assert server.stop() == 143
    assert tries["cut off"] > 0
    assert all(len(bodies) == 1 for bodies in answers.values())
    assert len(answers) == 60
    found = Counter(json.loads(value or b"")["order_id"] for _, value in in_log(cluster, topic))
    assert found == Counter({f"o{number}": 2 for number in range(60)})


def test_topics_that_flows_write_and_strangers_topics_are_not_written(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    app = shop(fresh("derived"))
    derived = app.topic(f"{app.topics[0].name}-out", key="order_id")
    app.flow(reads=[app.topics[1]], writes=derived, name=f"{derived.name}-flow")(lambda orders: orders)
    with served(app, cluster, tmp_path) as http:
        for name in (derived.name, f"{derived.name}-flow.dead", f"{app.views[0].name}.dead"):
            told = http.post(f"/v1/topics/{name}/records", order(1)).expect(409)
            assert told["code"] == "HR-SERVE-DERIVED"
        for name in ("nothing", "headrace.requests.shop", "..", "__consumer_offsets"):
            assert http.post(f"/v1/topics/{name}/records", order(1)).status == 404
            assert http.get(f"/v1/topics/{name}/records").status == 404
        assert http.get(f"/v1/topics/{derived.name}").expect(200)["log_topic"] is None
        assert http.get(f"/v1/topics/{derived.name}/records").status == 404


def test_a_log_that_does_not_answer_is_told_of_and_views_are_read_without_it(
    fresh: Fresh, tmp_path: Path
) -> None:
    from tests.views.seeing import following

    broker = start_headrace(tmp_path / "headrace")
    cluster = Cluster(broker.bootstrap, timeout_s=1.0)
    app = shop(fresh("alone"))
    for topic in app.topics:
        ensure_declared(cluster, topic, topic.name, 1)
    view = app.views[0]
    products = {"value": {"product_id": "p", "name": "n", "price": 1}}
    with served(app, cluster, tmp_path) as http:
        with following(cluster, view, [], tmp_path):
            token = http.post(f"/v1/topics/{app.topics[0].name}/records", products).expect(200)["token"]
            http.get(f"/v1/views/{view.name}/rows", after=token, wait="20s").expect(200)
        broker.kill()
        assert len(http.rows(view.name)) == 1
        ready = http.get("/readyz").expect(503)
        assert ready["log"] != "reachable"
        told = http.get(f"/v1/topics/{app.topics[0].name}/records")
        assert told.status in (503, 504), told.body
