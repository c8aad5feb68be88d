"""A session passes over partitions that have nothing new, and misses nothing that is."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.broker.handlers import fetch
from headrace.broker.handlers.fetch import Fetching
from headrace.broker.request import Request
from headrace.wire import Api
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

from .desk import Asking

VERSION = 12
NOW_MS = 1_700_000_000_000


class Session:
    """A consumer of three partitions that has read all there is, and been told so."""

    def __init__(self, ask: Asking) -> None:
        self.ask = ask
        self.epoch = 0
        self.id = 0
        self.looked_at: list[int] = []

    def fetch(self, *places: Any) -> dict[int, Any]:
        """The partitions that are answered, by number."""
        topics = [m.FetchRequest.FetchTopic(topic="many", partitions=list(places))] if places else []
        message = m.FetchRequest(
            max_bytes=1 << 20,
            min_bytes=1,
            session_id=self.id,
            session_epoch=self.epoch,
            topics=topics,
        )
        response = fetch.begin(
            self.ask.broker, Request(Api.FETCH, VERSION, 1, "tests", message, "127.0.0.1")
        ).attempt(last=True)
        assert response is not None
        assert not response.error_code
        self.id, self.epoch = response.session_id, self.epoch + 1
        return {answer.partition_index: answer for topic in response.responses for answer in topic.partitions}


def place(index: int, offset: int, **more: Any) -> Any:
    return m.FetchRequest.FetchPartition(
        partition=index, fetch_offset=offset, partition_max_bytes=1 << 20, **more
    )


@pytest.fixture
async def session(ask: Asking, monkeypatch: pytest.MonkeyPatch) -> Session:
    await ask.create("many", partitions=3)
    for index in range(3):
        await ask.append("many", NOW_MS, index=index)
    session = Session(ask)
    assert sorted(session.fetch(*(place(index, 0) for index in range(3)))) == [0, 1, 2]
    assert session.fetch(*(place(index, 1) for index in range(3))) == {}
    answer = Fetching._answer

    def noted(self: Fetching, wanted: Any, budget: int, *, nothing_yet: bool) -> Any:
        session.looked_at.append(wanted.partition)
        return answer(self, wanted, budget, nothing_yet=nothing_yet)

    monkeypatch.setattr(Fetching, "_answer", noted)
    return session


async def test_partitions_without_news_are_not_looked_at(session: Session) -> None:
    assert session.fetch() == {}
    assert session.looked_at == []


async def test_a_new_record_is_found_where_it_is(session: Session) -> None:
    await session.ask.append("many", NOW_MS, index=1)
    (answer,) = session.fetch().values()
    assert (answer.partition_index, answer.high_watermark) == (1, 2)
    assert len(answer.records) > 0
    assert session.looked_at == [1]


async def test_a_start_that_moves_is_told(session: Session) -> None:
    partition = session.ask.broker.partition("many", 2)
    assert partition is not None
    await partition.delete_before(1)
    assert session.fetch()[2].log_start_offset == 1
    assert session.fetch() == {}


async def test_a_place_that_the_reader_changes_is_looked_at(session: Session) -> None:
    answers = session.fetch(
        place(0, 0),
        place(1, 2),
        place(2, 1, current_leader_epoch=session.ask.broker.partitions.all()[0][2].leader_epoch + 1),
    )
    assert len(answers[0].records) > 0
    assert answers[1].error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert answers[2].error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


async def test_a_topic_that_goes_is_told(session: Session) -> None:
    await session.ask(Api.DELETE_TOPICS, topics=[m.DeleteTopicsRequest.DeleteTopicState(name="many")])
    codes = {answer.error_code for answer in session.fetch().values()}
    assert codes == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
