"""The coordinator of transactions: one object that the handlers call.

It knows every transactional id, the producer that holds it and what is part of its transaction, and answers a
request when what the answer says is durable. All calls run on one event loop; whatever comes about an id while
an entry about it is on its way to the disk is told to try again.

What is on disk is who holds an id and how its last transaction ended. Which partitions an open transaction has
written to is known to the partitions themselves, so beginning one and adding to it costs no sync; its offsets
are journalled with their groups. After a start, ``recovered`` asks the partitions, finishes what was decided,
goes on with what is open, and aborts what belongs to nobody.

Time-outs go by the steady clock, and start anew with the broker. An id that has been at rest for long enough, by
a time that the caller of ``expire`` trusts, is forgotten.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

from headrace.broker.groups.entries import TransactionGone
from headrace.broker.groups.ledger import Ledger
from headrace.broker.groups.ticker import Ticker
from headrace.broker.groups.timers import Timer
from headrace.broker.groups.topic_names import TopicNames
from headrace.broker.transactions.answers import (
    DescribedTransaction,
    EndAnswer,
    InitAnswer,
    ListedTransaction,
)
from headrace.broker.transactions.endings import Endings
from headrace.broker.transactions.holders import Holders
from headrace.broker.transactions.ports import MarkedPartitions, ProducerIds
from headrace.broker.transactions.recovery import recover
from headrace.broker.transactions.settings import TransactionSettings
from headrace.broker.transactions.table import TransactionTable
from headrace.broker.transactions.transaction import (
    EPOCH_GIVEN_MAX,
    NOBODY,
    PREPARED,
    State,
    Transaction,
    group_bytes,
)
from headrace.clock import Clock
from headrace.errors import StorageError
from headrace.wire.codes import ErrorCode

__all__ = ["TransactionCoordinator"]

Partitions = Iterable[tuple[str, int]]


class TransactionCoordinator:
    def __init__(
        self,
        *,
        settings: TransactionSettings,
        ledger: Ledger,
        partitions: MarkedPartitions,
        topics: TopicNames,
        producer_ids: ProducerIds,
        clock: Clock,
        stamp_ms: Callable[[], int],
        trusted_ms: Callable[[], int],
        coordinator_epoch: int,
    ) -> None:
        """Nothing runs before ``recovered``. ``stamp_ms`` is never behind ``trusted_ms``; ages are told by it."""
        self.settings = settings
        self._ledger = ledger
        self._partitions = partitions
        self._topics = topics
        self._producer_ids = producer_ids
        self._stamp_ms = stamp_ms
        self._ticker = Ticker(
            clock, interval_ms=settings.tick_interval_ms, stall_ms_min=settings.stall_ms_min
        )
        self._endings = Endings(
            settings,
            ledger,
            self._ticker.timers,
            partitions,
            topics,
            clock,
            stamp_ms,
            trusted_ms,
            coordinator_epoch,
        )
        self._by_id = TransactionTable()
        self._holders = Holders(self._by_id, settings, self._endings, producer_ids, stamp_ms, self._new)
        self._runs = False

    # -- life

    async def recovered(self) -> None:
        """All partitions are open: settle what the last run left behind, and begin to serve."""
        for entry in self._ledger.kept.transactions.values():
            transaction = self._new(entry.id)
            transaction.restore(entry)
            self._by_id.add(transaction)
        await recover(self._by_id, self._ledger, self._partitions, self._topics, self._endings)
        self._runs = True
        self._ticker.start()
        for transaction in self._by_id.values():
            if transaction.state is State.ONGOING:
                self._endings.added += len(transaction.partitions)
                self._endings.groups_bytes += transaction.groups_bytes
                self._ticker.timers.start(transaction.timer, transaction.timeout_ms)
            elif transaction.unmarked:
                self._ticker.timers.start(transaction.timer, self.settings.retry_ms)

    async def stop(self) -> None:
        """Let what was submitted reach the disk. An open transaction is there again after the next start."""
        self._runs = False
        self._endings.is_stopped = True
        self._ticker.stop()
        await self._ledger.drain()

    def tick(self) -> None:
        """Act on every time-out that has passed, unless it passed while nobody was looking."""
        self._ticker.tick()

    @property
    def counts(self) -> dict[str, int]:
        """Since the start: transactions by their end, those of the aborted that took too long, and requests of
        producers that were fenced.
        """
        endings = self._endings
        return {
            "committed": endings.committed,
            "aborted": endings.aborted,
            "timed_out": endings.timed_out,
            "fenced": endings.fenced,
        }

    def count_by_state(self) -> dict[str, int]:
        """How many transactional ids are in each state."""
        return Counter(transaction.state.value for transaction in self._by_id.values())

    # -- who holds an id

    async def init(
        self, transactional_id: str, timeout_ms: int, producer_id: int = NOBODY, epoch: int = -1
    ) -> InitAnswer:
        """Give an id to whoever asks, under an epoch that fences the one before, and abort what that one left open."""
        if not self._runs:
            return InitAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return await self._holders.init(transactional_id, timeout_ms, producer_id, epoch)

    # -- what is part of a transaction

    def admit(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        topic: str,
        partition: int,
        *,
        adds: bool,
    ) -> ErrorCode:
        """Whether a transactional batch may be written to a partition now; with ``adds`` it becomes part of the
        transaction by that, otherwise it must have been added before.
        """
        error, transaction = self._find(transactional_id, producer_id, producer_epoch)
        if transaction is None:
            return ErrorCode.INVALID_PRODUCER_EPOCH if error is ErrorCode.PRODUCER_FENCED else error
        place = (topic, partition)
        if place in transaction.partitions:
            return ErrorCode.NONE
        if not (adds or transaction.restored):
            return ErrorCode.TRANSACTION_ABORTABLE
        return self._add(transaction, (place,))

    def is_marking(self, producer_id: int) -> bool:
        """Whether the producer's last transaction is decided, and its partitions are being marked turn by turn."""
        return self._endings.is_marking(producer_id)

    def add_partitions(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: Sequence[tuple[str, int]]
    ) -> ErrorCode:
        error, transaction = self._find(transactional_id, producer_id, epoch)
        return error if transaction is None else self._add(transaction, partitions)

    def verify_partitions(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: Sequence[tuple[str, int]]
    ) -> list[ErrorCode]:
        """For each whether it is part of the transaction."""
        error, transaction = self._find(transactional_id, producer_id, epoch)
        if transaction is None:
            return [error] * len(partitions)
        return [
            ErrorCode.NONE if place in transaction.partitions else ErrorCode.TRANSACTION_ABORTABLE
            for place in partitions
        ]

    def add_group(
        self, transactional_id: str, producer_id: int, epoch: int, group_id: str, *, adds: bool = True
    ) -> ErrorCode:
        """Make a group's offsets part of the transaction; without ``adds``, look whether they are."""
        error, transaction = self._find(transactional_id, producer_id, epoch)
        if transaction is None:
            return error
        if group_id in transaction.groups:
            return ErrorCode.NONE
        if not (adds or transaction.restored):
            return ErrorCode.INVALID_TXN_STATE
        if len(group_id) > self.settings.group_id_chars_max:
            return ErrorCode.INVALID_GROUP_ID
        more = group_bytes(group_id)
        if (
            len(transaction.groups) >= self.settings.groups_per_transaction_max
            or self._endings.groups_bytes + more > self.settings.all_groups_bytes_max
        ):
            return ErrorCode.POLICY_VIOLATION
        self._endings.groups_bytes += more
        transaction.groups.add(group_id)
        self._begin(transaction)
        return ErrorCode.NONE

    def _find(
        self, transactional_id: str, producer_id: int, epoch: int
    ) -> tuple[ErrorCode, Transaction | None]:
        """The transaction if this producer may add to it now."""
        if not self._runs:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, None
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST, None
        transaction = self._by_id.get(transactional_id)
        if transaction is None or transaction.producer != producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING, None
        if transaction.epoch != epoch:
            return self._endings.fence(transaction, epoch), None
        if transaction.is_between:
            return ErrorCode.CONCURRENT_TRANSACTIONS, None
        return ErrorCode.NONE, transaction

    def _add(self, transaction: Transaction, partitions: Partitions) -> ErrorCode:
        new = {place for place in partitions if place not in transaction.partitions}
        if new and (
            len(transaction.partitions) + len(new) > self.settings.partitions_per_transaction_max
            or self._endings.added + len(new) > self.settings.all_partitions_max
        ):
            return ErrorCode.POLICY_VIOLATION
        self._endings.added += len(new)
        transaction.partitions |= new
        self._begin(transaction)
        return ErrorCode.NONE

    def _begin(self, transaction: Transaction) -> None:
        if transaction.state is not State.ONGOING:
            transaction.state = State.ONGOING
            transaction.began_ms = self._stamp_ms()
            self._ticker.timers.start(transaction.timer, transaction.timeout_ms)

    # -- how it ends

    async def end(
        self, transactional_id: str, producer_id: int, epoch: int, *, commit: bool, bumps: bool
    ) -> EndAnswer:
        """Commit or abort. ``bumps``: the client speaks the second protocol and goes on with the epoch it is told."""
        if not self._runs:
            return EndAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if not transactional_id:
            return EndAnswer(ErrorCode.INVALID_REQUEST)
        transaction = self._by_id.get(transactional_id)
        if transaction is None:
            return EndAnswer(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        is_retry = bumps and _was_ended_by(transaction, producer_id, epoch)
        if transaction.producer != producer_id and not is_retry:
            return EndAnswer(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if transaction.epoch != epoch and not is_retry:
            return EndAnswer(self._endings.fence(transaction, epoch))
        if transaction.busy or transaction.held_up:
            return EndAnswer(ErrorCode.CONCURRENT_TRANSACTIONS)
        error = self._may_end(transaction, commit=commit, bumps=bumps, is_retry=is_retry)
        if error is None:
            error = await self._end(transaction, commit=commit, bumps=bumps)
        if error is not ErrorCode.NONE:
            return EndAnswer(error)
        return EndAnswer(error, *transaction.holder)

    def _may_end(
        self, transaction: Transaction, *, commit: bool, bumps: bool, is_retry: bool
    ) -> ErrorCode | None:
        """``None`` if there is something to decide, otherwise the answer."""
        state = transaction.state
        if state is State.ONGOING:
            return None
        is_same = commit == (state in (State.PREPARE_COMMIT, State.COMPLETE_COMMIT))
        if state in PREPARED:
            return ErrorCode.CONCURRENT_TRANSACTIONS if is_same else ErrorCode.INVALID_TXN_STATE
        if is_retry:
            return ErrorCode.NONE if is_same else ErrorCode.INVALID_TXN_STATE
        if transaction.restored:
            # It may have begun one before the broker was started again, in which nothing was written.
            return None
        if bumps:
            return ErrorCode.INVALID_TXN_STATE if commit else None
        is_ended = state is not State.EMPTY and is_same
        return ErrorCode.NONE if is_ended else ErrorCode.INVALID_TXN_STATE

    async def _end(self, transaction: Transaction, *, commit: bool, bumps: bool) -> ErrorCode:
        """Decide. A producer whose epochs are used up by it goes on under a new id."""
        next_producer = NOBODY
        if bumps and transaction.is_exhausted:
            transaction.busy = True
            try:
                next_producer = await self._producer_ids.next()
            except StorageError:
                transaction.busy = False
                return ErrorCode.NOT_COORDINATOR
        self._begin(transaction)
        return await self._endings.decide(
            transaction, commit=commit, bumps=bumps, next_producer=next_producer
        )

    # -- what there is

    def describe(self, transactional_id: str) -> DescribedTransaction | ErrorCode:
        if not self._runs:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        transaction = self._by_id.get(transactional_id)
        if transaction is None or transaction.producer == NOBODY:
            return ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        partitions: dict[str, list[int]] = {}
        for topic, index in sorted(transaction.partitions):
            partitions.setdefault(topic, []).append(index)
        return DescribedTransaction(
            transaction.id,
            transaction.state.value,
            transaction.timeout_ms,
            transaction.began_ms,
            transaction.producer,
            transaction.epoch,
            partitions,
        )

    def list_transactions(
        self,
        *,
        states: Collection[str] = (),
        producer_ids: Collection[int] = (),
        open_ms_min: int = -1,
    ) -> list[ListedTransaction]:
        """All transactional ids, or those that every given filter lets through."""
        now_ms = self._stamp_ms()
        return [
            ListedTransaction(transaction.id, transaction.state.value, transaction.producer)
            for transaction in self._by_id.values()
            if transaction.producer != NOBODY
            and (not states or transaction.state.value in states)
            and (not producer_ids or transaction.producer in producer_ids)
            and (open_ms_min < 0 or now_ms - transaction.began_ms > open_ms_min)
        ]

    async def expire(self, now_ms: int) -> list[str]:
        """Forget the ids that have been at rest for too long by a time that the caller trusts; returns them."""
        old = [
            transaction
            for transaction in self._by_id.values()
            if transaction.is_at_rest
            and not transaction.unsynced
            and now_ms - transaction.changed_ms >= self.settings.id_kept_ms
        ]
        writes = [
            self._endings.write(transaction, TransactionGone(transaction.id), self._forgotten(transaction))
            for transaction in old
        ]
        return [
            transaction.id
            for transaction, error in zip(old, await asyncio.gather(*writes), strict=True)
            if error is ErrorCode.NONE
        ]

    def _forgotten(self, transaction: Transaction) -> Callable[[], None]:
        def forgotten() -> None:
            transaction.state = State.DEAD
            self._by_id.remove(transaction.id)

        return forgotten

    def _new(self, transactional_id: str) -> Transaction:
        transaction = Transaction(transactional_id, Timer(lambda: self._endings.timer_passed(transaction)))
        return transaction


def _was_ended_by(transaction: Transaction, producer_id: int, epoch: int) -> bool:
    """Whether this is the producer of the last transaction, whose end raised its epoch: it may not have got its
    answer.
    """
    if not transaction.bumped or transaction.state in (State.EMPTY, State.ONGOING):
        return False
    if transaction.producer == producer_id:
        return transaction.epoch == epoch + 1
    return (
        transaction.previous_producer == producer_id and epoch == EPOCH_GIVEN_MAX and transaction.epoch == 0
    )
