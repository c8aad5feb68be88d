"""DescribeConfigs: every key of a topic or a broker, its value, and where the value comes from.

Each resource is answered once, with all keys that any item asks for. The keys' texts are left out where very many
resources are asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace.broker import configs
from headrace.broker.backup.history import told_of
from headrace.broker.broker_configs import Scope, Source, static_configs
from headrace.broker.config_resources import ResourceType, scope_of, unknown_type
from headrace.broker.names import name_fault
from headrace.broker.refusal import Refusal
from headrace.broker.response_room import ResponseRoom
from headrace.broker.sizes import text_bytes
from headrace.broker.turns import give_turn
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
_ENTRY_BYTES = 32


async def handle(broker: Broker, request: Request) -> Any:
    message = request.message
    response = m.DescribeConfigsResponse()
    named = _resources_once(message.resources)
    room = ResponseRoom(broker, request)
    described = _Described(
        synonyms=message.include_synonyms,
        documentation=message.include_documentation and len(named) <= _DOCUMENTED_MAX,
    )
    for number, ((resource_type, name), keys) in enumerate(named.items(), 1):
        await give_turn(number, _AT_ONCE)
        answer = m.DescribeConfigsResponse.DescribeConfigsResult(
            resource_type=resource_type, resource_name=name
        )
        response.results.append(answer)
        try:
            if room.is_full:
                raise _full(room)
            # A key that there is not is left out.
            entries = [
                entry
                for entry in _entries(broker, resource_type, name)
                if keys is None or entry.key.name in keys
            ]
            if not room.take(sum(map(described.size, entries))):
                raise _full(room)
        except Refusal as refusal:
            answer.error_code, answer.error_message = refusal.error_code, refusal.text
        else:
            answer.configs = [described.of(entry) for entry in entries]
    return response


def _resources_once(resources: Iterable[Any]) -> dict[tuple[int, str], set[str] | None]:
    """The keys of each resource; None stands for all, and so does an empty list in the request."""
    named: dict[tuple[int, str], set[str] | None] = {}
    for resource in resources:
        resource_id = (resource.resource_type, resource.resource_name)
        keys = named.setdefault(resource_id, set())
        if keys is None or not resource.configuration_keys:
            named[resource_id] = None
        else:
            keys.update(resource.configuration_keys)
    return named


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


class _Described:
    """Entries as the response has them. Those that are the same for many resources are built once."""

    def __init__(self, *, synonyms: bool, documentation: bool) -> None:
        self._synonyms = synonyms
        self._documentation = documentation
        self._built: dict[tuple[object, ...], Any] = {}

    def size(self, entry: configs.ConfigEntry) -> int:
        size = _ENTRY_BYTES + len(entry.key.name) + text_bytes(entry.value)
        if self._documentation:
            size += text_bytes(entry.key.documentation)
        if self._synonyms:
            size += sum(_ENTRY_BYTES + len(name) + text_bytes(value) for name, value, _ in entry.synonyms)
        return size

    def of(self, entry: configs.ConfigEntry) -> Any:
        key = (entry.key.name, entry.value, entry.source, entry.read_only, entry.synonyms)
        built = self._built.get(key)
        if built is None:
            built = self._built[key] = self._build(entry)
        return built

    def _build(self, entry: configs.ConfigEntry) -> Any:
        built = m.DescribeConfigsResponse.DescribeConfigsResourceResult(
            name=entry.key.name,
            value=entry.value,
            read_only=entry.read_only,
            config_source=entry.source,
            config_type=entry.key.type,
            documentation=entry.key.documentation if self._documentation else None,
        )
        if self._synonyms:
            built.synonyms = [
                m.DescribeConfigsResponse.DescribeConfigsSynonym(name=name, value=value, source=source)
                for name, value, source in entry.synonyms
            ]
        return built
