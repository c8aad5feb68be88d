"""A partition whose files are damaged or cannot be opened. Its methods raise the reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import NoReturn

from headrace.broker.storage.partition import Accepted, Buffer, Partition, Prevalidated, ProduceRefused
from headrace.broker.storage.time_lookup import TimedOffset
from headrace.errors import StorageError
from headrace.log.config import LogConfig
from headrace.log.producers import Producer, ProducerQuota
from headrace.log.reader import LogReader, ReadPlan
from headrace.log.transactions import AbortedTransaction, OpenTransaction
from headrace.wire.codes import ErrorCode

__all__ = ["OfflinePartition"]


class _NoReader(LogReader):
    def __init__(self, reason: str) -> None:
        self._reason = reason

    def plan(
        self, offset: int, max_bytes: int, *, whole_first: bool = True, committed: bool = False
    ) -> ReadPlan | None:
        raise StorageError(self._reason)


class OfflinePartition(Partition):
    def __init__(self, reason: str, leader_epoch: int) -> None:
        self._reason = reason
        self._leader_epoch = leader_epoch
        self._watchers: set[Callable[[], None]] = set()
        self.reader = _NoReader(reason)

    def _refuse(self) -> NoReturn:
        raise StorageError(self._reason)

    @property
    def start_offset(self) -> int:
        self._refuse()

    @property
    def local_start_offset(self) -> int:
        self._refuse()

    @property
    def end_offset(self) -> int:
        self._refuse()

    @property
    def high_watermark(self) -> int:
        self._refuse()

    @property
    def last_stable_offset(self) -> int:
        self._refuse()

    @property
    def tombstone_horizon(self) -> int:
        self._refuse()

    @property
    def min_insync_replicas(self) -> int:
        """Always 1, so that Produce returns the storage error and not NOT_ENOUGH_REPLICAS, as in Kafka."""
        return 1

    @property
    def leader_epoch(self) -> int:
        return self._leader_epoch

    @property
    def size_bytes(self) -> int:
        return 0

    @property
    def fenced(self) -> str | None:
        return self._reason

    @property
    def needs_restart(self) -> bool:
        return True

    @property
    def watchers(self) -> set[Callable[[], None]]:
        return self._watchers

    async def offset_for_time(
        self, timestamp_ms: int, executor: Executor, wait_s: float
    ) -> TimedOffset | None:
        self._refuse()

    async def offset_of_max_timestamp(self, executor: Executor, wait_s: float) -> TimedOffset | None:
        self._refuse()

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        self._refuse()

    async def delete_before(self, offset: int) -> int:
        self._refuse()

    def set_config(self, config: LogConfig) -> None:
        return

    async def abandon(self) -> None:
        return

    async def close(self) -> None:
        return

    def open_transactions(self) -> Mapping[int, OpenTransaction]:
        """Return no transactions, because none can end while the files cannot be read."""
        return {}

    def aborted_between(self, start: int, end: int) -> list[AbortedTransaction]:
        self._refuse()

    def share_producers(self, quota: ProducerQuota) -> None:
        return

    @property
    def producer_count(self) -> int:
        self._refuse()

    def producers(self) -> list[Producer]:
        self._refuse()

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        committed: bool,
        coordinator_epoch: int,
        now_ms: int,
        trusted_ms: int,
    ) -> Accepted | None:
        self._refuse()

    def append(
        self,
        batch: Buffer,
        now_ms: int,
        trusted_ms: int,
        *,
        must_start_at_zero: bool = False,
        prevalidated: Prevalidated | None = None,
    ) -> Accepted:
        raise ProduceRefused(ErrorCode.KAFKA_STORAGE_ERROR, self._reason)
