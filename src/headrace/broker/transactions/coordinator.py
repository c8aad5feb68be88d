"""The transaction coordinator. The request handlers call it.

The coordinator tracks every transactional id, its producer, and the partitions and groups of its transaction. Its
methods return when the result is durable. All calls run on one event loop. While the coordinator writes an entry about
an id, other requests for that id get an error that clients retry.

The journal records the producer of each id, how its last transaction ended, and the pending offsets of open
transactions. Each partition records the open transactions that wrote to it. So a transaction can begin and grow without
a disk sync. After a start, ``recover`` reads the open transactions from the partitions. It completes those that were
decided, continues those whose producer still owns its transactional id, and aborts the others.

Timeouts use the steady clock, and restart with the broker. ``expire`` removes ids that were unused for too long by the
broker's trusted time.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

from headrace.broker.groups.entries import TransactionalIdDeleted
from headrace.broker.groups.timers import Ticker, Timer
from headrace.broker.transactions.completion import TransactionCompletion
from headrace.broker.transactions.interface import (
    DescribedTransaction,
    EndResult,
    InitResult,
    ListedTransaction,
    TransactionContext,
)
from headrace.broker.transactions.recovery import recover_transactions
from headrace.broker.transactions.transaction import (
    NO_PRODUCER,
    PREPARED,
    PRODUCER_EPOCH_MAX,
    State,
    Transaction,
    TransactionTable,
    group_bytes,
)
from headrace.broker.transactions.transactional_ids import TransactionalIds
from headrace.errors import StorageError
from headrace.wire.codes import ErrorCode

__all__ = ["TransactionCoordinator"]

Partitions = Iterable[tuple[str, int]]


class TransactionCoordinator:
    def __init__(self, context: TransactionContext) -> None:
        """Create the coordinator. It serves requests only after ``recover``."""
        self.settings = settings = context.settings
        self._context = context
        self._ledger = context.ledger
        self._partitions = context.partitions
        self._topics = context.topics
        self._producer_ids = context.producer_ids
        self._stamp_ms = context.stamp_ms
        self._ticker = Ticker(
            context.clock, interval_ms=settings.tick_interval_ms, stall_ms_min=settings.stall_ms_min
        )
        self._completion = TransactionCompletion(context, self._ticker.timers)
        self._by_id = TransactionTable()
        self._ids = TransactionalIds(context, self._by_id, self._completion, self._new)
        self._is_running = False

    # -- start and stop

    async def recover(self) -> None:
        """Load and recover the transactions of the previous run, then serve requests. All partitions must be open."""
        for entry in self._ledger.state.transactions.values():
            transaction = self._new(entry.id)
            transaction.restore(entry)
            self._by_id.add(transaction)
        await recover_transactions(self._by_id, self._context, self._completion)
        self._is_running = True
        self._ticker.start()
        for transaction in self._by_id.values():
            if transaction.state is State.ONGOING:
                self._completion.partition_count += len(transaction.partitions)
                self._completion.groups_bytes += transaction.groups_bytes
                self._ticker.timers.start(transaction.timer, transaction.timeout_ms)
            elif transaction.unmarked:
                self._ticker.timers.start(transaction.timer, self.settings.retry_ms)

    async def stop(self) -> None:
        """Wait until the submitted entries are on disk. Open transactions continue after the next start."""
        self._is_running = False
        self._completion.is_stopped = True
        self._ticker.stop()
        await self._ledger.drain()

    def tick(self) -> None:
        """Run the timers that are due."""
        self._ticker.tick()

    @property
    def counts(self) -> dict[str, int]:
        """The numbers of committed, aborted and timed-out transactions, and of fenced requests, since the start."""
        completion = self._completion
        return {
            "committed": completion.committed,
            "aborted": completion.aborted,
            "timed_out": completion.timed_out,
            "fenced": completion.fenced,
        }

    def count_by_state(self) -> dict[str, int]:
        """Return the number of transactional ids by state."""
        return Counter(transaction.state.value for transaction in self._by_id.values())

    # -- owners of ids

    async def init(
        self, transactional_id: str, timeout_ms: int, producer_id: int = NO_PRODUCER, epoch: int = -1
    ) -> InitResult:
        """Make the caller the owner of the id.

        Aborts the previous owner's transaction, and fences the previous owner with a higher epoch.
        """
        if not self._is_running:
            return InitResult(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return await self._ids.init(transactional_id, timeout_ms, producer_id, epoch)

    # -- partitions and groups of a transaction

    def admit(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        topic: str,
        partition: int,
        *,
        may_add: bool,
    ) -> ErrorCode:
        """Return an error unless the producer may write a transactional batch to the partition now.

        With ``may_add`` this adds the partition to the transaction. Otherwise the partition must be in it already.
        """
        error, transaction = self._find(transactional_id, producer_id, producer_epoch)
        if transaction is None:
            return ErrorCode.INVALID_PRODUCER_EPOCH if error is ErrorCode.PRODUCER_FENCED else error
        partition_key = (topic, partition)
        if partition_key in transaction.partitions:
            return ErrorCode.NONE
        if not (may_add or transaction.restored):
            return ErrorCode.TRANSACTION_ABORTABLE
        return self._add(transaction, (partition_key,))

    def is_marking(self, producer_id: int) -> bool:
        """Return whether the broker is still writing markers for the producer's last transaction."""
        return self._completion.is_marking(producer_id)

    def add_partitions(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: Sequence[tuple[str, int]]
    ) -> ErrorCode:
        error, transaction = self._find(transactional_id, producer_id, epoch)
        return error if transaction is None else self._add(transaction, partitions)

    def verify_partitions(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: Sequence[tuple[str, int]]
    ) -> list[ErrorCode]:
        """Return one error code per partition: ``NONE`` if the partition is in the transaction."""
        error, transaction = self._find(transactional_id, producer_id, epoch)
        if transaction is None:
            return [error] * len(partitions)
        return [
            ErrorCode.NONE if partition in transaction.partitions else ErrorCode.TRANSACTION_ABORTABLE
            for partition in partitions
        ]

    def add_group(
        self, transactional_id: str, producer_id: int, epoch: int, group_id: str, *, may_add: bool = True
    ) -> ErrorCode:
        """Add a group to the transaction. Without ``may_add``, check that the group is in it already."""
        error, transaction = self._find(transactional_id, producer_id, epoch)
        if transaction is None:
            return error
        if group_id in transaction.groups:
            return ErrorCode.NONE
        if not (may_add or transaction.restored):
            return ErrorCode.INVALID_TXN_STATE
        if len(group_id) > self.settings.group_id_chars_max:
            return ErrorCode.INVALID_GROUP_ID
        added_bytes = group_bytes(group_id)
        if (
            len(transaction.groups) >= self.settings.groups_per_transaction_max
            or self._completion.groups_bytes + added_bytes > self.settings.all_groups_bytes_max
        ):
            return ErrorCode.POLICY_VIOLATION
        self._completion.groups_bytes += added_bytes
        transaction.groups.add(group_id)
        self._begin(transaction)
        return ErrorCode.NONE

    def _find(
        self, transactional_id: str, producer_id: int, epoch: int
    ) -> tuple[ErrorCode, Transaction | None]:
        """Return the transaction if this producer may add to it now, or the error."""
        if not self._is_running:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, None
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST, None
        transaction = self._by_id.get(transactional_id)
        if transaction is None or transaction.producer != producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING, None
        if transaction.epoch != epoch:
            return self._completion.fence(transaction, epoch), None
        if transaction.is_changing:
            return ErrorCode.CONCURRENT_TRANSACTIONS, None
        return ErrorCode.NONE, transaction

    def _add(self, transaction: Transaction, partitions: Partitions) -> ErrorCode:
        new_partitions = {partition for partition in partitions if partition not in transaction.partitions}
        if new_partitions and (
            len(transaction.partitions) + len(new_partitions) > self.settings.partitions_per_transaction_max
            or self._completion.partition_count + len(new_partitions) > self.settings.all_partitions_max
        ):
            return ErrorCode.POLICY_VIOLATION
        self._completion.partition_count += len(new_partitions)
        transaction.partitions |= new_partitions
        self._begin(transaction)
        return ErrorCode.NONE

    def _begin(self, transaction: Transaction) -> None:
        if transaction.state is not State.ONGOING:
            transaction.state = State.ONGOING
            transaction.began_ms = self._stamp_ms()
            self._ticker.timers.start(transaction.timer, transaction.timeout_ms)

    # -- commit and abort

    async def end(
        self, transactional_id: str, producer_id: int, epoch: int, *, commit: bool, bumps_epoch: bool
    ) -> EndResult:
        """Commit or abort. With ``bumps_epoch`` (second protocol), the producer continues with a new epoch."""
        if not self._is_running:
            return EndResult(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if not transactional_id:
            return EndResult(ErrorCode.INVALID_REQUEST)
        transaction = self._by_id.get(transactional_id)
        if transaction is None:
            return EndResult(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        is_retry = bumps_epoch and _was_ended_by(transaction, producer_id, epoch)
        if transaction.producer != producer_id and not is_retry:
            return EndResult(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if transaction.epoch != epoch and not is_retry:
            return EndResult(self._completion.fence(transaction, epoch))
        if transaction.busy or transaction.unwritten_markers:
            return EndResult(ErrorCode.CONCURRENT_TRANSACTIONS)
        error = self._may_end(transaction, commit=commit, bumps_epoch=bumps_epoch, is_retry=is_retry)
        if error is None:
            error = await self._end(transaction, commit=commit, bumps_epoch=bumps_epoch)
        if error is not ErrorCode.NONE:
            return EndResult(error)
        return EndResult(error, *transaction.owner)

    def _may_end(
        self, transaction: Transaction, *, commit: bool, bumps_epoch: bool, is_retry: bool
    ) -> ErrorCode | None:
        """Return ``None`` if the transaction can end now, otherwise the result of the request."""
        state = transaction.state
        if state is State.ONGOING:
            return None
        is_same = commit == (state in (State.PREPARE_COMMIT, State.COMPLETE_COMMIT))
        if state in PREPARED:
            return ErrorCode.CONCURRENT_TRANSACTIONS if is_same else ErrorCode.INVALID_TXN_STATE
        if is_retry:
            return ErrorCode.NONE if is_same else ErrorCode.INVALID_TXN_STATE
        if transaction.restored:
            # Before the restart, the producer may have begun a transaction without writing any records. The
            # broker has forgotten such a transaction, so it accepts the end.
            return None
        if bumps_epoch:
            return ErrorCode.INVALID_TXN_STATE if commit else None
        is_ended = state is not State.EMPTY and is_same
        return ErrorCode.NONE if is_ended else ErrorCode.INVALID_TXN_STATE

    async def _end(self, transaction: Transaction, *, commit: bool, bumps_epoch: bool) -> ErrorCode:
        """End the transaction. A producer that has used all its epochs continues with a new producer id."""
        next_producer = NO_PRODUCER
        if bumps_epoch and transaction.is_exhausted:
            transaction.busy = True
            try:
                next_producer = await self._producer_ids.next()
            except StorageError:
                transaction.busy = False
                return ErrorCode.NOT_COORDINATOR
        self._begin(transaction)
        return await self._completion.decide(
            transaction, commit=commit, bumps_epoch=bumps_epoch, next_producer=next_producer
        )

    # -- listing

    def describe(self, transactional_id: str) -> DescribedTransaction | ErrorCode:
        if not self._is_running:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        transaction = self._by_id.get(transactional_id)
        if transaction is None or transaction.producer == NO_PRODUCER:
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
        """Return the transactional ids that match every filter."""
        now_ms = self._stamp_ms()
        return [
            ListedTransaction(transaction.id, transaction.state.value, transaction.producer)
            for transaction in self._by_id.values()
            if transaction.producer != NO_PRODUCER
            and (not states or transaction.state.value in states)
            and (not producer_ids or transaction.producer in producer_ids)
            and (open_ms_min < 0 or now_ms - transaction.began_ms > open_ms_min)
        ]

    async def expire(self, now_ms: int) -> list[str]:
        """Remove and return the ids that were unused for too long at the trusted time ``now_ms``."""
        expired = [
            transaction
            for transaction in self._by_id.values()
            if transaction.is_archiving_done
            and not transaction.unsynced
            and now_ms - transaction.changed_ms >= self.settings.id_expiration_ms
        ]
        writes = [
            self._completion.write(
                transaction, TransactionalIdDeleted(transaction.id), self._on_expired(transaction)
            )
            for transaction in expired
        ]
        return [
            transaction.id
            for transaction, error in zip(expired, await asyncio.gather(*writes), strict=True)
            if error is ErrorCode.NONE
        ]

    def _on_expired(self, transaction: Transaction) -> Callable[[], None]:
        def remove() -> None:
            transaction.state = State.DEAD
            self._by_id.remove(transaction.id)

        return remove

    def _new(self, transactional_id: str) -> Transaction:
        transaction = Transaction(transactional_id, Timer(lambda: self._completion.on_timeout(transaction)))
        return transaction


def _was_ended_by(transaction: Transaction, producer_id: int, epoch: int) -> bool:
    """Return whether this producer ended the last transaction with the epoch that it now sends.

    The end incremented the epoch, so the producer missed the response and retries.
    """
    if not transaction.bumped or transaction.state in (State.EMPTY, State.ONGOING):
        return False
    if transaction.producer == producer_id:
        return transaction.epoch == epoch + 1
    return (
        transaction.previous_producer == producer_id
        and epoch == PRODUCER_EPOCH_MAX
        and transaction.epoch == 0
    )
