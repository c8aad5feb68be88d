"""Fetch sessions and waiting fetches have a limit in bytes, and keep no unknown topics."""

from __future__ import annotations

from typing import Any

from headrace.broker.handlers import fetch
from headrace.broker.net.fetch_sessions import FetchSessions
from headrace.broker.net.request import Request
from headrace.broker.net.waiting_fetches import WaitingFetches
from headrace.records import build_batch
from headrace.wire import Api
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode
from tests.unit.groups.rig import DrivenClock

from .broker_calls import BrokerCalls

VERSION = 12
#: The bytes of a partition whose topic has a name of one character, and of a session without partitions.
PARTITION_BYTES, SESSION_BYTES = 401, 1_024


def request(topics: dict[str, list[int]], *, session_id: int = 0, epoch: int = 0, **fields: Any) -> Any:
    call = m.FetchRequest
    return call(
        max_bytes=1 << 20,
        min_bytes=1,
        session_id=session_id,
        session_epoch=epoch,
        topics=[
            call.FetchTopic(
                topic=name,
                partitions=[call.FetchPartition(partition=index, partition_max_bytes=1) for index in indexes],
            )
            for name, indexes in topics.items()
        ],
        **fields,
    )


def forget(topic: str, indexes: list[int]) -> dict[str, Any]:
    return {"forgotten_topics_data": [m.FetchRequest.ForgottenTopic(topic=topic, partitions=indexes)]}


def fetch_once(call: BrokerCalls, message: Any) -> Any:
    response = fetch.begin(call.broker, Request(Api.FETCH, VERSION, 1, "tests", message, "here")).attempt(
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
    # A session that is used is not idle.
    sessions.begin(VERSION, request({}, session_id=first.id, epoch=1))
    assert sessions.begin(VERSION, ten).id
    assert sessions.begin(VERSION, request({}, session_id=first.id, epoch=2)).id == first.id
    # A session that could never fit evicts no session, although two are idle.
    clock.steady_s += 121
    assert len(sessions) == 3
    sessions.begin(VERSION, request({}, session_id=first.id, epoch=3))
    assert sessions.begin(VERSION, request({"t": list(range(100))})).id == 0
    assert len(sessions) == 3


def test_the_memory_of_a_session_follows_its_partitions() -> None:
    sessions = FetchSessions(DrivenClock(), bytes_max=1 << 20)
    session = sessions.begin(VERSION, request({"t": [0, 1]}))
    assert sessions.used_bytes == SESSION_BYTES + 2 * PARTITION_BYTES
    sessions.begin(VERSION, request({"t": [1, 2]}, session_id=session.id, epoch=1))
    assert sessions.used_bytes == SESSION_BYTES + 3 * PARTITION_BYTES
    sessions.begin(VERSION, request({}, session_id=session.id, epoch=2, **forget("t", [0, 1, 9])))
    assert sessions.used_bytes == SESSION_BYTES + PARTITION_BYTES
    sessions.begin(VERSION, request({"t": [0]}, session_id=session.id, epoch=-1))
    assert (sessions.used_bytes, len(sessions)) == (0, 0)


def test_a_session_that_exceeds_the_limit_is_closed_with_session_id_0() -> None:
    sessions = FetchSessions(DrivenClock(), bytes_max=SESSION_BYTES + 5 * PARTITION_BYTES)
    session = sessions.begin(VERSION, request({"t": [0]}))
    assert session.id
    session_after = sessions.begin(VERSION, request({"t": list(range(10))}, session_id=session.id, epoch=1))
    assert (session_after.id, len(session_after.partitions)) == (0, 10)
    assert (sessions.used_bytes, len(sessions)) == (0, 0)


async def test_a_request_with_an_unknown_topic_gets_no_session(call: BrokerCalls) -> None:
    await call.create("t")
    sessions = call.broker.fetch_sessions
    response_without_session = fetch_once(call, request({"t": [0], "u": [0, 1]}))
    assert response_without_session.session_id == 0
    assert codes(response_without_session) == {("t", 0): 0, ("u", 0): 3, ("u", 1): 3}
    assert sessions.used_bytes == 0
    session = fetch_once(call, request({"t": [0]})).session_id
    assert session
    closed = fetch_once(call, request({"t": [5]}, session_id=session, epoch=1))
    assert (closed.session_id, codes(closed)) == (0, {("t", 5): 3})
    assert sessions.used_bytes == 0
    response = fetch_once(call, request({}, session_id=session, epoch=2))
    assert response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


async def test_deleting_a_topic_ends_the_sessions_that_contain_it(call: BrokerCalls) -> None:
    await call.create("t")
    session = fetch_once(call, request({"t": [0]})).session_id
    await call(Api.DELETE_TOPICS, topics=[m.DeleteTopicsRequest.DeleteTopicState(name="t")])
    closed = fetch_once(call, request({}, session_id=session, epoch=1))
    assert (closed.session_id, codes(closed)) == (0, {("t", 0): 3})
    assert call.broker.fetch_sessions.used_bytes == 0


async def test_bytes_that_were_read_but_not_sent_count_toward_the_fetch_limit(call: BrokerCalls) -> None:
    await call.create("t", 5)
    now_ms = call.broker.clock.now_ms()
    for index in range(5):
        partition = call.broker.partition("t", index)
        assert partition is not None
        for size in (10, 100_000):
            accepted = partition.append(
                build_batch([(b"k", bytes(size), ())], timestamp_ms=now_ms), now_ms, now_ms
            )
            assert accepted.durable is not None
            await accepted.durable
    message = request({"t": list(range(5))}, epoch=-1)
    message.max_bytes = 100_000
    for partition_request in message.topics[0].partitions:
        partition_request.partition_max_bytes = 50_000
    (topic,) = fetch_once(call, message).responses
    assert [len(data.records) > 0 for data in topic.partitions] == [True, True, False, False, False]
    # The records that are sent must not keep the larger buffer that was read in memory.
    assert all(len(memoryview(data.records.obj)) < 1_000 for data in topic.partitions if len(data.records))


def test_all_waiting_fetches_together_have_a_limit_in_bytes() -> None:
    waiting = WaitingFetches(bytes_max=100_000)
    sizes = [waiting.begin(20) for _ in range(9)]
    assert sizes[-1] == 0 < sizes[0]
    for size in sizes:
        waiting.end(size)
    assert waiting.used_bytes == 0
    assert waiting.begin(1_000) == 0
