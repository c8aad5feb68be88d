"""CreatePartitions: a topic grows. It never shrinks, because offsets that were given out must stay valid."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from headrace.broker.new_topic import Growth
from headrace.broker.refusal import Refusal
from headrace.broker.topic import Topic
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.request import Request
    from headrace.wire.message import Message

__all__ = ["handle"]


async def handle(broker: Broker, request: Request) -> Any:
    message = request.message
    times = Counter(topic.name for topic in message.topics)
    wanted = [_growth(topic) for topic in message.topics if times[topic.name] == 1]
    results = await broker.catalog.grow(wanted, validate_only=message.validate_only)
    answers = [_answer(growth.name, result) for growth, result in zip(wanted, results, strict=True)]
    twice = Refusal(ErrorCode.INVALID_REQUEST, "the request names this topic more than once")
    answers += [_answer(name, twice) for name in times if times[name] > 1]
    return m.CreatePartitionsResponse(results=answers)


def _growth(topic: Message) -> Growth:
    assignments = topic.assignments
    return Growth(
        topic.name,
        topic.count,
        None if assignments is None else [assignment.broker_ids for assignment in assignments],
    )


def _answer(name: str, result: Topic | Refusal) -> Any:
    answer = m.CreatePartitionsResponse.CreatePartitionsTopicResult(name=name)
    if isinstance(result, Refusal):
        answer.error_code = result.error_code
        answer.error_message = result.text
    return answer
