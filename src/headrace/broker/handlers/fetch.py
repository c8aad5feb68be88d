"""Fetch: return the records from each requested offset on.

The broker responds when it has ``min_bytes`` of records, or after the client's ``max_wait_ms`` at the latest.

The event loop reads bytes that are in the page cache. A thread performs each read that would wait for the disk, so a
client that reads old data does not delay other clients. Archive reads have their own threads. After half a second, the
broker responds without the archived records, so a hanging archive does not delay the other partitions of the request.
A ``read_committed`` client receives the records below the last stable offset and a list of the aborted transactions in
them. The client itself skips the aborted records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.broker.event_loop import Step
from headrace.broker.net.fetch_sessions import FetchedPartition, FetchSession, SessionRefused
from headrace.broker.permissions import Operation, Permission, Resource
from headrace.broker.storage.archive_access import ReadIsLate
from headrace.broker.storage.partition import Partition
from headrace.errors import CorruptBatch, OffsetOutOfRange, StorageError
from headrace.log.reader import ReadPlan, Slice
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.net.request import Request

__all__ = ["PERMISSIONS", "PendingFetch", "begin"]

PERMISSIONS = (Permission(Operation.READ, Resource.TOPIC),)

_ARCHIVE_WAIT_S = 0.5
_ABORTED_BYTES = 128
_PARTITIONS_PER_STEP = 256


def begin(broker: Broker, request: Request) -> PendingFetch:
    return PendingFetch(broker, request)


@dataclass(frozen=True, slots=True)
class _Cold:
    """A read of bytes that are not in memory. A thread performs the read.

    Its size counts against the response limit before the read ends. Otherwise many such reads could exceed the limit.
    """

    target: FetchedPartition
    partition: Partition
    size: int
    whole_first: bool
    is_archived: bool


@dataclass(frozen=True, slots=True)
class _FinishedRead:
    """The result of a cold read. ``forgets`` is the partition's count at the start of the read."""

    partition: Partition
    forgets: int
    result: Slice | StorageError

    def is_current(self, partition: Partition, fetch_offset: int) -> bool:
        """Return whether the records still exist, with the list of their aborted transactions.

        During the read, the topic or the records can have been deleted, or a compaction can have removed records.
        """
        return (
            partition is self.partition
            and partition.forgets == self.forgets
            and partition.start_offset <= fetch_offset
        )


Encoded = TypeVar("Encoded")


class _Attempt:
    """The partitions that an attempt has examined so far, with their responses."""

    __slots__ = ("budget", "found_bytes", "has_error", "results")

    def __init__(self, budget: int) -> None:
        self.results: list[tuple[FetchedPartition, Any]] = []
        self.budget = budget
        self.found_bytes = 0
        self.has_error = False


