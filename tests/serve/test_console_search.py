"""Searching a topic over HTTP: all of it, in either direction, with expressions, and within limits."""

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

from headrace.client.cluster import Cluster
from tests.serve.haystack import NEEDLE, haystack
from tests.serve.http import Http
from tests.serve.serving import served
from tests.serve.shop import shop
from tests.support.waiting import until
from tests.views.seeing import produce

Fresh = Callable[[str], str]
_COUNT = 30_000
_BEGAN_MS = int(time.time() * 1_000) - 60_000

_MANY = f"[{','.join(['1'] * 100)}]"
# Each record takes so long that no test waits for the end.
_LONG = f"{_MANY}.map(a, {_MANY}.exists(b, a + b == 1)).size() < 0"


@pytest.fixture(scope="module")
def server(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Http]:
    with served(shop("console"), cluster, tmp_path_factory.mktemp("console")) as found:
        yield found


@pytest.fixture(scope="module")
def hay(cluster: Cluster) -> str:
    haystack(cluster, "console-hay", _COUNT, json.dumps(NEEDLE).encode())
    return "console-hay"


@pytest.fixture(scope="module")
def mixed(cluster: Cluster) -> str:
    """A few records of many kinds, in two partitions, one behind the other in time."""
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
            timestamp=_BEGAN_MS + number,
        )
    assert producer.flush(30) == 0
    return "console-mixed"


def lines(server: Http, topic: str, **body: Any) -> list[dict[str, Any]]:
    reply = server.post(f"/v1/log/topics/{topic}/search", body)
    assert reply.status == 200, reply.body
    assert reply.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in reply.body.splitlines()]


