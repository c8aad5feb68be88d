"""The owner of each transactional id: the producer that sent the last InitProducerId.

The coordinator first aborts the open transaction of the previous owner, and then assigns a higher epoch to the new
owner. When this is durable, the previous owner is fenced: the coordinator refuses its requests, because they have an
old epoch.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from headrace.broker.limits import text_bytes
from headrace.broker.transactions.completion import TransactionCompletion
from headrace.broker.transactions.interface import InitResult, TransactionContext
from headrace.broker.transactions.transaction import (
    NO_PRODUCER,
    PRODUCER_EPOCH_MAX,
    State,
    Transaction,
    TransactionTable,
)
from headrace.errors import StorageError
from headrace.wire.codes import ErrorCode

__all__ = ["TransactionalIds"]


class TransactionalIds:
    def __init__(
        self,
        context: TransactionContext,
        by_id: TransactionTable,
        completion: TransactionCompletion,
        new: Callable[[str], Transaction],
    ) -> None:
        self._settings = context.settings
        self._producer_ids = context.producer_ids
        self._stamp_ms = context.stamp_ms
        self._by_id = by_id
        self._completion = completion
        self._new = new

    async def init(
        self, transactional_id: str, timeout_ms: int, producer_id: int = NO_PRODUCER, epoch: int = -1
    ) -> InitResult:
        """Make the caller the owner of the id.

        A producer sends its producer id and epoch if it continues after an error (KIP-360). If another producer has
        become the owner, the request is refused. A producer that missed the response can retry.
        """
        if not transactional_id or len(transactional_id) > self._settings.id_chars_max:
            return InitResult(ErrorCode.INVALID_REQUEST)
        if not 0 < timeout_ms <= self._settings.timeout_ms_max:
            return InitResult(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        transaction = self._by_id.get(transactional_id)
        if transaction is None:
            if (
                len(self._by_id) >= self._settings.ids_max
                or self._by_id.ids_bytes + text_bytes(transactional_id) > self._settings.all_ids_bytes_max
            ):
                return InitResult(ErrorCode.POLICY_VIOLATION)
            transaction = self._by_id.add(self._new(transactional_id))
            return await self._write_owner(transaction, timeout_ms, epoch=0, last_epoch=-1, renews=True)
        if transaction.is_changing:
            return InitResult(ErrorCode.CONCURRENT_TRANSACTIONS)
        claims_ownership = producer_id != NO_PRODUCER
        if claims_ownership and not _may_continue(transaction, producer_id, epoch):
            return InitResult(self._completion.fence(transaction, epoch))
        if transaction.state is State.ONGOING:
            error = await self._completion.decide(transaction, commit=False, bumps_epoch=True)
            if error is not ErrorCode.NONE:
                return InitResult(error)
            if not transaction.is_archiving_done:
                return InitResult(ErrorCode.CONCURRENT_TRANSACTIONS)
        last_epoch = epoch if claims_ownership else -1
        if claims_ownership and epoch != transaction.epoch <= PRODUCER_EPOCH_MAX:
            # The producer missed the response with the current epoch, or the abort above incremented the epoch.
            return await self._write_owner(
                transaction, timeout_ms, epoch=transaction.epoch, last_epoch=last_epoch
            )
        if transaction.is_exhausted:
            return await self._write_owner(
                transaction, timeout_ms, epoch=0, last_epoch=last_epoch, renews=True
            )
        return await self._write_owner(
            transaction, timeout_ms, epoch=transaction.epoch + 1, last_epoch=last_epoch
        )

    async def _write_owner(
        self, transaction: Transaction, timeout_ms: int, *, epoch: int, last_epoch: int, renews: bool = False
    ) -> InitResult:
        """Write the owner and its epoch to the journal. With ``renews``, the owner gets a new producer id."""
        transaction.busy = True
        producer, previous = transaction.producer, transaction.previous_producer
        if renews:
            try:
                producer, previous = await self._producer_ids.next(), producer
            except StorageError:
                self._release(transaction)
                return InitResult(ErrorCode.NOT_COORDINATOR)
        entry = replace(
            transaction.entry(ended=None),
            producer=producer,
            previous_producer=previous,
            epoch=epoch,
            last_epoch=last_epoch,
            timeout_ms=timeout_ms,
            bumped=False,
            began_ms=-1,
            changed_ms=self._stamp_ms(),
        )

        def written() -> None:
            transaction.restore(entry)
            transaction.state = State.EMPTY
            transaction.restored = False

        error = await self._completion.write(transaction, entry, written)
        if error is not ErrorCode.NONE:
            self._release(transaction)
            return InitResult(error)
        return InitResult(error, producer, epoch)

    def _release(self, transaction: Transaction) -> None:
        transaction.busy = False
        if transaction.producer == NO_PRODUCER:
            self._by_id.remove(transaction.id)


def _may_continue(transaction: Transaction, producer_id: int, epoch: int) -> bool:
    """Return whether a producer with this id and epoch still owns the transactional id, or retries its last request."""
    if transaction.producer != producer_id:
        return (
            producer_id == transaction.previous_producer
            and epoch >= PRODUCER_EPOCH_MAX
            and epoch == transaction.last_epoch
        )
    return epoch in (transaction.epoch, transaction.last_epoch)
