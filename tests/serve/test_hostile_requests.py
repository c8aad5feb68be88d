"""Hostile requests: the server refuses each with a reason, or handles it as an ordinary request."""

from __future__ import annotations

import base64
import concurrent.futures
import json
import socket
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.datastructures import Headers

from faults.serve.http import Http
from faults.serve.local_server import served
from faults.serve.shop_app import Product
from faults.views.follower_thread import following, produce
from faults.views.scripted_flow import ScriptedFlow
from faults.wait import until
from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.declared_topics import ensure_declared
from headrace.client.progress import wait_until_decided
from headrace.serve.errors import HostNotAllowed
from headrace.serve.http.guard import Guard
from headrace.serve.query.position_token import PositionToken, TopicPosition
from headrace.stores import Search
from tests.serve.shops import Shop, Shops, served_shops

Fresh = Callable[[str], str]


@pytest.fixture(scope="module")
def shops(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shops]:
    with served_shops("hostile", 3, cluster, tmp_path_factory.mktemp("hostile"), partitions=1) as shops:
        yield shops


@pytest.fixture(scope="module")
def shop(shops: Shops) -> Iterator[Shop]:
    """A shop with one product and one order; no test changes them."""
    used = shops.take()
    with shops.followed(used):
        product = {"product_id": "p", "name": "n", "price": 1}
        order = {"order_id": "o", "product_id": "p", "pieces": 1}
        for topic, view, value in zip(used.topics, used.views, (product, order), strict=True):
            token = shops.http.post(f"/v1/topics/{topic.name}/records", {"value": value}).expect(200)["token"]
            shops.http.get(f"/v1/views/{view.name}/rows", after=token, wait="20s").expect(200)
        yield used


@pytest.fixture(scope="module")
def http(shops: Shops) -> Http:
    return shops.http


def _received_bytes(http: Http, sent: bytes) -> bytes:
    """Return everything that the server sends until it closes the connection."""
    received = b""
    with socket.create_connection(("127.0.0.1", http.port), timeout=30) as connection:
        try:
            connection.sendall(sent)
            while chunk := connection.recv(65_536):
                received += chunk
        except ConnectionError:
            pass
    return received


def _status(http: Http, line: str, *headers: str, body: bytes = b"") -> int:
    head = "\r\n".join([line, *headers, "Connection: close", "", ""]).encode("latin-1")
    output = _received_bytes(http, head + body)
    return int(output.split(b" ", 2)[1]) if output else 0


# Heads


@pytest.mark.parametrize("size", [33_000, 100_000, 250_000])
def test_a_header_block_that_is_too_large_is_refused_even_in_one_segment(http: Http, size: int) -> None:
    for head in (
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * size,
        b"GET /healthz?" + b"x" * size + b" HTTP/1.1\r\nHost: localhost",
        b"GET /healthz HTTP/1.1\r\nHost: localhost" + b"\r\nX: y" * (size // 5),
    ):
        output = _received_bytes(http, head + b"\r\n\r\n")
        assert output == b"" or output.startswith(b"HTTP/1.1 431 "), output
    assert _status(http, "GET /healthz HTTP/1.1", "Host: localhost", "X: " + "x" * 30_000) == 200


def test_endless_trailers_are_bounded(http: Http, shop: Shop) -> None:
    head = (
        f"POST /v1/topics/{shop.topics[0].name}/records HTTP/1.1\r\nHost: localhost\r\n"
        "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
    ).encode()
    for trailers in (b"X: y\r\n" * 10_000, b"X: " + b"y" * 20_000_000):
        assert not _received_bytes(http, head + trailers).startswith(b"HTTP/1.1 200 ")
    http.get("/healthz").expect(200)


@pytest.mark.parametrize(
    ("hosts", "status"),
    [
        ([], 400),
        (["localhost"], 200),
        (["localhost", "localhost"], 400),
        (["localhost", "evil.example"], 400),
        (["evil.example", "localhost"], 400),
        (["evil.example"], 400),
        (["localhost, evil.example"], 400),
    ],
)
def test_a_request_must_name_one_host_of_this_server(http: Http, hosts: list[str], status: int) -> None:
    assert _status(http, "GET /healthz HTTP/1.1", *(f"Host: {host}" for host in hosts)) == status
    # An absolute URI with another host is refused too.
    assert _status(http, "GET http://localhost/healthz HTTP/1.1", "Host: evil.example") == 400


def test_an_ipv6_address_is_accepted_as_host_in_brackets() -> None:
    guard = Guard(["2001:db8::1", "[2001:db8::2]"], [], lambda: True)
    for host in ("[2001:db8::1]", "[2001:DB8::1]:8180", "[2001:db8::2]:1", "[::1]", "127.0.0.1:8"):
        guard.check(Headers({"host": host}))
    for host in ("2001:db8::1", "[2001:db8::3]", "[2001:db8::1"):
        with pytest.raises(HostNotAllowed):
            guard.check(Headers({"host": host}))


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "PROPFIND", "FOO"])
def test_a_wrong_method_gets_405_with_the_allowed_methods(http: Http, shop: Shop, method: str) -> None:
    reply = http.request(method, f"/v1/views/{shop.views[0].name}/rows")
    assert reply.status == {"HEAD": 200, "OPTIONS": 204, "FOO": 400}.get(method, 405)
    if method == "HEAD":
        request = http.get(f"/v1/views/{shop.views[0].name}/rows")
        assert reply.body == b""
        assert reply.headers["content-length"] == str(len(request.body))
        assert reply.headers["etag"] == request.headers["etag"]
    elif method != "FOO":
        assert reply.headers["allow"] == "GET, HEAD, OPTIONS"
    for line in ("CONNECT localhost:80 HTTP/1.1", "OPTIONS * HTTP/1.1", "PRI * HTTP/2.0", "GET x HTTP/1.1"):
        assert _status(http, line, "Host: localhost") in (400, 404, 405)


