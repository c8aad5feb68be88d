"""What the transaction coordinator asks of the rest of the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Protocol

__all__ = ["MarkedPartition", "MarkedPartitions", "OpenTransaction", "ProducerIds", "Written"]


class OpenTransaction(Protocol):
    """One that a partition has records of, and no marker."""

    @property
    def producer_epoch(self) -> int: ...
    @property
    def first_offset(self) -> int: ...
    @property
    def since_ms(self) -> int: ...


class Written(Protocol):
    @property
    def durable(self) -> asyncio.Future[None] | None: ...


class MarkedPartition(Protocol):
    @property
    def is_lost(self) -> bool: ...

    def open_transactions(self) -> Mapping[int, OpenTransaction]: ...

    def mark(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        committed: bool,
        coordinator_epoch: int,
        now_ms: int,
        trusted_ms: int,
    ) -> Written | None: ...


class MarkedPartitions(Protocol):
    def find(self, topic: str, index: int) -> MarkedPartition | None: ...
    def all(self) -> Iterable[tuple[str, int, MarkedPartition]]: ...


class ProducerIds(Protocol):
    async def next(self) -> int: ...
