"""The search of a topic over HTTP: in either direction, with expressions, and within limits."""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from faults.serve.http import Http
from faults.serve.local_server import served
from faults.serve.shop_app import shop
from faults.views.follower_thread import produce
from faults.wait import until
from headrace.client.cluster import Cluster
from tests.serve.haystack import NEEDLE, write_haystack

Fresh = Callable[[str], str]
_COUNT = 30_000
_FIRST_MS = int(time.time() * 1_000) - 60_000

_HUNDRED_ONES = f"[{','.join(['1'] * 100)}]"
# An expression so slow that no search with it ends during a test.
_SLOW_EXPRESSION = f"{_HUNDRED_ONES}.map(a, {_HUNDRED_ONES}.exists(b, a + b == 1)).size() < 0"


@pytest.fixture(scope="module")
def server(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Http]:
    with served(shop("console"), cluster, tmp_path_factory.mktemp("console")) as http:
        yield http


@pytest.fixture(scope="module")
def hay(cluster: Cluster) -> str:
    write_haystack(cluster, "console-hay", _COUNT, json.dumps(NEEDLE).encode())
    return "console-hay"


@pytest.fixture(scope="module")
def mixed(cluster: Cluster) -> str:
    """A few records of many kinds, in two partitions with interleaved timestamps."""
    cluster.ensure_topic("console-mixed", 2)
    producer = cluster.producer({"linger.ms": 0})
    values: list[Any] = [
        b'{"n": 0}',
        b"plain text",
        b"\xff\x00",
        None,
        b'{"n": 4, "deep": {"list": [1, 2]}}',
        b"5",
    ]
    for number, value in enumerate(values * 2):
        headers = [("number", str(number).encode())] if number % 3 == 0 else None
        producer.produce(
            *("console-mixed", value, f"k{number}".encode()),
            headers=headers,
            partition=number % 2,
            timestamp=_FIRST_MS + number,
        )
    assert producer.flush(30) == 0
    return "console-mixed"


def lines(server: Http, topic: str, **body: Any) -> list[dict[str, Any]]:
    reply = server.post(f"/v1/log/topics/{topic}/search", body)
    assert reply.status == 200, reply.body
    assert reply.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in reply.body.splitlines()]


