"""Simulated transactional producers, and the oracle of what readers of committed records may see.

A transaction writes to several partitions and commits an offset. Whatever happens to the broker, a read-committed
reader must find all of the transaction or nothing: all, if its commit was acknowledged; nothing, if it was aborted or
its commit was never requested. If the commit request got no response, both outcomes are allowed, but all partitions and
all later readers must have the same outcome.

The producers' state survives the broker's crashes. After a crash each producer retries the requests without a response,
or starts over as its own successor.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from faults.protocol.batches import build_batch
from faults.simulation.partition_oracle import Findings, Sent, Stored
from faults.simulation.producers import Target, some_values
from faults.simulation.requests import Fetched, SimulatedBroker

if TYPE_CHECKING:
    from faults.simulation.scene import Scene

__all__ = ["TransactionalWriter", "Transactions", "committed_batches"]

_CONCURRENT, _UNKNOWN_TOPIC, _STORAGE = 51, 3, 56
_TRIES = 200
_RETRY_S = 0.05
_PROGRESS_TOPIC = "kept"

Fate = Literal["open", "requested", "committed", "aborted"]


@dataclass(slots=True, eq=False)
class TransactionPart:
    target: Target
    batch: bytes
    sent: Sent
    acknowledged: bool = False


@dataclass(slots=True, eq=False)
class Transaction:
    writer: str
    number: int
    parts: list[TransactionPart] = field(default_factory=list)
    fate: Fate = "open"
    offset_topic_id: bytes | None = None
    """The id of the topic for which it commits an offset. The offset is the transaction's number."""
    offset_acknowledged: bool = True

    def __str__(self) -> str:
        return f"transaction {self.number} of {self.writer}"


class TransactionalWriter:
    def __init__(self, name: str, scene: Scene, transactions: Transactions) -> None:
        self.name = name
        self.in_flight = 0
        self._scene = scene
        self._transactions = transactions
        self._rng: random.Random = scene.rng
        self._producer: tuple[int, int] | None = None
        self._sequences: dict[tuple[bytes, int], int] = {}
        self._current: Transaction | None = None
        self._commit_requested: bool | None = None
        self._must_abort = False
        """Whether a part of the transaction was refused, so that the writer must abort it."""

    @property
    def group_partition(self) -> tuple[str, str, int]:
        return f"progress-{self.name}", _PROGRESS_TOPIC, 0

    def start_over(self) -> None:
        """Start over like a restarted client."""
        if self._current is not None and self._current.fate == "open":
            self._current.fate = "aborted"
        self._producer = self._current = self._commit_requested = None
        self._sequences.clear()
        self._must_abort = False

    async def step(self, broker: SimulatedBroker) -> None:
        """Do a part of a transaction, sometimes all of it."""
        self.in_flight += 1
        if self._producer is not None and self._rng.random() < 0.1:
            self.start_over()
        if self._producer is not None or await self._init_producer(broker):
            if self._commit_requested is None:
                await self._write(broker)
            if self._commit_requested is not None or self._rng.random() < 0.8:
                await self._end(broker)
        self.in_flight -= 1

    async def finish(self, broker: SimulatedBroker) -> None:
        """End an open transaction."""
        self.start_over()
        await self._init_producer(broker)

    async def _init_producer(self, broker: SimulatedBroker) -> bool:
        for _ in range(_TRIES):
            error, producer_id, epoch = await broker.init_transactional_producer(self.name)
            if error != _CONCURRENT:
                break
            await asyncio.sleep(_RETRY_S)
        if error:
            self._transactions.report_error(self, "InitProducerId", error)
            return False
        self._transactions.check_ids(self.name, producer_id, epoch)
        self._producer = (producer_id, epoch)
        return True

    async def _write(self, broker: SimulatedBroker) -> None:
        assert self._producer is not None
        if self._current is None:
            self._current = self._transactions.begin(self.name)
            self._must_abort = False
        transaction = self._current
        for _ in range(self._rng.choice((0, 1, 1, 2, 3)) or int(not transaction.parts)):
            target = self._scene.any_target()
            if target is not None:
                self._add(transaction, target)
        unacknowledged = [part for part in transaction.parts if not part.acknowledged]
        if not all(self._transactions.exists(part.target) for part in unacknowledged):
            # The topic was deleted; a retry would go to another topic of the same name.
            self._must_abort = True
            return
        # Append all parts before waiting for any response.
        pending = [
            (
                part,
                broker.begin_produce(part.target.topic, part.target.partition, part.batch, as_id=self.name),
            )
            for part in unacknowledged
        ]
        for part, produced in pending:
            error, offset = await broker.answer(produced)
            if error:
                self._must_abort = True
                self._transactions.report_error(self, "Produce", error, part.target)
            else:
                part.acknowledged = True
                part.target.oracle.ack(part.sent, offset, self._scene.machine.clock.steady())
        await self._write_offset(broker, transaction, self._producer)

    async def _write_offset(
        self, broker: SimulatedBroker, transaction: Transaction, producer: tuple[int, int]
    ) -> None:
        fact = self._scene.topics[_PROGRESS_TOPIC].confirmed
        if not transaction.offset_acknowledged and (fact is None or fact.id != transaction.offset_topic_id):
            # The topic was replaced, and the request to the old one got no response.
            self._must_abort = True
        if fact is None or self._must_abort or (transaction.offset_acknowledged and self._rng.random() < 0.5):
            return
        transaction.offset_topic_id, transaction.offset_acknowledged = fact.id, False
        error = await broker.commit_in_transaction(
            self.name, producer, self.group_partition, transaction.number
        )
        transaction.offset_acknowledged = not error
        if error:
            self._must_abort = True
            if error != _UNKNOWN_TOPIC:
                self._transactions.report_error(self, "TxnOffsetCommit", error)

    def _add(self, transaction: Transaction, target: Target) -> None:
        assert self._producer is not None
        values = some_values(self._rng, target.oracle)
        sequence = self._sequences.get(target.key, 0)
        self._sequences[target.key] = sequence + len(values)
        producer_id, epoch = self._producer
        batch = build_batch(
            values,
            self._scene.machine.clock.now_ms(),
            producer_id=producer_id,
            epoch=epoch,
            sequence=sequence,
            transactional=True,
        )
        part = TransactionPart(target, batch, target.oracle.send(batch, len(values)))
        transaction.parts.append(part)
        self._transactions.by_body[part.sent.body] = transaction

    async def _end(self, broker: SimulatedBroker) -> None:
        transaction = self._current
        assert self._producer is not None
        if transaction is None or not (transaction.parts or transaction.offset_topic_id):
            return
        if self._commit_requested is None:
            self._commit_requested = not self._must_abort and self._rng.random() < 0.7
            transaction.fate = "requested" if self._commit_requested else "aborted"
        for _ in range(_TRIES):
            error, *producer = await broker.end_transaction(
                self.name, self._producer, commit=self._commit_requested
            )
            if error != _CONCURRENT:
                break
            await asyncio.sleep(_RETRY_S)
        if error:
            self._transactions.report_error(self, "EndTxn", error)
            self.start_over()
            return
        if self._commit_requested:
            self._transactions.record_outcome(transaction, committed=True)
        self._producer = (producer[0], producer[1])
        self._current = self._commit_requested = None
        self._sequences.clear()


