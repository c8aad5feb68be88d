"""DescribeConfigs: every key of a topic or a broker, its value, and where the value comes from.

What is asked twice is answered once, and the keys' texts are left out where very many resources are asked for.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace.broker import configs
from headrace.broker.backup.history import told_of
from headrace.broker.broker_configs import Scope, Source, static_configs
from headrace.broker.config_resources import ResourceType, scope_of, unknown_type
from headrace.broker.names import name_fault
from headrace.broker.refusal import Refusal
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.request import Request
    from headrace.broker.topic import Topic

__all__ = ["handle"]

# A resource has dozens of keys: others are served between them, and texts go with a few only.
_AT_ONCE = 20
_DOCUMENTED_MAX = 100


async def handle(broker: Broker, request: Request) -> Any:
    message = request.message
    response = m.DescribeConfigsResponse()
    documented = message.include_documentation and len(message.resources) <= _DOCUMENTED_MAX
    asked: set[tuple[int, str, tuple[str, ...] | None]] = set()
    for number, resource in enumerate(message.resources, 1):
        wanted = resource.configuration_keys
        question = (
            resource.resource_type,
            resource.resource_name,
            None if wanted is None else tuple(wanted),
        )
        if question in asked:
            continue
        asked.add(question)
        if number % _AT_ONCE == 0:
            await asyncio.sleep(0)
        answer = m.DescribeConfigsResponse.DescribeConfigsResult(
            resource_type=resource.resource_type, resource_name=resource.resource_name
        )
        response.results.append(answer)
        try:
            entries = _entries(broker, resource.resource_type, resource.resource_name)
        except Refusal as refusal:
            answer.error_code, answer.error_message = refusal.error_code, refusal.text
            continue
        # None and the empty list both stand for all keys; a key that there is not is left out.
        keys = set(resource.configuration_keys or ())
        answer.configs = [
            _described(entry, synonyms=message.include_synonyms, documentation=documented)
            for entry in entries
            if not keys or entry.key.name in keys
        ]
    return response


def _entries(broker: Broker, resource_type: int, name: str) -> list[configs.ConfigEntry]:
    if resource_type == ResourceType.TOPIC:
        fault = name_fault(name)
        if fault is not None:
            raise Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
        topic = broker.catalog.topic(name)
        if topic is None:
            raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic '{name}'")
        entries = configs.describe_topic(topic.configs, broker.catalog.configs)
        if broker.catalog.log_config(topic).is_compacted:
            entries.append(_tombstones(broker, topic))
        if told := told_of(broker.restored, topic.id):
            entries.append(configs.ConfigEntry(configs.RESTORED, told, Source.DEFAULT, (), read_only=True))
        return entries
    if resource_type == ResourceType.BROKER:
        if scope_of(name, broker.settings.node_id) is Scope.CLUSTER:
            return configs.describe_layer(broker.catalog.configs)
        # The port may only be known since the broker listens, so its settings are read again.
        return configs.describe_broker(
            replace(broker.catalog.configs, static=static_configs(broker.settings))
        )
    raise unknown_type(resource_type)


def _tombstones(broker: Broker, topic: Topic) -> configs.ConfigEntry:
    """Not a setting but a fact, told where any Kafka client can ask for it."""
    horizons = []
    for index in range(topic.partitions):
        partition = broker.partition(topic.name, index)
        if partition is not None and partition.fenced is None:
            horizons.append(f"{index}:{partition.tombstone_horizon}")
    return configs.ConfigEntry(
        configs.TOMBSTONES_REMOVED_BELOW, ",".join(horizons), Source.DEFAULT, (), read_only=True
    )


def _described(entry: configs.ConfigEntry, *, synonyms: bool, documentation: bool) -> Any:
    described = m.DescribeConfigsResponse.DescribeConfigsResourceResult(
        name=entry.key.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        config_type=entry.key.type,
        documentation=entry.key.documentation if documentation else None,
    )
    if synonyms:
        described.synonyms = [
            m.DescribeConfigsResponse.DescribeConfigsSynonym(name=name, value=value, source=source)
            for name, value, source in entry.synonyms
        ]
    return described
