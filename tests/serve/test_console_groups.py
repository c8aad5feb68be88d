"""Consumer groups over HTTP: lag, and moving a group after a dry run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from faults.serve.http import Http
from faults.serve.local_server import served
from faults.serve.shop_app import shop
from faults.views.follower_thread import produce
from faults.wait import until
from headrace.client.cluster import Cluster
from headrace.clock import SystemClock
from headrace.ops.lag.meter import LagMeter
from headrace.serve.console.groups import GroupService

Fresh = Callable[[str], str]


@pytest.fixture(scope="module")
def server(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Http]:
    with served(shop("console-groups"), cluster, tmp_path_factory.mktemp("groups")) as http:
        yield http


@pytest.fixture
def group_and_topic(cluster: Cluster, fresh: Fresh) -> tuple[str, str]:
    """Return a group and its topic: two partitions with ten records each, of which it has read three and ten."""
    group, topic = fresh("console-group"), fresh("console-read")
    cluster.ensure_topic(topic, 2)
    for number in range(2):
        produce(cluster, topic, [(None, b"v" * 100)] * 10, partition=number)
    consumer = cluster.consumer({"group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, 3), TopicPartition(topic, 1, 10)], asynchronous=False)
    consumer.close()
    return group, topic


def group_of(server: Http, name: str) -> dict[str, Any]:
    document: dict[str, Any] = server.get(f"/v1/log/groups/{name}").expect(200)
    return document


def test_a_group_has_its_lag_in_records_bytes_and_seconds(
    server: Http, group_and_topic: tuple[str, str]
) -> None:
    group, topic = group_and_topic
    document = group_of(server, group)
    assert (document["state"], document["members"], document["lag"], document["gone"]) == ("empty", [], 7, 0)
    assert document["lag_bytes"] > 700
    assert document["lag_s"] >= 0
    assert document["time_to_loss_s"] is not None
    rows = [
        (partition["partition"], partition["committed"], partition["end"], partition["lag"])
        for partition in document["partitions"]
    ]
    assert rows == [(0, 3, 10, 7), (1, 10, 10, 0)]
    listed = next(
        entry for entry in server.get("/v1/log/groups").expect(200)["groups"] if entry["group"] == group
    )
    assert (listed["topics"], listed["lag"], listed["members"], listed["state"]) == ([topic], 7, 0, "empty")
    assert {"kind": "group", "name": group} in server.get(f"/v1/log/topics/{topic}").expect(200)["read_by"]
    assert server.get("/v1/log/groups/console-no-group").expect(404)["code"] == "HR-SERVE-NOT-THERE"


def test_only_the_most_recently_used_lag_meters_stay_open(
    cluster: Cluster, fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_meters: list[LagMeter] = []

    class Counted(LagMeter):
        def __init__(self, *where: Any) -> None:
            super().__init__(*where)
            open_meters.append(self)

        def close(self) -> None:
            open_meters.remove(self)
            super().close()

    monkeypatch.setattr("headrace.serve.console.groups.LagMeter", Counted)
    monkeypatch.setattr("headrace.serve.console.groups._METERS_MAX", 3)
    topic, groups = fresh("console-read"), [fresh("console-group") for _ in range(4)]
    cluster.ensure_topic(topic, 1)
    for group in groups:
        consumer = cluster.consumer({"group.id": group})
        consumer.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
        consumer.close()
    with closing(GroupService(cluster, SystemClock())) as service:
        for group in (groups[0], groups[1], groups[0]):
            service.describe(group)
        first, second = open_meters
        for group in groups[2:]:
            service.describe(group)
        assert first in open_meters
        assert second not in open_meters
        assert len(open_meters) == 3
    assert open_meters == []


@pytest.mark.parametrize(
    ("to", "new_offsets"),
    [
        ("start", {0: 0, 1: 0}),
        ("end", {0: 10, 1: 10}),
        ("5", {0: 5, 1: 5}),
        ("-2", {0: 8, 1: 8}),
        ("@-1h", {0: 0, 1: 0}),
    ],
)
def test_a_dry_run_returns_the_new_offsets_without_a_commit(
    to: str, new_offsets: dict[int, int], server: Http, group_and_topic: tuple[str, str]
) -> None:
    group, topic = group_and_topic
    path = f"/v1/log/groups/{group}/seek"
    preview = server.post(path, {"to": to}).expect(200)
    assert preview["dry_run"] is True
    assert {move["partition"]: (move["old"], move["new"]) for move in preview["moves"]} == {
        0: (3, new_offsets[0]),
        1: (10, new_offsets[1]),
    }
    assert [partition["committed"] for partition in group_of(server, group)["partitions"]] == [3, 10]
    moved = server.post(path, {"to": to, "dry_run": False}).expect(200)
    assert moved["moves"] == preview["moves"]
    assert [partition["committed"] for partition in group_of(server, group)["partitions"]] == [
        new_offsets[0],
        new_offsets[1],
    ]
    assert all(move["topic"] == topic for move in moved["moves"])


def test_moving_one_partition_leaves_the_other_partitions_unchanged(
    server: Http, group_and_topic: tuple[str, str]
) -> None:
    group, topic = group_and_topic
    body = {"to": "end", "topic": topic, "partitions": [0], "dry_run": False}
    assert len(server.post(f"/v1/log/groups/{group}/seek", body).expect(200)["moves"]) == 1
    assert [partition["committed"] for partition in group_of(server, group)["partitions"]] == [10, 10]


def test_a_group_with_active_members_is_not_moved(
    server: Http, cluster: Cluster, group_and_topic: tuple[str, str]
) -> None:
    group, topic = group_and_topic
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group, "client.id": "till"})
    consumer.subscribe([topic])
    try:
        until(
            lambda: consumer.poll(0.1) is not None or bool(consumer.assignment()),
            "the group to be joined",
            timeout_s=60,
        )
        preview = server.post(f"/v1/log/groups/{group}/seek", {"to": "start"}).expect(200)
        assert preview["at_work"][0].startswith("till at ")
        problem = server.post(f"/v1/log/groups/{group}/seek", {"to": "start", "dry_run": False}).expect(409)
        assert problem["code"] == "HR-SERVE-GROUP-ACTIVE"
        document = group_of(server, group)
        assert [member["client"] for member in document["members"]] == ["till"]
        assert {partition["member"] for partition in document["partitions"]} == {"till"}
    finally:
        consumer.close()


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"to": "somewhere"}, 400, "HR-SERVE-PLACE"),
        ({"to": "11"}, 400, "HR-SERVE-PLACE"),
        ({"to": "start", "topic": "console-none"}, 404, "HR-KAFKA-UNKNOWN_TOPIC_OR_PART"),
        ({"to": "start", "partitions": [0]}, 400, "HR-SERVE-REQUEST"),
        ({"to": ""}, 400, "HR-SERVE-REQUEST"),
        ({}, 400, "HR-SERVE-REQUEST"),
    ],
)
def test_a_move_to_an_invalid_offset_is_refused(
    body: dict[str, Any], status: int, code: str, server: Http, group_and_topic: tuple[str, str]
) -> None:
    assert server.post(f"/v1/log/groups/{group_and_topic[0]}/seek", body).expect(status)["code"] == code
    assert server.post("/v1/log/groups/console-no-group/seek", {"to": "start"}).status == 404


def test_an_empty_group_name_and_an_invalid_body_are_refused(server: Http) -> None:
    assert server.get("/v1/log/groups/").status == 404
    assert server.post("/v1/log/groups//seek", {"to": "start"}).status == 404
    assert server.post("/v1/log/groups/any/seek", b'{"to": "\xff"}').status == 400
