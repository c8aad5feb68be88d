"""DeleteTopics: by name, or since version 6 by id. A deleted topic takes its committed offsets with it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from headrace.broker.refusal import Refusal
from headrace.broker.topic import NO_TOPIC_ID, Topic
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.request import Request

__all__ = ["handle"]

_IDS_SINCE = 6
_ARCHIVE_WAIT_S = 1.0

Key = tuple[str | None, bytes]


async def handle(broker: Broker, request: Request) -> Any:
    message = request.message
    keys: list[Key]
    if request.version < _IDS_SINCE:
        keys = [(name, NO_TOPIC_ID) for name in message.topic_names]
    else:
        keys = [(topic.name, topic.topic_id) for topic in message.topics]
    topics, answers = _resolve(broker, keys)

    async def forget(topic: Topic) -> None:
        broker.stats.forget(topic.name)
        await broker.groups.forget_topic(topic.name)

    results = await broker.catalog.delete([topic.id for topic in topics], and_then=forget)
    await broker.archiver.remove_deleted(_ARCHIVE_WAIT_S)
    answers += [
        _answer(topic.name, topic.id, result if isinstance(result, Refusal) else None)
        for topic, result in zip(topics, results, strict=True)
    ]
    return m.DeleteTopicsResponse(responses=answers)


def _resolve(broker: Broker, keys: list[Key]) -> tuple[list[Topic], list[Any]]:
    """The topics that are meant, each once, and an answer for each key that means none of them."""
    times = Counter(keys)
    answers = []
    found: list[Topic] = []
    for key in times:
        try:
            if times[key] > 1 and key != (None, NO_TOPIC_ID):
                raise Refusal(ErrorCode.INVALID_REQUEST, "the request names this topic more than once")
            found.append(_find(broker, *key))
        except Refusal as refusal:
            answers.append(_answer(*key, refusal))
    named = Counter(topic.id for topic in found)
    by_both = Refusal(ErrorCode.INVALID_REQUEST, "the request names this topic by its name and by its id")
    twice = {topic.id: topic.name for topic in found if named[topic.id] > 1}
    answers += [_answer(name, topic_id, by_both) for topic_id, name in twice.items()]
    return [topic for topic in found if topic.id not in twice], answers


def _find(broker: Broker, name: str | None, topic_id: bytes) -> Topic:
    if name is None:
        if topic_id == NO_TOPIC_ID:
            raise Refusal(ErrorCode.INVALID_REQUEST, "a topic needs a name or an id")
        topic = broker.catalog.topic_by_id(topic_id)
        if topic is None:
            raise Refusal(ErrorCode.UNKNOWN_TOPIC_ID, "there is no topic of this id")
        return topic
    if topic_id != NO_TOPIC_ID:
        raise Refusal(ErrorCode.INVALID_REQUEST, "give a topic's name or its id, not both")
    topic = broker.catalog.topic(name)
    if topic is None:
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no topic of this name")
    return topic


def _answer(name: str | None, topic_id: bytes, refusal: Refusal | None) -> Any:
    answer = m.DeleteTopicsResponse.DeletableTopicResult(name=name, topic_id=topic_id)
    if refusal is not None:
        answer.error_code, answer.error_message = refusal.error_code, refusal.text
    return answer
