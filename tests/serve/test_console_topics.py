"""Topics of the whole log over HTTP: all of them in few questions, one with all that is known, and writing one."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

from headrace.app import App
from headrace.client.cluster import Cluster
from headrace.client.declaring import ensure_declared
from headrace.serve.console.log_topics import LogTopics
from headrace.serve.routes import ROUTES
from headrace.serve.scope import WRITE_TOPIC
from headrace.testing.faulty_clock import DrivenClock
from tests.serve.http import Http
from tests.serve.serving import served, token_for
from tests.serve.shop import Order, shop
from tests.support.waiting import until
from tests.views.seeing import produce

Fresh = Callable[[str], str]


@pytest.fixture(scope="module")
def app(cluster: Cluster) -> App:
    made = shop("console-topics")
    for topic in made.topics:
        ensure_declared(cluster, topic, topic.name, 2)
    return made


@pytest.fixture(scope="module")
def server(app: App, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Http]:
    with served(app, cluster, tmp_path_factory.mktemp("topics")) as found:
        yield found


def listed(server: Http) -> dict[str, dict[str, Any]]:
    return {one["topic"]: one for one in server.get("/v1/log/topics").expect(200)["topics"]}


def test_all_topics_are_listed_with_what_the_app_says_of_them(
    server: Http, app: App, cluster: Cluster, fresh: Fresh
) -> None:
    outside = fresh("console-outside")
    cluster.ensure_topic(outside, 3, {"retention.ms": "3600000", "retention.bytes": "1000000"})
    produce(cluster, outside, [(b"k", b"v" * 100)] * 50)
    until(lambda: listed(server).get(outside, {}).get("records") == 50, "the topic")
    found = listed(server)
    one = found[outside]
    assert (one["kind"], one["partitions"], one["offline"], one["internal"]) == (None, 3, 0, False)
    assert (one["retention_s"], one["retention_bytes"], one["cleanup"]) == (3_600, 1_000_000, "delete")
    assert one["bytes"] > 0
    assert found[app.topics[0].name]["kind"] == "table"
    assert found[app.topics[1].name]["kind"] == "events"


def test_how_fast_a_topic_grows_is_told_from_the_second_look_on(cluster: Cluster, fresh: Fresh) -> None:
    topic = fresh("console-rate")
    cluster.ensure_topic(topic, 1)
    clock = DrivenClock()
    topics = LogTopics(cluster, clock)
    find = lambda: next(one for one in topics.all() if one.name == topic)  # noqa: E731
    assert find().per_s is None
    produce(cluster, topic, [(None, b"v")] * 30)
    assert find().records == 0, "what was found a moment ago is given again"
    clock.advance(10)
    assert (find().records, find().per_s) == (30, 3.0)


def test_many_topics_are_listed_at_once(cluster: Cluster) -> None:
    names = [f"console-many-{number:03}" for number in range(100)]
    made = cluster.admin().create_topics(
        [NewTopic(one, num_partitions=1) for one in names], request_timeout=60
    )
    for one in made.values():
        one.result(60)
    found = {one.name: one for one in LogTopics(cluster, DrivenClock()).all()}
    assert all(found[one].retention is not None and len(found[one].bounds) == 1 for one in names)
    for one in cluster.admin().delete_topics(names, request_timeout=60).values():
        one.result(60)


def test_a_topic_is_told_with_configs_partitions_and_who_is_at_either_end(server: Http, app: App) -> None:
    topic = app.topics[1].name
    order = {"order_id": "o1", "product_id": "p", "pieces": 1}
    server.post(f"/v1/topics/{topic}/records", {"value": order}).expect(200)
    found = server.get(f"/v1/log/topics/{topic}").expect(200)
    configs = {one["config"]: one for one in found["configs"]}
    assert configs["retention.ms"]["source"] in ("default", "topic", "broker")
    assert [one["partition"] for one in found["partition_list"]] == [0, 1]
    assert sum(one["records"] for one in found["partition_list"]) == 1
    assert found["partition_list"][0]["in_sync"] == found["partition_list"][0]["replicas"]
    assert found["read_by"] == [{"kind": "view", "name": app.views[1].name}]
    assert (found["written_by"], found["writable"], found["declared"]) == ([], True, True)
    assert server.get("/v1/log/topics/console-none").expect(404)["code"] == "HR-KAFKA-UNKNOWN_TOPIC_OR_PART"


def test_a_record_is_written_as_it_is_where_the_app_declares_nothing(
    server: Http, cluster: Cluster, fresh: Fresh
) -> None:
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
    found = server.get(f"/v1/log/topics/{topic}/record", partition=2, offset=0).expect(200)["record"]
    assert (found["key"]["text"], found["value"]["base64"]) == ("k", "AP8=")
    assert found["headers"] == [{"name": "source", "size": 7, "text": "by hand"}]
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


def test_what_the_app_declares_and_what_is_the_logs_own_is_not_written_as_it_is(
    server: Http, app: App
) -> None:
    for topic in (app.topics[0].name, app.views[0].dead_topic, "__consumer_offsets"):
        problem = server.post(f"/v1/log/topics/{topic}/records", {"value": {"text": "x"}}).expect(409)
        assert problem["code"] == "HR-SERVE-DERIVED"
    assert server.post("/v1/log/topics/console-none/records", {"value": {"text": "x"}}).status == 404


def test_what_headrace_alone_writes_is_not_written_by_hand(
    cluster: Cluster, fresh: Fresh, tmp_path: Path
) -> None:
    name = fresh("console-own")
    app = App(name)
    raw = app.topic(f"{name}-raw", Order, key="order_id")
    derived = app.topic(f"{name}-derived", key="order_id")
    app.flow(reads=[raw], writes=derived, name=f"{name}-flow")(lambda rows: rows)
    theirs = [f"{name}-flow.progress", f"{derived.name}.g2", f"headrace.replays.{name}", f"{name}.alerts"]
    # Of an app that this server knows nothing of.
    theirs += [f"{name}-other{end}" for end in (".progress", ".late", ".dead", ".alerts", ".g7")]
    beside = [f"{derived.name}.good", f"{name}-flow.progressive"]
    for topic in (*theirs, *beside):
        cluster.ensure_topic(topic, 1)
    with served(app, cluster, tmp_path) as http:
        for topic in theirs:
            path = f"/v1/log/topics/{topic}"
            refused = http.post(f"{path}/records", {"value": {"text": "x"}}).expect(409)
            assert "alone" in refused["detail"], topic
            assert http.get(path).expect(200)["writable"] is False
            for route in (one for one in ROUTES if one.action == WRITE_TOPIC):
                reply = http.post(route.path.replace("{topic}", topic), {"value": {"text": "x"}})
                assert reply.status in (404, 409), (route.path, topic)
        for topic in beside:
            http.post(f"/v1/log/topics/{topic}/records", {"value": {"text": "x"}}).expect(200)
    assert {sum(cluster.ends(one).values()) for one in theirs} == {0}
    assert [sum(cluster.ends(one).values()) for one in beside] == [1, 1]


@pytest.mark.parametrize("name", ["%00", "orders%00x", "a%20b", "%C3%A9", "x" * 249 + "y"])
def test_a_name_that_no_topic_can_have_is_not_there(name: str, server: Http) -> None:
    assert server.get(f"/v1/log/topics/{name}").status in (400, 404, 422)


def test_bytes_that_are_not_in_base64_are_refused(server: Http, cluster: Cluster, fresh: Fresh) -> None:
    topic = fresh("console-base64")
    cluster.ensure_topic(topic, 1)
    for text in ("\u00e9", "?", "AA="):
        told = server.post(f"/v1/log/topics/{topic}/records", {"value": {"base64": text}}).expect(400)
        assert "not in base64" in told["detail"]


def test_a_token_reads_and_writes_topics_outside_of_the_app_by_name(
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
