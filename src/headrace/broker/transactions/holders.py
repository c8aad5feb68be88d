"""Who holds a transactional id: the producer that asked last, and nobody else.

Whoever asks gets an epoch above that of the one before, and what that one left open is aborted first. From the
moment this is durable the one before is fenced: whatever it sends has an epoch that is too old.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from headrace.broker.sizes import text_bytes
from headrace.broker.transactions.answers import InitAnswer
from headrace.broker.transactions.endings import Endings
from headrace.broker.transactions.ports import ProducerIds
from headrace.broker.transactions.settings import TransactionSettings
from headrace.broker.transactions.table import TransactionTable
from headrace.broker.transactions.transaction import (
    EPOCH_GIVEN_MAX,
    NOBODY,
    State,
    Transaction,
)
from headrace.errors import StorageError
from headrace.wire.codes import ErrorCode

__all__ = ["Holders"]


class Holders:
    def __init__(
        self,
        by_id: TransactionTable,
        settings: TransactionSettings,
        endings: Endings,
        producer_ids: ProducerIds,
        stamp_ms: Callable[[], int],
        new_one: Callable[[str], Transaction],
    ) -> None:
        self._by_id = by_id
        self._settings = settings
        self._endings = endings
        self._producer_ids = producer_ids
        self._stamp_ms = stamp_ms
        self._new_one = new_one

    async def init(
        self, transactional_id: str, timeout_ms: int, producer_id: int = NOBODY, epoch: int = -1
    ) -> InitAnswer:
        """Give the id to whoever asks.

        A producer that gives the id and epoch it has goes on after an error (KIP-360): it is fenced itself if
        somebody else has come since, and it may ask again if it did not get its answer.
        """
        if not transactional_id or len(transactional_id) > self._settings.id_chars_max:
            return InitAnswer(ErrorCode.INVALID_REQUEST)
        if not 0 < timeout_ms <= self._settings.timeout_ms_max:
            return InitAnswer(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        transaction = self._by_id.get(transactional_id)
        if transaction is None:
            if (
                len(self._by_id) >= self._settings.ids_max
                or self._by_id.ids_bytes + text_bytes(transactional_id) > self._settings.all_ids_bytes_max
            ):
                return InitAnswer(ErrorCode.POLICY_VIOLATION)
            transaction = self._by_id.add(self._new_one(transactional_id))
            return await self._take(transaction, timeout_ms, epoch=0, last_epoch=-1, renews=True)
        if transaction.is_between:
            return InitAnswer(ErrorCode.CONCURRENT_TRANSACTIONS)
        expects = producer_id != NOBODY
        if expects and not _may_go_on(transaction, producer_id, epoch):
            return InitAnswer(self._endings.fence(transaction, epoch))
        if transaction.state is State.ONGOING:
            error = await self._endings.decide(transaction, commit=False, bumps=True)
            if error is not ErrorCode.NONE:
                return InitAnswer(error)
            if not transaction.is_at_rest:
                return InitAnswer(ErrorCode.CONCURRENT_TRANSACTIONS)
        last_epoch = epoch if expects else -1
        if expects and epoch != transaction.epoch <= EPOCH_GIVEN_MAX:
            # It has been given this epoch before, or the abort of what it left open has just raised it.
            return await self._take(transaction, timeout_ms, epoch=transaction.epoch, last_epoch=last_epoch)
        if transaction.is_exhausted:
            return await self._take(transaction, timeout_ms, epoch=0, last_epoch=last_epoch, renews=True)
        return await self._take(transaction, timeout_ms, epoch=transaction.epoch + 1, last_epoch=last_epoch)

    async def _take(
        self, transaction: Transaction, timeout_ms: int, *, epoch: int, last_epoch: int, renews: bool = False
    ) -> InitAnswer:
        """Write that the id is held under an epoch now, by a new producer id if it ``renews``."""
        transaction.busy = True
        producer, previous = transaction.producer, transaction.previous_producer
        if renews:
            try:
                producer, previous = await self._producer_ids.next(), producer
            except StorageError:
                self._not_taken(transaction)
                return InitAnswer(ErrorCode.NOT_COORDINATOR)
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

        def taken() -> None:
            transaction.restore(entry)
            transaction.state = State.EMPTY
            transaction.restored = False

        error = await self._endings.write(transaction, entry, taken)
        if error is not ErrorCode.NONE:
            self._not_taken(transaction)
            return InitAnswer(error)
        return InitAnswer(error, producer, epoch)

    def _not_taken(self, transaction: Transaction) -> None:
        transaction.busy = False
        if transaction.producer == NOBODY:
            self._by_id.remove(transaction.id)


def _may_go_on(transaction: Transaction, producer_id: int, epoch: int) -> bool:
    """Whether a producer that gives its id and epoch still holds the transactional id, or asks a second time."""
    if transaction.producer != producer_id:
        return (
            producer_id == transaction.previous_producer
            and epoch >= EPOCH_GIVEN_MAX
            and epoch == transaction.last_epoch
        )
    return epoch in (transaction.epoch, transaction.last_epoch)
