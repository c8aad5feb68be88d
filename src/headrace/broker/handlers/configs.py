"""APIs that describe and alter the configuration of topics, of this broker, and of all brokers.

A request names resources (topics or brokers). The broker applies all changes of a resource or none. If it refuses the
changes of one resource, it still applies those of the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.broker.backup.restore_history import restores_of
from headrace.broker.event_loop import Step
from headrace.broker.limits import text_bytes
from headrace.broker.net.responses import ResponseRoom
from headrace.broker.permissions import Handler, Operation, Permission, Resource
from headrace.broker.refusal import Refusal
from headrace.broker.topics import configs
from headrace.broker.topics.broker_configs import BROKER_CONFIGS, Scope, Source, static_configs
from headrace.broker.topics.catalog import ConfigChange
from headrace.broker.topics.configs import AlterOperation, Change, apply_changes
from headrace.broker.topics.topic import name_fault
from headrace.broker.topics.topic_configs import TOPIC_CONFIGS
from headrace.wire import messages as m
from headrace.wire.api import Api
from headrace.wire.codes import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.net.request import Request
    from headrace.broker.topics.topic import Topic
    from headrace.wire.message import Message

__all__ = ["HANDLERS", "Alteration", "ResourceType", "alter", "check_pairs", "scope_of", "unknown_type"]

# A resource has dozens of keys, so the event loop runs other requests after this many resources.
_ITEMS_PER_STEP = 20
_DOCUMENTED_MAX = 100
_ENTRY_BYTES = 32


async def describe_configs(broker: Broker, request: Request) -> Any:
    """Return the configuration keys of topics and brokers, each with its value and the source of the value.

    If a request names a resource several times, the response has it once, with all requested keys. The response omits
    the keys' documentation if the request names more than ``_DOCUMENTED_MAX`` resources.
    """
    message = request.message
    response = m.DescribeConfigsResponse()
    requested_keys = _resources_once(message.resources)
    await broker.turns.take()
    room = ResponseRoom(broker, request)
    encoder = _EntryEncoder(
        synonyms=message.include_synonyms,
        documentation=message.include_documentation and len(requested_keys) <= _DOCUMENTED_MAX,
    )
    step = Step(broker.clock, _ITEMS_PER_STEP)
    for (resource_type, name), keys in requested_keys.items():
        if step.is_over():
            await broker.turns.pause()
            step.restart()
        result = m.DescribeConfigsResponse.DescribeConfigsResult(
            resource_type=resource_type, resource_name=name
        )
        response.results.append(result)
        try:
            if room.is_full:
                raise _full(room)
            # The response omits requested keys that do not exist.
            entries = [
                entry
                for entry in _entries(broker, resource_type, name)
                if keys is None or entry.key.name in keys
            ]
            if not room.take(sum(map(encoder.size, entries))):
                raise _full(room)
        except Refusal as refusal:
            result.error_code, result.error_message = refusal.error_code, refusal.text
        else:
            result.configs = [encoder.encode(entry) for entry in entries]
    return response


def _resources_once(resources: Iterable[Any]) -> dict[tuple[int, str], set[str] | None]:
    """Return the requested keys of each resource. ``None`` means all keys, like an empty list in the request."""
    requested_keys: dict[tuple[int, str], set[str] | None] = {}
    for resource in resources:
        resource_id = (resource.resource_type, resource.resource_name)
        keys = requested_keys.setdefault(resource_id, set())
        if keys is None or not resource.configuration_keys:
            requested_keys[resource_id] = None
        else:
            keys.update(resource.configuration_keys)
    return requested_keys


def _full(room: ResponseRoom) -> Refusal:
    return Refusal(
        ErrorCode.POLICY_VIOLATION,
        f"the response is full (limit {room.bytes_max} bytes): describe fewer resources in one request",
    )


def _entries(broker: Broker, resource_type: int, name: str) -> list[configs.ConfigEntry]:
    if resource_type == ResourceType.TOPIC:
        fault = name_fault(name)
        if fault is not None:
            raise Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
        topic = broker.catalog.topic(name)
        if topic is None:
            raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic '{name}' does not exist")
        entries = configs.describe_topic(topic.configs, broker.catalog.configs)
        if broker.catalog.log_config(topic).is_compacted:
            entries.append(_tombstones(broker, topic))
        if restores := restores_of(broker.restored, topic.id):
            entries.append(
                configs.ConfigEntry(configs.RESTORED, restores, Source.DEFAULT, (), read_only=True)
            )
        return entries
    if resource_type == ResourceType.BROKER:
        if scope_of(name, broker.settings.node_id) is Scope.CLUSTER:
            return configs.describe_layer(broker.catalog.configs)
        # Computed for each request, because the port can be unknown until the broker listens.
        return configs.describe_broker(
            replace(broker.catalog.configs, static=static_configs(broker.settings))
        )
    raise unknown_type(resource_type)


def _tombstones(broker: Broker, topic: Topic) -> configs.ConfigEntry:
    """Return, for each partition, the offset below which compaction removed tombstones.

    This describes the log and is not a setting. It is a configuration entry so that every Kafka client can read it.
    """
    horizons = []
    for index in range(topic.partitions):
        partition = broker.partition(topic.name, index)
        if partition is not None and partition.fenced is None:
            horizons.append(f"{index}:{partition.tombstone_horizon}")
    return configs.ConfigEntry(
        configs.TOMBSTONES_REMOVED_BELOW, ",".join(horizons), Source.DEFAULT, (), read_only=True
    )


class _EntryEncoder:
    """Encodes entries for the response. If many resources have the same entry, it is encoded once."""

    def __init__(self, *, synonyms: bool, documentation: bool) -> None:
        self._synonyms = synonyms
        self._documentation = documentation
        self._encoded: dict[tuple[object, ...], Any] = {}

    def size(self, entry: configs.ConfigEntry) -> int:
        size = _ENTRY_BYTES + len(entry.key.name) + text_bytes(entry.value)
        if self._documentation:
            size += text_bytes(entry.key.documentation)
        if self._synonyms:
            size += sum(_ENTRY_BYTES + len(name) + text_bytes(value) for name, value, _ in entry.synonyms)
        return size

    def encode(self, entry: configs.ConfigEntry) -> Any:
        key = (entry.key.name, entry.value, entry.source, entry.read_only, entry.synonyms)
        encoded = self._encoded.get(key)
        if encoded is None:
            encoded = self._encoded[key] = self._build(entry)
        return encoded

    def _build(self, entry: configs.ConfigEntry) -> Any:
        encoded = m.DescribeConfigsResponse.DescribeConfigsResourceResult(
            name=entry.key.name,
            value=entry.value,
            read_only=entry.read_only,
            config_source=entry.source,
            config_type=entry.key.type,
            documentation=entry.key.documentation if self._documentation else None,
        )
        if self._synonyms:
            encoded.synonyms = [
                m.DescribeConfigsResponse.DescribeConfigsSynonym(name=name, value=value, source=source)
                for name, value, source in entry.synonyms
            ]
        return encoded


async def alter_configs(broker: Broker, request: Request) -> Any:
    """Replace the whole configuration of each resource. Keys that the request omits return to their defaults."""
    message = request.message
    alterations = [_alteration(resource) for resource in message.resources]
    return await alter(broker, alterations, m.AlterConfigsResponse(), validate_only=message.validate_only)


def _alteration(resource: Message) -> Alteration:
    try:
        check_pairs(
            [config.name for config in resource.configs],
            [config.name for config in resource.configs if config.value is None],
        )
    except Refusal as refusal:
        return Alteration(resource.resource_type, resource.resource_name, refusal)
    configs = {config.name: config.value for config in resource.configs}

    def change(current: Mapping[str, str]) -> Mapping[str, str]:
        return configs

    return Alteration(resource.resource_type, resource.resource_name, change)


async def incremental_alter_configs(broker: Broker, request: Request) -> Any:
    """Set or reset single keys, or add and remove items of keys that are lists."""
    message = request.message
    alterations = [_incremental_alteration(resource) for resource in message.resources]
    return await alter(
        broker, alterations, m.IncrementalAlterConfigsResponse(), validate_only=message.validate_only
    )


def _incremental_alteration(resource: Message) -> Alteration:
    try:
        changes = _changes(resource)
    except Refusal as refusal:
        return Alteration(resource.resource_type, resource.resource_name, refusal)
    keys = TOPIC_CONFIGS if resource.resource_type == ResourceType.TOPIC else BROKER_CONFIGS

    def change(current: Mapping[str, str]) -> Mapping[str, str]:
        return apply_changes(current, changes, keys)

    return Alteration(resource.resource_type, resource.resource_name, change)


def _changes(resource: Message) -> list[Change]:
    operations = set(AlterOperation)
    for config in resource.configs:
        if config.config_operation not in operations:
            raise Refusal(ErrorCode.INVALID_REQUEST, f"unknown operation {config.config_operation}")
    check_pairs(
        [config.name for config in resource.configs],
        [
            config.name
            for config in resource.configs
            if config.value is None and config.config_operation != AlterOperation.DELETE
        ],
    )
    return [
        Change(config.name, AlterOperation(config.config_operation), config.value)
        for config in resource.configs
    ]


class ResourceType(IntEnum):
    TOPIC = 2
    BROKER = 4


class Alteration(NamedTuple):
    """A resource, with the change to its configuration or the reason why the broker refuses the change."""

    resource_type: int
    resource_name: str
    change: ConfigChange | Refusal


def scope_of(resource_name: str, node_id: int) -> Scope:
    """Return ``CLUSTER`` (all brokers) for an empty name, and ``NODE`` for the id of this broker."""
    if not resource_name:
        return Scope.CLUSTER
    if resource_name != str(node_id):
        raise Refusal(
            ErrorCode.INVALID_REQUEST,
            f"broker {resource_name!r} does not exist: use {node_id}, or an empty name for all brokers",
        )
    return Scope.NODE


def unknown_type(resource_type: int) -> Refusal:
    return Refusal(
        ErrorCode.INVALID_REQUEST,
        f"unsupported resource type {resource_type}: use 2 (topic) or 4 (broker)",
    )


def check_pairs(names: Sequence[str], without_value: Sequence[str]) -> None:
    """Raise ``Refusal`` if a key occurs more than once, or if a key has no value."""
    if len(set(names)) < len(names):
        raise Refusal(ErrorCode.INVALID_REQUEST, "the request contains a key more than once")
    if without_value:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"the request has no value for {', '.join(without_value)}")


async def alter(
    broker: Broker, alterations: Sequence[Alteration], response: Message, *, validate_only: bool
) -> Message:
    """Apply the valid alterations, and add the result of each to the response."""
    outcomes = await _apply(broker, alterations, validate_only=validate_only)
    for (resource_type, name, _), refusal in zip(alterations, outcomes, strict=True):
        result = response.AlterConfigsResourceResponse(
            resource_type=resource_type, resource_name=name, error_message=None
        )
        if refusal is not None:
            result.error_code, result.error_message = refusal.error_code, refusal.text
        response.responses.append(result)
    return response


async def _apply(
    broker: Broker, alterations: Sequence[Alteration], *, validate_only: bool
) -> list[Refusal | None]:
    """Apply the valid alterations. Returns one item per alteration: the refusal, or ``None`` on success."""
    counts = Counter((resource_type, name) for resource_type, name, _ in alterations)
    outcomes: list[Refusal | None] = [None] * len(alterations)
    topics: list[tuple[int, str, ConfigChange]] = []
    layers: list[tuple[int, Scope, ConfigChange]] = []
    for index, (resource_type, name, change) in enumerate(alterations):
        try:
            if counts[resource_type, name] > 1:
                raise Refusal(ErrorCode.INVALID_REQUEST, "the request changes this resource more than once")
            if isinstance(change, Refusal):
                raise change
            if resource_type == ResourceType.TOPIC:
                topics.append((index, name, change))
            elif resource_type == ResourceType.BROKER:
                layers.append((index, scope_of(name, broker.settings.node_id), change))
            else:
                raise unknown_type(resource_type)
        except Refusal as refusal:
            outcomes[index] = refusal
    altered_topics = await broker.catalog.alter_topics(
        [(name, change) for _, name, change in topics], validate_only=validate_only
    )
    altered_layers = await broker.catalog.alter_broker(
        [(scope, change) for _, scope, change in layers], validate_only=validate_only
    )
    positions = [index for index, _, _ in topics] + [index for index, _, _ in layers]
    for index, result in zip(positions, [*altered_topics, *altered_layers], strict=True):
        if isinstance(result, Refusal):
            outcomes[index] = result
    return outcomes


HANDLERS = {
    Api.DESCRIBE_CONFIGS: Handler(
        describe_configs,
        (
            Permission(Operation.DESCRIBE_CONFIGS, Resource.TOPIC),
            Permission(Operation.DESCRIBE_CONFIGS, Resource.CLUSTER),
        ),
    ),
    Api.ALTER_CONFIGS: Handler(
        alter_configs,
        (
            Permission(Operation.ALTER_CONFIGS, Resource.TOPIC),
            Permission(Operation.ALTER_CONFIGS, Resource.CLUSTER),
        ),
    ),
    Api.INCREMENTAL_ALTER_CONFIGS: Handler(
        incremental_alter_configs,
        (
            Permission(Operation.ALTER_CONFIGS, Resource.TOPIC),
            Permission(Operation.ALTER_CONFIGS, Resource.CLUSTER),
        ),
    ),
}
