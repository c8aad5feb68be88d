"""The interface of the transaction coordinator: its settings, its results, and a Python protocol for each
part of the broker that it calls.

If Apache Kafka has the same setting, the comment gives Kafka's name for it, and the default is Kafka's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from headrace.clock import Clock
from headrace.wire.codes import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.groups.ledger import Ledger
    from headrace.broker.groups.settings import TopicNames

__all__ = [
    "DescribedTransaction",
    "EndResult",
    "InitResult",
    "ListedTransaction",
    "MarkedPartition",
    "MarkedPartitions",
    "OpenTransaction",
    "ProducerIds",
    "TransactionContext",
    "TransactionSettings",
    "Written",
]


class OpenTransaction(Protocol):
    """A transaction that has records in a partition, but no marker yet."""

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
    def needs_restart(self) -> bool: ...

    def open_transactions(self) -> Mapping[int, OpenTransaction]: ...

    def append_marker(
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


_NONE = -1


class InitResult(NamedTuple):
    error: ErrorCode
    producer_id: int = _NONE
    epoch: int = _NONE


class EndResult(NamedTuple):
    """The result of EndTxn. Clients of the second transaction protocol continue with this producer id and epoch."""

    error: ErrorCode
    producer_id: int = _NONE
    epoch: int = _NONE


class DescribedTransaction(NamedTuple):
    id: str
    state: str
    timeout_ms: int
    began_ms: int
    producer_id: int
    epoch: int
    partitions: dict[str, list[int]]


class ListedTransaction(NamedTuple):
    id: str
    state: str
    producer_id: int


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    #: ``transaction.max.timeout.ms``
    timeout_ms_max: int = 900_000
    #: ``transactional.id.expiration.ms``: seven days.
    id_expiration_ms: int = 7 * 24 * 60 * 60 * 1000

    #: The longest interval between two checks of the running timeouts. A check that runs late reveals that the process
    #: was stalled.
    tick_interval_ms: int = 1_000
    #: If a check is late by more than this, the coordinator extends every running timeout, because requests could not
    #: arrive.
    stall_ms_min: int = 1_000
    #: The delay before the coordinator retries a marker that it could not write.
    retry_ms: int = 1_000

    #: Kafka has only the protocol's limit, 32,767.
    id_chars_max: int = 1_024
    ids_max: int = 30_000
    #: All ids together. One ListTransactions response contains all of them.
    all_ids_bytes_max: int = 8 << 20
    partitions_per_transaction_max: int = 10_000
    groups_per_transaction_max: int = 1_000
    group_id_chars_max: int = 1_024
    #: The partitions of all open transactions.
    all_partitions_max: int = 300_000
    all_groups_bytes_max: int = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionContext:
    """The parts of the broker that the coordinator uses.

    ``stamp_ms`` is the clock for stored timestamps, for example of a transactional id's last use. It is never behind
    ``trusted_ms``.
    """

    settings: TransactionSettings
    ledger: Ledger
    partitions: MarkedPartitions
    topics: TopicNames
    producer_ids: ProducerIds
    clock: Clock
    stamp_ms: Callable[[], int]
    trusted_ms: Callable[[], int]
    coordinator_epoch: int
