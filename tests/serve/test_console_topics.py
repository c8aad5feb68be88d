"""Topics of the whole log over HTTP: the list, the details of one, and raw writes."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

from faults.serve.http import Http
from faults.serve.local_server import served, token_for
from faults.serve.shop_app import Order, shop
from faults.views.follower_thread import produce
from faults.wait import until
from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.declared_topics import ensure_declared
from headrace.serve.console.topics import LogTopics
from headrace.serve.features import ROUTES
from headrace.serve.http.tokens import WRITE_TOPIC
from headrace.testing.clock import DrivenClock

Fresh = Callable[[str], str]


@pytest.fixture(scope="module")
def app(cluster: Cluster) -> App:
    shop_app = shop("console-topics")
    for topic in shop_app.topics:
        ensure_declared(cluster, topic, topic.name, 2)
    return shop_app


@pytest.fixture(scope="module")
def server(app: App, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Http]:
    with served(app, cluster, tmp_path_factory.mktemp("topics")) as http:
        yield http


def topics_by_name(server: Http) -> dict[str, dict[str, Any]]:
    return {topic["topic"]: topic for topic in server.get("/v1/log/topics").expect(200)["topics"]}


def test_all_topics_are_listed_with_their_declarations(
    server: Http, app: App, cluster: Cluster, fresh: Fresh
) -> None:
    outside = fresh("console-outside")
    cluster.ensure_topic(outside, 3, {"retention.ms": "3600000", "retention.bytes": "1000000"})
    produce(cluster, outside, [(b"k", b"v" * 100)] * 50)
    until(lambda: topics_by_name(server).get(outside, {}).get("records") == 50, "the topic")
    topics = topics_by_name(server)
    topic = topics[outside]
    assert (topic["kind"], topic["partitions"], topic["offline"], topic["internal"]) == (None, 3, 0, False)
    assert (topic["retention_s"], topic["retention_bytes"], topic["cleanup"]) == (3_600, 1_000_000, "delete")
    assert topic["bytes"] > 0
    assert topics[app.topics[0].name]["kind"] == "table"
    assert topics[app.topics[1].name]["kind"] == "events"


def test_the_growth_rate_of_a_topic_is_known_from_the_second_sample(cluster: Cluster, fresh: Fresh) -> None:
    topic = fresh("console-rate")
    cluster.ensure_topic(topic, 1)
    clock = DrivenClock()
    topics = LogTopics(cluster, clock)
    sample = lambda: next(element for element in topics.all() if element.name == topic)  # noqa: E731
    assert sample().per_s is None
    produce(cluster, topic, [(None, b"v")] * 30)
    assert sample().records == 0, "a sample is cached for a moment"
    clock.advance(10)
    assert (sample().records, sample().per_s) == (30, 3.0)


def test_a_hundred_topics_are_listed_with_their_configs_and_offsets(cluster: Cluster) -> None:
    names = [f"console-many-{number:03}" for number in range(100)]
    futures = cluster.admin().create_topics(
        [NewTopic(name, num_partitions=1) for name in names], request_timeout=60
    )
    for future in futures.values():
        future.result(60)
    listed = {element.name: element for element in LogTopics(cluster, DrivenClock()).all()}
    assert all(listed[name].retention is not None and len(listed[name].bounds) == 1 for name in names)
    for deletion in cluster.admin().delete_topics(names, request_timeout=60).values():
        deletion.result(60)


def test_a_topic_has_its_configs_partitions_writers_and_readers(server: Http, app: App) -> None:
    topic = app.topics[1].name
    order = {"order_id": "o1", "product_id": "p", "pieces": 1}
    server.post(f"/v1/topics/{topic}/records", {"value": order}).expect(200)
    document = server.get(f"/v1/log/topics/{topic}").expect(200)
    configs = {config["config"]: config for config in document["configs"]}
    assert configs["retention.ms"]["source"] in ("default", "topic", "broker")
    assert [partition["partition"] for partition in document["partition_list"]] == [0, 1]
    assert sum(partition["records"] for partition in document["partition_list"]) == 1
    assert document["partition_list"][0]["in_sync"] == document["partition_list"][0]["replicas"]
    assert document["read_by"] == [{"kind": "view", "name": app.views[1].name}]
    assert (document["written_by"], document["writable"], document["declared"]) == ([], True, True)
    assert server.get("/v1/log/topics/console-none").expect(404)["code"] == "HR-KAFKA-UNKNOWN_TOPIC_OR_PART"


def test_a_raw_record_is_written_to_an_undeclared_topic(server: Http, cluster: Cluster, fresh: Fresh) -> None:
    topic = fresh("console-raw")
    cluster.ensure_topic(topic, 3)
    body = {
        "key": {"text": "k"},
        "value": {"base64": base64.b64encode(b"\x00\xff").decode()},
        "headers": [{"name": "source", "text": "by hand"}],
        "partition": 2,
    }
    written = server.post(f"/v1/log/topics/{topic}/records", body).expect(200)["records"]
    assert written == [{"partition": 2, "offset": 0}]
    record = server.get(f"/v1/log/topics/{topic}/record", partition=2, offset=0).expect(200)["record"]
    assert (record["key"]["text"], record["value"]["base64"]) == ("k", "AP8=")
    assert record["headers"] == [{"name": "source", "size": 7, "text": "by hand"}]
    server.post(f"/v1/log/topics/{topic}/records", {"key": {"text": "k"}, "value": None}).expect(200)
    for wrong in (
        {"value": {}},
        {"value": {"text": "a", "base64": "YQ=="}},
        {"value": {"base64": "!"}},
        {"value": {"text": "a"}, "partition": 3},
        {"key": {"text": "a"}},
        {"value": {"text": "a"}, "headers": [{"name": ""}]},
    ):
        server.post(f"/v1/log/topics/{topic}/records", wrong).expect(400)


def test_raw_records_to_declared_and_internal_topics_are_refused(server: Http, app: App) -> None:
    for topic in (app.topics[0].name, app.views[0].dead_topic, "__consumer_offsets"):
        problem = server.post(f"/v1/log/topics/{topic}/records", {"value": {"text": "x"}}).expect(409)
        assert problem["code"] == "HR-SERVE-DERIVED"
    assert server.post("/v1/log/topics/console-none/records", {"value": {"text": "x"}}).status == 404


def test_raw_records_to_topics_that_headrace_writes_are_refused(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    name = fresh("console-own")
    app = App(name)
    raw = app.topic(f"{name}-raw", Order, key="order_id")
    derived = app.topic(f"{name}-derived", key="order_id")
    app.flow(reads=[raw], writes=derived, name=f"{name}-flow")(lambda rows: rows)
    headrace_topics = [
        f"{name}.{name}-flow.progress",
        f"{derived.name}.g2",
        f"headrace.replays.{name}",
        f"{name}.alerts",
    ]
    # A topic of an app that this server does not know.
    headrace_topics += [f"{name}-other{end}" for end in (".progress", ".late", ".dead", ".alerts", ".g7")]
    other_topics = [f"{derived.name}.good", f"{name}.{name}-flow.progressive"]
    for topic in (*headrace_topics, *other_topics):
        cluster.ensure_topic(topic, 1)
    with served(app, cluster, tmp_path) as http:
        for topic in headrace_topics:
            path = f"/v1/log/topics/{topic}"
            refused = http.post(f"{path}/records", {"value": {"text": "x"}}).expect(409)
            assert "only " in refused["detail"], topic
            assert http.get(path).expect(200)["writable"] is False
            for route in (route for route in ROUTES if route.permission == WRITE_TOPIC):
                reply = http.post(route.path.replace("{topic}", topic), {"value": {"text": "x"}})
                assert reply.status in (404, 409), (route.path, topic)
        for topic in other_topics:
            http.post(f"/v1/log/topics/{topic}/records", {"value": {"text": "x"}}).expect(200)
    assert {sum(cluster.ends(topic_name).values()) for topic_name in headrace_topics} == {0}
    assert [sum(cluster.ends(topic).values()) for topic in other_topics] == [1, 1]


@pytest.mark.parametrize("name", ["%00", "orders%00x", "a%20b", "%C3%A9", "x" * 249 + "y"])
def test_an_invalid_topic_name_is_not_found(name: str, server: Http) -> None:
    assert server.get(f"/v1/log/topics/{name}").status in (400, 404, 422)


def test_invalid_base64_is_refused(server: Http, cluster: Cluster, fresh: Fresh) -> None:
    topic = fresh("console-base64")
    cluster.ensure_topic(topic, 1)
    for text in ("\u00e9", "?", "AA="):
        document = server.post(f"/v1/log/topics/{topic}/records", {"value": {"base64": text}}).expect(400)
        assert "not valid base64" in document["detail"]


def test_a_token_reads_and_writes_undeclared_topics_by_name(
    app: App, cluster: Cluster, fresh: Fresh, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home, topic = tmp_path_factory.mktemp("tokens"), fresh("console-scoped")
    cluster.ensure_topic(topic, 1)
    reader = token_for(home, "reader", f"read:topic:{topic}")
    writer = token_for(home, "writer", f"write:topic:{topic}")
    with served(app, cluster, home) as http:
        record = {"value": {"text": "x"}}
        assert Http(http.port, reader).post(f"/v1/log/topics/{topic}/records", record).status == 403
        assert Http(http.port, writer).post(f"/v1/log/topics/{topic}/records", record).status == 200
        assert Http(http.port, writer).post(f"/v1/log/topics/{topic}/search", {}).status == 403
        assert b'"text":"x"' in Http(http.port, reader).post(f"/v1/log/topics/{topic}/search", {}).body
        assert Http(http.port, reader).get("/v1/log/topics").status == 403
