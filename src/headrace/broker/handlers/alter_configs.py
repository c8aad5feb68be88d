"""AlterConfigs: the given configuration takes the place of all there was; what is not named falls back to
its default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.broker.config_resources import Alteration, alter, check_pairs
from headrace.broker.refusal import Refusal
from headrace.wire import messages as m

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.request import Request
    from headrace.wire.message import Message

__all__ = ["handle"]


async def handle(broker: Broker, request: Request) -> Any:
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
