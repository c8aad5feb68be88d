"""IncrementalAlterConfigs: single keys are set, taken back to their default, or have items added to or
removed from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.broker.broker_configs import BROKER_CONFIGS
from headrace.broker.config_resources import Alteration, ResourceType, alter, check_pairs
from headrace.broker.configs import Change, Operation, altered
from headrace.broker.refusal import Refusal
from headrace.broker.topic_configs import TOPIC_CONFIGS
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.request import Request
    from headrace.wire.message import Message

__all__ = ["handle"]


async def handle(broker: Broker, request: Request) -> Any:
    message = request.message
    alterations = [_alteration(resource) for resource in message.resources]
    return await alter(
        broker, alterations, m.IncrementalAlterConfigsResponse(), validate_only=message.validate_only
    )


def _alteration(resource: Message) -> Alteration:
    try:
        changes = _changes(resource)
    except Refusal as refusal:
        return Alteration(resource.resource_type, resource.resource_name, refusal)
    keys = TOPIC_CONFIGS if resource.resource_type == ResourceType.TOPIC else BROKER_CONFIGS

    def change(current: Mapping[str, str]) -> Mapping[str, str]:
        return altered(current, changes, keys)

    return Alteration(resource.resource_type, resource.resource_name, change)


def _changes(resource: Message) -> list[Change]:
    known = set(Operation)
    for config in resource.configs:
        if config.config_operation not in known:
            raise Refusal(ErrorCode.INVALID_REQUEST, f"there is no operation {config.config_operation}")
    check_pairs(
        [config.name for config in resource.configs],
        [
            config.name
            for config in resource.configs
            if config.value is None and config.config_operation != Operation.DELETE
        ],
    )
    return [
        Change(config.name, Operation(config.config_operation), config.value) for config in resource.configs
    ]
