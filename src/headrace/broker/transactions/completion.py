"""The end of a transaction: one durable decision, then a marker in every partition.

The decision is one entry in the journal of groups and transactions, so the same entry also commits the offsets of the
transaction. When the entry is durable, the transaction is committed or aborted, even after a crash. The broker then
writes a commit or abort marker to every partition, without waiting for the disk. It writes up to 200 markers in the
same iteration of the event loop, and the others in the next iterations. Until all are written, the broker accepts no
transactional batch from the producer (``is_marking``), so the markers precede the records of its next transaction.

A crash can lose markers that were not synced. So the entry lists each partition with the transaction's first offset
there. Every later entry about the same id repeats the list until the markers are on disk. At start, the broker finds
the open transactions that begin at these offsets and writes their markers again. An open transaction that begins at
another offset is a different transaction, even if it has the same producer and epoch.

If a partition cannot write its marker (for example because the disk is full), the id remains in its Prepare state. The
broker retries the marker, and the client gets a retriable error.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from msgspec.structs import replace

from headrace.broker.event_loop import Step
from headrace.broker.groups.entries import MarkerKey, PendingMarker, TransactionalIdDeleted, TransactionEntry
from headrace.broker.groups.rebalancer import code_of_write_error
from headrace.broker.groups.timers import Timer, Timers
from headrace.broker.transactions.interface import TransactionContext, Written
from headrace.broker.transactions.transaction import NO_PRODUCER, PREPARED, State, Transaction
from headrace.errors import StorageError
from headrace.wire.codes import ErrorCode

__all__ = ["TransactionCompletion"]

_log = logging.getLogger("headrace.broker")
_MARKERS_PER_STEP = 200


class TransactionCompletion:
    def __init__(self, context: TransactionContext, timers: Timers) -> None:
        self._settings = context.settings
        self._ledger = context.ledger
        self._partitions = context.partitions
        self._topics = context.topics
        self._clock = context.clock
        self._stamp_ms = context.stamp_ms
        self._trusted_ms = context.trusted_ms
        self._coordinator_epoch = context.coordinator_epoch
        self._timers = timers
        #: Set when the coordinator stops. No more markers are written then.
        self.is_stopped = False
        self._marking: set[int] = set()
        #: The number of partitions in all open transactions.
        self.partition_count = 0
        #: The estimated memory of the groups in all open transactions.
        self.groups_bytes = 0
        #: The numbers of transactions that ended since the start. A timed-out transaction counts as aborted too.
        self.committed = self.aborted = self.timed_out = 0
        #: The number of requests from fenced producers since the start.
        self.fenced = 0
        self._unwritten: list[tuple[Callable[[], Written | None], Callable[[Written | None], None]]] = []
        self._retry_timer = Timer(self._retry_unwritten)

    # -- journal entries

    def write(
        self,
        transaction: Transaction,
        entry: TransactionEntry | TransactionalIdDeleted,
        then: Callable[[], None],
    ) -> asyncio.Future[ErrorCode]:
        """Write an entry about an id, and set ``busy`` meanwhile.

        ``then`` runs when the entry is durable, even if the caller is cancelled.
        """
        transaction.busy = True
        result: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

        def on_done(error: Exception | None) -> None:
            transaction.busy = False
            if error is None:
                then()
            if not result.done():
                result.set_result(ErrorCode.NONE if error is None else code_of_write_error(error))

        self._ledger.submit(entry, on_done)
        return result

    # -- the decision

    def decide(
        self, transaction: Transaction, *, commit: bool, bumps_epoch: bool, next_producer: int = NO_PRODUCER
    ) -> asyncio.Future[ErrorCode]:
        """Commit or abort the transaction. With ``bumps_epoch``, the id gets a new epoch, which fences the old one."""
        epoch = transaction.epoch + 1 if bumps_epoch else transaction.epoch
        markers = self._markers(transaction, epoch, commit)
        entry = replace(
            transaction.entry(ended=commit),
            epoch=epoch,
            last_epoch=transaction.epoch if bumps_epoch else transaction.last_epoch,
            next_producer=next_producer,
            bumped=bumps_epoch,
            changed_ms=self._stamp_ms(),
            pending_markers=(*transaction.unsynced.values(), *markers),
        )

        def on_decided() -> None:
            transaction.epoch, transaction.last_epoch = entry.epoch, entry.last_epoch
            transaction.next_producer, transaction.bumped = next_producer, bumps_epoch
            transaction.changed_ms = entry.changed_ms
            transaction.state = State.PREPARE_COMMIT if commit else State.PREPARE_ABORT
            transaction.restored = False
            if commit:
                self.committed += 1
            else:
                self.aborted += 1
            for marker in markers:
                transaction.unsynced[marker.key] = marker
            # Sorted, so that tests with a simulated disk see the same calls in every run.
            transaction.unmarked = sorted(transaction.partitions)
            self._timers.stop(transaction.timer)
            self.mark(transaction)

        return self.write(transaction, entry, on_decided)

    def _markers(self, transaction: Transaction, epoch: int, commit: bool) -> list[PendingMarker]:
        markers = []
        for name, index in sorted(transaction.partitions):
            partition = self._partitions.find(name, index)
            topic_id = self._topics.id_of(name)
            if partition is None or topic_id is None:
                continue
            open_transaction = partition.open_transactions().get(transaction.producer)
            if open_transaction is not None:
                markers.append(
                    PendingMarker(
                        topic_id, index, transaction.producer, open_transaction.first_offset, epoch, commit
                    )
                )
        return markers

    # -- the markers

    def mark(self, transaction: Transaction) -> None:
        """Write the missing markers, then complete the transaction.

        Many markers are written in several iterations of the event loop.
        """
        unsynced: dict[tuple[bytes, int, int], list[MarkerKey]] = {}
        for key in transaction.unsynced:
            unsynced.setdefault(key[:3], []).append(key)
        self._mark_next(transaction, iter(transaction.unmarked), [], unsynced)

    def _mark_next(
        self,
        transaction: Transaction,
        partitions: Iterator[tuple[str, int]],
        failed_partitions: list[tuple[str, int]],
        unsynced: dict[tuple[bytes, int, int], list[MarkerKey]],
    ) -> None:
        if self.is_stopped:
            # The journal has the decision. The next start writes the missing markers.
            return
        self._marking.discard(transaction.producer)
        committed = transaction.state is State.PREPARE_COMMIT
        step = Step(self._clock, _MARKERS_PER_STEP)
        for name, index in partitions:
            try:
                written = self.write_marker(
                    name,
                    index,
                    transaction.producer,
                    transaction.epoch,
                    committed=committed,
                )
            except StorageError as error:
                if not failed_partitions:
                    _log.error(
                        "cannot write the transaction marker of %r to %s-%d: %s; retrying",
                        transaction.id,
                        name,
                        index,
                        error,
                    )
                failed_partitions.append((name, index))
            else:
                topic_id = self._topics.id_of(name) or b""
                if keys := unsynced.get((topic_id, index, transaction.producer)):
                    self.when_synced(written, partial(self.forget, transaction, keys))
            if step.is_over():
                self._marking.add(transaction.producer)
                loop = asyncio.get_running_loop()
                loop.call_soon(self._mark_next, transaction, partitions, failed_partitions, unsynced)
                return
        transaction.unmarked = failed_partitions
        if failed_partitions:
            self._timers.start(transaction.timer, self._settings.retry_ms)
        else:
            self.partition_count -= len(transaction.partitions)
            self.groups_bytes -= transaction.groups_bytes
            transaction.complete(committed=committed)

    def is_marking(self, producer: int) -> bool:
        """Return whether the broker is still writing markers for the producer's last transaction."""
        return producer in self._marking

    def write_marker(
        self, name: str, index: int, producer: int, epoch: int, *, committed: bool
    ) -> Written | None:
        """Write one marker. Returns ``None`` if the partition needs no marker or was deleted."""
        partition = self._partitions.find(name, index)
        if partition is None:
            return None
        return partition.append_marker(
            producer,
            epoch,
            committed=committed,
            coordinator_epoch=self._coordinator_epoch,
            now_ms=self._clock.now_ms(),
            trusted_ms=self._trusted_ms(),
        )

    def mark_later(self, mark: Callable[[], Written | None], then: Callable[[Written | None], None]) -> None:
        """Retry a marker that recovery could not write at start. ``then`` is called when the marker is written."""
        self._unwritten.append((mark, then))
        self._timers.start(self._retry_timer, self._settings.retry_ms)

    def _retry_unwritten(self) -> None:
        unwritten, self._unwritten = self._unwritten, []
        for mark, then in unwritten:
            try:
                written = mark()
            except StorageError:
                self.mark_later(mark, then)
            else:
                then(written)

    @staticmethod
    def when_synced(written: Written | None, then: Callable[[], None]) -> None:
        """Call ``then`` when the marker is on disk. If the sync fails, the next start writes the marker again."""
        durable = None if written is None else written.durable
        if durable is None:
            then()
            return

        def on_synced(future: asyncio.Future[None]) -> None:
            if not future.cancelled() and future.exception() is None:
                then()

        durable.add_done_callback(on_synced)

    @staticmethod
    def forget(transaction: Transaction, keys: Iterable[MarkerKey]) -> None:
        for key in keys:
            transaction.unsynced.pop(key, None)

    def fence(self, transaction: Transaction, epoch: int) -> ErrorCode:
        """Refuse a producer with an old epoch.

        A warning is logged only if the epoch is higher than the last logged one, so that a producer that retries does
        not flood the log.
        """
        self.fenced += 1
        if transaction.fenced_epoch < epoch < transaction.epoch:
            transaction.fenced_epoch = epoch
            _log.warning(
                "fenced producer %d of transactional id %r: the request has epoch %d, but the current epoch is %d; use"
                " a transactional id in only one process at a time",
                transaction.producer,
                transaction.id,
                epoch,
                transaction.epoch,
            )
        return ErrorCode.PRODUCER_FENCED

    # -- timeouts

    def on_timeout(self, transaction: Transaction) -> None:
        """Abort a transaction that has timed out, or retry the markers of a decided transaction."""
        if transaction.busy:
            self._timers.start(transaction.timer, self._settings.retry_ms)
        elif transaction.state in PREPARED:
            self.mark(transaction)
        elif transaction.state is State.ONGOING:
            _log.warning(
                "aborting the transaction of %r: it was open for more than %d ms",
                transaction.id,
                transaction.timeout_ms,
            )
            self.timed_out += 1
            # If the journal write fails, the timer retries the abort. A successful decision stops the timer.
            self._timers.start(transaction.timer, self._settings.retry_ms)
            self.decide(transaction, commit=False, bumps_epoch=True)
