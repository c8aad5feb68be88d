"""What a start does about transactions, when all partitions are open and before anything is served.

Every partition knows which transactions are open in it. Each of them is one of these:

1. named by a decision whose marker was lost: it is marked as was decided;
2. of the producer and epoch that hold a transactional id now: it is open, and goes on, with its time-out anew;
3. anything else (the id was forgotten, or has a newer epoch): it is aborted.

Offsets that are pending for a transaction say that it is open as well, even if it wrote to no partition.

When all markers are on disk the decisions that named partitions are said again without them: what begins at the
same offset later, after a power loss has cut the log, must not be taken for what was decided.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial

from headrace.broker.groups.entries import Touched
from headrace.broker.groups.ledger import Ledger
from headrace.broker.groups.topic_names import TopicNames
from headrace.broker.transactions.endings import Endings
from headrace.broker.transactions.ports import MarkedPartitions, OpenTransaction, Written
from headrace.broker.transactions.transaction import State, Transaction
from headrace.errors import StorageError

__all__ = ["recover"]

_log = logging.getLogger("headrace.broker")


async def recover(
    transactions: Mapping[str, Transaction],
    ledger: Ledger,
    partitions: MarkedPartitions,
    topics: TopicNames,
    endings: Endings,
) -> None:
    """Bring ids and partitions together again; ``transactions`` are the ids as the journal has them."""
    entries = ledger.kept.transactions
    decided = {
        (one.topic, one.partition, one.producer, one.first_offset): (entry.id, one)
        for entry in entries.values()
        for one in entry.touched
    }
    holders = {transaction.producer: transaction for transaction in transactions.values()}
    syncs: list[asyncio.Future[None]] = []
    for name, index, partition in list(partitions.all()):
        if partition.is_lost:
            # Its files cannot be read. What was decided about it stays in the journal.
            _keep(transactions, decided, topics.id_of(name), index)
            continue
        for producer, one in list(partition.open_transactions().items()):
            found = decided.get((topics.id_of(name) or b"", index, producer, one.first_offset))
            holder = holders.get(producer)
            if found is None and holder is not None and one.producer_epoch == holder.epoch:
                _join(holder, name, index, one)
                continue
            epoch, committed = one.producer_epoch, False
            if found is not None:
                epoch, committed = found[1].epoch, found[1].committed
            elif holder is not None:
                epoch = max(epoch, holder.epoch)
            mark = partial(endings.mark_one, name, index, producer, epoch, committed=committed)
            waits = None
            if found is not None:
                waits = transactions[found[0]]
                _keep_one(transactions, *found)
            elif holder is not None:
                waits = holder
            marked = partial(_marked, endings, transactions, found)
            try:
                written = mark()
            except StorageError as error:
                _log.error("a transaction stays open in %s-%d for now: %s", name, index, error)
                if waits is not None:
                    waits.held_up += 1
                endings.mark_later(mark, partial(_let_go, waits, marked))
                continue
            marked(written)
            if written is not None and written.durable is not None:
                syncs.append(written.durable)
    for transactional_id in ledger.kept.pending.transactions():
        transaction = transactions[transactional_id]
        transaction.state = State.ONGOING
        transaction.groups |= ledger.kept.pending.groups_of(transactional_id)
    await asyncio.gather(*syncs, return_exceptions=True)
    said = [
        ledger.put(transaction.entry(ended=_ended(entries[transaction.id].ended), decides=False))
        for transaction in transactions.values()
        if len(entries[transaction.id].touched) != len(transaction.unsynced)
    ]
    for failure in await asyncio.gather(*said):
        if failure is not None:
            _log.error("decided transactions are not known to be settled: %s", failure)


def _join(transaction: Transaction, name: str, index: int, one: OpenTransaction) -> None:
    if transaction.state is not State.ONGOING:
        transaction.state = State.ONGOING
        transaction.began_ms = one.since_ms
    transaction.began_ms = min(transaction.began_ms, one.since_ms)
    transaction.partitions.add((name, index))


def _keep(
    transactions: Mapping[str, Transaction],
    decided: Mapping[tuple[bytes, int, int, int], tuple[str, Touched]],
    topic_id: bytes | None,
    index: int,
) -> None:
    for (topic, partition, _, _), (transactional_id, touched) in decided.items():
        if (topic, partition) == (topic_id, index):
            _keep_one(transactions, transactional_id, touched)


def _keep_one(transactions: Mapping[str, Transaction], transactional_id: str, touched: Touched) -> None:
    key = (touched.topic, touched.partition, touched.producer, touched.first_offset)
    transactions[transactional_id].unsynced[key] = touched


def _marked(
    endings: Endings,
    transactions: Mapping[str, Transaction],
    found: tuple[str, Touched] | None,
    written: Written | None,
) -> None:
    """A marker is written. Its decision is carried along until it is on disk."""
    if found is not None:
        transaction, touched = transactions[found[0]], found[1]
        key = (touched.topic, touched.partition, touched.producer, touched.first_offset)
        endings.when_synced(written, lambda: endings.forget(transaction, [key]))


def _let_go(
    transaction: Transaction | None, marked: Callable[[Written | None], None], written: Written | None
) -> None:
    if transaction is not None:
        transaction.held_up -= 1
    marked(written)


def _ended(ended: str | None) -> bool | None:
    return None if ended is None else ended == "commit"