def search(server: Http, topic: str, **body: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    told = lines(server, topic, **body)
    assert "progress" in told[0]
    assert "end" in told[-1], told[-1]
    return [one["record"] for one in told if "record" in one], told[-1]["end"]


def places(records: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return [(one["partition"], one["offset"]) for one in records]


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
def test_one_among_many_is_found_wherever_it_lies(
    where: str, newest_first: bool, server: Http, hay: str
) -> None:
    found, end = search(server, hay, where=where, newest_first=newest_first)
    assert [json.loads(one["value"]["text"]) for one in found] == [NEEDLE]
    assert found[0]["key"] == {"size": 6, "text": "needle"}
    assert found[0]["headers"] == [{"name": "found", "size": 3, "text": "yes"}]
    assert (end["done"], end["of"], end["found"], end["why"], end["next"]) == (
        _COUNT + 1,
        _COUNT + 1,
        1,
        "all",
        None,
    )


@pytest.mark.parametrize("newest_first", [True, False])
def test_pages_of_what_was_found_have_each_record_once(newest_first: bool, server: Http, hay: str) -> None:
    body: dict[str, Any] = {"where": "value.amount == 7", "newest_first": newest_first, "limit": 300}
    found, pages = [], 0
    while True:
        records, end = search(server, hay, **body)
        found += places(records)
        assert len(records) <= 300
        pages += 1
        if end["next"] is None:
            break
        assert end["why"] == "limit"
        body |= end["next"]
    assert len(found) == len(set(found)) == _COUNT // 40
    assert pages == 3
    for number in range(3):
        own = [offset for partition, offset in found if partition == number]
        assert own == sorted(own, reverse=newest_first)


@pytest.mark.parametrize("newest_first", [True, False])
def test_messages_are_read_page_by_page_in_the_order_of_time(
    newest_first: bool, server: Http, mixed: str
) -> None:
    body: dict[str, Any] = {"newest_first": newest_first, "limit": 5}
    found = []
    while True:
        records, end = search(server, mixed, **body)
        found += records
        if end["next"] is None:
            break
        body |= end["next"]
    assert [one["at_ms"] for one in found] == sorted(
        (_BEGAN_MS + one for one in range(12)), reverse=newest_first
    )


def test_what_is_no_text_comes_in_base64_and_nothing_is_null(server: Http, mixed: str) -> None:
    found, _ = search(server, mixed, newest_first=False, limit=4)
    assert [one["value"] for one in found] == [
        {"size": 8, "text": '{"n": 0}'},
        {"size": 10, "text": "plain text"},
        {"size": 2, "base64": "/wA="},
        None,
    ]
    one = server.get(f"/v1/log/topics/{mixed}/record", partition=0, offset=1).expect(200)["record"]
    assert one == found[2]
    assert (
        server.get(f"/v1/log/topics/{mixed}/record", partition=0, offset=6)
        .expect(404)["next"]
        .startswith("it holds")
    )
    assert server.get(f"/v1/log/topics/{mixed}/record", partition=9, offset=0).status == 404


def test_a_search_begins_and_ends_where_it_is_told_to(server: Http, mixed: str) -> None:
    from_offset, _ = search(server, mixed, newest_first=False, **{"from": {"offset": 4}})
    assert sorted(places(from_offset)) == [(0, 4), (0, 5), (1, 4), (1, 5)]
    between, _ = search(
        server,
        mixed,
        **{"from": {"time_ms": _BEGAN_MS + 3}, "to": {"time_ms": _BEGAN_MS + 6}},
        partitions=[1],
        where="size >= 0",
    )
    assert [one["at_ms"] for one in between] == [_BEGAN_MS + 5, _BEGAN_MS + 3]
    beyond, end = search(server, mixed, **{"from": {"time_ms": _BEGAN_MS + 30_000}})
    assert (beyond, end["of"]) == ([], 0)


def test_records_of_which_it_cannot_be_told_are_counted_and_are_not_found(server: Http, mixed: str) -> None:
    found, end = search(server, mixed, where="value.n + 0 >= 0")
    assert len(found) == 4
    assert end["failed"] == 8


def test_an_expression_that_cannot_be_read_is_refused_with_its_place(server: Http, mixed: str) -> None:
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
def test_a_search_that_does_not_fit_is_refused(body: dict[str, Any], server: Http, mixed: str) -> None:
    assert server.post(f"/v1/log/topics/{mixed}/search", body).expect(400)["code"] == "HR-SERVE-REQUEST"
    assert server.post(f"/v1/log/topics/{mixed}/search", {"partitions": [7]}).status == 404
    assert server.post("/v1/log/topics/console-none/search", {}).status == 404


def test_an_expression_that_takes_all_memory_ends_its_search_and_nothing_else(
    server: Http, cluster: Cluster, fresh: Fresh
) -> None:
    topic = fresh("console-large")
    cluster.ensure_topic(topic, 1)
    produce(cluster, topic, [(b"k", b'"' + b"x" * 500_000 + b'"')])
    grown = "[1,2,3,4,5,6,7,8,9,10]"
    where = f"{grown}.map(a, {grown}.map(b, {grown}.map(c, {grown}.map(d, value + text)))).size() > 0"
    told = lines(server, topic, where=where)
    assert told[-1]["problem"]["code"] == "HR-SERVE-SEARCH"
    assert search(server, topic, where="size > 5")[1]["found"] == 1


def test_large_values_are_cut_and_can_be_read_whole(server: Http, cluster: Cluster, fresh: Fresh) -> None:
    topic = fresh("console-cut")
    cluster.ensure_topic(topic, 1)
    value = "ß" * 50_000
    produce(cluster, topic, [(b"k", value.encode())])
    for where in ("", 'text.startsWith("ß")'):
        (found,), _ = search(server, topic, where=where)
        assert (found["value"]["size"], found["value"]["cut"]) == (100_000, True)
        assert value.startswith(found["value"]["text"])
    whole = server.get(f"/v1/log/topics/{topic}/record", partition=0, offset=0).expect(200)["record"]
    assert whole["value"] == {"size": 100_000, "text": value}


def _workers() -> list[psutil.Process]:
    own = psutil.Process(os.getpid()).children(recursive=True)
    found = []
    for one in own:
        try:
            if (
                "headrace.serve.console.search_worker" in one.cmdline()
                and one.status() != psutil.STATUS_ZOMBIE
            ):
                found.append(one)
        except psutil.Error:
            continue
    return found


def test_a_search_ends_when_whoever_asked_is_gone_and_few_go_on_at_a_time(server: Http, hay: str) -> None:
    until(lambda: _workers() == [], "searches of before to end")
    body = json.dumps({"where": _LONG}).encode()
    asked = []
    for _ in range(4):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        connection.request("POST", f"/v1/log/topics/{hay}/search", body, {"Content-Type": "application/json"})
        assert connection.getresponse().status == 200
        asked.append(connection)
    assert len(_workers()) == 4
    assert (
        server.post(f"/v1/log/topics/{hay}/search", {"where": "true"}).expect(503)["code"] == "HR-SERVE-BUSY"
    )
    # Without an expression nothing is searched, and messages are still read.
    assert len(search(server, hay, limit=3)[0]) == 3
    for connection in asked:
        connection.close()
    until(lambda: _workers() == [], "the searches to end")
    assert search(server, hay, where='key == "needle"')[1]["found"] == 1


def test_aborted_records_are_not_found_and_markers_do_not_hold_a_search_up(
    server: Http, cluster: Cluster, fresh: Fresh
) -> None:
    topic = fresh("console-aborted")
    cluster.ensure_topic(topic, 1)
    producer = cluster.producer({"transactional.id": topic})
    producer.init_transactions(30)
    for number, commits in enumerate((True, False, True)):
        producer.begin_transaction()
        producer.produce(topic, f"v{number}".encode())
        producer.flush(30)
        producer.commit_transaction(30) if commits else producer.abort_transaction(30)
    until(lambda: cluster.ends(topic)[0] == 6, "the end of the last transaction")
    for where in ("", "size > 0"):
        for newest_first in (True, False):
            found, end = search(server, topic, where=where, newest_first=newest_first)
            assert sorted(one["value"]["text"] for one in found) == ["v0", "v2"]
            assert (end["done"], end["why"]) == (6, "all")


def test_progress_is_told_while_a_search_goes_on(server: Http, hay: str) -> None:
    began = time.monotonic()
    told = lines(server, hay, where="value.amount + 0 < 0")
    done = [one["progress"]["done"] for one in told if "progress" in one]
    assert done == sorted(done)
    assert told[-1]["end"]["per_s"] > 0
    assert told[-1]["end"]["took_s"] <= time.monotonic() - began
    assert len(told) >= 2


def test_a_server_that_is_stopped_takes_its_searches_with_it(
    cluster: Cluster, tmp_path: Path, hay: str
) -> None:
    with served(shop("stopped"), cluster, tmp_path, drain_s=1) as server:
        body = json.dumps({"where": _LONG})
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        connection.request("POST", f"/v1/log/topics/{hay}/search", body, {"Content-Type": "application/json"})
        assert connection.getresponse().status == 200
        assert _workers() != []
    until(lambda: _workers() == [], "the search to end")
    connection.close()