def search(server: Http, topic: str, **body: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    result = lines(server, topic, **body)
    assert "progress" in result[0]
    assert "end" in result[-1], result[-1]
    return [entry["record"] for entry in result if "record" in entry], result[-1]["end"]


def positions(records: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return [(record["partition"], record["offset"]) for record in records]


@pytest.mark.parametrize(
    ("where", "newest_first"),
    [
        ('key == "needle"', True),
        ('value.note == "Grüße"', False),
        ("value.amount == 41.5", True),
        ("value.amount > 40", False),
        ('headers["found"] == "yes" && value.id.startsWith("n")', True),
        ("has(value.note) && size(value.note) == 7", False),
    ],
)
def test_a_search_finds_one_record_among_many_at_any_offset(
    where: str, newest_first: bool, server: Http, hay: str
) -> None:
    records, end = search(server, hay, where=where, newest_first=newest_first)
    assert [json.loads(entry["value"]["text"]) for entry in records] == [NEEDLE]
    assert records[0]["key"] == {"size": 6, "text": "needle"}
    assert records[0]["headers"] == [{"name": "found", "size": 3, "text": "yes"}]
    assert (end["done"], end["of"], end["found"], end["why"], end["next"]) == (
        _COUNT + 1,
        _COUNT + 1,
        1,
        "all",
        None,
    )


@pytest.mark.parametrize("newest_first", [True, False])
def test_pages_of_matches_have_each_record_once(newest_first: bool, server: Http, hay: str) -> None:
    body: dict[str, Any] = {"where": "value.amount == 7", "newest_first": newest_first, "limit": 300}
    record_positions, pages = [], 0
    while True:
        records, end = search(server, hay, **body)
        record_positions += positions(records)
        assert len(records) <= 300
        pages += 1
        if end["next"] is None:
            break
        assert end["why"] == "limit"
        body |= end["next"]
    assert len(record_positions) == len(set(record_positions)) == _COUNT // 40
    assert pages == 3
    for number in range(3):
        offsets = [offset for partition, offset in record_positions if partition == number]
        assert offsets == sorted(offsets, reverse=newest_first)


@pytest.mark.parametrize("newest_first", [True, False])
def test_messages_are_read_page_by_page_in_order_of_time(
    newest_first: bool, server: Http, mixed: str
) -> None:
    body: dict[str, Any] = {"newest_first": newest_first, "limit": 5}
    all_records = []
    while True:
        records, end = search(server, mixed, **body)
        all_records += records
        if end["next"] is None:
            break
        body |= end["next"]
    assert [entry["at_ms"] for entry in all_records] == sorted(
        (_FIRST_MS + number for number in range(12)), reverse=newest_first
    )


def test_bytes_that_are_not_text_are_returned_as_base64_and_a_missing_value_as_null(
    server: Http, mixed: str
) -> None:
    records, _ = search(server, mixed, newest_first=False, limit=4)
    assert [entry["value"] for entry in records] == [
        {"size": 8, "text": '{"n": 0}'},
        {"size": 10, "text": "plain text"},
        {"size": 2, "base64": "/wA="},
        None,
    ]
    record = server.get(f"/v1/log/topics/{mixed}/record", partition=0, offset=1).expect(200)["record"]
    assert record == records[2]
    assert (
        server.get(f"/v1/log/topics/{mixed}/record", partition=0, offset=6)
        .expect(404)["next"]
        .startswith("the partition has offsets")
    )
    assert server.get(f"/v1/log/topics/{mixed}/record", partition=9, offset=0).status == 404


def test_a_search_begins_and_ends_at_the_requested_offsets(server: Http, mixed: str) -> None:
    from_offset, _ = search(server, mixed, newest_first=False, **{"from": {"offset": 4}})
    assert sorted(positions(from_offset)) == [(0, 4), (0, 5), (1, 4), (1, 5)]
    between, _ = search(
        server,
        mixed,
        **{"from": {"time_ms": _FIRST_MS + 3}, "to": {"time_ms": _FIRST_MS + 6}},
        partitions=[1],
        where="size >= 0",
    )
    assert [record["at_ms"] for record in between] == [_FIRST_MS + 5, _FIRST_MS + 3]
    beyond, end = search(server, mixed, **{"from": {"time_ms": _FIRST_MS + 30_000}})
    assert (beyond, end["of"]) == ([], 0)


def test_records_whose_evaluation_fails_are_counted_and_do_not_match(server: Http, mixed: str) -> None:
    records, end = search(server, mixed, where="value.n + 0 >= 0")
    assert len(records) == 4
    assert end["failed"] == 8


def test_an_invalid_expression_is_refused_with_the_position_of_the_error(server: Http, mixed: str) -> None:
    problem = server.post(f"/v1/log/topics/{mixed}/search", {"where": "value.n >"}).expect(400)
    assert (problem["code"], problem["line"], problem["column"]) == ("HR-SERVE-WHERE", 1, 10)
    problem = server.post(f"/v1/log/topics/{mixed}/search", {"where": "valeu.n > 1"}).expect(400)
    assert "key, value, text" in problem["next"]
    deep = server.post(f"/v1/log/topics/{mixed}/search", {"where": "(" * 999 + "1" + ")" * 999}).expect(400)
    assert deep["code"] == "HR-SERVE-WHERE"


@pytest.mark.parametrize(
    "body",
    [
        {"where": 5},
        {"limit": 0},
        {"limit": 10_001},
        {"from": {}},
        {"from": {"offset": 1, "time_ms": 1}},
        {"partitions": [-1]},
        {"strange": 1},
        {"where": "x" * 2_001},
    ],
)
def test_a_search_with_invalid_parameters_is_refused(body: dict[str, Any], server: Http, mixed: str) -> None:
    assert server.post(f"/v1/log/topics/{mixed}/search", body).expect(400)["code"] == "HR-SERVE-REQUEST"
    assert server.post(f"/v1/log/topics/{mixed}/search", {"partitions": [7]}).status == 404
    assert server.post("/v1/log/topics/console-none/search", {}).status == 404


def test_an_expression_that_exceeds_the_memory_fails_only_its_search(
    server: Http, cluster: Cluster, fresh: Fresh
) -> None:
    topic = fresh("console-large")
    cluster.ensure_topic(topic, 1)
    produce(cluster, topic, [(b"k", b'"' + b"x" * 500_000 + b'"')])
    ten = "[1,2,3,4,5,6,7,8,9,10]"
    where = f"{ten}.map(a, {ten}.map(b, {ten}.map(c, {ten}.map(d, value + text)))).size() > 0"
    result = lines(server, topic, where=where)
    assert result[-1]["problem"]["code"] == "HR-SERVE-SEARCH"
    assert search(server, topic, where="size > 5")[1]["found"] == 1


def test_large_values_are_truncated_and_can_be_read_whole(
    server: Http, cluster: Cluster, fresh: Fresh
) -> None:
    topic = fresh("console-cut")
    cluster.ensure_topic(topic, 1)
    value = "ß" * 50_000
    produce(cluster, topic, [(b"k", value.encode())])
    for where in ("", 'text.startsWith("ß")'):
        (record,), _ = search(server, topic, where=where)
        assert (record["value"]["size"], record["value"]["cut"]) == (100_000, True)
        assert value.startswith(record["value"]["text"])
    whole = server.get(f"/v1/log/topics/{topic}/record", partition=0, offset=0).expect(200)["record"]
    assert whole["value"] == {"size": 100_000, "text": value}


def _workers() -> list[psutil.Process]:
    workers = []
    for process in psutil.Process(os.getpid()).children(recursive=True):
        try:
            if (
                "headrace.serve.console.search_worker" in process.cmdline()
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                workers.append(process)
        except psutil.Error:
            continue
    return workers


def test_a_disconnect_ends_a_search_and_concurrent_searches_are_limited(server: Http, hay: str) -> None:
    until(lambda: _workers() == [], "earlier searches to end")
    body = json.dumps({"where": _SLOW_EXPRESSION}).encode()
    requests = []
    for _ in range(4):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        connection.request("POST", f"/v1/log/topics/{hay}/search", body, {"Content-Type": "application/json"})
        assert connection.getresponse().status == 200
        requests.append(connection)
    assert len(_workers()) == 4
    assert (
        server.post(f"/v1/log/topics/{hay}/search", {"where": "true"}).expect(503)["code"] == "HR-SERVE-BUSY"
    )
    # Reading without an expression is not a search and stays possible.
    assert len(search(server, hay, limit=3)[0]) == 3
    for connection in requests:
        connection.close()
    until(lambda: _workers() == [], "the searches to end")
    assert search(server, hay, where='key == "needle"')[1]["found"] == 1


def test_a_search_skips_aborted_records_and_transaction_markers(
    server: Http, cluster: Cluster, fresh: Fresh
) -> None:
    topic = fresh("console-aborted")
    cluster.ensure_topic(topic, 1)
    producer = cluster.producer({"transactional.id": topic})
    producer.init_transactions(30)
    for number, is_committed in enumerate((True, False, True)):
        producer.begin_transaction()
        producer.produce(topic, f"v{number}".encode())
        producer.flush(30)
        producer.commit_transaction(30) if is_committed else producer.abort_transaction(30)
    until(lambda: cluster.ends(topic)[0] == 6, "the end of the last transaction")
    for where in ("", "size > 0"):
        for newest_first in (True, False):
            records, end = search(server, topic, where=where, newest_first=newest_first)
            assert sorted(entry["value"]["text"] for entry in records) == ["v0", "v2"]
            assert (end["done"], end["why"]) == (6, "all")


def test_a_running_search_reports_its_progress(server: Http, hay: str) -> None:
    began = time.monotonic()
    result = lines(server, hay, where="value.amount + 0 < 0")
    done = [entry["progress"]["done"] for entry in result if "progress" in entry]
    assert done == sorted(done)
    assert result[-1]["end"]["per_s"] > 0
    assert result[-1]["end"]["took_s"] <= time.monotonic() - began
    assert len(result) >= 2


def test_a_stopped_server_ends_its_searches(cluster: Cluster, tmp_path: Path, hay: str) -> None:
    with served(shop("stopped"), cluster, tmp_path, drain_s=1) as server:
        body = json.dumps({"where": _SLOW_EXPRESSION})
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        connection.request("POST", f"/v1/log/topics/{hay}/search", body, {"Content-Type": "application/json"})
        assert connection.getresponse().status == 200
        assert _workers() != []
    until(lambda: _workers() == [], "the search to end")
    connection.close()
