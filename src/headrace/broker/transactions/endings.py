"""How transactions end: one decision, durable, then a marker in every partition.

The decision is one entry in the journal that groups and their offsets share, so the offsets of a committed
transaction become committed by that very entry. From the moment it is durable the transaction is committed, or
aborted, whatever happens; the markers only say so where the records are. They are written in the same turn of
the loop, or where there are very many in the next ones, in which nothing of the producer is taken (``is_marking``). So
nothing of its next transaction comes before them, and their sync is waited for by nobody.

A crash may lose markers that were not synced. So the entry names the partitions with the transaction's first
offset in each, and so does every later entry about the same id until the marker is known to be on disk. A start
looks for open transactions that begin at these offsets and marks them again. One that begins elsewhere is
another transaction, even of the same producer and epoch.

A partition that cannot take its marker (a full disk) holds the id in its Prepare state: the client is told to try
again, and so does the broker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice

from msgspec.structs import replace

from headrace.broker.groups.entries import Touched, TransactionEntry, TransactionGone
from headrace.broker.groups.ledger import Ledger
from headrace.broker.groups.rebalancer import write_error
from headrace.broker.groups.timers import Timer, Timers
from headrace.broker.groups.topic_names import TopicNames
from headrace.broker.transactions.ports import MarkedPartitions, Written
from headrace.broker.transactions.settings import TransactionSettings
from headrace.broker.transactions.transaction import NOBODY, PREPARED, State, Transaction
from headrace.clock import Clock
from headrace.errors import StorageError
from headrace.wire.codes import ErrorCode

__all__ = ["Endings"]

_log = logging.getLogger("headrace.broker")


MarkerKey = tuple[bytes, int, int, int]
"""Of a marker that may not be on disk yet: topic id, partition, producer, first offset of the transaction there."""

_MARKED_AT_ONCE = 500


class Endings:
    def __init__(
        self,
        settings: TransactionSettings,
        ledger: Ledger,
        timers: Timers,
        partitions: MarkedPartitions,
        topics: TopicNames,
        clock: Clock,
        stamp_ms: Callable[[], int],
        trusted_ms: Callable[[], int],
        coordinator_epoch: int,
    ) -> None:
        self._settings = settings
        self._ledger = ledger
        self._timers = timers
        self._partitions = partitions
        self._topics = topics
        self._clock = clock
        self._stamp_ms = stamp_ms
        self._trusted_ms = trusted_ms
        self._coordinator_epoch = coordinator_epoch
        #: The coordinator has stopped: nothing is written any more.
        self.is_stopped = False
        self._marking: set[int] = set()
        #: Partitions of all open transactions.
        self.added = 0
        #: What the groups of all open transactions take.
        self.groups_bytes = 0
        #: Since the start: how transactions ended, and how many of them because they took too long.
        self.committed = self.aborted = self.timed_out = 0
        #: Since the start: requests that were turned away because their producer has a successor.
        self.fenced = 0
        self._stranded: list[tuple[Callable[[], Written | None], Callable[[Written | None], None]]] = []
        self._stranded_timer = Timer(self._mark_stranded)

    # -- entries

    def write(
        self, transaction: Transaction, entry: TransactionEntry | TransactionGone, then: Callable[[], None]
    ) -> asyncio.Future[ErrorCode]:
        """Write an entry about an id, during which nothing else is done with it; ``then`` runs once it is durable,
        also if whoever asked has gone away.
        """
        transaction.busy = True
        answered: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

        def done(error: Exception | None) -> None:
            transaction.busy = False
            if error is None:
                then()
            if not answered.done():
                answered.set_result(ErrorCode.NONE if error is None else write_error(error))

        self._ledger.submit(entry, done)
        return answered

    # -- the decision

    def decide(
        self, transaction: Transaction, *, commit: bool, bumps: bool, next_producer: int = NOBODY
    ) -> asyncio.Future[ErrorCode]:
        """End the transaction; with ``bumps`` its producer has a new epoch afterwards, which fences the old one."""
        epoch = transaction.epoch + 1 if bumps else transaction.epoch
        touched = self._touched(transaction, epoch, commit)
        entry = replace(
            transaction.entry(ended=commit),
            epoch=epoch,
            last_epoch=transaction.epoch if bumps else transaction.last_epoch,
            next_producer=next_producer,
            bumped=bumps,
            changed_ms=self._stamp_ms(),
            touched=(*transaction.unsynced.values(), *touched),
        )

        def decided() -> None:
            transaction.epoch, transaction.last_epoch = entry.epoch, entry.last_epoch
            transaction.next_producer, transaction.bumped = next_producer, bumps
            transaction.changed_ms = entry.changed_ms
            transaction.state = State.PREPARE_COMMIT if commit else State.PREPARE_ABORT
            transaction.restored = False
            if commit:
                self.committed += 1
            else:
                self.aborted += 1
            for one in touched:
                transaction.unsynced[_key(one)] = one
            # Sorted, here and below, so that what is asked of a simulated disk is the same in every run.
            transaction.unmarked = sorted(transaction.partitions)
            self._timers.stop(transaction.timer)
            self.mark(transaction)

        return self.write(transaction, entry, decided)

    def _touched(self, transaction: Transaction, epoch: int, commit: bool) -> list[Touched]:
        touched = []
        for name, index in sorted(transaction.partitions):
            partition = self._partitions.find(name, index)
            topic_id = self._topics.id_of(name)
            if partition is None or topic_id is None:
                continue
            opened = partition.open_transactions().get(transaction.producer)
            if opened is not None:
                touched.append(
                    Touched(topic_id, index, transaction.producer, opened.first_offset, epoch, commit)
                )
        return touched

    # -- the markers

    def mark(self, transaction: Transaction) -> None:
        """Write the markers that are missing, and let the id go on when none is. Of very many, some at a time: others
        are served between them, and requests about this id are told to try again.
        """
        unsynced: dict[tuple[bytes, int, int], list[MarkerKey]] = {}
        for key in transaction.unsynced:
            unsynced.setdefault(key[:3], []).append(key)
        self._mark_some(transaction, iter(transaction.unmarked), [], unsynced)

    def _mark_some(
        self,
        transaction: Transaction,
        places: Iterator[tuple[str, int]],
        left: list[tuple[str, int]],
        unsynced: dict[tuple[bytes, int, int], list[MarkerKey]],
    ) -> None:
        if self.is_stopped:
            # The next start finds the decision, and what lacks its marker.
            return
        self._marking.discard(transaction.producer)
        committed = transaction.state is State.PREPARE_COMMIT
        some = list(islice(places, _MARKED_AT_ONCE))
        for name, index in some:
            try:
                written = self.mark_one(
                    name,
                    index,
                    transaction.producer,
                    transaction.epoch,
                    committed=committed,
                )
            except StorageError as error:
                if not left:
                    _log.error(
                        "the end of a transaction of %r is not written to %s-%d yet: %s",
                        transaction.id,
                        name,
                        index,
                        error,
                    )
                left.append((name, index))
            else:
                topic_id = self._topics.id_of(name) or b""
                if keys := unsynced.get((topic_id, index, transaction.producer)):
                    self.when_synced(written, partial(self.forget, transaction, keys))
        if len(some) == _MARKED_AT_ONCE:
            self._marking.add(transaction.producer)
            loop = asyncio.get_running_loop()
            loop.call_soon(self._mark_some, transaction, places, left, unsynced)
            return
        transaction.unmarked = left
        if left:
            self._timers.start(transaction.timer, self._settings.retry_ms)
        else:
            self.added -= len(transaction.partitions)
            self.groups_bytes -= transaction.groups_bytes
            transaction.complete(committed=committed)

    def is_marking(self, producer: int) -> bool:
        """Whether some partitions of a transaction that was decided are yet to get their markers, in the next turns."""
        return producer in self._marking

    def mark_one(
        self, name: str, index: int, producer: int, epoch: int, *, committed: bool
    ) -> Written | None:
        """Write one marker; ``None`` if there is nothing to mark, also because the topic is no more."""
        partition = self._partitions.find(name, index)
        if partition is None:
            return None
        return partition.mark(
            producer,
            epoch,
            committed=committed,
            coordinator_epoch=self._coordinator_epoch,
            now_ms=self._clock.now_ms(),
            trusted_ms=self._trusted_ms(),
        )

    def mark_later(self, mark: Callable[[], Written | None], then: Callable[[Written | None], None]) -> None:
        """Try a marker again and again that a partition did not take at the start; ``then`` is told when it did."""
        self._stranded.append((mark, then))
        self._timers.start(self._stranded_timer, self._settings.retry_ms)

    def _mark_stranded(self) -> None:
        stranded, self._stranded = self._stranded, []
        for mark, then in stranded:
            try:
                written = mark()
            except StorageError:
                self.mark_later(mark, then)
            else:
                then(written)

    @staticmethod
    def when_synced(written: Written | None, then: Callable[[], None]) -> None:
        """Where the sync fails, the partition takes nothing more before the next start, which marks again."""
        durable = None if written is None else written.durable
        if durable is None:
            then()
            return

        def synced(future: asyncio.Future[None]) -> None:
            if not future.cancelled() and future.exception() is None:
                then()

        durable.add_done_callback(synced)

    @staticmethod
    def forget(transaction: Transaction, keys: Iterable[MarkerKey]) -> None:
        for key in keys:
            transaction.unsynced.pop(key, None)

    def fence(self, transaction: Transaction, epoch: int) -> ErrorCode:
        """Turn a producer away whose epoch is not the one that holds the id; said once for each epoch, in their order,
        so that nobody fills the log.
        """
        self.fenced += 1
        if transaction.fenced_epoch < epoch < transaction.epoch:
            transaction.fenced_epoch = epoch
            _log.warning(
                "producer %d of %r has epoch %d, and epoch %d holds the id: it is fenced; only one process may use "
                "a transactional id at a time",
                transaction.producer,
                transaction.id,
                epoch,
                transaction.epoch,
            )
        return ErrorCode.PRODUCER_FENCED

    # -- time-outs

    def timer_passed(self, transaction: Transaction) -> None:
        """A transaction has been open for too long, or a marker shall be tried again."""
        if transaction.busy:
            self._timers.start(transaction.timer, self._settings.retry_ms)
        elif transaction.state in PREPARED:
            self.mark(transaction)
        elif transaction.state is State.ONGOING:
            _log.warning(
                "a transaction of %r was open for more than %d ms and is aborted",
                transaction.id,
                transaction.timeout_ms,
            )
            self.timed_out += 1
            # Again later if the journal does not take it; a decision stops the timer.
            self._timers.start(transaction.timer, self._settings.retry_ms)
            self.decide(transaction, commit=False, bumps=True)


def _key(touched: Touched) -> MarkerKey:
    return touched.topic, touched.partition, touched.producer, touched.first_offset
