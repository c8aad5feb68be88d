"""What configuration belongs to: a topic, this broker, or all brokers. And changing it, for both ways of
asking.

Each resource of a request is changed whole or not at all, by itself: one that is refused does not hold up
the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from headrace.broker.broker_configs import Scope
from headrace.broker.catalog import ConfigChange
from headrace.broker.refusal import Refusal
from headrace.wire.codes import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.wire.message import Message

__all__ = ["Alteration", "ResourceType", "alter", "check_pairs", "scope_of", "unknown_type"]


class ResourceType(IntEnum):
    TOPIC = 2
    BROKER = 4


class Alteration(NamedTuple):
    """One resource and what shall become of its configuration, or why it was refused before anyone looked."""

    resource_type: int
    resource_name: str
    change: ConfigChange | Refusal


def scope_of(resource_name: str, node_id: int) -> Scope:
    """All brokers for an empty name, this broker for its number."""
    if not resource_name:
        return Scope.CLUSTER
    if resource_name != str(node_id):
        raise Refusal(
            ErrorCode.INVALID_REQUEST,
            f"{resource_name!r} is not this broker: give {node_id}, or nothing for all brokers",
        )
    return Scope.NODE


def unknown_type(resource_type: int) -> Refusal:
    return Refusal(
        ErrorCode.INVALID_REQUEST,
        f"this broker configures topics (2) and brokers (4), not resources of type {resource_type}",
    )


def check_pairs(names: Sequence[str], unset: Sequence[str]) -> None:
    """Every key comes once, and has a value where it needs one."""
    if len(set(names)) < len(names):
        raise Refusal(ErrorCode.INVALID_REQUEST, "the request sets a key more than once")
    if unset:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"no value is given for {', '.join(unset)}")


async def alter(
    broker: Broker, alterations: Sequence[Alteration], response: Message, *, validate_only: bool
) -> Message:
    """Change what can be changed, and say in the response, of either way of asking, what became of each."""
    outcomes = await _altered(broker, alterations, validate_only=validate_only)
    for (resource_type, name, _), refusal in zip(alterations, outcomes, strict=True):
        answer = response.AlterConfigsResourceResponse(
            resource_type=resource_type, resource_name=name, error_message=None
        )
        if refusal is not None:
            answer.error_code, answer.error_message = refusal.error_code, refusal.text
        response.responses.append(answer)
    return response


async def _altered(
    broker: Broker, alterations: Sequence[Alteration], *, validate_only: bool
) -> list[Refusal | None]:
    """The outcome of each, in order."""
    times = Counter((resource_type, name) for resource_type, name, _ in alterations)
    outcomes: list[Refusal | None] = [None] * len(alterations)
    topics: list[tuple[int, str, ConfigChange]] = []
    layers: list[tuple[int, Scope, ConfigChange]] = []
    for at, (resource_type, name, change) in enumerate(alterations):
        try:
            if times[resource_type, name] > 1:
                raise Refusal(ErrorCode.INVALID_REQUEST, "the request changes this resource more than once")
            if isinstance(change, Refusal):
                raise change
            if resource_type == ResourceType.TOPIC:
                topics.append((at, name, change))
            elif resource_type == ResourceType.BROKER:
                layers.append((at, scope_of(name, broker.settings.node_id), change))
            else:
                raise unknown_type(resource_type)
        except Refusal as refusal:
            outcomes[at] = refusal
    altered_topics = await broker.catalog.alter_topics(
        [(name, change) for _, name, change in topics], validate_only=validate_only
    )
    altered_layers = await broker.catalog.alter_broker(
        [(scope, change) for _, scope, change in layers], validate_only=validate_only
    )
    places = [at for at, _, _ in topics] + [at for at, _, _ in layers]
    for at, result in zip(places, [*altered_topics, *altered_layers], strict=True):
        if isinstance(result, Refusal):
            outcomes[at] = result
    return outcomes