class Transactions:
    """All transactions of a scene, and which of them readers saw."""

    def __init__(self, scene: Scene, findings: Findings, writers: int = 2) -> None:
        self.all: list[Transaction] = []
        self.by_body: dict[bytes, Transaction] = {}
        self.writers = [TransactionalWriter(f"tx-{number}", scene, self) for number in range(writers)]
        self._scene = scene
        self._findings = findings
        self._newest_ids: dict[str, tuple[int, int]] = {}
        # Numbers are never reused, because offsets that were committed before might still exist.
        self._numbers = itertools.count()

    def begin(self, writer: str) -> Transaction:
        transaction = Transaction(writer, next(self._numbers))
        self.all.append(transaction)
        return transaction

    def count(self, fate: Fate) -> int:
        return sum(transaction.fate == fate for transaction in self.all)

    def clear(self) -> None:
        """Forget all transactions, because the broker was allowed to lose acknowledged data."""
        for writer in self.writers:
            writer.start_over()
        self.all.clear()
        self.by_body.clear()
        self._newest_ids.clear()

    # Responses and deliveries

    def report_error(
        self, writer: TransactionalWriter, what: str, error: int, target: Target | None = None
    ) -> None:
        if target is not None and error in (_UNKNOWN_TOPIC, _STORAGE) and not self.exists(target):
            return
        self._report_problem(f"{what} of {writer.name} got error {error}")

    def check_ids(self, name: str, producer_id: int, epoch: int) -> None:
        """No client may get an id and epoch that another client had before."""
        last = self._newest_ids.get(name)
        others = {ids[0] for other, ids in self._newest_ids.items() if other != name}
        if producer_id in others or (last is not None and last[0] == producer_id and last[1] >= epoch):
            self._report_problem(f"{name} got producer id {producer_id} and epoch {epoch} after {last}")
        self._newest_ids[name] = (producer_id, epoch)

    def record_delivery(self, batches: list[Stored]) -> None:
        """Record that a read-committed reader received these batches."""
        for batch in batches:
            transaction = self.by_body.get(batch.body)
            if transaction is not None:
                self.record_outcome(transaction, committed=True)

    def record_outcome(self, transaction: Transaction, *, committed: bool) -> None:
        observed: Fate = "committed" if committed else "aborted"
        if transaction.fate == "requested":
            transaction.fate = observed
        elif committed and transaction.fate != "committed":
            self._report_problem(f"{transaction} is {transaction.fate}, but is visible to readers")
        elif not committed and transaction.fate == "committed":
            self._findings.lost += 1
            self._report_problem(f"{transaction} was committed, but is not visible to readers")

    # Checks

    async def judge(self, broker: SimulatedBroker, *, all_ended: bool = False) -> None:
        """Read every partition as a read-committed reader does. ``all_settled``: no transaction is open."""
        if not self.writers:
            return
        outcomes: dict[Transaction, set[bool]] = {}
        for target in self._scene.all_targets():
            if all_ended:
                await self._wait_until_stable(broker, target)
            view = await committed_view(broker, target, self._rng_bytes())
            if view is None:
                self._report_problem(f"committed records of {target.topic}-{target.partition} cannot be read")
                continue
            visible_bodies = {batch.body for batch in view.batches}
            all_records = await broker.read_all(target.topic, target.partition)
            for other in all_records.batches:
                transaction = self.by_body.get(other.body)
                if transaction is not None and view.start <= other.base < view.end:
                    outcomes.setdefault(transaction, set()).add(other.body in visible_bodies)
        await self._judge_offsets(broker, outcomes)
        for transaction, outcomes_seen in outcomes.items():
            if len(outcomes_seen) > 1:
                self._report_problem(f"{transaction} is partly visible to readers")
            for committed in outcomes_seen:
                self.record_outcome(transaction, committed=committed)

    async def _wait_until_stable(self, broker: SimulatedBroker, target: Target) -> None:
        """Wait until the last stable offset is the end: markers are synced shortly after the response to EndTxn."""
        for _ in range(_TRIES):
            stable = (await broker.fetch(target.topic, target.partition, 0, 0, committed=True)).end
            _, end = await broker.range(target.topic, target.partition)
            if stable in (-1, end):
                return
            await asyncio.sleep(_RETRY_S)
        self._report_problem(
            f"{target.topic}-{target.partition} is stable to {stable} of {end}, but no transaction is open"
        )

    async def _judge_offsets(self, broker: SimulatedBroker, outcomes: dict[Transaction, set[bool]]) -> None:
        fact = self._scene.topics[_PROGRESS_TOPIC].confirmed
        if fact is None:
            return
        for writer in self.writers:
            offset = await broker.committed(*writer.group_partition)
            own_transactions = [
                transaction_of_writer
                for transaction_of_writer in self.all
                if transaction_of_writer.writer == writer.name
                and transaction_of_writer.offset_topic_id == fact.id
            ]
            for transaction in reversed(own_transactions):
                if transaction.number == offset:
                    outcomes.setdefault(transaction, set()).add(True)
                    break
                # A missing offset might still become visible, unless the records show that the transaction has ended.
                if transaction in outcomes or transaction.fate == "committed":
                    outcomes.setdefault(transaction, set()).add(False)

    def _rng_bytes(self) -> int:
        return self._scene.rng.choice((0, 500, 1 << 20))

    def exists(self, target: Target) -> bool:
        fact = self._scene.topics[target.topic].confirmed
        return fact is not None and fact.id == target.key[0]

    def _report_problem(self, problem: str) -> None:
        self._findings.report_problem(problem)


async def committed_view(broker: SimulatedBroker, target: Target, max_bytes: int) -> Fetched | None:
    """Return everything that a read-committed reader sees of a partition, and the range that it read."""
    offset, _ = await broker.range(target.topic, target.partition)
    start, end = offset, offset
    visible: list[Stored] = []
    while True:
        piece = await broker.fetch(target.topic, target.partition, offset, max_bytes, committed=True)
        if piece.error:
            return None
        end = piece.end
        if not piece.batches:
            return Fetched(0, visible, start, end)
        visible += committed_batches(piece)
        offset = piece.batches[-1].next


def committed_batches(piece: Fetched) -> list[Stored]:
    """Return what a client delivers: neither markers, nor records between the first offset and the marker of an aborted
    transaction.
    """
    visible = []
    pending_aborts = list(piece.aborted)
    aborted: set[int] = set()
    for batch in piece.batches:
        while pending_aborts and pending_aborts[0][0] < batch.next:
            aborted.add(pending_aborts.pop(0)[1])
        if batch.is_marker:
            if batch.is_abort:
                aborted.discard(batch.producer)
        elif not (batch.is_transactional and batch.producer in aborted):
            visible.append(batch)
    return visible