# Parameters


@pytest.mark.parametrize("text", ["%ff", "a%C3", "%ED%A0%80", "%C0%AF"])
def test_invalid_utf8_is_refused(http: Http, shop: Shop, text: str) -> None:
    view = shop.views[0].name
    for path in (f"rows/{text}", f"rows?prefix={text}", f"rows?filter=name%3D%22{text}%22", f"rows?{text}=1"):
        assert http.get(f"/v1/views/{view}/{path}").expect(400)["code"] == "HR-SERVE-REQUEST"


@pytest.mark.parametrize(
    ("parameters", "status"),
    [
        *(({"limit": text}, 400) for text in ("0", "-1", "1e3", "100001", "9" * 40, "", "٣", " 1", "0x1")),
        *(({"limit": text}, 200) for text in ("1", "100000", "007")),
        *(({"wait": text}, 400) for text in ("-1", "1e9", "", "1h", "s", "1.s", "9" * 10, "inf", "nan")),
        *(({"wait": text}, 200) for text in ("0", "0s", "999999999", "0.5", "999999999m")),
        *(({"same": text}, 400) for text in ("", "1", "TRUE")),
        *(({"after": text}, 400) for text in ("", ",", "x", "AAAA", "ä", "kQE", "%00", "lAHA")),
        *(({"cursor": text}, 400) for text in ("", "x", "AAAA", "e30", "bnVsbA", "W10", "ä")),
        *(({"sort": text}, 400) for text in (",", "-", "--name", "name,name", "name desc", "nothing")),
        *(({"filter": text}, 400) for text in ("", "(", "name", "name = ", '= "a"', "name in ()", '"\\')),
        ({"match": " "}, 400),
        ({"match": "x", "sort": "name"}, 400),
    ],
)
def test_invalid_parameters_are_refused(
    http: Http, shop: Shop, parameters: dict[str, str], status: int
) -> None:
    reply = http.get(f"/v1/views/{shop.views[0].name}/rows", **parameters)
    assert reply.status == status, reply.body
    if status == 400:
        assert reply.headers["content-type"] == "application/problem+json"
        assert reply.json["code"].startswith("HR-SERVE-")


def test_a_token_of_a_future_position_times_out(http: Http, shop: Shop) -> None:
    path = f"/v1/views/{shop.views[0].name}/rows"
    document = http.get(path).expect(200)["position"]
    topic_id = PositionToken.parse(document["token"]).topics[document["topic"]].topic_id

    def after(ends: dict[int, int], name: str = document["topic"], number: str = topic_id) -> Any:
        return http.get(path, after=PositionToken.of({name: TopicPosition(number, ends)}).encode(), wait="0")

    for future in ({0: 2}, {0: 2**62}, {7: 1}):
        late = after(future).expect(504)
        assert (late["code"], late["position"]["offsets"]) == ("HR-SERVE-LATE", {"0": 1})
    for past in ({}, {0: 0}, {0: -5}, {0: 1}):
        assert after(past).expect(200)["position"]["offsets"] == {"0": 1}
    assert after({0: 1}, number="another").expect(409)["code"] == "HR-SERVE-AFTER-OUTDATED"
    other = http.get(f"/v1/views/{shop.views[1].name}/rows").expect(200)["position"]["token"]
    assert http.get(path, after=other).expect(400)["code"] == "HR-SERVE-AFTER"
    # If one of the tokens belongs to this view's topic, the request reads this view.
    assert http.get(path, after=f"{other},{document['token']}").expect(200)["rows"]


def _cursor(**result: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(result).encode()).rstrip(b"=").decode()


