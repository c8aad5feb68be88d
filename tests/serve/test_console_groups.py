"""Consumer groups over HTTP: who is behind by how much, and moving one, looked at first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from headrace.client.cluster import Cluster
from headrace.clock import SystemClock
from headrace.ops.lag.meter import LagMeter
from headrace.serve.console.group_looks import GroupLooks
from tests.serve.http import Http
from tests.serve.serving import served
from tests.serve.shop import shop
from tests.support.waiting import until
from tests.views.seeing import produce

Fresh = Callable[[str], str]


@pytest.fixture(scope="module")
def server(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Http]:
    with served(shop("console-groups"), cluster, tmp_path_factory.mktemp("groups")) as found:
        yield found


@pytest.fixture
def read(cluster: Cluster, fresh: Fresh) -> tuple[str, str]:
    """A group, and a topic of two partitions with ten records each, of which it has read three and ten."""
    group, topic = fresh("console-group"), fresh("console-read")
    cluster.ensure_topic(topic, 2)
    for number in range(2):
        produce(cluster, topic, [(None, b"v" * 100)] * 10, partition=number)
    consumer = cluster.consumer({"group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, 3), TopicPartition(topic, 1, 10)], asynchronous=False)
    consumer.close()
    return group, topic


def group_of(server: Http, name: str) -> dict[str, Any]:
    found: dict[str, Any] = server.get(f"/v1/log/groups/{name}").expect(200)
    return found


def test_a_group_is_told_with_its_lag_in_records_bytes_and_seconds(
    server: Http, read: tuple[str, str]
) -> None:
    group, topic = read
    found = group_of(server, group)
    assert (found["state"], found["members"], found["lag"], found["gone"]) == ("empty", [], 7, 0)
    assert found["lag_bytes"] > 700
    assert found["lag_s"] >= 0
    assert found["time_to_loss_s"] is not None
    rows = [(one["partition"], one["committed"], one["end"], one["lag"]) for one in found["partitions"]]
    assert rows == [(0, 3, 10, 7), (1, 10, 10, 0)]
    listed = next(one for one in server.get("/v1/log/groups").expect(200)["groups"] if one["group"] == group)
    assert (listed["topics"], listed["lag"], listed["members"], listed["state"]) == ([topic], 7, 0, "empty")
    assert {"kind": "group", "name": group} in server.get(f"/v1/log/topics/{topic}").expect(200)["read_by"]
    assert server.get("/v1/log/groups/console-no-group").expect(404)["code"] == "HR-SERVE-NOT-THERE"


def test_rates_are_kept_of_the_groups_that_were_looked_at_last_and_of_no_more(
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

    monkeypatch.setattr("headrace.serve.console.group_looks.LagMeter", Counted)
    monkeypatch.setattr("headrace.serve.console.group_looks._METERS_MAX", 3)
    topic, groups = fresh("console-read"), [fresh("console-group") for _ in range(4)]
    cluster.ensure_topic(topic, 1)
    for group in groups:
        consumer = cluster.consumer({"group.id": group})
        consumer.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
        consumer.close()
    with closing(GroupLooks(cluster, SystemClock())) as looks:
        for group in (groups[0], groups[1], groups[0]):
            looks.one(group)
        first, second = open_meters
        for group in groups[2:]:
            looks.one(group)
        assert first in open_meters
        assert second not in open_meters
        assert len(open_meters) == 3
    assert open_meters == []


@pytest.mark.parametrize(
    ("to", "after"),
    [
        ("start", {0: 0, 1: 0}),
        ("end", {0: 10, 1: 10}),
        ("5", {0: 5, 1: 5}),
        ("-2", {0: 8, 1: 8}),
        ("@-1h", {0: 0, 1: 0}),
    ],
)
def test_a_move_is_shown_before_it_is_made(
    to: str, after: dict[int, int], server: Http, read: tuple[str, str]
) -> None:
    group, topic = read
    path = f"/v1/log/groups/{group}/seek"
    looked = server.post(path, {"to": to}).expect(200)
    assert looked["dry_run"] is True
    assert {one["partition"]: (one["old"], one["new"]) for one in looked["moves"]} == {
        0: (3, after[0]),
        1: (10, after[1]),
    }
    assert [one["committed"] for one in group_of(server, group)["partitions"]] == [3, 10]
    moved = server.post(path, {"to": to, "dry_run": False}).expect(200)
    assert moved["moves"] == looked["moves"]
    assert [one["committed"] for one in group_of(server, group)["partitions"]] == [after[0], after[1]]
    assert all(one["topic"] == topic for one in moved["moves"])


def test_one_partition_is_moved_and_others_stay(server: Http, read: tuple[str, str]) -> None:
    group, topic = read
    body = {"to": "end", "topic": topic, "partitions": [0], "dry_run": False}
    assert len(server.post(f"/v1/log/groups/{group}/seek", body).expect(200)["moves"]) == 1
    assert [one["committed"] for one in group_of(server, group)["partitions"]] == [10, 10]


def test_a_group_whose_members_are_at_work_is_not_moved(
    server: Http, cluster: Cluster, read: tuple[str, str]
) -> None:
    group, topic = read
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group, "client.id": "till"})
    consumer.subscribe([topic])
    try:
        until(
            lambda: consumer.poll(0.1) is not None or bool(consumer.assignment()),
            "the group to be joined",
            timeout_s=60,
        )
        looked = server.post(f"/v1/log/groups/{group}/seek", {"to": "start"}).expect(200)
        assert looked["at_work"][0].startswith("till at ")
        problem = server.post(f"/v1/log/groups/{group}/seek", {"to": "start", "dry_run": False}).expect(409)
        assert problem["code"] == "HR-SERVE-GROUP-ACTIVE"
        found = group_of(server, group)
        assert [one["client"] for one in found["members"]] == ["till"]
        assert {one["member"] for one in found["partitions"]} == {"till"}
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
def test_a_move_to_nowhere_is_refused(
    body: dict[str, Any], status: int, code: str, server: Http, read: tuple[str, str]
) -> None:
    assert server.post(f"/v1/log/groups/{read[0]}/seek", body).expect(status)["code"] == code
    assert server.post("/v1/log/groups/console-no-group/seek", {"to": "start"}).status == 404


def test_a_group_without_a_name_and_a_body_that_is_no_text_are_refused(server: Http) -> None:
    assert server.get("/v1/log/groups/").status == 404
    assert server.post("/v1/log/groups//seek", {"to": "start"}).status == 404
    assert server.post("/v1/log/groups/any/seek", b'{"to": "\xff"}').status == 400
