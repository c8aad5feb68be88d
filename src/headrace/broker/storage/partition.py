"""A partition of the broker: its log, a reader of the log, and the validation before an append."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from copy import copy
from itertools import islice
from typing import NamedTuple

from headrace.broker.storage.archive_access import ArchiveReads
from headrace.broker.storage.time_lookup import TimedOffset, TimeLookup
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
    BatchSummary,
    CorruptRecords,
    Marker,
    RecordError,
    RecordLimits,
    UnknownCodec,
    check_batch,
    open_batch,
    read_header,
    recompress,
    set_broker_fields,
    with_max_timestamp,
)
from headrace.wire.codes import ErrorCode

__all__ = ["Accepted", "Partition", "Prevalidated", "ProduceRefused", "codec_for"]

_log = logging.getLogger("headrace.broker")
Buffer = bytes | bytearray | memoryview

_REPORTED_RECORDS_MAX = 100
_RECORDS_READ_MAX = 10_000


class ProduceRefused(Exception):
    """The broker refuses a batch, with a Kafka error code."""

    def __init__(
        self,
        code: ErrorCode,
        message: str | None = None,
        *,
        log_start_offset: int = -1,
        records: Sequence[int] = (),
    ) -> None:
        """``records`` are the indexes of the invalid records in the batch."""
        super().__init__(message)
        self.code = code
        self.message = message
        self.log_start_offset = log_start_offset
        self.records = records


class Accepted:
    """An appended batch. If ``durable`` is set, the caller must wait for it before it acknowledges the batch."""

    __slots__ = ("append_time_ms", "appended", "durable")

    def __init__(self, appended: Appended, append_time_ms: int, durable: asyncio.Future[None] | None) -> None:
        self.appended = appended
        self.append_time_ms = append_time_ms
        self.durable = durable


class Prevalidated(NamedTuple):
    """The validation result of one batch. ``recompressed`` is the batch in its topic's codec if that codec differs."""

    checked: BatchSummary | RecordError
    recompressed: bytes | None = None


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
        """The first offset in the data directory. Lower offsets are in the archive."""
        return self.log.local_start_offset

    @property
    def end_offset(self) -> int:
        return self.log.end_offset

    @property
    def high_watermark(self) -> int:
        return self.log.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """The offset up to which ``read_committed`` clients can read."""
        return self.log.last_stable_offset

    @property
    def tombstone_horizon(self) -> int:
        """A reader that resumes below this offset may have missed the deletion of a key.

        Such a reader must read again from the first offset.
        """
        return self.log.tombstone_horizon

    @property
    def min_insync_replicas(self) -> int:
        return self.log.config.min_insync_replicas

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
    def needs_restart(self) -> bool:
        """Whether the partition refuses writes until the next start."""
        return self.log.needs_restart

    @property
    def watchers(self) -> set[Callable[[], None]]:
        """Callbacks that run when new records are readable or the partition fails."""
        return self.log.watchers

    async def read(self, offset: int, max_bytes: int, wait_s: float) -> Slice:
        """Read whole batches from ``offset`` on. Raises ``ReadIsLate`` if the archive takes longer than ``wait_s``."""
        plan = self.reader.plan(offset, max_bytes)
        if plan is None or not plan.segment.is_archived:
            return self.reader.read(offset, max_bytes)
        return self.reader.finish(*await self._archive_reads.fetch(plan, wait_s))

    async def offset_for_time(
        self, timestamp_ms: int, executor: Executor, wait_s: float
    ) -> TimedOffset | None:
        """Return the first record below the high watermark whose timestamp is at or after ``timestamp_ms``.

        The executor decompresses long batches. Raises ``ReadIsLate`` if the archive takes longer than ``wait_s``.
        """
        return await self._lookup(executor, wait_s).offset_for_time(timestamp_ms)

    async def offset_of_max_timestamp(self, executor: Executor, wait_s: float) -> TimedOffset | None:
        """Return the record with the greatest timestamp below the high watermark, or the first of such records."""
        return await self._lookup(executor, wait_s).offset_of_max_timestamp()

    def _lookup(self, executor: Executor, wait_s: float) -> TimeLookup:
        return TimeLookup(self.log, self.reader, self._limits, self._archive_reads, executor, wait_s)

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        return self.log.end_of_epoch(epoch)

    async def delete_before(self, offset: int) -> int:
        try:
            return await self._committer.delete_before(self.log, offset)
        except (OSError, StorageError) as error:
            failure = StorageError(f"cannot advance the start offset of {self.log.directory}: {error}")
            _log.error("%s", failure.message)
            raise failure from error

    def set_config(self, config: LogConfig) -> None:
        self.log.config = config

    async def abandon(self) -> None:
        """Fail pending requests and close the files, because the topic is deleted."""
        await self._end_compaction()
        self._committer.forget(self.log)
        await self._committer.settle(self.log)
        self.log.abandon("the topic was deleted")
        self.log.producers.release()

    async def _end_compaction(self) -> None:
        while (stop := self.log.compacting) is not None:
            stop.set()
            await asyncio.sleep(0.001)

    async def close(self) -> None:
        await self._end_compaction()
        await self._committer.settle(self.log)
        self.log.close()

    # Transactions

    def open_transactions(self) -> Mapping[int, OpenTransaction]:
        """Return the open transactions by producer id. They survive a restart."""
        return self.log.transactions.open

    def aborted_between(self, start: int, end: int) -> list[AbortedTransaction]:
        """Return the aborted transactions that a reader of ``[start, end)`` must skip.

        If ``forgets`` has changed since the records were read, the list can be incomplete.
        """
        return self.log.transactions.aborted_between(start, end)

    @property
    def forgets(self) -> int:
        """How often the partition has forgotten aborted transactions, because their records were deleted."""
        return self.log.transactions.forgets

    def share_producers(self, quota: ProducerQuota) -> None:
        self.log.producers.share(quota)

    @property
    def producer_count(self) -> int:
        return len(self.log.producers)

    def producers(self) -> list[Producer]:
        return list(self.log.producers)

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
        """Write the marker that ends the producer's transaction. The partition then refuses older epochs.

        ``producer_epoch`` is the epoch with which the producer continues. It is higher than the transaction's epoch, or
        the same in the first transaction protocol. With the same epoch, the partition cannot distinguish an old
        transaction from a new one. So a caller that repeats a marker after a crash must first check that the same
        transaction is still open. Returns ``None`` if no marker is needed. Raises ``StorageError``.
        """
        stamp_ms = max(now_ms, trusted_ms)
        marker = Marker(committed, coordinator_epoch)
        appended = self.log.append_marker(producer_id, producer_epoch, marker, trusted_ms, seen_ms=stamp_ms)
        return None if appended is None else self._accepted(appended, stamp_ms)

    # Writing

    def append(
        self,
        batch: Buffer,
        now_ms: int,
        trusted_ms: int,
        *,
        must_start_at_zero: bool = False,
        prevalidated: Prevalidated | None = None,
    ) -> Accepted:
        """Validate a batch and append it. Raises ``ProduceRefused``.

        With ``must_start_at_zero``, a producer that is new to this partition must begin with sequence number 0.
        """
        config = self.log.config
        header = self._checked_header(batch, config)
        try:
            timestamps = self._check_records(batch, header, config, prevalidated)
            if config.compression_type != "producer":
                codec = codec_for(config.compression_type, header.codec)
                if codec is not None:
                    recompressed = None if prevalidated is None else prevalidated.recompressed
                    batch = recompressed or recompress(batch, codec, self._limits)
                    header = read_header(batch)
        except CorruptRecords as error:
            raise ProduceRefused(ErrorCode.CORRUPT_MESSAGE, error.message) from error
        except UnknownCodec as error:
            raise self._refusal(error.message, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE) from error
        except RecordError as error:
            raise self._refusal(error.message) from error
        # The wall clock can be wrong, and trusted time can be behind after a long downtime. A timestamp is valid if it
        # is valid by either clock. The later clock sets the append time, so that a wrong clock never makes a record
        # look old enough to delete.
        stamp_ms = max(now_ms, trusted_ms)
        append_time_ms = -1
        _, max_timestamp = timestamps
        if config.uses_append_time:
            append_time_ms = max_timestamp = stamp_ms
            batch = bytearray(batch)
            set_broker_fields(batch, 0, 0, 0, stamp_ms)
        else:
            self._check_timestamps(batch, timestamps, config, min(now_ms, trusted_ms), stamp_ms)
            if header.max_timestamp != max_timestamp or header.uses_append_time:
                # Correct the header, because time lookups and retention use its maximum timestamp.
                batch = with_max_timestamp(batch, max_timestamp)
        try:
            appended = self.log.append(
                batch,
                header,
                max_timestamp,
                trusted_ms,
                seen_ms=stamp_ms,
                must_start_at_zero=must_start_at_zero,
            )
        except OutOfOrderSequence as error:
            raise self._refusal(error.message, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER) from error
        except StaleProducerEpoch as error:
            raise self._refusal(error.message, ErrorCode.INVALID_PRODUCER_EPOCH) from error
        except InvalidTransactionState as error:
            raise self._refusal(error.message, ErrorCode.INVALID_TXN_STATE) from error
        except TooManyTransactions as error:
            raise ProduceRefused(ErrorCode.POLICY_VIOLATION, error.message) from error
        except StorageError as error:
            raise ProduceRefused(ErrorCode.KAFKA_STORAGE_ERROR, error.message) from error
        return self._accepted(appended, append_time_ms)

    def _accepted(self, appended: Appended, append_time_ms: int) -> Accepted:
        return Accepted(appended, append_time_ms, self._committer.durable(self.log, appended.last_offset + 1))

    def _checked_header(self, batch: Buffer, config: LogConfig) -> BatchHeader:
        """Return the header of the batch. Checks size and producer fields, but does not validate the records."""
        try:
            header = read_header(batch)
        except RecordError as error:
            raise ProduceRefused(ErrorCode.INVALID_RECORD, error.message) from error
        if header.size != len(batch):
            raise ProduceRefused(
                ErrorCode.INVALID_RECORD,
                f"the batch header states {header.size} bytes, but the request has {len(batch)} bytes: send one batch"
                " per partition",
            )
        if header.size > config.max_message_bytes:
            raise ProduceRefused(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"the batch has {header.size} bytes (max.message.bytes is {config.max_message_bytes})",
            )
        if header.producer_id >= 0 and (header.producer_epoch < 0 or header.base_sequence < 0):
            raise ProduceRefused(
                ErrorCode.INVALID_RECORD,
                f"the batch of producer {header.producer_id} has no producer epoch or no sequence number",
            )
        return header

    def _check_records(
        self, batch: Buffer, header: BatchHeader, config: LogConfig, prevalidated: Prevalidated | None
    ) -> tuple[int, int]:
        """Validate the records. Returns the least and the greatest timestamp of the batch."""
        if header.is_control:
            raise self._refusal("the batch is a control batch: only the broker may write control batches")
        if header.base_offset != 0:
            raise self._refusal(
                f"the base offset of the batch is {header.base_offset}: a producer must send 0"
            )
        if prevalidated is None:
            checked = check_batch(batch, self._limits)
        elif isinstance(prevalidated.checked, RecordError):
            # A copy, because the traceback of a raised error refers to the batch, and ``prevalidated`` to the error.
            raise copy(prevalidated.checked)
        else:
            checked = prevalidated.checked
        if config.is_compacted and checked.has_null_key:
            raise self._refusal(
                "the batch has records without a key: every record of a compacted topic needs a key",
                records=self._invalid_indexes(batch, lambda key, _: key is None),
            )
        return checked.min_timestamp, checked.max_timestamp

    def _refusal(
        self, message: str, code: ErrorCode = ErrorCode.INVALID_RECORD, records: Sequence[int] = ()
    ) -> ProduceRefused:
        return ProduceRefused(code, message, log_start_offset=self.start_offset, records=records)

    def _invalid_indexes(self, batch: Buffer, is_invalid: Callable[[bytes | None, int], bool]) -> list[int]:
        """Return the indexes of the first invalid records. ``is_invalid`` takes the key and the timestamp."""
        if read_header(batch).count > _RECORDS_READ_MAX:
            return []  # Finding the indexes would take longer than the validation.
        header, _, records = open_batch(batch, self._limits)
        first_ms = header.base_timestamp
        indexes = (
            index
            for index, record in enumerate(records)
            if is_invalid(record.key, first_ms + record.timestamp)
        )
        return list(islice(indexes, _REPORTED_RECORDS_MAX))

    def _check_timestamps(
        self, batch: Buffer, timestamps: tuple[int, int], config: LogConfig, earlier_ms: int, later_ms: int
    ) -> None:
        """Raise ``ProduceRefused`` if a timestamp is out of bounds. The clocks show ``earlier_ms`` and ``later_ms``."""
        earliest, latest = timestamps
        if latest - later_ms > config.timestamp_after_max_ms:
            raise self._refusal(
                f"timestamp {latest} is {latest - later_ms} ms ahead of the broker's time {later_ms}"
                f" (message.timestamp.after.max.ms is {config.timestamp_after_max_ms})",
                ErrorCode.INVALID_TIMESTAMP,
                self._invalid_indexes(batch, lambda _, ms: ms - later_ms > config.timestamp_after_max_ms),
            )
        if earliest >= 0 and earlier_ms - earliest > config.timestamp_before_max_ms:
            raise self._refusal(
                f"timestamp {earliest} is {earlier_ms - earliest} ms behind the broker's time {earlier_ms}"
                f" (message.timestamp.before.max.ms is {config.timestamp_before_max_ms})",
                ErrorCode.INVALID_TIMESTAMP,
                self._invalid_indexes(batch, lambda _, ms: earlier_ms - ms > config.timestamp_before_max_ms),
            )


def codec_for(compression_type: str, codec: int) -> int | None:
    """Return the codec to which to recompress a batch that has ``codec``. ``None`` means that the batch stays
    unchanged.
    """
    if compression_type in ("producer", CODEC_NAMES[codec]):
        return None
    return CODEC_NAMES.index("none" if compression_type == "uncompressed" else compression_type)
