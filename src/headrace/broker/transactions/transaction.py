"""A transactional id: its producer, and the state of its transaction.

    Empty ──▶ Ongoing ──▶ PrepareCommit ──▶ CompleteCommit ──▶ Ongoing …
                     └──▶ PrepareAbort  ──▶ CompleteAbort  ──▶ Ongoing …

A transaction is Ongoing as soon as it has a partition or a group. One journal entry decides whether it commits or
aborts. Then the transaction is in one of the two Prepare states until every partition has its marker. The journal
contains only the decision. Each partition records its own open transactions and markers.

In the first transaction protocol, a producer uses the same epoch for all its transactions. In the second protocol, the
end of each transaction increments the epoch, so that a late record cannot join the next transaction (KIP-890).
"""

from __future__ import annotations

from enum import Enum

from headrace.broker.groups.entries import MarkerKey, PendingMarker, TransactionEntry
from headrace.broker.groups.timers import Timer
from headrace.broker.limits import text_bytes

__all__ = [
    "NO_PRODUCER",
    "PREPARED",
    "PRODUCER_EPOCH_MAX",
    "State",
    "Transaction",
    "TransactionTable",
    "group_bytes",
]

NO_PRODUCER = -1
#: The highest epoch that a producer can have. The next higher epoch is reserved for fencing.
PRODUCER_EPOCH_MAX = 32_766


class State(Enum):
    """The states of a transactional id, with the names that Kafka's tools show."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    #: The id expired.
    DEAD = "Dead"
    #: In Kafka, the state before an abort that also fences the producer. This broker does both in one step, so no
    #: transaction is ever in this state.
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"


PREPARED = (State.PREPARE_COMMIT, State.PREPARE_ABORT)


class Transaction:
    __slots__ = (
        "began_ms",
        "bumped",
        "busy",
        "changed_ms",
        "epoch",
        "fenced_epoch",
        "groups",
        "id",
        "last_epoch",
        "next_producer",
        "partitions",
        "previous_producer",
        "producer",
        "restored",
        "state",
        "timeout_ms",
        "timer",
        "unmarked",
        "unsynced",
        "unwritten_markers",
    )

    def __init__(self, transactional_id: str, timer: Timer) -> None:
        self.id = transactional_id
        self.producer = NO_PRODUCER
        self.epoch = -1
        #: The previous epoch. A producer that missed the last response retries with this epoch.
        self.last_epoch = -1
        self.previous_producer = NO_PRODUCER
        self.next_producer = NO_PRODUCER
        self.timeout_ms = 0
        self.state = State.EMPTY
        #: Whether the end of the last transaction incremented the epoch.
        self.bumped = False
        self.began_ms = -1
        self.changed_ms = 0
        self.partitions: set[tuple[str, int]] = set()
        self.groups: set[str] = set()
        #: Whether a journal entry about the id is being written.
        self.busy = False
        #: The latest fenced epoch that was logged.
        self.fenced_epoch = -1
        #: Whether the broker restarted since the last transaction ended. A restart loses partitions and groups that
        #: were added but not written to. After a restart, the coordinator therefore accepts every partition and group.
        self.restored = False
        self.timer = timer
        #: Partitions that do not have a marker of the decided transaction yet.
        self.unmarked: list[tuple[str, int]] = []
        #: The number of markers of earlier transactions that recovery could not write at start.
        self.unwritten_markers = 0
        #: Markers that may not be on disk yet. Every journal entry about the id repeats them.
        self.unsynced: dict[MarkerKey, PendingMarker] = {}

    @property
    def groups_bytes(self) -> int:
        return sum(map(group_bytes, self.groups))

    @property
    def is_exhausted(self) -> bool:
        return self.epoch >= PRODUCER_EPOCH_MAX

    @property
    def owner(self) -> tuple[int, int]:
        """The producer id and epoch for the next transaction, after all markers are written."""
        return (self.producer, self.epoch) if self.next_producer == NO_PRODUCER else (self.next_producer, 0)

    @property
    def is_changing(self) -> bool:
        """Whether a transaction cannot begin or end now because a journal entry or a marker is being written."""
        return self.busy or self.unwritten_markers > 0 or self.state in PREPARED

    @property
    def is_archiving_done(self) -> bool:
        return not self.is_changing and self.state is not State.ONGOING

    def restore(self, entry: TransactionEntry) -> None:
        """Load a journal entry, as if all its markers were written."""
        self.producer, self.epoch, self.last_epoch = entry.producer, entry.epoch, entry.last_epoch
        self.previous_producer, self.next_producer = entry.previous_producer, entry.next_producer
        self.timeout_ms, self.bumped = entry.timeout_ms, entry.bumped
        self.began_ms, self.changed_ms = entry.began_ms, entry.changed_ms
        if entry.ended is not None:
            self.complete(committed=entry.ended == "commit")
        self.restored = True

    def complete(self, *, committed: bool) -> None:
        """Complete the transaction when every partition has its marker."""
        self.state = State.COMPLETE_COMMIT if committed else State.COMPLETE_ABORT
        if self.next_producer != NO_PRODUCER:
            self.previous_producer, self.producer, self.epoch = self.producer, self.next_producer, 0
            self.next_producer = NO_PRODUCER
        self.partitions.clear()
        self.groups.clear()

    def entry(self, *, ended: bool | None, decides: bool = True) -> TransactionEntry:
        """Return a journal entry. ``ended`` is whether the last transaction committed, or ``None`` before the first."""
        return TransactionEntry(
            id=self.id,
            producer=self.producer,
            epoch=self.epoch,
            last_epoch=self.last_epoch,
            previous_producer=self.previous_producer,
            next_producer=self.next_producer,
            timeout_ms=self.timeout_ms,
            ended=None if ended is None else "commit" if ended else "abort",
            decides=decides,
            bumped=self.bumped,
            began_ms=self.began_ms,
            changed_ms=self.changed_ms,
            pending_markers=tuple(self.unsynced.values()),
        )


def group_bytes(group_id: str) -> int:
    """Return the estimated memory of a group in a transaction: its id and an entry in a set."""
    return 128 + text_bytes(group_id)


class TransactionTable(dict[str, Transaction]):
    """All transactional ids. Only ``add`` and ``remove`` change it. Invariant: ``ids_bytes`` is their total size."""

    def __init__(self) -> None:
        super().__init__()
        self.ids_bytes = 0

    def add(self, transaction: Transaction) -> Transaction:
        assert transaction.id not in self
        self[transaction.id] = transaction
        self.ids_bytes += text_bytes(transaction.id)
        return transaction

    def remove(self, transactional_id: str) -> None:
        """Remove the id if it exists."""
        if self.pop(transactional_id, None) is not None:
            self.ids_bytes -= text_bytes(transactional_id)
