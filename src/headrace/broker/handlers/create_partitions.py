"""CreatePartitions: a topic grows. It never shrinks, because offsets that were given out must stay valid; and with
records that have keys it grows only when told to, because their order would break (see ``headrace.key_order``).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from headrace.broker.keyed import holds_keys
from headrace.broker.new_topic import Growth
from headrace.broker.refusal import Refusal
from headrace.broker.topic import Topic
from headrace.key_order import FORCE_CONFIG, what_moves
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
    asked = [_growth(topic) for topic in message.topics if times[topic.name] == 1]
    refused = {
        growth.name: refusal for growth in asked if (refusal := await _would_break_order(broker, growth))
    }
    wanted = [growth for growth in asked if growth.name not in refused]
    results = await broker.catalog.grow(wanted, validate_only=message.validate_only)
    answers = [_answer(growth.name, result) for growth, result in zip(wanted, results, strict=True)]
    answers += [_answer(name, refusal) for name, refusal in refused.items()]
    twice = Refusal(ErrorCode.INVALID_REQUEST, "the request names this topic more than once")
    answers += [_answer(name, twice) for name in times if times[name] > 1]
    return m.CreatePartitionsResponse(results=answers)


async def _would_break_order(broker: Broker, growth: Growth) -> Refusal | None:
    topic = broker.catalog.topic(growth.name)
    if topic is None or growth.count <= topic.partitions or topic.configs.get(FORCE_CONFIG) == "true":
        return None
    if not await holds_keys(broker.partitions.of_topic(topic.name), broker.limits.records, broker.walker):
        return None
    return Refusal(
        ErrorCode.POLICY_VIOLATION,
        f"{what_moves(topic.name, topic.partitions, growth.count)}; if readers can live with that, set the topic's"
        f" {FORCE_CONFIG}=true and ask again",
    )


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
