"""Fetch: what there is from each offset on, at once if there is enough, else when there is or when the
client's patience ends.

Bytes that are in the page cache are read on the spot; a read that would wait for the disk goes to a thread,
so that one who reads old data holds up nobody else. What is in the archive has threads of its own; an answer waits for
it half a second, and goes out without it then, so that an archive that hangs does not keep the other partitions of the
same request. A reader of committed records gets what lies below the last stable
offset, and is told which transactions in it were aborted: it leaves those out by itself.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.broker.archive_reads import ReadIsLate
from headrace.broker.fetch_sessions import FetchSession, SessionRefused, Wanted
from headrace.broker.partition import Partition
from headrace.errors import CorruptBatch, OffsetOutOfRange, StorageError
from headrace.log.reader import ReadPlan, Slice
from headrace.wire import messages as m
from headrace.wire.codes import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.request import Request

__all__ = ["Fetching", "begin"]

_ARCHIVE_WAIT_S = 0.5
_ABORTED_BYTES = 128


def begin(broker: Broker, request: Request) -> Fetching:
    return Fetching(broker, request)


@dataclass(frozen=True, slots=True)
class _Cold:
    """What must be read in a thread. Its bytes count before they are there, or many together would have no limit."""

    wanted: Wanted
    partition: Partition
    size: int
    whole_first: bool
    is_archived: bool


class Fetching:
    """One fetch under way. ``attempt`` may be called again and again until it gives the response."""

    def __init__(self, broker: Broker, request: Request) -> None:
        message = request.message
        self._broker = broker
        # Not the message itself: a fetch may wait for long, and has its partitions in the session already.
        self._max_bytes: int = message.max_bytes
        self._min_bytes: int = message.min_bytes
        self._is_replica = max(message.replica_id, message.replica_state.replica_id) >= 0
        self._committed = bool(message.isolation_level)
        self._names_unknown = False
        self.found_bytes = 0
        """Of records, in the last attempt."""
        self.max_wait_s = max(message.max_wait_ms, 0) / 1000
        self._cold: list[_Cold] = []
        self._cold_bytes = 0
        self._goes_out = False
        """With what there is: the archive was waited for long enough, and the client comes again; or it has given
        something, which is not kept while more is waited for.
        """
        self._read: dict[tuple[bytes | str, int], Slice | StorageError] = {}
        self.session: FetchSession | None = None
        self.refused: ErrorCode | None = None
        try:
            self.session = broker.fetch_sessions.begin(request.version, message)
        except SessionRefused as error:
            self.refused = error.code

    @property
    def is_cold(self) -> bool:
        """Whether the last attempt met bytes that the disk must be waited for."""
        return bool(self._cold)

    def partitions(self) -> list[Partition]:
        assert self.session is not None
        found = (self._find(wanted) for wanted in self.session.wanted.values())
        return [partition for partition in found if isinstance(partition, Partition)]

    def attempt(self, *, last: bool) -> Any | None:
        """The response if there is enough to say, or if this is the ``last`` attempt; else ``None``."""
        if self.session is None:
            return m.FetchResponse(error_code=self.refused, session_id=0)
        last = last or self._goes_out
        self._cold = []
        self._cold_bytes = 0
        self._names_unknown = False
        answers: list[tuple[Wanted, Any]] = []
        budget = min(self._max_bytes, self._broker.fetch_bytes_max)
        total = 0
        has_error = False
        incremental = self.session.incremental
        for wanted in self.session.wanted.values():
            if incremental and self._is_quiet(wanted):
                continue
            answer, size = self._answer(wanted, budget - self._cold_bytes, nothing_yet=total == 0)
            total += len(answer.records)
            budget -= size
            has_error = has_error or bool(answer.error_code)
            answers.append((wanted, answer))
        self.found_bytes = total
        if self._cold and not last:
            return None
        if not (last or has_error or total >= self._min_bytes):
            self._read.clear()
            return None
        return self._respond(answers)

    async def warm(self) -> None:
        """Read in threads what the last attempt could not have at once: the disk one by one, the archive beside it."""
        await asyncio.gather(
            self._warm([cold for cold in self._cold if not cold.is_archived]),
            *(self._warm([cold]) for cold in self._cold if cold.is_archived),
        )

    async def _warm(self, all_cold: list[_Cold]) -> None:
        for cold in all_cold:
            key = cold.wanted.key
            try:
                plan = cold.partition.reader.plan(
                    cold.wanted.fetch_offset,
                    cold.size,
                    whole_first=cold.whole_first,
                    committed=self._committed,
                )
                if plan is not None:
                    piece = cold.partition.reader.finish(*await self._fetched(plan))
                    self._read[key] = piece
                    self._goes_out = self._goes_out or (cold.is_archived and len(piece) > 0)
            except ReadIsLate:
                self._goes_out = True
                self._read[key] = Slice(memoryview(b""), cold.wanted.fetch_offset)
            except StorageError as error:
                self._read[key] = error
            except OSError as error:
                self._read[key] = StorageError(f"a segment cannot be read: {error}")

    async def _fetched(self, plan: ReadPlan) -> tuple[ReadPlan, bytes | bytearray]:
        if plan.segment.is_archived:
            return await self._broker.partitions.archive_reads.fetch(plan, _ARCHIVE_WAIT_S)
        plan.segment.pin()
        try:
            data = await asyncio.get_running_loop().run_in_executor(None, partial(plan.fetch, wait=True))
        finally:
            plan.segment.unpin()
        assert data is not None
        return plan, data

    def _find(self, wanted: Wanted) -> Partition | ErrorCode:
        if self._is_replica:
            # Another broker that wants to copy from this one: there are no copies here.
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        name = wanted.topic
        if isinstance(name, bytes):
            found = self._broker.topic_name(name)
            if found is None:
                return ErrorCode.UNKNOWN_TOPIC_ID
            name = found
        partition = self._broker.partition(name, wanted.partition)
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if partition is None else partition

    def _is_quiet(self, wanted: Wanted) -> bool:
        """Whether a partition has nothing that its reader does not have or know already. Of a session's many, most
        are so at any time; they are passed over here, for the price of a look.
        """
        partition = self._find(wanted)
        return (
            isinstance(partition, Partition)
            and 0 <= wanted.fetch_offset == wanted.told_high_watermark == partition.high_watermark
            and wanted.told_start_offset == partition.start_offset <= wanted.fetch_offset
            and wanted.leader_epoch in (-1, partition.leader_epoch)
            and wanted.last_fetched_epoch in (-1, partition.leader_epoch)
        )

    def _answer(self, wanted: Wanted, budget: int, *, nothing_yet: bool) -> tuple[Any, int]:
        """What is said of a partition, and what of the budget that costs."""
        partition = self._find(wanted)
        if not isinstance(partition, Partition):
            answer = self._blank(wanted, partition)
            if partition is not ErrorCode.NOT_LEADER_OR_FOLLOWER:
                self._names_unknown = True
                # Kafka's list is empty for what it does not know, and null where reading failed.
                answer.aborted_transactions = []
            return answer, 0
        answer = self._blank(wanted, ErrorCode.NONE)
        try:
            refusal = self._check_epochs(wanted, partition, answer)
            if refusal is not None:
                return self._blank(wanted, refusal), 0
            answer.high_watermark = partition.high_watermark
            answer.last_stable_offset = partition.last_stable_offset
            answer.log_start_offset = partition.start_offset
            if self._committed:
                answer.aborted_transactions = []
            if answer.diverging_epoch.epoch >= 0:
                return answer, 0
            piece = self._piece(wanted, partition, budget, nothing_yet=nothing_yet)
        except OffsetOutOfRange:
            return self._blank(wanted, ErrorCode.OFFSET_OUT_OF_RANGE), 0
        except CorruptBatch as error:
            self._broker.say_damage(error)
            return self._blank(wanted, ErrorCode.CORRUPT_MESSAGE), 0
        except (StorageError, OSError):
            return self._blank(wanted, ErrorCode.KAFKA_STORAGE_ERROR), 0
        if piece is None:
            return answer, 0
        answer.records = piece.data
        if self._committed:
            answer.aborted_transactions = [
                m.FetchResponse.AbortedTransaction(
                    producer_id=aborted.producer_id, first_offset=aborted.first_offset
                )
                for aborted in partition.aborted_between(wanted.fetch_offset, piece.next_offset)
            ]
        return answer, piece.read_bytes + _ABORTED_BYTES * len(answer.aborted_transactions or ())

    @staticmethod
    def _blank(wanted: Wanted, code: ErrorCode) -> Any:
        """What is said of a partition of which nothing is known yet, or nothing but an error."""
        return m.FetchResponse.PartitionData(
            partition_index=wanted.partition,
            error_code=code,
            high_watermark=-1,
            aborted_transactions=None,
            records=b"",
        )

    @staticmethod
    def _check_epochs(wanted: Wanted, partition: Partition, answer: Any) -> ErrorCode | None:
        if wanted.leader_epoch >= 0:
            if wanted.leader_epoch < partition.leader_epoch:
                return ErrorCode.FENCED_LEADER_EPOCH
            if wanted.leader_epoch > partition.leader_epoch:
                return ErrorCode.UNKNOWN_LEADER_EPOCH
        if wanted.last_fetched_epoch >= 0:
            epoch, end = partition.end_of_epoch(wanted.last_fetched_epoch)
            if epoch < 0:
                return ErrorCode.OFFSET_OUT_OF_RANGE
            if epoch < wanted.last_fetched_epoch or end < wanted.fetch_offset:
                answer.diverging_epoch.epoch = epoch
                answer.diverging_epoch.end_offset = end
        return None

    def _piece(self, wanted: Wanted, partition: Partition, budget: int, *, nothing_yet: bool) -> Slice | None:
        read_before = self._read.get(wanted.key)
        if isinstance(read_before, StorageError):
            raise read_before
        if read_before is not None and (len(read_before) or not nothing_yet):
            return read_before
        size = max(0, min(wanted.max_bytes, budget))
        plan = partition.reader.plan(
            wanted.fetch_offset, size, whole_first=nothing_yet, committed=self._committed
        )
        if plan is None:
            return None
        # The first batch comes whole for one partition. An archive that is late must not be the one for long.
        is_archived = plan.segment.is_archived
        whole_first = nothing_yet and not any(cold.is_archived == is_archived for cold in self._cold)
        if not size and not whole_first:
            return None
        data = plan.fetch(wait=False)
        if data is None:
            self._cold.append(_Cold(wanted, partition, plan.size, whole_first, is_archived))
            self._cold_bytes += plan.size
            return None
        return partition.reader.finish(plan, data)

    def _respond(self, answers: list[tuple[Wanted, Any]]) -> Any:
        assert self.session is not None
        if self._names_unknown and self.session.id:
            self._broker.fetch_sessions.close(self.session)
        response = m.FetchResponse(session_id=self.session.id)
        topics: dict[bytes | str, Any] = {}
        for wanted, answer in answers:
            if self.session.incremental and not self._is_news(wanted, answer):
                continue
            wanted.told_high_watermark = answer.high_watermark
            wanted.told_start_offset = answer.log_start_offset
            if answer.records:
                # An answer has a limit: next time the others come first, so that none is starved.
                self.session.wanted.move_to_end(wanted.key)
            topic = topics.get(wanted.topic)
            if topic is None:
                topic = topics[wanted.topic] = m.FetchResponse.FetchableTopicResponse()
                if isinstance(wanted.topic, bytes):
                    topic.topic_id = wanted.topic
                else:
                    topic.topic = wanted.topic
                response.responses.append(topic)
            topic.partitions.append(answer)
        return response

    @staticmethod
    def _is_news(wanted: Wanted, answer: Any) -> bool:
        return bool(
            answer.error_code
            or len(answer.records)
            or answer.diverging_epoch.epoch >= 0
            or answer.high_watermark != wanted.told_high_watermark
            or answer.log_start_offset != wanted.told_start_offset
        )
