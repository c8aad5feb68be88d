from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.topics.topic import NO_TOPIC_ID
from headrace.wire import Api
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

from .broker_calls import BrokerCalls

StartBroker = Callable[..., Awaitable[BrokerCalls]]


def new_topic(name: str, partitions: int = 1, replication_factor: int = 1, **fields: Any) -> Any:
    return m.CreateTopicsRequest.CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=replication_factor, **fields
    )


def assignments_of(*pairs: tuple[int, list[int]]) -> dict[str, Any]:
    assignment = m.CreateTopicsRequest.CreatableReplicaAssignment
    return {
        "partitions": -1,
        "replication_factor": -1,
        "assignments": [assignment(partition_index=index, broker_ids=ids) for index, ids in pairs],
    }


async def create_topic(call: BrokerCalls, topic: Any, version: int | None = None, **fields: Any) -> Any:
    response = await call(Api.CREATE_TOPICS, version, topics=[topic], **fields)
    (answer,) = response.topics
    return answer


async def test_a_created_topic_has_its_partitions_and_configuration(call: BrokerCalls) -> None:
    config = m.CreateTopicsRequest.CreatableTopicConfig(name="retention.ms", value="5")
    answer = await create_topic(call, new_topic("orders", 3, configs=[config]))
    topic = call.broker.catalog.topic("orders")
    assert topic is not None
    assert (answer.error_code, answer.error_message) == (0, None)
    assert (answer.topic_id, answer.num_partitions, answer.replication_factor) == (topic.id, 3, 1)
    configs = {entry.name: (entry.value, entry.config_source) for entry in answer.configs}
    assert configs["retention.ms"] == ("5", 1)
    assert configs["segment.ms"] == ("604800000", 5)
    assert list(configs) == sorted(configs)
    assert all(call.broker.partition("orders", index) is not None for index in range(3))
    assert call.broker.partition("orders", 3) is None


async def test_every_version_creates_a_topic(call: BrokerCalls) -> None:
    for version in range(2, 8):
        assert (await create_topic(call, new_topic(f"of-{version}", -1, -1), version)).error_code == 0
        assert call.broker.catalog.topic(f"of-{version}") is not None


async def test_the_default_number_of_partitions_is_a_setting(start: StartBroker) -> None:
    call = await start(num_partitions=4)
    assert (await create_topic(call, new_topic("orders", -1, -1))).num_partitions == 4


@pytest.mark.parametrize(
    ("topic", "error_code"),
    [
        (new_topic("there"), ErrorCode.TOPIC_ALREADY_EXISTS),
        (new_topic("a", 0), ErrorCode.INVALID_PARTITIONS),
        (new_topic("a", -2), ErrorCode.INVALID_PARTITIONS),
        (new_topic("a", 1_001), ErrorCode.INVALID_PARTITIONS),
        (new_topic("a", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (new_topic("a", 1, 2), ErrorCode.INVALID_REPLICATION_FACTOR),
        (new_topic("a", 1, -2), ErrorCode.INVALID_REPLICATION_FACTOR),
        (new_topic("a", 0, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (new_topic("__cluster_metadata"), ErrorCode.INVALID_REQUEST),
        (new_topic("a", **assignments_of((0, [1]), (2, [1]))), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (new_topic("a", **assignments_of((0, [1]), (0, [1]))), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (new_topic("a", **assignments_of((0, [2]))), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (new_topic("a", **assignments_of((0, [1, 1]))), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (new_topic("a", **assignments_of((0, []))), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (new_topic("a", **assignments_of((0, [1])) | {"partitions": 1}), ErrorCode.INVALID_REQUEST),
        (new_topic("a", **assignments_of((0, [1])) | {"replication_factor": 1}), ErrorCode.INVALID_REQUEST),
        (
            new_topic(
                "a", configs=[m.CreateTopicsRequest.CreatableTopicConfig(name="retention.ms", value=None)]
            ),
            ErrorCode.INVALID_CONFIG,
        ),
        (
            new_topic("a", configs=[m.CreateTopicsRequest.CreatableTopicConfig(name="no.such", value="1")]),
            ErrorCode.INVALID_CONFIG,
        ),
    ],
)
async def test_an_invalid_topic_is_refused_with_kafkas_error_code(
    call: BrokerCalls, topic: Any, error_code: ErrorCode
) -> None:
    await call.create("there")
    answer = await create_topic(call, topic)
    assert (answer.error_code, answer.topic_id, answer.num_partitions) == (error_code, NO_TOPIC_ID, -1)
    assert answer.error_message
    assert [t.name for t in call.broker.catalog.topics()] == ["there"]


async def test_a_topic_can_be_created_with_explicit_assignments(call: BrokerCalls) -> None:
    answer = await create_topic(call, new_topic("orders", **assignments_of((1, [1]), (0, [1]))))
    assert (answer.error_code, answer.num_partitions) == (0, 2)


async def test_an_invalid_topic_does_not_affect_the_others(call: BrokerCalls) -> None:
    response = await call(Api.CREATE_TOPICS, topics=[new_topic("a"), new_topic("b", 0), new_topic("c")])
    assert [(t.name, t.error_code) for t in response.topics] == [
        ("a", 0),
        ("b", ErrorCode.INVALID_PARTITIONS),
        ("c", 0),
    ]


async def test_a_topic_named_twice_is_not_created(call: BrokerCalls) -> None:
    response = await call(Api.CREATE_TOPICS, topics=[new_topic("a", 1), new_topic("a", 2), new_topic("b")])
    assert [(t.name, t.error_code) for t in response.topics] == [("b", 0), ("a", ErrorCode.INVALID_REQUEST)]
    assert call.broker.catalog.topic("a") is None


async def test_validate_only_creates_no_topic(call: BrokerCalls) -> None:
    answer = await create_topic(call, new_topic("orders", 3), validate_only=True)
    assert (answer.error_code, answer.num_partitions) == (0, 3)
    assert call.broker.catalog.topic("orders") is None


HOSTILE = [
    "",
    ".",
    "..",
    "../x",
    "a/b",
    "/etc/passwd",
    "a\0b",
    "a\n",
    "x" * 250,
    "x" * 10_000,
    "\u202e",
    "a\\b",
    "~",
]


def tree(directory: Path) -> set[str]:
    return {os.path.join(root, name) for root, dirs, files in os.walk(directory) for name in dirs + files}


async def test_a_name_is_never_a_path(call: BrokerCalls, tmp_path: Path) -> None:
    before = tree(tmp_path)
    for name in HOSTILE:
        assert (await create_topic(call, new_topic(name))).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert tree(tmp_path) == before, name


async def test_topics_whose_names_differ_in_case_have_different_directories(
    call: BrokerCalls, tmp_path: Path
) -> None:
    topics = [await call.create(name) for name in ("orders", "Orders", "ORDERS")]
    assert {path.name for path in (tmp_path / "data" / "topics").iterdir()} == {
        topic.id.hex() for topic in topics
    }