class PendingFetch:
    """A fetch in progress. The caller repeats ``attempt`` until it returns a response.

    If ``is_large``, the caller repeats ``encoded_in_turn`` instead.
    """

    def __init__(self, broker: Broker, request: Request) -> None:
        message = request.message
        self._broker = broker
        # The message is not stored: a fetch can wait for a long time, and its session already has the partitions.
        self._max_bytes: int = message.max_bytes
        self._min_bytes: int = message.min_bytes
        self._is_replica = max(message.replica_id, message.replica_state.replica_id) >= 0
        self._committed = bool(message.isolation_level)
        self._has_unknown_partition = False
        self.found_bytes = 0
        """Bytes of records that the last attempt found."""
        self.max_wait_s = max(message.max_wait_ms, 0) / 1000
        self._cold: list[_Cold] = []
        self._cold_bytes = 0
        self._must_respond = False
        """Whether the next attempt must respond with the records read so far.

        It must if the wait for the archive is over: the client then fetches the other records later. It must also if
        the archive returned records, because these must not remain in memory while the fetch waits.
        """
        self._finished_reads: dict[tuple[bytes | str, int], _FinishedRead] = {}
        self.session: FetchSession | None = None
        self.session_error: ErrorCode | None = None
        try:
            self.session = broker.fetch_sessions.begin(request.version, message)
        except SessionRefused as error:
            self.session_error = error.code

    @property
    def is_cold(self) -> bool:
        """Whether the last attempt needs bytes that are not in memory."""
        return bool(self._cold)

    def partitions(self) -> list[Partition]:
        assert self.session is not None
        partitions = (self._find(target) for target in self.session.partitions.values())
        return [partition for partition in partitions if isinstance(partition, Partition)]

    @property
    def is_large(self) -> bool:
        """Whether one attempt takes so long that it is done in steps."""
        return self.session is not None and len(self.session.partitions) > _PARTITIONS_PER_STEP

    def attempt(self, *, last: bool) -> Any | None:
        """Return the response if it has enough records or an error, or if this is the ``last`` attempt.

        Otherwise return ``None``.
        """
        if self.session is None:
            return m.FetchResponse(error_code=self.session_error, session_id=0)
        attempt = self._begin_attempt()
        for target in self.session.partitions.values():
            self._examine(target, attempt)
        return self._end_attempt(attempt, last=last)

    async def encoded_in_turn(
        self, encode: Callable[[Any], Awaitable[Encoded]], *, last: bool
    ) -> Encoded | None:
        """Like ``attempt``, but let the event loop run other requests after each step.

        Also encodes the response, because only one large response at a time is in memory before it is encoded. Uses the
        turn of the caller, if it has one, and gives it back.
        """
        assert self.session is not None
        turns = self._broker.turns
        async with turns:
            attempt = self._begin_attempt()
            step = Step(self._broker.clock, _PARTITIONS_PER_STEP)
            # Another request can change the session during the attempt.
            for target in tuple(self.session.partitions.values()):
                self._examine(target, attempt)
                if step.is_over():
                    await turns.pause()
                    step.restart()
            response = self._end_attempt(attempt, last=last)
            return None if response is None else await encode(response)

    def _begin_attempt(self) -> _Attempt:
        self._cold = []
        self._cold_bytes = 0
        self._has_unknown_partition = False
        return _Attempt(min(self._max_bytes, self._broker.fetch_bytes_max))

    def _examine(self, target: FetchedPartition, attempt: _Attempt) -> None:
        assert self.session is not None
        if self.session.incremental and self._is_unchanged(target):
            return
        budget = attempt.budget - self._cold_bytes
        data, size = self._respond_for(target, budget, response_is_empty=not attempt.found_bytes)
        attempt.found_bytes += len(data.records)
        attempt.budget -= size
        attempt.has_error = attempt.has_error or bool(data.error_code)
        attempt.results.append((target, data))

    def _end_attempt(self, attempt: _Attempt, *, last: bool) -> Any | None:
        last = last or self._must_respond
        self.found_bytes = attempt.found_bytes
        if self._cold and not last:
            return None
        if not (last or attempt.has_error or attempt.found_bytes >= self._min_bytes):
            self._finished_reads.clear()
            return None
        # The error of a failed read refers to this object, by its traceback.
        self._finished_reads.clear()
        return self._respond(attempt.results)

    async def read_cold(self) -> None:
        """Read in threads the bytes that the last attempt did not find in memory.

        Disk reads run one after another, archive reads run concurrently.
        """
        await asyncio.gather(
            self._read_in_threads([cold for cold in self._cold if not cold.is_archived]),
            *(self._read_in_threads([cold]) for cold in self._cold if cold.is_archived),
        )

    async def _read_in_threads(self, reads: list[_Cold]) -> None:
        for cold in reads:
            forgets = cold.partition.forgets
            result: Slice | StorageError
            try:
                plan = cold.partition.reader.plan(
                    cold.target.fetch_offset,
                    cold.size,
                    whole_first=cold.whole_first,
                    committed=self._committed,
                )
                if plan is None:
                    continue
                result = cold.partition.reader.finish(*await self._fetch_bytes(plan))
                self._must_respond = self._must_respond or (cold.is_archived and len(result) > 0)
            except ReadIsLate:
                self._must_respond = True
                result = Slice(memoryview(b""), cold.target.fetch_offset)
            except StorageError as error:
                result = error
            except OSError as error:
                result = StorageError(f"cannot read a segment: {error}")
            self._finished_reads[cold.target.key] = _FinishedRead(cold.partition, forgets, result)

    async def _fetch_bytes(self, plan: ReadPlan) -> tuple[ReadPlan, bytes | bytearray]:
        if plan.segment.is_archived:
            return await self._broker.partitions.archive_reads.fetch(plan, _ARCHIVE_WAIT_S)
        plan.segment.pin()
        try:
            data = await asyncio.get_running_loop().run_in_executor(None, partial(plan.fetch, wait=True))
        finally:
            plan.segment.unpin()
        assert data is not None
        return plan, data

    def _find(self, target: FetchedPartition) -> Partition | ErrorCode:
        if self._is_replica:
            # Another broker sent the request to replicate a partition. This cluster has no replicas.
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        name = target.topic
        if isinstance(name, bytes):
            topic_name = self._broker.topic_name(name)
            if topic_name is None:
                return ErrorCode.UNKNOWN_TOPIC_ID
            name = topic_name
        partition = self._broker.partition(name, target.partition)
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if partition is None else partition

    def _is_unchanged(self, target: FetchedPartition) -> bool:
        """Return whether a partition has neither new records nor new offsets for this client.

        At any time, this is true for most partitions of a session. This check skips them at low cost.
        """
        partition = self._find(target)
        return (
            isinstance(partition, Partition)
            and 0 <= target.fetch_offset == target.sent_high_watermark == partition.high_watermark
            and target.sent_start_offset == partition.start_offset <= target.fetch_offset
            and target.leader_epoch in (-1, partition.leader_epoch)
            and target.last_fetched_epoch in (-1, partition.leader_epoch)
        )

    def _respond_for(
        self, target: FetchedPartition, budget: int, *, response_is_empty: bool
    ) -> tuple[Any, int]:
        """Return the response for a partition, and how many bytes of the budget it uses."""
        partition = self._find(target)
        if not isinstance(partition, Partition):
            data = self._blank(target, partition)
            if partition is not ErrorCode.NOT_LEADER_OR_FOLLOWER:
                self._has_unknown_partition = True
                # As in Kafka, this list is empty for an unknown partition, and null if the read failed.
                data.aborted_transactions = []
            return data, 0
        data = self._blank(target, ErrorCode.NONE)
        try:
            refusal = self._check_epochs(target, partition, data)
            if refusal is not None:
                return self._blank(target, refusal), 0
            data.high_watermark = partition.high_watermark
            data.last_stable_offset = partition.last_stable_offset
            data.log_start_offset = partition.start_offset
            if self._committed:
                data.aborted_transactions = []
            if data.diverging_epoch.epoch >= 0:
                return data, 0
            records = self._slice(target, partition, budget, response_is_empty=response_is_empty)
        except OffsetOutOfRange:
            return self._blank(target, ErrorCode.OFFSET_OUT_OF_RANGE), 0
        except CorruptBatch as error:
            self._broker.report_damage(error)
            return self._blank(target, ErrorCode.CORRUPT_MESSAGE), 0
        except (StorageError, OSError):
            return self._blank(target, ErrorCode.KAFKA_STORAGE_ERROR), 0
        if records is None:
            return data, 0
        data.records = records.data
        if self._committed:
            data.aborted_transactions = [
                m.FetchResponse.AbortedTransaction(
                    producer_id=aborted.producer_id, first_offset=aborted.first_offset
                )
                for aborted in partition.aborted_between(target.fetch_offset, records.next_offset)
            ]
        return data, records.read_bytes + _ABORTED_BYTES * len(data.aborted_transactions or ())

    @staticmethod
    def _blank(target: FetchedPartition, code: ErrorCode) -> Any:
        """Return a response for a partition that has no records, only the error code."""
        return m.FetchResponse.PartitionData(
            partition_index=target.partition,
            error_code=code,
            high_watermark=-1,
            aborted_transactions=None,
            records=b"",
        )

    @staticmethod
    def _check_epochs(target: FetchedPartition, partition: Partition, data: Any) -> ErrorCode | None:
        if target.leader_epoch >= 0:
            if target.leader_epoch < partition.leader_epoch:
                return ErrorCode.FENCED_LEADER_EPOCH
            if target.leader_epoch > partition.leader_epoch:
                return ErrorCode.UNKNOWN_LEADER_EPOCH
        if target.last_fetched_epoch >= 0:
            epoch, end = partition.end_of_epoch(target.last_fetched_epoch)
            if epoch < 0:
                return ErrorCode.OFFSET_OUT_OF_RANGE
            if epoch < target.last_fetched_epoch or end < target.fetch_offset:
                data.diverging_epoch.epoch = epoch
                data.diverging_epoch.end_offset = end
        return None

    def _slice(
        self, target: FetchedPartition, partition: Partition, budget: int, *, response_is_empty: bool
    ) -> Slice | None:
        finished_read = self._finished_reads.get(target.key)
        if finished_read is not None and finished_read.is_current(partition, target.fetch_offset):
            result = finished_read.result
            if isinstance(result, StorageError):
                raise result
            if len(result) or not response_is_empty:
                return result
        size = max(0, min(target.max_bytes, budget))
        plan = partition.reader.plan(
            target.fetch_offset, size, whole_first=response_is_empty, committed=self._committed
        )
        if plan is None:
            return None
        # The first batch of the response is sent whole, even if it exceeds the limit. This applies to disk and archive
        # separately, so that a slow archive does not block the partitions on disk.
        is_archived = plan.segment.is_archived
        whole_first = response_is_empty and not any(cold.is_archived == is_archived for cold in self._cold)
        if not size and not whole_first:
            return None
        data = plan.fetch(wait=False)
        if data is None:
            self._cold.append(_Cold(target, partition, plan.size, whole_first, is_archived))
            self._cold_bytes += plan.size
            return None
        return partition.reader.finish(plan, data)

    def _respond(self, results: list[tuple[FetchedPartition, Any]]) -> Any:
        assert self.session is not None
        if self._has_unknown_partition and self.session.id:
            self._broker.fetch_sessions.close(self.session)
        response = m.FetchResponse(session_id=self.session.id)
        topics: dict[bytes | str, Any] = {}
        for target, data in results:
            if self.session.incremental and not self._has_changes(target, data):
                continue
            target.sent_high_watermark = data.high_watermark
            target.sent_start_offset = data.log_start_offset
            if data.records and target.key in self.session.partitions:
                # The response size is limited, so the next response serves the other partitions first.
                self.session.partitions.move_to_end(target.key)
            topic = topics.get(target.topic)
            if topic is None:
                topic = topics[target.topic] = m.FetchResponse.FetchableTopicResponse()
                if isinstance(target.topic, bytes):
                    topic.topic_id = target.topic
                else:
                    topic.topic = target.topic
                response.responses.append(topic)
            topic.partitions.append(data)
        return response

    @staticmethod
    def _has_changes(target: FetchedPartition, data: Any) -> bool:
        return bool(
            data.error_code
            or len(data.records)
            or data.diverging_epoch.epoch >= 0
            or data.high_watermark != target.sent_high_watermark
            or data.log_start_offset != target.sent_start_offset
        )
