from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.wire import Api
from headrace.wire import messages as m

from .broker_calls import BrokerCalls


def request_topic(topic: str, *partitions: int) -> Any:
    return m.DescribeLogDirsRequest.DescribableLogDirTopic(topic=topic, partitions=list(partitions))


async def describe(call: BrokerCalls, topics: list[Any] | None, version: int | None = None) -> Any:
    response = await call(Api.DESCRIBE_LOG_DIRS, version, topics=topics)
    assert response.error_code == 0
    (result,) = response.results
    return result


def sizes(result: Any) -> dict[tuple[str, int], int]:
    return {(t.name, p.partition_index): p.partition_size for t in result.topics for p in t.partitions}


@pytest.fixture
async def filled(call: BrokerCalls) -> BrokerCalls:
    await call.create("a", 2)
    await call.create("b")
    await call.append("a", 1, 2, 3)
    return call


@pytest.mark.parametrize("version", range(1, 6))
async def test_the_response_has_the_directory_and_the_size_of_each_partition(
    filled: BrokerCalls, tmp_path: Path, version: int
) -> None:
    result = await describe(filled, None, version)
    assert result.log_dir == str(tmp_path / "data")
    files = sum(path.stat().st_size for path in (tmp_path / "data" / "topics").glob("*/*/*.log"))
    assert files > 0
    assert sizes(result) == {("a", 0): files, ("a", 1): 0, ("b", 0): 0}
    disk_space = (result.total_bytes, result.usable_bytes)
    assert 0 < disk_space[1] < disk_space[0] if version >= 4 else disk_space == (-1, -1)


async def test_only_requested_partitions_that_exist_are_described(filled: BrokerCalls) -> None:
    result = await describe(filled, [request_topic("a", 1, 9), request_topic("nope", 0), request_topic("b")])
    assert set(sizes(result)) == {("a", 1)}
    assert (await describe(filled, [])).topics == []
