"""Bytes that are not in the page cache count toward the size of a response before they are read."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.broker.handlers import fetch
from headrace.broker.net.request import Request
from headrace.files import SystemFile
from headrace.records import build_batch
from headrace.wire import Api
from headrace.wire import messages as m

from .broker_calls import BrokerCalls

PARTITIONS = 20
BATCH_VALUE_BYTES = 1_000


@pytest.fixture
async def cold_partitions(call: BrokerCalls, monkeypatch: pytest.MonkeyPatch) -> BrokerCalls:
    """Twenty partitions with a batch of a kilobyte each; reads find nothing in the page cache."""
    await call.create("many", partitions=PARTITIONS)
    for index in range(PARTITIONS):
        partition = call.broker.partition("many", index)
        assert partition is not None
        batch = build_batch([(b"key", bytes(BATCH_VALUE_BYTES), ())], timestamp_ms=1_000)
        accepted = partition.append(batch, 1_000, 1_000)
        assert accepted.durable is not None
        await accepted.durable
    monkeypatch.setattr(SystemFile, "pread_nowait", lambda self, size, position: None)
    return call


async def sizes_in_response(call: BrokerCalls, max_bytes: int) -> list[int]:
    """Fetch all partitions; return the number of bytes of each partition that has records in the response."""
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
    pending_fetch = fetch.begin(call.broker, Request(Api.FETCH, 11, 1, "tests", message, "127.0.0.1"))
    response: Any = pending_fetch.attempt(last=False)
    while response is None:
        assert pending_fetch.is_cold
        await pending_fetch.read_cold()
        response = pending_fetch.attempt(last=False)
    partitions = [answer for topic in response.responses for answer in topic.partitions]
    assert not any(answer.error_code for answer in partitions)
    return [len(answer.records) for answer in partitions if answer.records]


async def test_cold_partitions_share_the_size_limit_of_the_response(cold_partitions: BrokerCalls) -> None:
    sizes = await sizes_in_response(cold_partitions, 5_000)
    assert 0 < sum(sizes) <= 5_000


async def test_only_one_partition_gets_its_first_batch_whole(cold_partitions: BrokerCalls) -> None:
    assert len(await sizes_in_response(cold_partitions, 1)) == 1
