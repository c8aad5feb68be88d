"""A session skips partitions without new records, and returns every new record."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.broker.handlers import fetch
from headrace.broker.handlers.fetch import PendingFetch
from headrace.broker.net.request import Request
from headrace.wire import Api
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

from .broker_calls import BrokerCalls

VERSION = 12
NOW_MS = 1_700_000_000_000


class Session:
    """A fetch session of three partitions that has read all records."""

    def __init__(self, call: BrokerCalls) -> None:
        self.call = call
        self.epoch = 0
        self.id = 0
        self.checked_partitions: list[int] = []

    def fetch(self, *partitions: Any) -> dict[int, Any]:
        """Fetch, and return the partitions of the response by number."""
        topics = [m.FetchRequest.FetchTopic(topic="many", partitions=list(partitions))] if partitions else []
        message = m.FetchRequest(
            max_bytes=1 << 20,
            min_bytes=1,
            session_id=self.id,
            session_epoch=self.epoch,
            topics=topics,
        )
        response = fetch.begin(
            self.call.broker, Request(Api.FETCH, VERSION, 1, "tests", message, "127.0.0.1")
        ).attempt(last=True)
        assert response is not None
        assert not response.error_code
        self.id, self.epoch = response.session_id, self.epoch + 1
        return {answer.partition_index: answer for topic in response.responses for answer in topic.partitions}


def fetch_partition(index: int, offset: int, **fields: Any) -> Any:
    return m.FetchRequest.FetchPartition(
        partition=index, fetch_offset=offset, partition_max_bytes=1 << 20, **fields
    )


@pytest.fixture
async def session(call: BrokerCalls, monkeypatch: pytest.MonkeyPatch) -> Session:
    await call.create("many", partitions=3)
    for index in range(3):
        await call.append("many", NOW_MS, index=index)
    session = Session(call)
    assert sorted(session.fetch(*(fetch_partition(index, 0) for index in range(3)))) == [0, 1, 2]
    assert session.fetch(*(fetch_partition(index, 1) for index in range(3))) == {}
    answer = PendingFetch._respond_for

    def record_partition(self: PendingFetch, target: Any, budget: int, *, response_is_empty: bool) -> Any:
        session.checked_partitions.append(target.partition)
        return answer(self, target, budget, response_is_empty=response_is_empty)

    monkeypatch.setattr(PendingFetch, "_respond_for", record_partition)
    return session


async def test_a_fetch_skips_partitions_without_new_records(session: Session) -> None:
    assert session.fetch() == {}
    assert session.checked_partitions == []


async def test_a_fetch_returns_only_the_partition_with_a_new_record(session: Session) -> None:
    await session.call.append("many", NOW_MS, index=1)
    (answer,) = session.fetch().values()
    assert (answer.partition_index, answer.high_watermark) == (1, 2)
    assert len(answer.records) > 0
    assert session.checked_partitions == [1]


async def test_a_fetch_reports_a_new_start_offset(session: Session) -> None:
    partition = session.call.broker.partition("many", 2)
    assert partition is not None
    await partition.delete_before(1)
    assert session.fetch()[2].log_start_offset == 1
    assert session.fetch() == {}


async def test_a_fetch_checks_a_partition_whose_fetch_offset_changed(session: Session) -> None:
    responses = session.fetch(
        fetch_partition(0, 0),
        fetch_partition(1, 2),
        fetch_partition(
            2, 1, current_leader_epoch=session.call.broker.partitions.all()[0][2].leader_epoch + 1
        ),
    )
    assert len(responses[0].records) > 0
    assert responses[1].error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert responses[2].error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


async def test_a_fetch_reports_a_deleted_topic(session: Session) -> None:
    await session.call(Api.DELETE_TOPICS, topics=[m.DeleteTopicsRequest.DeleteTopicState(name="many")])
    codes = {answer.error_code for answer in session.fetch().values()}
    assert codes == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
