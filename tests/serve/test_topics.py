"""Topics over HTTP: reading records from an offset or a time, and writing records once."""

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

from faults.serve.http import Http
from faults.serve.local_server import Process, served, token_for
from faults.serve.shop_app import shop
from faults.servers.headrace_broker import start_headrace
from faults.servers.server import Server
from faults.views.follower_thread import produce
from faults.wait import until
from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.declared_topics import ensure_declared
from headrace.client.records import read
from headrace.serve.http.tokens import TokenBook, tokens_path
from tests.serve.shops import Shops, served_shops

Fresh = Callable[[str], str]


@pytest.fixture(scope="module")
def shops(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shops]:
    with served_shops("topics", 5, cluster, tmp_path_factory.mktemp("topics"), partitions=2) as shops:
        yield shops


@pytest.fixture(scope="module")
def untouched(shops: Shops) -> str:
    """A topic that no test writes to."""
    return shops.take().topics[1].name


@pytest.fixture
def app(cluster: Cluster, fresh: Fresh) -> App:
    shop_app = shop(fresh("topics"))
    for topic in shop_app.topics:
        ensure_declared(cluster, topic, topic.name, 2)
    return shop_app


def order(number: int, pieces: int = 1) -> dict[str, object]:
    return {"value": {"order_id": f"o{number}", "product_id": "p", "pieces": pieces}}


def records_in_log(cluster: Cluster, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    ranges = {number: (0, end) for number, end in cluster.ends(topic, committed=False).items()}
    return [(message.key(), message.value()) for message in read(cluster, topic, ranges)]


def test_records_are_read_page_by_page_from_the_start_an_offset_or_a_time(shops: Shops) -> None:
    http, app = shops.http, shops.take()
    topic = app.topics[1].name
    path = f"/v1/topics/{topic}/records"
    http.post(path, {"records": [order(number) for number in range(30)]}).expect(200)
    between = time.time()
    time.sleep(0.05)
    late = http.post(path, {"records": [order(number) for number in range(30, 40)]}).expect(200)
    records, document = [], http.get(path, limit=7).expect(200)
    while not document["at_end"]:
        records += document["records"]
        assert len(document["records"]) <= 7
        document = http.get(document["next"]).expect(200)
    records += document["records"]
    assert {entry["value"]["order_id"] for entry in records} == {f"o{number}" for number in range(40)}
    positions = [(entry["partition"], entry["offset"]) for entry in records]
    assert len(set(positions)) == 40
    for number in range(2):
        mine = [offset for partition, offset in positions if partition == number]
        assert mine == list(range(len(mine)))
    assert records[0]["key"] == records[0]["value"]["order_id"]
    # Later records follow the last page.
    assert http.get(document["next"]).expect(200)["records"] == []
    http.post(path, order(99)).expect(200)
    assert [record["value"]["order_id"] for record in http.get(document["next"]).expect(200)["records"]] == [
        "o99"
    ]
    where = late["records"][0]
    page = http.get(path, partition=where["partition"], offset=where["offset"], limit=1).expect(200)
    assert page["records"][0]["value"]["order_id"] == "o30"
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(between)) + f"{between % 1:.3f}"[1:] + "Z"
    assert len(http.get(path, time=stamp).expect(200)["records"]) == 11
    # In the Kafka protocol -1 is the end and -2 the start; lower values are undefined.
    for before in ("1969-12-31T23:59:59.999Z", "1969-12-31T23:59:59.998Z", "0001-01-01T00:00:00Z"):
        assert len(http.get(path, time=before).expect(200)["records"]) == 41
    assert http.get(path, time="9999-12-31T23:59:59Z").expect(200)["records"] == []
    described = http.get(f"/v1/topics/{topic}").expect(200)
    assert sum(partition["end"] for partition in described["partitions"]) == 41
    assert [field["name"] for field in described["fields"]] == ["order_id", "product_id", "pieces"]
    listed = http.get("/v1/topics").expect(200)["topics"]
    assert {topic["topic"] for topic in listed} >= {topic.name for topic in app.topics}


