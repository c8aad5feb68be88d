"""Bytes that have to be waited for count in an answer's size before they are there."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.broker.handlers import fetch
from headrace.broker.request import Request
from headrace.files import SystemFile
from headrace.records import build_batch
from headrace.wire import Api
from headrace.wire import messages as m

from .desk import Asking

PARTITIONS = 20
BATCH_VALUE_BYTES = 1_000


@pytest.fixture
async def cold(ask: Asking, monkeypatch: pytest.MonkeyPatch) -> Asking:
    """Twenty partitions with a batch of a kilobyte each, none of it in the page cache."""
    await ask.create("many", partitions=PARTITIONS)
    for index in range(PARTITIONS):
        partition = ask.broker.partition("many", index)
        assert partition is not None
        batch = build_batch([(b"key", bytes(BATCH_VALUE_BYTES), ())], timestamp_ms=1_000)
        accepted = partition.append(batch, 1_000, 1_000)
        assert accepted.durable is not None
        await accepted.durable
    monkeypatch.setattr(SystemFile, "pread_ready", lambda self, size, position: None)
    return ask


async def answered(ask: Asking, max_bytes: int) -> list[int]:
    """Bytes for each partition that got some."""
    request = m.FetchRequest
    message = request(
        max_bytes=max_bytes,
        min_bytes=1,
        session_epoch=-1,
        topics=[
            request.FetchTopic(
                topic="many",
                partitions=[
                    request.FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1 << 20)
                    for index in range(PARTITIONS)
                ],
            )
        ],
    )
    fetching = fetch.begin(ask.broker, Request(Api.FETCH, 11, 1, "tests", message, "127.0.0.1"))
    response: Any = fetching.attempt(last=False)
    while response is None:
        assert fetching.is_cold
        await fetching.warm()
        response = fetching.attempt(last=False)
    partitions = [answer for topic in response.responses for answer in topic.partitions]
    assert not any(answer.error_code for answer in partitions)
    return [len(answer.records) for answer in partitions if answer.records]


async def test_partitions_that_are_cold_share_the_limit_of_the_answer(cold: Asking) -> None:
    sizes = await answered(cold, 5_000)
    assert 0 < sum(sizes) <= 5_000


async def test_the_first_batch_comes_whole_for_one_of_them_only(cold: Asking) -> None:
    assert len(await answered(cold, 1)) == 1
