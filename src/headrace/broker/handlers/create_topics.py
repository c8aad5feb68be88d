"""CreateTopics: each topic by itself, so that one that cannot be had does not cost the others."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from headrace.broker import configs
from headrace.broker.new_topic import NewTopic
from headrace.broker.refusal import Refusal
from headrace.broker.topic import Topic
from headrace.broker.turns import give_turn
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.request import Request
    from headrace.wire.message import Message

__all__ = ["handle"]

_CONFIGS_SINCE = 5
_AT_ONCE = 50


async def handle(broker: Broker, request: Request) -> Any:
    message = request.message
    times = Counter(topic.name for topic in message.topics)
    wanted = [_new_topic(topic) for topic in message.topics if times[topic.name] == 1]
    results = await broker.catalog.create(wanted, validate_only=message.validate_only)
    answers = []
    shown = _ShownConfigs(broker) if request.version >= _CONFIGS_SINCE else None
    for number, (new, result) in enumerate(zip(wanted, results, strict=True), 1):
        answers.append(_answer(new.name, result, shown))
        await give_turn(number, _AT_ONCE)
    twice = Refusal(ErrorCode.INVALID_REQUEST, "the request names this topic more than once")
    answers += [_answer(name, twice, shown) for name in times if times[name] > 1]
    return m.CreateTopicsResponse(topics=answers)


def _new_topic(topic: Message) -> NewTopic:
    return NewTopic(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        [(assignment.partition_index, assignment.broker_ids) for assignment in topic.assignments],
        {config.name: config.value for config in topic.configs},
    )


class _ShownConfigs:
    """The configuration of topics as the response has it; the same for all that have the same overrides."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._built: dict[tuple[tuple[str, str], ...], list[Any]] = {}

    def of(self, topic: Topic) -> list[Any]:
        overrides = tuple(sorted(topic.configs.items()))
        built = self._built.get(overrides)
        if built is None:
            built = self._built[overrides] = [
                m.CreateTopicsResponse.CreatableTopicConfigs(
                    name=entry.key.name, value=entry.value, config_source=entry.source
                )
                for entry in configs.describe_topic(topic.configs, self._broker.catalog.configs)
            ]
        return built


def _answer(name: str, result: Topic | Refusal, shown: _ShownConfigs | None) -> Any:
    if isinstance(result, Refusal):
        return m.CreateTopicsResponse.CreatableTopicResult(
            name=name, error_code=result.error_code, error_message=result.text
        )
    answer = m.CreateTopicsResponse.CreatableTopicResult(
        name=name,
        topic_id=result.id,
        error_message=None,
        num_partitions=result.partitions,
        replication_factor=1,
    )
    if shown is not None:
        answer.configs = shown.of(result)
    return answer
