"""Fetch sessions and waiting fetches: what they keep has a limit in bytes, and unknown topics are not kept."""

from __future__ import annotations

from typing import Any

from headrace.broker.fetch_sessions import FetchSessions
from headrace.broker.handlers import fetch
from headrace.broker.request import Request
from headrace.broker.waiting_fetches import WaitingFetches
from headrace.records import build_batch
from headrace.wire import Api
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode
from tests.unit.groups.rig import DrivenClock

from .desk import Asking

VERSION = 12
#: Of a partition whose topic has a name of one character, and of a session without any.
PARTITION_BYTES, SESSION_BYTES = 401, 1_024


def request(topics: dict[str, list[int]], *, session_id: int = 0, epoch: int = 0, **fields: Any) -> Any:
    ask = m.FetchRequest
    return ask(
        max_bytes=1 << 20,
        min_bytes=1,
        session_id=session_id,
        session_epoch=epoch,
        topics=[
            ask.FetchTopic(
                topic=name,
                partitions=[ask.FetchPartition(partition=index, partition_max_bytes=1) for index in indexes],
            )
            for name, indexes in topics.items()
        ],
        **fields,
    )


def forget(topic: str, indexes: list[int]) -> dict[str, Any]:
    return {"forgotten_topics_data": [m.FetchRequest.ForgottenTopic(topic=topic, partitions=indexes)]}


def fetched(ask: Asking, message: Any) -> Any:
    response = fetch.begin(ask.broker, Request(Api.FETCH, VERSION, 1, "tests", message, "here")).attempt(
        last=True
    )
    assert response is not None
    return response


def codes(response: Any) -> dict[tuple[str, int], int]:
    return {
        (topic.topic, data.partition_index): data.error_code
        for topic in response.responses
        for data in topic.partitions
    }


def test_all_sessions_together_have_a_limit_in_bytes_and_idle_ones_make_room() -> None:
    clock = DrivenClock()
    sessions = FetchSessions(clock, bytes_max=3 * (SESSION_BYTES + 10 * PARTITION_BYTES))
    ten = request({"t": list(range(10))})
    first, *_ = [sessions.begin(VERSION, ten) for _ in range(3)]
    assert sessions.begin(VERSION, ten).id == 0
    clock.steady_s += 121
    # One that is used is not idle.
    sessions.begin(VERSION, request({}, session_id=first.id, epoch=1))
    assert sessions.begin(VERSION, ten).id
    assert sessions.begin(VERSION, request({}, session_id=first.id, epoch=2)).id == first.id
    # A session that could never fit makes nobody go.
    clock.steady_s += 121
    assert len(sessions) == 3
    sessions.begin(VERSION, request({}, session_id=first.id, epoch=3))
    assert sessions.begin(VERSION, request({"t": list(range(100))})).id == 0
    assert len(sessions) == 1


def test_a_session_counts_what_it_takes_and_what_it_forgets() -> None:
    sessions = FetchSessions(DrivenClock(), bytes_max=1 << 20)
    session = sessions.begin(VERSION, request({"t": [0, 1]}))
    assert sessions.used_bytes == SESSION_BYTES + 2 * PARTITION_BYTES
    sessions.begin(VERSION, request({"t": [1, 2]}, session_id=session.id, epoch=1))
    assert sessions.used_bytes == SESSION_BYTES + 3 * PARTITION_BYTES
    sessions.begin(VERSION, request({}, session_id=session.id, epoch=2, **forget("t", [0, 1, 9])))
    assert sessions.used_bytes == SESSION_BYTES + PARTITION_BYTES
    sessions.begin(VERSION, request({"t": [0]}, session_id=session.id, epoch=-1))
    assert (sessions.used_bytes, len(sessions)) == (0, 0)


def test_a_session_that_grows_past_the_limit_is_closed_by_its_response() -> None:
    sessions = FetchSessions(DrivenClock(), bytes_max=SESSION_BYTES + 5 * PARTITION_BYTES)
    session = sessions.begin(VERSION, request({"t": [0]}))
    assert session.id
    grown = sessions.begin(VERSION, request({"t": list(range(10))}, session_id=session.id, epoch=1))
    assert (grown.id, len(grown.wanted)) == (0, 10)
    assert (sessions.used_bytes, len(sessions)) == (0, 0)


async def test_a_session_is_not_kept_for_topics_that_are_not_known(ask: Asking) -> None:
    await ask.create("t")
    sessions = ask.broker.fetch_sessions
    refused = fetched(ask, request({"t": [0], "u": [0, 1]}))
    assert refused.session_id == 0
    assert codes(refused) == {("t", 0): 0, ("u", 0): 3, ("u", 1): 3}
    assert sessions.used_bytes == 0
    session = fetched(ask, request({"t": [0]})).session_id
    assert session
    closed = fetched(ask, request({"t": [5]}, session_id=session, epoch=1))
    assert (closed.session_id, codes(closed)) == (0, {("t", 5): 3})
    assert sessions.used_bytes == 0
    gone = fetched(ask, request({}, session_id=session, epoch=2))
    assert gone.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


async def test_a_session_ends_when_one_of_its_topics_does(ask: Asking) -> None:
    await ask.create("t")
    session = fetched(ask, request({"t": [0]})).session_id
    await ask(Api.DELETE_TOPICS, topics=[m.DeleteTopicsRequest.DeleteTopicState(name="t")])
    closed = fetched(ask, request({}, session_id=session, epoch=1))
    assert (closed.session_id, codes(closed)) == (0, {("t", 0): 3})
    assert ask.broker.fetch_sessions.used_bytes == 0


async def test_bytes_that_were_read_and_left_out_count_for_the_limit_of_a_fetch(ask: Asking) -> None:
    await ask.create("t", 5)
    now_ms = ask.broker.clock.now_ms()
    for index in range(5):
        partition = ask.broker.partition("t", index)
        assert partition is not None
        for size in (10, 100_000):
            accepted = partition.append(
                build_batch([(b"k", bytes(size), ())], timestamp_ms=now_ms), now_ms, now_ms
            )
            assert accepted.durable is not None
            await accepted.durable
    message = request({"t": list(range(5))}, epoch=-1)
    message.max_bytes = 100_000
    for wanted in message.topics[0].partitions:
        wanted.partition_max_bytes = 50_000
    (topic,) = fetched(ask, message).responses
    assert [len(data.records) > 0 for data in topic.partitions] == [True, True, False, False, False]
    # What is sent does not keep what was read in memory.
    assert all(len(memoryview(data.records.obj)) < 1_000 for data in topic.partitions if len(data.records))


def test_waiting_fetches_together_have_a_limit_in_bytes() -> None:
    waiting = WaitingFetches(bytes_max=100_000)
    held = [waiting.begin(20) for _ in range(9)]
    assert held[-1] == 0 < held[0]
    for size in held:
        waiting.end(size)
    assert waiting.used_bytes == 0
    assert waiting.begin(1_000) == 0