def test_values_that_are_not_json_are_returned_as_base64_and_deleted_records_are_reported(
    cluster: Cluster, shops: Shops
) -> None:
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
    ("body", "message"),
    [
        (b"{", "not JSON"),
        (b"[]", "an object with a value"),
        (b'{"records": []}', "1 to 1000 records"),
        (b'{"records": {}}', "1 to 1000 records"),
        (b'{"value": 1}', "expected an object"),
        (b'{"value": {"order_id": "o", "product_id": "p"}}', "value.pieces: the required field is missing"),
        (b'{"value": {"order_id": "o", "product_id": "p", "pieces": 1.5}}', "a 64-bit integer"),
        (b'{"value": {"order_id": "o", "product_id": "p", "pieces": 1, "x": 1}}', "no field 'x'"),
        (b'{"value": {"order_id": "o", "product_id": "p", "pieces": 1}, "key": "o"}', "the key is derived"),
        (b'{"value": null, "key": {"order_id": "o"}}', "the topic has events, not table rows"),
        (b'{"value": {"order_id": "o", "order_id": "p", "pieces": 1}}', "occurs twice"),
        (b'{"value": {}, "headers": {"__headrace.x": "y"}}', "headers"),
        (b'{"value": ' + b"[" * 5_000 + b"}", "nested deeper"),
        (b'{"value": {"order_id": "o", "product_id": "p", "pieces": NaN}}', "not JSON"),
        (b'{"value": {"order_id": "o", "product_id": "p", "pieces": 1e999}}', "a 64-bit integer"),
        (b'{"value": {"order_id": "\xff", "product_id": "p", "pieces": 1}}', "not UTF-8"),
        (b'{"value": {"order_id": "\\ud800", "product_id": "p", "pieces": 1}}', "surrogate"),
        (b"", "not JSON"),
    ],
)
def test_an_invalid_record_is_refused_before_anything_is_written(
    cluster: Cluster, shops: Shops, untouched: str, body: bytes, message: str
) -> None:
    document = shops.http.post(f"/v1/topics/{untouched}/records", body).expect(400)
    assert message in document["detail"]
    assert records_in_log(cluster, untouched) == []


def test_one_invalid_record_of_several_prevents_the_whole_write(
    cluster: Cluster, shops: Shops, untouched: str
) -> None:
    mixed = {"records": [order(1), {"value": {"order_id": "o"}}]}
    document = shops.http.post(f"/v1/topics/{untouched}/records", mixed).expect(400)
    assert "records[1]" in document["detail"]
    assert records_in_log(cluster, untouched) == []


def test_a_repeated_request_with_an_idempotency_key_is_executed_once(
    cluster: Cluster, app: App, tmp_path: Path
) -> None:
    topic = app.topics[1].name
    path = f"/v1/topics/{topic}/records"
    body = {"records": [order(1), order(2)]}
    with served(app, cluster, tmp_path) as http, concurrent.futures.ThreadPoolExecutor(16) as pool:
        requests = [pool.submit(http.post, path, body, headers={"Idempotency-Key": "k1"}) for _ in range(50)]
        others = [
            pool.submit(http.post, path, order(number), headers={"Idempotency-Key": f"other-{number}"})
            for number in range(20, 40)
        ]
        replies = [future.result() for future in requests]
        assert {reply.status for reply in replies} == {200}
        assert len({reply.body for reply in replies}) == 1
        assert sum("idempotency-replayed" not in reply.headers for reply in replies) == 1
        for other in others:
            other.result().expect(200)
        document = http.post(path, order(3), headers={"Idempotency-Key": "k1"}).expect(422)
        assert document["code"] == "HR-SERVE-KEY-REUSED"
        # Keys are separate per topic.
        product = {"value": {"product_id": "p", "name": "n", "price": 1}}
        http.post(
            f"/v1/topics/{app.topics[0].name}/records", product, headers={"Idempotency-Key": "k1"}
        ).expect(200)
        first = replies[0].body
    counts = Counter(key for key, _ in records_in_log(cluster, topic))
    assert counts == Counter(
        dict.fromkeys([b"o1", b"o2", *(f"o{number}".encode() for number in range(20, 40))], 1)
    )
    # A restarted server knows the key, even without its index file, and so does a second server.
    with served(app, cluster, tmp_path) as http, served(app, cluster, tmp_path / "other") as second_server:
        for server in (http, second_server, http, second_server):
            assert server.post(path, body, headers={"Idempotency-Key": "k1"}).body == first
        http.post(path, order(50), headers={"Idempotency-Key": "k50"}).expect(200)
        again = second_server.post(path, order(50), headers={"Idempotency-Key": "k50"})
        assert again.headers["idempotency-replayed"] == "true"
    assert Counter(key for key, _ in records_in_log(cluster, topic))[b"o50"] == 1