def test_a_forged_cursor_is_refused_or_is_an_ordinary_query(cluster: Cluster, http: Http, shop: Shop) -> None:
    view, other = shop.views[0].name, shop.views[1].name
    path = f"/v1/views/{view}/rows"
    assert http.get(path, cursor=_cursor(view=view, at="x")).expect(200)["moved"] is True
    for wrong in (
        {"view": other, "at": "x"},
        {"view": view, "at": 1},
        {"view": view, "at": "x", "more": 1},
        {"view": view, "at": "x", "after": "{"},
        {"view": view, "at": "x", "after": '{"product_id": 1}'},
        {"view": view, "at": "x", "filter": "nothing = 1"},
        {"view": view, "at": "x", "sort": "-"},
        {"view": view, "at": "x", "skip": -1},
        {"view": view, "at": "x", "skip": 5},
        {"view": view, "at": "x", "skip": 10**12, "words": "x"},
        {"view": view, "at": "x", "words": " "},
        {"view": view, "at": "x", "words": "x", "sort": "name"},
    ):
        assert http.get(path, cursor=_cursor(**wrong)).status == 400, wrong
    records = f"/v1/topics/{shop.topics[0].name}/records"
    cursor_of_other_topic = urllib.parse.parse_qs(
        urllib.parse.urlsplit(http.get(records).json["next"]).query
    )["cursor"][0]
    assert http.get(f"/v1/topics/{shop.topics[1].name}/records", cursor=cursor_of_other_topic).expect(400)
    topic_id = cluster.expect_topic(shop.topics[0].name).id
    for offsets in ({0: -1}, {0: 2}, {0: 2**63}, {9: 0}, {-1: 0}):
        forged = base64.urlsafe_b64encode(
            msgspec.msgpack.encode({"topic_id": topic_id, "offsets": offsets})
        ).rstrip(b"=")
        assert http.get(records, cursor=forged.decode()).status == 400, offsets


