"""A partition as the broker serves it: its log, a reader over it, and the checks that stand before an append."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from itertools import islice

from headrace.broker.archive_reads import ArchiveReads
from headrace.broker.time_lookup import Place, TimeLookup
from headrace.broker.walks import checked_batch, repacked_batch
from headrace.checksum import crc32c
from headrace.errors import StorageError
from headrace.log.committer import Committer
from headrace.log.config import LogConfig
from headrace.log.partition import Appended, PartitionLog
from headrace.log.producers import OutOfOrderSequence, Producer, ProducerQuota, StaleProducerEpoch
from headrace.log.reader import LogReader, Slice
from headrace.log.transactions import (
    AbortedTransaction,
    InvalidTransactionState,
    OpenTransaction,
    TooManyTransactions,
)
from headrace.records import (
    CODEC_NAMES,
    BatchHeader,
    CorruptRecords,
    Marker,
    RecordError,
    RecordLimits,
    UnknownCodec,
    open_batch,
    place_batch,
    read_header,
)
from headrace.wire.codes import ErrorCode

__all__ = ["Accepted", "Partition", "ProduceRefused"]

_log = logging.getLogger("headrace.broker")
Buffer = bytes | bytearray | memoryview

_CRC_AT, _CRC_FROM, _MAX_TIMESTAMP_AT = 17, 21, 35
_INT64 = struct.Struct(">q")
_UINT32 = struct.Struct(">I")
_RECORDS_NAMED_MAX = 100
_RECORDS_LOOKED_AT_MAX = 10_000


class ProduceRefused(Exception):
    """A batch is not taken, for a reason that the protocol has a number for."""

    def __init__(
        self,
        code: ErrorCode,
        message: str | None = None,
        *,
        log_start_offset: int = -1,
        records: Sequence[int] = (),
    ) -> None:
        """``records`` are the indexes in the batch of the records that are at fault."""
        super().__init__(message)
        self.code = code
        self.message = message
        self.log_start_offset = log_start_offset
        self.records = records


class Accepted:
    """A batch that was appended; ``durable`` is what to wait for before anyone is told."""

    __slots__ = ("append_time_ms", "appended", "durable")

    def __init__(self, appended: Appended, append_time_ms: int, durable: asyncio.Future[None] | None) -> None:
        self.appended = appended
        self.append_time_ms = append_time_ms
        self.durable = durable


class Partition:
    def __init__(
        self, log: PartitionLog, committer: Committer, limits: RecordLimits, archive_reads: ArchiveReads
    ) -> None:
        self.log = log
        self.reader = LogReader(log)
        self.opened_at_offset = log.end_offset
        self._committer = committer
        self._limits = limits
        self._archive_reads = archive_reads

    @property
    def start_offset(self) -> int:
        return self.log.start_offset

    @property
    def local_start_offset(self) -> int:
        """Where the data directory begins to hold the partition; what is below is in the archive."""
        return self.log.local_start_offset

    @property
    def end_offset(self) -> int:
        return self.log.end_offset

    @property
    def high_watermark(self) -> int:
        return self.log.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """Where those who read only committed records stop."""
        return self.log.last_stable_offset

    @property
    def tombstone_horizon(self) -> int:
        """Whoever was away and comes back to an offset below it may have missed a deletion, and must start anew."""
        return self.log.tombstone_horizon

    @property
    def leader_epoch(self) -> int:
        return self.log.leader_epoch

    @property
    def size_bytes(self) -> int:
        return self.log.size_bytes

    @property
    def fenced(self) -> str | None:
        return self.log.fenced

    @property
    def is_lost(self) -> bool:
        """Whether it takes no writes before the next start."""
        return self.log.is_lost

    @property
    def watchers(self) -> set[Callable[[], None]]:
        """Called whenever there is more to read, or the partition has failed."""
        return self.log.watchers

    async def read(self, offset: int, max_bytes: int, wait_s: float) -> Slice:
        """Whole batches from ``offset`` on; ``ReadIsLate`` if the archive takes longer than ``wait_s``."""
        plan = self.reader.plan(offset, max_bytes)
        if plan is None or not plan.segment.is_archived:
            return self.reader.read(offset, max_bytes)
        return self.reader.finish(*await self._archive_reads.fetch(plan, wait_s))

    async def offset_for_time(self, timestamp_ms: int, executor: Executor, wait_s: float) -> Place | None:
        """The first (offset, timestamp) at or after the given time, below the high watermark. Long batches are
        unpacked by the executor; waits for the archive as ``read`` does.
        """
        return await self._lookup(executor, wait_s).offset_for_time(timestamp_ms)

    async def offset_of_max_timestamp(self, executor: Executor, wait_s: float) -> Place | None:
        """The first record with the greatest timestamp below the high watermark."""
        return await self._lookup(executor, wait_s).offset_of_max_timestamp()

    def _lookup(self, executor: Executor, wait_s: float) -> TimeLookup:
        return TimeLookup(self.log, self.reader, self._limits, self._archive_reads, executor, wait_s)

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        return self.log.end_of_epoch(epoch)

    async def delete_before(self, offset: int) -> int:
        try:
            return await self._committer.delete_before(self.log, offset)
        except (OSError, StorageError) as error:
            failure = StorageError(f"the start of {self.log.directory} could not be moved: {error}")
            _log.error("%s", failure.message)
            raise failure from error

    def set_config(self, config: LogConfig) -> None:
        self.log.config = config

    async def abandon(self) -> None:
        """The topic is deleted: those who wait are told, and the files are let go of."""
        await self._end_compaction()
        self._committer.forget(self.log)
        await self._committer.settle(self.log)
        self.log.let_go("the topic was deleted")
        self.log.producers.release()

    async def _end_compaction(self) -> None:
        while (compacting := self.log.compacting) is not None:
            compacting.set()
            await asyncio.sleep(0.001)

    async def close(self) -> None:
        await self._end_compaction()
        await self._committer.settle(self.log)
        self.log.close()

    # Transactions

    def open_transactions(self) -> Mapping[int, OpenTransaction]:
        """By the producer's id; known again after a restart."""
        return self.log.transactions.open

    def aborted_between(self, start: int, end: int) -> list[AbortedTransaction]:
        """Those that a reader of committed records in ``[start, end)`` has to know of."""
        return self.log.transactions.aborted_between(start, end)

    def share_producers(self, quota: ProducerQuota) -> None:
        self.log.producers.share(quota)

    @property
    def producer_count(self) -> int:
        return len(self.log.producers)

    def producers(self) -> list[Producer]:
        return list(self.log.producers)

    def mark(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        committed: bool,
        coordinator_epoch: int,
        now_ms: int,
        trusted_ms: int,
    ) -> Accepted | None:
        """End the producer's transaction here, and refuse its older epochs from now on; raises ``StorageError``.

        The epoch is the one that the producer goes on with: above that of the transaction, or for clients of the
        older protocol the same. So whoever says it again after a crash looks first whether the transaction that is
        open now is still the one that was to end. ``None`` if there is nothing to write.
        """
        stamp_ms = max(now_ms, trusted_ms)
        marker = Marker(committed, coordinator_epoch)
        appended = self.log.append_marker(producer_id, producer_epoch, marker, trusted_ms, seen_ms=stamp_ms)
        return None if appended is None else self._accepted(appended, stamp_ms)

    # Writing

    def append(
        self, batch: Buffer, now_ms: int, trusted_ms: int, *, begins_at_zero: bool = False
    ) -> Accepted:
        """Check one produced batch and write it; raises ``ProduceRefused``.

        ``begins_at_zero``: a producer that is not known here begins with sequence 0.
        """
        config = self.log.config
        header = self._framed(batch, config)
        try:
            checked = self._walked(batch, header, config)
            if config.compression_type != "producer" and CODEC_NAMES[header.codec] != config.compression_type:
                codec = CODEC_NAMES.index(
                    "none" if config.compression_type == "uncompressed" else config.compression_type
                )
                batch = repacked_batch(batch, codec, self._limits)
                header = read_header(batch)
        except CorruptRecords as error:
            raise ProduceRefused(ErrorCode.CORRUPT_MESSAGE, error.message) from error
        except UnknownCodec as error:
            raise self._rejected(error.message, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE) from error
        except RecordError as error:
            raise self._rejected(error.message) from error
        # The wall clock may be wrong, and so may trusted time after a long time off. A record is taken if it is right
        # by either, and stamped by the later one, so that no wrong clock makes it look old enough to be deleted.
        stamp_ms = max(now_ms, trusted_ms)
        append_time_ms = -1
        max_timestamp = checked[1]
        if config.uses_append_time:
            append_time_ms = max_timestamp = stamp_ms
            batch = bytearray(batch)
            place_batch(batch, 0, 0, 0, stamp_ms)
        else:
            self._check_timestamps(batch, checked, config, min(now_ms, trusted_ms), stamp_ms)
            if header.max_timestamp != max_timestamp or header.uses_append_time:
                batch = _with_true_timestamp(batch, max_timestamp)
        try:
            appended = self.log.append(
                batch, header, max_timestamp, trusted_ms, seen_ms=stamp_ms, begins_at_zero=begins_at_zero
            )
        except OutOfOrderSequence as error:
            raise self._rejected(error.message, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER) from error
        except StaleProducerEpoch as error:
            raise self._rejected(error.message, ErrorCode.INVALID_PRODUCER_EPOCH) from error
        except InvalidTransactionState as error:
            raise self._rejected(error.message, ErrorCode.INVALID_TXN_STATE) from error
        except TooManyTransactions as error:
            raise ProduceRefused(ErrorCode.POLICY_VIOLATION, error.message) from error
        except StorageError as error:
            raise ProduceRefused(ErrorCode.KAFKA_STORAGE_ERROR, error.message) from error
        return self._accepted(appended, append_time_ms)

    def _accepted(self, appended: Appended, append_time_ms: int) -> Accepted:
        return Accepted(appended, append_time_ms, self._committer.durable(self.log, appended.last_offset + 1))

    def _framed(self, batch: Buffer, config: LogConfig) -> BatchHeader:
        """The header of what must be exactly one batch that this topic takes; nothing is said of its records yet."""
        try:
            header = read_header(batch)
        except RecordError as error:
            raise ProduceRefused(ErrorCode.INVALID_RECORD, error.message) from error
        if header.size != len(batch):
            raise ProduceRefused(
                ErrorCode.INVALID_RECORD,
                f"exactly one batch is taken per partition: it states {header.size} bytes, and {len(batch)} came",
            )
        if header.size > config.max_message_bytes:
            raise ProduceRefused(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"the batch has {header.size} bytes, and max.message.bytes is {config.max_message_bytes}",
            )
        if header.producer_id >= 0 and (header.producer_epoch < 0 or header.base_sequence < 0):
            raise ProduceRefused(
                ErrorCode.INVALID_RECORD, f"producer {header.producer_id} sent no epoch or no sequence number"
            )
        return header

    def _walked(self, batch: Buffer, header: BatchHeader, config: LogConfig) -> tuple[int, int]:
        """The least and the greatest timestamp of a batch whose records hold together."""
        if header.is_control:
            raise self._rejected("control batches are the broker's own")
        if header.base_offset != 0:
            raise self._rejected(
                f"the batch starts at offset {header.base_offset}, and a client's starts at 0"
            )
        checked = checked_batch(batch, self._limits)
        if config.is_compacted and checked.has_null_key:
            raise self._rejected(
                "a compacted topic takes no record without a key",
                records=self._which(batch, lambda key, _: key is None),
            )
        return checked.min_timestamp, checked.max_timestamp

    def _rejected(
        self, message: str, code: ErrorCode = ErrorCode.INVALID_RECORD, records: Sequence[int] = ()
    ) -> ProduceRefused:
        return ProduceRefused(code, message, log_start_offset=self.start_offset, records=records)

    def _which(self, batch: Buffer, is_at_fault: Callable[[bytes | None, int], bool]) -> list[int]:
        """The first few records that are at fault, by their keys and timestamps."""
        if read_header(batch).count > _RECORDS_LOOKED_AT_MAX:
            return []  # The message says it all; naming them would cost more than the walk did.
        header, _, records = open_batch(batch, self._limits)
        first_ms = header.base_timestamp
        found = (
            index
            for index, record in enumerate(records)
            if is_at_fault(record.key, first_ms + record.timestamp)
        )
        return list(islice(found, _RECORDS_NAMED_MAX))

    def _check_timestamps(
        self, batch: Buffer, checked: tuple[int, int], config: LogConfig, earlier_ms: int, later_ms: int
    ) -> None:
        """``earlier_ms`` and ``later_ms`` are the two times that it may be."""
        earliest, latest = checked
        if latest - later_ms > config.timestamp_after_max_ms:
            raise self._rejected(
                f"timestamp {latest} is {latest - later_ms} ms ahead of the broker's {later_ms}, "
                f"and message.timestamp.after.max.ms is {config.timestamp_after_max_ms}",
                ErrorCode.INVALID_TIMESTAMP,
                self._which(batch, lambda _, ms: ms - later_ms > config.timestamp_after_max_ms),
            )
        if earliest >= 0 and earlier_ms - earliest > config.timestamp_before_max_ms:
            raise self._rejected(
                f"timestamp {earliest} is {earlier_ms - earliest} ms behind the broker's {earlier_ms}, "
                f"and message.timestamp.before.max.ms is {config.timestamp_before_max_ms}",
                ErrorCode.INVALID_TIMESTAMP,
                self._which(batch, lambda _, ms: earlier_ms - ms > config.timestamp_before_max_ms),
            )


def _with_true_timestamp(batch: Buffer, max_timestamp: int) -> bytearray:
    """A client that states a wrong greatest timestamp would mislead time look-ups and retention: the batch is
    put right.
    """
    corrected = bytearray(batch)
    corrected[22] &= ~0x08 & 0xFF
    _INT64.pack_into(corrected, _MAX_TIMESTAMP_AT, max_timestamp)
    _UINT32.pack_into(corrected, _CRC_AT, crc32c(memoryview(corrected)[_CRC_FROM:]))
    return corrected
