"""Helpers that several handlers use to build responses.

``ResponseRoom`` limits the memory of a response while it is built, because a small request can cause a large response.
For example, a list of group names leads to descriptions of all these groups. A handler counts each item before it
builds the item. When an item exceeds the limit, that item and all later items get an error. The first item always fits,
so a client that retries the others makes progress.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.wire.codes import ErrorCode
from headrace.wire.message import Message

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.net.request import Request

__all__ = [
    "ITEM_BYTES",
    "ResponseRoom",
    "count_items",
    "has_many_items",
    "partition_errors",
    "partitions_once",
]

ITEM_BYTES = 256
"""Estimated memory of an item of a decoded message."""
_STEP_BYTES = 64 << 10
_STEP_ITEMS = 200
_ITEMS_MAX = 300


def has_many_items(message: Message) -> bool:
    """Return whether the arrays of a message have so many items that encoding them would delay other clients."""
    return count_items(message, up_to=_ITEMS_MAX) > _ITEMS_MAX


def count_items(message: Message, *, up_to: float = math.inf) -> int:
    """Return the number of items in the arrays of a message. Stops counting when it is greater than ``up_to``."""
    items = 0
    unseen = [message]
    while unseen:
        seen = unseen.pop()
        for name in seen.__struct_fields__:
            value = getattr(seen, name)
            if type(value) is list and value:
                items += len(value)
                if items > up_to:
                    return items
                if isinstance(value[0], Message):
                    unseen += value
    return items


class ResponseRoom:
    def __init__(self, broker: Broker, request: Request) -> None:
        self.bytes_max = broker.limits.response_bytes_max
        self.is_full = False
        self._broker = broker
        self._request = request
        self._used_bytes = 0
        self._next_yield = _STEP_BYTES
        self._items_since_yield = 0

    def take(self, size: int) -> bool:
        """Count an item of ``size`` bytes. Returns false if it does not fit."""
        if not self.is_full and self._used_bytes and self._used_bytes + size > self.bytes_max:
            self.is_full = True
            api, client = self._request.api.title, self._request.client_host
            self._broker.notices.request_limited(
                "response-full",
                f"partial response to {api} from {client}: headrace.response.max.bytes is {self.bytes_max}",
                {"api": api, "client": client},
            )
        if not self.is_full:
            self._used_bytes += max(size, 1)
        return not self.is_full

    async def yield_if_due(self) -> None:
        """Count an item. Take a turn after every 64 KiB or 200 items, or pause if the task has a turn already."""
        self._items_since_yield += 1
        if self._used_bytes >= self._next_yield or self._items_since_yield >= _STEP_ITEMS:
            self._next_yield = self._used_bytes + _STEP_BYTES
            self._items_since_yield = 0
            await self._broker.turns.take()


Name = TypeVar("Name", bound=Hashable)


def partitions_once(topics: Iterable[tuple[Name, Iterable[int]]]) -> dict[Name, list[int]]:
    """Return the partitions of each topic once, even if several items name the topic or the partition.

    Apache Kafka responds to each duplicate. This broker does not, because a short name can cause a large response.
    """
    partitions_by_topic: dict[Name, dict[int, None]] = {}
    for name, indexes in topics:
        partitions_by_topic.setdefault(name, {}).update(dict.fromkeys(indexes))
    return {name: list(indexes) for name, indexes in partitions_by_topic.items()}


def partition_errors(
    topics: Iterable[Any],
    errors: Iterable[ErrorCode],
    new_topic: Callable[..., Any],
    new_partition: Callable[..., Any],
) -> list[Any]:
    """Return response topics with one error code per partition. ``errors`` are in the order of the request."""
    remaining = iter(errors)
    return [
        new_topic(
            name=topic.name,
            partitions=[
                new_partition(partition_index=partition.partition_index, error_code=next(remaining))
                for partition in topic.partitions
            ],
        )
        for topic in topics
    ]