def test_search_words_in_a_forged_cursor_are_only_search_words(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    name = fresh("words")
    app = App("shop")
    products = app.table(name, Product, key="product_id")
    view = app.view(f"{name}-view", products, store=Search(fields=["name"]))
    ensure_declared(cluster, products, name, 1)
    produce(cluster, name, [(b"p", b'{"product_id":"p","name":"tea","price":1,"weight":null}')])
    with following(cluster, view, [], tmp_path), served(app, cluster, tmp_path) as http:
        path = f"/v1/views/{view.name}/rows"
        until(lambda: len(http.get(path).json.get("rows", [])) == 1, "the row")
        for words in ("", " ", "\t"):
            assert http.get(path, cursor=_cursor(view=view.name, at="x", words=words)).status == 400
        for words in ('"', "name:", "(((", "\x00", "*", "+", "nothing:tea", "tea^-1", "[a TO", "ä" * 1_000):
            assert http.get(path, match=words).status in (200, 422), words


def test_a_row_is_found_by_a_key_of_any_characters(shops: Shops) -> None:
    http, used = shops.http, shops.take()
    keys = [
        "",
        "/",
        "//",
        "a/b",
        "..",
        ".",
        "%",
        "%2F",
        "\x00",
        "ä",
        "a\u0301",
        "😀",
        "\u202e",
        "x" * 3_000,
        "?#&=+ ",
    ]
    records = [{"value": {"product_id": key, "name": key, "price": 1}} for key in keys]
    with shops.followed(used):
        token = http.post(f"/v1/topics/{used.topics[0].name}/records", {"records": records}).expect(200)[
            "token"
        ]
        for key in keys:
            path = f"/v1/views/{used.views[0].name}/rows/{urllib.parse.quote(key, safe='')}"
            assert http.get(path, after=token, wait="20s").expect(200)["row"]["name"] == key
            assert http.get(f"{path}1").expect(404)["code"] == "HR-SERVE-NOT-THERE"
        assert [row["name"] for row in http.rows(used.views[0].name, limit=4)] == sorted(keys)


# Writes


def test_concurrent_requests_with_one_idempotency_key_execute_once(cluster: Cluster, shops: Shops) -> None:
    http, topic = shops.http, shops.take().topics[1].name
    bodies = [{"value": {"order_id": f"o{n % 4}", "product_id": "p", "pieces": 1}} for n in range(24)]
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        requests = [
            pool.submit(http.post, f"/v1/topics/{topic}/records", body, headers={"Idempotency-Key": "same"})
            for body in bodies
        ]
        statuses = Counter(future.result().status for future in requests)
    assert statuses == {200: 6, 422: 18}
    wait_until_decided(cluster, topic)
    # The record, and the end of its transaction.
    assert sum(cluster.ends(topic, committed=False).values()) == 2
    for key in ("", " ", "a b", "ä", "x" * 201, "\t"):
        reply = http.post(
            f"/v1/topics/{topic}/records",
            bodies[0],
            headers={"Idempotency-Key": key.encode().decode("latin-1")},
        )
        assert reply.expect(400)["code"] == "HR-SERVE-REQUEST", key


def test_a_body_that_is_not_valid_json_of_its_length_is_refused(http: Http, shop: Shop) -> None:
    line = f"POST /v1/topics/{shop.topics[0].name}/records HTTP/1.1"
    host, media = "Host: localhost", "Content-Type: application/json"
    assert _status(http, line, host, media, f"Content-Length: {2 * 2**30}") == 413
    assert _status(http, line, host, media, "Content-Length: -1") == 400
    assert _status(http, line, host, media, "Content-Length: 2", "Content-Length: 3", body=b"{}") == 400
    assert (
        _status(http, line, host, media, "Content-Length: 2", "Transfer-Encoding: chunked", body=b"{}") == 400
    )
    assert _status(http, line, host, media, "Content-Encoding: gzip", "Content-Length: 2", body=b"{}") == 415
    assert _status(http, line, host, "Content-Type: text/json", "Content-Length: 2", body=b"{}") == 415
    assert _status(http, line, host, media, "Transfer-Encoding: chunked", body=b"zz\r\n") == 400
    two_keys = ("Idempotency-Key: a", "Idempotency-Key: b")
    assert _status(http, line, host, media, *two_keys, "Content-Length: 2", body=b"{}") == 400


# Stores


def test_paging_continues_over_a_new_generation_and_a_removed_store_is_not_found(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    flow = ScriptedFlow(cluster, fresh("swapped"))
    app = flow.app
    path = f"/v1/views/{flow.view.name}/rows"

    def rows(amount: int) -> list[tuple[str, dict[str, object]]]:
        return [(f"p{n}", {"product": f"p{n}", "amount": amount, "note": None}) for n in range(6)]

    flow.begin()
    flow.batch(rows(1))
    with served(app, cluster, tmp_path) as http:
        with following(cluster, flow.view, app.flows, tmp_path):
            until(lambda: len(http.get(path).json.get("rows", [])) == 6, "the rows")
            first = http.get(path, limit=2).expect(200)
            strict = http.get(path, limit=2, same="true").expect(200)
            flow.begin()
            flow.batch(rows(2))
            until(lambda: http.get(path).json["position"]["generation"] == 2, "generation 2")
            second = http.get(first["next"]).expect(200)
            assert second["moved"] is True
            assert second["position"]["generation"] == 2
            assert [(row["product"], row["amount"]) for row in second["rows"]] == [("p2", 2), ("p3", 2)]
            assert http.get(strict["next"]).expect(409)["code"] == "HR-SERVE-MOVED"
        # Delete the whole store and rebuild it.
        for file in tmp_path.glob("shop.db*"):
            file.unlink()
        gone = http.get(path)
        assert gone.expect(503)["code"] == "HR-SERVE-NOT-SERVING"
        assert http.get(second["next"]).status == 503
        with following(cluster, flow.view, app.flows, tmp_path):
            until(lambda: http.get(path).status == 200, "the view again")
            assert {row["amount"] for row in http.rows(flow.view.name)} == {2}
        for file in tmp_path.glob("shop.db*"):
            file.unlink()
        (tmp_path / "shop.db").write_bytes(b"no database at all" * 1_000)
        damaged = http.get(path)
        assert damaged.status in (500, 503)
        assert str(tmp_path) not in damaged.body.decode()
        http.server_log.warnings.clear()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/v1/views/" + "'" * 16_000 + "/changes", ""),
        ("/v1/views/any/changes", "X: " + "x" * 10_000 + "\r\n"),
        ("/v1/views/any/changes", "".join(f"X-{number}: x\r\n" for number in range(200))),
    ],
    ids=["path", "header", "headers"],
)
def test_a_websocket_handshake_with_too_large_a_head_is_refused_immediately(
    http: Http, path: str, headers: str
) -> None:
    with socket.create_connection(("127.0.0.1", http.port), 60) as connection:
        connection.sendall(
            f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n{headers}\r\n".encode()
        )
        response = connection.makefile("rb").read()
    assert response.startswith(b"HTTP/1.1 431 ")
    assert b"HR-SERVE-HEAD" in response


@pytest.mark.parametrize("header", ["Content-Length: 3", "Transfer-Encoding: chunked"])
def test_a_websocket_handshake_with_a_body_is_refused_immediately(http: Http, header: str) -> None:
    with socket.create_connection(("127.0.0.1", http.port), 60) as connection:
        connection.sendall(
            "GET /v1/views/any/changes HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n{header}\r\n\r\n".encode()
        )
        response = connection.makefile("rb").read()
    assert response.startswith(b"HTTP/1.1 400 ")
    assert b"HR-SERVE-HANDSHAKE" in response
    assert b"must be a GET request without a body" in response