def test_an_idempotency_key_belongs_to_its_token_not_to_a_later_token_of_that_name(
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
    assert Counter(key for key, _ in records_in_log(cluster, app.topics[1].name)) == Counter([b"o1", b"o2"])


class _FailingProducer:
    """A producer that sometimes fails without a reason after it has sent its records, as the client does when it is
    fenced while it reports deliveries.
    """

    def __init__(self, producer: Producer, flush_numbers: Iterator[int]) -> None:
        self._producer = producer
        self._flushed = flush_numbers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def flush(self, timeout: float) -> int:
        unsent = self._producer.flush(timeout)
        if next(self._flushed) in (1, 2, 4):
            raise SystemError("returned NULL without setting an exception")
        return unsent


def test_a_producer_that_fails_without_a_reason_is_retried_and_nothing_is_written_twice(
    cluster: Cluster, app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush_numbers, create = itertools.count(1), Cluster.producer

    def create_producer(self: Cluster, extra: dict[str, Any]) -> Any:
        producer = create(self, extra)
        return _FailingProducer(producer, flush_numbers) if "transactional.id" in extra else producer

    monkeypatch.setattr(Cluster, "producer", create_producer)
    topic = app.topics[1].name
    with served(app, cluster, tmp_path) as http:
        reply = http.post(f"/v1/topics/{topic}/records", order(1), headers={"Idempotency-Key": "k"})
        reply.expect(200)
        again = http.post(f"/v1/topics/{topic}/records", order(1), headers={"Idempotency-Key": "k"})
        assert again.body == reply.body
    assert next(flush_numbers) > 5
    assert [key for key, _ in records_in_log(cluster, topic)] == [b"o1"]


def test_a_write_that_fails_does_not_fail_others(cluster: Cluster, app: App, tmp_path: Path) -> None:
    topic = app.topics[1].name
    path = f"/v1/topics/{topic}/records"
    huge = {"value": {"order_id": "huge", "product_id": "x" * 1_500_000, "pieces": 1}}
    with (
        served(app, cluster, tmp_path, body_bytes_max=4_000_000) as http,
        concurrent.futures.ThreadPoolExecutor(8) as pool,
    ):
        request = {
            number: pool.submit(
                http.post,
                path,
                huge if number == 4 else order(number),
                headers={"Idempotency-Key": f"h{number}"},
            )
            for number in range(8)
        }
        for number, future in request.items():
            reply = future.result()
            if number == 4:
                assert reply.status == 413, reply.body
                assert reply.json["code"] == "HR-KAFKA-MSG_SIZE_TOO_LARGE"
            else:
                reply.expect(200)
    assert len(records_in_log(cluster, topic)) == 7


def test_an_idempotency_key_holds_over_kills_of_the_server(log: Server, fresh: Fresh, tmp_path: Path) -> None:
    """Requests are repeated until they get a response, while the server is killed; each has one effect."""
    name = fresh("killed")
    environment = {"SHOP_NAME": name}
    cluster = Cluster(log.bootstrap, timeout_s=5.0)
    app = shop(name)
    for declared in app.topics:
        ensure_declared(cluster, declared, declared.name, 2)
    topic = app.topics[1].name
    rng = random.Random(5)
    server = Process("faults.serve.shop_app:app", log.bootstrap, tmp_path, environment=environment)
    bodies_by_number: dict[int, set[bytes]] = {}
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
                bodies_by_number.setdefault(number, set()).add(reply.body)
                tries["repeated" if "idempotency-replayed" in reply.headers else "first"] += 1
                return
            assert reply.status in (503, 504), reply.body
            tries["late"] += 1

    def worker(numbers: range) -> None:
        for number in numbers:
            send(number)

    workers = [threading.Thread(target=worker, args=(range(number, 60, 6),)) for number in range(6)]
    for thread in workers:
        thread.start()
    for answered in (rng.randrange(3, 15), rng.randrange(20, 40)):
        until(lambda answered=answered: len(bodies_by_number) >= answered, "the responses", pause_s=0.001)  # type: ignore[misc]
        server.kill()
        server = Process("faults.serve.shop_app:app", log.bootstrap, tmp_path, environment=environment)
    for thread in workers:
        thread.join(120)
    assert not any(thread.is_alive() for thread in workers)
    # Repeat all requests.
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        list(pool.map(send, range(60)))
    assert server.stop() == 143
    assert tries["cut off"] > 0
    assert all(len(bodies) == 1 for bodies in bodies_by_number.values())
    assert len(bodies_by_number) == 60
    order_counts = Counter(
        json.loads(value or b"")["order_id"] for _, value in records_in_log(cluster, topic)
    )
    assert order_counts == Counter({f"o{number}": 2 for number in range(60)})


def test_writes_to_derived_and_undeclared_topics_are_refused(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    app = shop(fresh("derived"))
    derived = app.topic(f"{app.topics[0].name}-out", key="order_id")
    app.flow(reads=[app.topics[1]], writes=derived, name=f"{derived.name}-flow")(lambda orders: orders)
    with served(app, cluster, tmp_path) as http:
        for name in (derived.name, app.flows[0].dead_topic, app.views[0].dead_topic):
            document = http.post(f"/v1/topics/{name}/records", order(1)).expect(409)
            assert document["code"] == "HR-SERVE-DERIVED"
        for name in ("nothing", "headrace.requests.shop", "..", "__consumer_offsets"):
            assert http.post(f"/v1/topics/{name}/records", order(1)).status == 404
            assert http.get(f"/v1/topics/{name}/records").status == 404
        assert http.get(f"/v1/topics/{derived.name}").expect(200)["log_topic"] is None
        assert http.get(f"/v1/topics/{derived.name}/records").status == 404


def test_views_are_read_while_the_log_is_unreachable(fresh: Fresh, tmp_path: Path) -> None:
    from faults.views.follower_thread import following

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
        killed_s = time.monotonic()
        assert len(http.rows(view.name)) == 1

        def is_unreachable() -> bool:
            sent_s = time.monotonic()
            ready = http.get("/readyz").expect(503)
            # Readiness comes from a sample of the last two seconds.
            assert ready["log"] != "reachable" or sent_s - killed_s < 2.0
            return bool(ready["log"] != "reachable")

        until(is_unreachable, "readiness")
        result = http.get(f"/v1/topics/{app.topics[0].name}/records")
        assert result.status in (503, 504), result.body
