from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.topic import NO_TOPIC_ID
from headrace.wire import Api
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

from .desk import Asking

Starting = Callable[..., Awaitable[Asking]]


def creatable(name: str, partitions: int = 1, replication_factor: int = 1, **fields: Any) -> Any:
    return m.CreateTopicsRequest.CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=replication_factor, **fields
    )


def assigned(*pairs: tuple[int, list[int]]) -> dict[str, Any]:
    assignment = m.CreateTopicsRequest.CreatableReplicaAssignment
    return {
        "partitions": -1,
        "replication_factor": -1,
        "assignments": [assignment(partition_index=index, broker_ids=ids) for index, ids in pairs],
    }


async def result(ask: Asking, topic: Any, version: int | None = None, **fields: Any) -> Any:
    response = await ask(Api.CREATE_TOPICS, version, topics=[topic], **fields)
    (answer,) = response.topics
    return answer


async def test_a_created_topic_is_there_with_its_partitions_and_configuration(ask: Asking) -> None:
    config = m.CreateTopicsRequest.CreatableTopicConfig(name="retention.ms", value="5")
    answer = await result(ask, creatable("orders", 3, configs=[config]))
    topic = ask.broker.catalog.topic("orders")
    assert topic is not None
    assert (answer.error_code, answer.error_message) == (0, None)
    assert (answer.topic_id, answer.num_partitions, answer.replication_factor) == (topic.id, 3, 1)
    shown = {entry.name: (entry.value, entry.config_source) for entry in answer.configs}
    assert shown["retention.ms"] == ("5", 1)
    assert shown["segment.ms"] == ("604800000", 5)
    assert list(shown) == sorted(shown)
    assert all(ask.broker.partition("orders", index) is not None for index in range(3))
    assert ask.broker.partition("orders", 3) is None


async def test_every_version_creates_a_topic(ask: Asking) -> None:
    for version in range(2, 8):
        assert (await result(ask, creatable(f"of-{version}", -1, -1), version)).error_code == 0
        assert ask.broker.catalog.topic(f"of-{version}") is not None


async def test_the_default_number_of_partitions_is_a_setting(start: Starting) -> None:
    ask = await start(num_partitions=4)
    assert (await result(ask, creatable("orders", -1, -1))).num_partitions == 4


@pytest.mark.parametrize(
    ("topic", "error_code"),
    [
        (creatable("there"), ErrorCode.TOPIC_ALREADY_EXISTS),
        (creatable("a", 0), ErrorCode.INVALID_PARTITIONS),
        (creatable("a", -2), ErrorCode.INVALID_PARTITIONS),
        (creatable("a", 1_001), ErrorCode.INVALID_PARTITIONS),
        (creatable("a", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (creatable("a", 1, 2), ErrorCode.INVALID_REPLICATION_FACTOR),
        (creatable("a", 1, -2), ErrorCode.INVALID_REPLICATION_FACTOR),
        (creatable("a", 0, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (creatable("__cluster_metadata"), ErrorCode.INVALID_REQUEST),
        (creatable("a", **assigned((0, [1]), (2, [1]))), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (creatable("a", **assigned((0, [1]), (0, [1]))), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (creatable("a", **assigned((0, [2]))), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (creatable("a", **assigned((0, [1, 1]))), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (creatable("a", **assigned((0, []))), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (creatable("a", **assigned((0, [1])) | {"partitions": 1}), ErrorCode.INVALID_REQUEST),
        (creatable("a", **assigned((0, [1])) | {"replication_factor": 1}), ErrorCode.INVALID_REQUEST),
        (
            creatable(
                "a", configs=[m.CreateTopicsRequest.CreatableTopicConfig(name="retention.ms", value=None)]
            ),
            ErrorCode.INVALID_CONFIG,
        ),
        (
            creatable("a", configs=[m.CreateTopicsRequest.CreatableTopicConfig(name="no.such", value="1")]),
            ErrorCode.INVALID_CONFIG,
        ),
    ],
)
async def test_what_cannot_be_created_is_refused_with_kafkas_number(
    ask: Asking, topic: Any, error_code: ErrorCode
) -> None:
    await ask.create("there")
    answer = await result(ask, topic)
    assert (answer.error_code, answer.topic_id, answer.num_partitions) == (error_code, NO_TOPIC_ID, -1)
    assert answer.error_message
    assert [t.name for t in ask.broker.catalog.topics()] == ["there"]


async def test_partitions_may_be_assigned_by_hand(ask: Asking) -> None:
    answer = await result(ask, creatable("orders", **assigned((1, [1]), (0, [1]))))
    assert (answer.error_code, answer.num_partitions) == (0, 2)


async def test_one_bad_topic_does_not_cost_the_others(ask: Asking) -> None:
    response = await ask(Api.CREATE_TOPICS, topics=[creatable("a"), creatable("b", 0), creatable("c")])
    assert [(t.name, t.error_code) for t in response.topics] == [
        ("a", 0),
        ("b", ErrorCode.INVALID_PARTITIONS),
        ("c", 0),
    ]


async def test_a_topic_named_twice_is_not_created(ask: Asking) -> None:
    response = await ask(Api.CREATE_TOPICS, topics=[creatable("a", 1), creatable("a", 2), creatable("b")])
    assert [(t.name, t.error_code) for t in response.topics] == [("b", 0), ("a", ErrorCode.INVALID_REQUEST)]
    assert ask.broker.catalog.topic("a") is None


async def test_validation_alone_creates_nothing(ask: Asking) -> None:
    answer = await result(ask, creatable("orders", 3), validate_only=True)
    assert (answer.error_code, answer.num_partitions) == (0, 3)
    assert ask.broker.catalog.topic("orders") is None


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


async def test_a_name_is_never_a_path(ask: Asking, tmp_path: Path) -> None:
    before = tree(tmp_path)
    for name in HOSTILE:
        assert (await result(ask, creatable(name))).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert tree(tmp_path) == before, name


async def test_case_twins_have_directories_of_their_own(ask: Asking, tmp_path: Path) -> None:
    twins = [await ask.create(name) for name in ("orders", "Orders", "ORDERS")]
    assert {path.name for path in (tmp_path / "data" / "topics").iterdir()} == {
        topic.id.hex() for topic in twins
    }
