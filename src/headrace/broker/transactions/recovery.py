"""The recovery of transactions at start. It runs when all partitions are open, before the broker serves requests.

Every partition records its open transactions. Recovery distinguishes three cases:

1. The journal has decided the transaction, but the crash lost its marker. Recovery writes the marker again.
2. The transaction's producer and epoch still own a transactional id. The transaction stays open, with a new timeout.
3. Otherwise (the id expired or has a newer epoch), recovery aborts the transaction.

A transaction with pending offsets is open too, even if it did not write to a partition.

When the markers are on disk, recovery rewrites the decisions without them. Otherwise, after a power loss has truncated
the log, a later transaction could begin at the same offset, and the old decision would apply to that transaction.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial

from headrace.broker.groups.entries import PendingMarker
from headrace.broker.transactions.completion import TransactionCompletion
from headrace.broker.transactions.interface import OpenTransaction, TransactionContext, Written
from headrace.broker.transactions.transaction import State, Transaction
from headrace.errors import StorageError

__all__ = ["recover_transactions"]

_log = logging.getLogger("headrace.broker")


async def recover_transactions(
    transactions: Mapping[str, Transaction], context: TransactionContext, completion: TransactionCompletion
) -> None:
    """Recover the open transactions. ``transactions`` has every transactional id of the journal."""
    ledger, partitions, topics = context.ledger, context.partitions, context.topics
    entries = ledger.state.transactions
    decided = {
        marker.key: (entry.id, marker) for entry in entries.values() for marker in entry.pending_markers
    }
    owners = {transaction.producer: transaction for transaction in transactions.values()}
    syncs: list[asyncio.Future[None]] = []
    for name, index, partition in list(partitions.all()):
        if partition.needs_restart:
            # The partition's files cannot be read, so the journal must retain its pending markers.
            _keep_markers(transactions, decided, topics.id_of(name), index)
            continue
        for producer, open_transaction in list(partition.open_transactions().items()):
            decision = decided.get(
                (topics.id_of(name) or b"", index, producer, open_transaction.first_offset)
            )
            owner = owners.get(producer)
            if decision is None and owner is not None and open_transaction.producer_epoch == owner.epoch:
                _continue_transaction(owner, name, index, open_transaction)
                continue
            epoch, committed = open_transaction.producer_epoch, False
            if decision is not None:
                epoch, committed = decision[1].epoch, decision[1].committed
            elif owner is not None:
                epoch = max(epoch, owner.epoch)
            mark = partial(completion.write_marker, name, index, producer, epoch, committed=committed)
            waiting_transaction = None
            if decision is not None:
                waiting_transaction = transactions[decision[0]]
                _keep_marker(transactions, *decision)
            elif owner is not None:
                waiting_transaction = owner
            on_marked = partial(_forget_when_synced, completion, transactions, decision)
            try:
                written = mark()
            except StorageError as error:
                _log.error("cannot write a transaction marker to %s-%d: %s; retrying", name, index, error)
                if waiting_transaction is not None:
                    waiting_transaction.unwritten_markers += 1
                completion.mark_later(mark, partial(_after_retry, waiting_transaction, on_marked))
                continue
            on_marked(written)
            if written is not None and written.durable is not None:
                syncs.append(written.durable)
    for transactional_id in ledger.state.pending.transactions():
        transaction = transactions[transactional_id]
        transaction.state = State.ONGOING
        transaction.groups |= ledger.state.pending.groups_of(transactional_id)
    await asyncio.gather(*syncs, return_exceptions=True)
    writes = [
        ledger.put(transaction.entry(ended=_is_commit(entries[transaction.id].ended), decides=False))
        for transaction in transactions.values()
        if len(entries[transaction.id].pending_markers) != len(transaction.unsynced)
    ]
    for failure in await asyncio.gather(*writes):
        if failure is not None:
            _log.error(
                "cannot record that transactions have their markers: %s; the next start retries", failure
            )


def _continue_transaction(
    transaction: Transaction, name: str, index: int, open_transaction: OpenTransaction
) -> None:
    if transaction.state is not State.ONGOING:
        transaction.state = State.ONGOING
        transaction.began_ms = open_transaction.since_ms
    transaction.began_ms = min(transaction.began_ms, open_transaction.since_ms)
    transaction.partitions.add((name, index))


def _keep_markers(
    transactions: Mapping[str, Transaction],
    decided: Mapping[tuple[bytes, int, int, int], tuple[str, PendingMarker]],
    topic_id: bytes | None,
    index: int,
) -> None:
    for (topic, partition, _, _), (transactional_id, marker) in decided.items():
        if (topic, partition) == (topic_id, index):
            _keep_marker(transactions, transactional_id, marker)


def _keep_marker(
    transactions: Mapping[str, Transaction], transactional_id: str, marker: PendingMarker
) -> None:
    transactions[transactional_id].unsynced[marker.key] = marker


def _forget_when_synced(
    completion: TransactionCompletion,
    transactions: Mapping[str, Transaction],
    decision: tuple[str, PendingMarker] | None,
    written: Written | None,
) -> None:
    """Drop the pending marker when the written marker is on disk. Until then, journal entries repeat it."""
    if decision is not None:
        transaction, marker = transactions[decision[0]], decision[1]
        completion.when_synced(written, lambda: completion.forget(transaction, [marker.key]))


def _after_retry(
    transaction: Transaction | None, on_marked: Callable[[Written | None], None], written: Written | None
) -> None:
    if transaction is not None:
        transaction.unwritten_markers -= 1
    on_marked(written)


def _is_commit(ended: str | None) -> bool | None:
    return None if ended is None else ended == "commit"
