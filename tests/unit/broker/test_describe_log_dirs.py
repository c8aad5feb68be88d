from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.wire import Api
from headrace.wire import messages as m

from .desk import Asking


def wanted(topic: str, *partitions: int) -> Any:
    return m.DescribeLogDirsRequest.DescribableLogDirTopic(topic=topic, partitions=list(partitions))


async def described(ask: Asking, topics: list[Any] | None, version: int | None = None) -> Any:
    response = await ask(Api.DESCRIBE_LOG_DIRS, version, topics=topics)
    assert response.error_code == 0
    (result,) = response.results
    return result


def sizes(result: Any) -> dict[tuple[str, int], int]:
    return {(t.name, p.partition_index): p.partition_size for t in result.topics for p in t.partitions}


@pytest.fixture
async def filled(ask: Asking) -> Asking:
    await ask.create("a", 2)
    await ask.create("b")
    await ask.append("a", 1, 2, 3)
    return ask


@pytest.mark.parametrize("version", range(1, 6))
async def test_the_one_directory_and_the_size_of_each_partition(
    filled: Asking, tmp_path: Path, version: int
) -> None:
    result = await described(filled, None, version)
    assert result.log_dir == str(tmp_path / "data")
    files = sum(path.stat().st_size for path in (tmp_path / "data" / "topics").glob("*/*/*.log"))
    assert files > 0
    assert sizes(result) == {("a", 0): files, ("a", 1): 0, ("b", 0): 0}
    room = (result.total_bytes, result.usable_bytes)
    assert 0 < room[1] < room[0] if version >= 4 else room == (-1, -1)


async def test_only_what_is_asked_for_and_there_is_described(filled: Asking) -> None:
    result = await described(filled, [wanted("a", 1, 9), wanted("nope", 0), wanted("b")])
    assert set(sizes(result)) == {("a", 1)}
    assert (await described(filled, [])).topics == []
