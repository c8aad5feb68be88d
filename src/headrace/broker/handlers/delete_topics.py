"""DeleteTopics: by name, or since version 6 by id. A deleted topic takes its committed offsets with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
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

Key = tuple[str | None, bytes]


async def handle(broker: Broker, request: Request) -> Any:
    message = request.message
    keys: list[Key]
    if request.version < _IDS_SINCE:
        keys = [(name, NO_TOPIC_ID) for name in message.topic_names]
    else:
        keys = [(topic.name, topic.topic_id) for topic in message.topics]
    answers = []
    found: list[Topic] = []
    for (name, topic_id), result in _resolved(broker, keys):
        if isinstance(result, Topic):
            found.append(result)
        else:
            answers.append(_refused(name, topic_id, result))

    async def forget(topic: Topic) -> None:
        await broker.groups.forget_topic(topic.name)

    results = await broker.catalog.delete([topic.id for topic in found], and_then=forget)
    for topic, outcome in zip(found, results, strict=True):
        if isinstance(outcome, Refusal):
            answers.append(_refused(topic.name, topic.id, outcome))
        else:
            answers.append(m.DeleteTopicsResponse.DeletableTopicResult(name=topic.name, topic_id=topic.id))
    return m.DeleteTopicsResponse(responses=answers)


def _resolved(broker: Broker, keys: list[Key]) -> Iterator[tuple[Key, Topic | Refusal]]:
    """Each different key with its topic, or with why it stands for none. No topic comes twice."""
    times = Counter(keys)
    taken = set()
    for key in times:
        try:
            if times[key] > 1 and key != (None, NO_TOPIC_ID):
                raise Refusal(ErrorCode.INVALID_REQUEST, "the request names this topic more than once")
            topic = _find(broker, *key)
            if topic.id in taken:
                raise Refusal(ErrorCode.INVALID_REQUEST, "the request names this topic by name and by id")
            taken.add(topic.id)
            yield key, topic
        except Refusal as refusal:
            yield key, refusal


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


def _refused(name: str | None, topic_id: bytes, refusal: Refusal) -> Any:
    return m.DeleteTopicsResponse.DeletableTopicResult(
        name=name, topic_id=topic_id, error_code=refusal.error_code, error_message=refusal.text
    )
