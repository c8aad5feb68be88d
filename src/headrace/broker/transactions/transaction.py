"""One transactional id: who holds it, and where its transaction stands.

    Empty ──▶ Ongoing ──▶ PrepareCommit ──▶ CompleteCommit ──▶ Ongoing …
                     └──▶ PrepareAbort  ──▶ CompleteAbort  ──▶ Ongoing …

A transaction is Ongoing from its first partition or group on. Its end is decided by one entry in the journal;
from then on it is in one of the two Prepare states until every partition has taken its marker. Only the decision
is on disk. That a transaction is open, and where, is known to its partitions, and what has its marker likewise.

The first protocol keeps a producer's epoch from one transaction to the next. The second raises it at every end,
so that a record which comes late cannot become part of the next transaction (KIP-890).
"""

from __future__ import annotations

from enum import Enum

from headrace.broker.groups.entries import Touched, TransactionEntry
from headrace.broker.groups.timers import Timer
from headrace.broker.sizes import text_bytes

__all__ = ["EPOCH_GIVEN_MAX", "NOBODY", "PREPARED", "State", "Transaction", "group_bytes"]

NOBODY = -1
#: The last epoch that a producer is given. The one above it is kept for fencing.
EPOCH_GIVEN_MAX = 32_766


class State(Enum):
    """By the names that Kafka's tools show."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    #: About to be forgotten.
    DEAD = "Dead"
    #: Kafka's name for an abort that also fences. Here that is one step, so nothing is ever in this state.
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
        "held_up",
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
    )

    def __init__(self, transactional_id: str, timer: Timer) -> None:
        self.id = transactional_id
        self.producer = NOBODY
        self.epoch = -1
        #: The epoch before, if its holder may go on with this one: it may not have got its answer.
        self.last_epoch = -1
        self.previous_producer = NOBODY
        self.next_producer = NOBODY
        self.timeout_ms = 0
        self.state = State.EMPTY
        #: Whether the last end raised the epoch.
        self.bumped = False
        self.began_ms = -1
        self.changed_ms = 0
        self.partitions: set[tuple[str, int]] = set()
        self.groups: set[str] = set()
        #: An entry about it is on its way to the disk.
        self.busy = False
        #: The latest epoch that was turned away as too old.
        self.fenced_epoch = -1
        #: The broker was started since its last end: what was added to the open transaction and never written
        #: to is forgotten, and is taken as added.
        self.restored = False
        self.timer = timer
        #: Partitions that have not taken the marker yet.
        self.unmarked: list[tuple[str, int]] = []
        #: Markers of earlier transactions that a partition did not take when the broker was started.
        self.held_up = 0
        #: Markers that may not be on disk yet. Whatever is written about this id carries them along.
        self.unsynced: dict[tuple[bytes, int, int, int], Touched] = {}

    @property
    def groups_bytes(self) -> int:
        return sum(map(group_bytes, self.groups))

    @property
    def is_exhausted(self) -> bool:
        return self.epoch >= EPOCH_GIVEN_MAX

    @property
    def holder(self) -> tuple[int, int]:
        """The producer id and epoch to go on with, once all markers are written."""
        return (self.producer, self.epoch) if self.next_producer == NOBODY else (self.next_producer, 0)

    @property
    def is_between(self) -> bool:
        """Whether nothing can begin or end now, because something is being written down."""
        return self.busy or self.held_up > 0 or self.state in PREPARED

    @property
    def is_at_rest(self) -> bool:
        return not self.is_between and self.state is not State.ONGOING

    def restore(self, entry: TransactionEntry) -> None:
        """Take over what is on disk, as it is when all markers are written."""
        self.producer, self.epoch, self.last_epoch = entry.producer, entry.epoch, entry.last_epoch
        self.previous_producer, self.next_producer = entry.previous_producer, entry.next_producer
        self.timeout_ms, self.bumped = entry.timeout_ms, entry.bumped
        self.began_ms, self.changed_ms = entry.began_ms, entry.changed_ms
        if entry.ended is not None:
            self.complete(committed=entry.ended == "commit")
        self.restored = True

    def complete(self, *, committed: bool) -> None:
        """Every partition has its marker: the transaction is over."""
        self.state = State.COMPLETE_COMMIT if committed else State.COMPLETE_ABORT
        if self.next_producer != NOBODY:
            self.previous_producer, self.producer, self.epoch = self.producer, self.next_producer, 0
            self.next_producer = NOBODY
        self.partitions.clear()
        self.groups.clear()

    def entry(self, *, ended: bool | None, decides: bool = True) -> TransactionEntry:
        """What to write; ``ended`` is whether the last transaction was committed, if there is one."""
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
            touched=tuple(self.unsynced.values()),
        )


def group_bytes(group_id: str) -> int:
    """What a group of a transaction takes: its id and a place in a set."""
    return 128 + text_bytes(group_id)
