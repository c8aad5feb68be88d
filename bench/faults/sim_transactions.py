"""Simulated transactional producers, and the oracle of what readers of committed records may see.

A transaction writes to several partitions and commits an offset. Whatever the broker goes through, a reader of
committed records finds all of it or nothing: all, once its commit was answered; nothing, if it was aborted or nobody
asked for its commit. One whose commit was asked for and not answered may be either, but is the same everywhere, and
from the first sight of it on for good.

The producers' memory outlives the broker's process. After a crash each goes on where it was, sending again what was
not answered, or begins anew as a successor of itself.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from bench.faults.batches import build_batch
from bench.faults.sim_book import Objections, Sent, Stored
from bench.faults.sim_door import Door, Fetched
from bench.faults.sim_writers import Target, some_values

if TYPE_CHECKING:
    from bench.faults.sim_scene import Scene

__all__ = ["TransactionalWriter", "Transactions", "committed_batches"]

_CONCURRENT, _UNKNOWN_TOPIC, _STORAGE = 51, 3, 56
_TRIES = 200
_TRY_AGAIN_S = 0.05
_PROGRESS_TOPIC = "kept"

Fate = Literal["open", "asked", "committed", "aborted"]


@dataclass(slots=True, eq=False)
class Part:
    target: Target
    batch: bytes
    sent: Sent
    answered: bool = False


@dataclass(slots=True, eq=False)
class Transaction:
    writer: str
    number: int
    parts: list[Part] = field(default_factory=list)
    fate: Fate = "open"
    offset_in: bytes | None = None
    """Id of the topic for which it commits an offset, which is its number."""
    offset_answered: bool = True

    def __str__(self) -> str:
        return f"transaction {self.number} of {self.writer}"


class TransactionalWriter:
    def __init__(self, name: str, scene: Scene, book: Transactions) -> None:
        self.name = name
        self.in_flight = 0
        self._scene = scene
        self._book = book
        self._rng: random.Random = scene.rng
        self._producer: tuple[int, int] | None = None
        self._sequences: dict[tuple[bytes, int], int] = {}
        self._current: Transaction | None = None
        self._asked: bool | None = None
        self._hurt = False
        """Part of the transaction was refused, so it can only be aborted."""

    @property
    def place(self) -> tuple[str, str, int]:
        return f"progress-{self.name}", _PROGRESS_TOPIC, 0

    def forget(self) -> None:
        """As a client that was started anew."""
        if self._current is not None and self._current.fate == "open":
            self._current.fate = "aborted"
        self._producer = self._current = self._asked = None
        self._sequences.clear()
        self._hurt = False

    async def step(self, door: Door) -> None:
        """Some of a transaction, at times all of it."""
        self.in_flight += 1
        if self._producer is not None and self._rng.random() < 0.1:
            self.forget()
        if self._producer is not None or await self._begin(door):
            if self._asked is None:
                await self._write(door)
            if self._asked is not None or self._rng.random() < 0.8:
                await self._end(door)
        self.in_flight -= 1

    async def finish(self, door: Door) -> None:
        """Leave nothing open."""
        self.forget()
        await self._begin(door)

    async def _begin(self, door: Door) -> bool:
        for _ in range(_TRIES):
            error, producer_id, epoch = await door.take_id(self.name)
            if error != _CONCURRENT:
                break
            await asyncio.sleep(_TRY_AGAIN_S)
        if error:
            self._book.hear(self, "InitProducerId", error)
            return False
        self._book.check_taken(self.name, producer_id, epoch)
        self._producer = (producer_id, epoch)
        return True

    async def _write(self, door: Door) -> None:
        assert self._producer is not None
        if self._current is None:
            self._current = self._book.begin(self.name)
            self._hurt = False
        transaction = self._current
        for _ in range(self._rng.choice((0, 1, 1, 2, 3)) or int(not transaction.parts)):
            target = self._scene.any_target()
            if target is not None:
                self._add(transaction, target)
        unanswered = [part for part in transaction.parts if not part.answered]
        if not all(self._book.is_there(part.target) for part in unanswered):
            # What is sent again would go to another topic of the same name.
            self._hurt = True
            return
        # All are appended before any answer is waited for.
        begun = [
            (part, door.begin_produce(part.target.topic, part.target.partition, part.batch, as_id=self.name))
            for part in unanswered
        ]
        for part, produced in begun:
            error, offset = await door.answer(produced)
            if error:
                self._hurt = True
                self._book.hear(self, "Produce", error, part.target)
            else:
                part.answered = True
                part.target.book.ack(part.sent, offset, self._scene.machine.clock.steady())
        await self._write_offset(door, transaction, self._producer)

    async def _write_offset(self, door: Door, transaction: Transaction, producer: tuple[int, int]) -> None:
        fact = self._scene.topics[_PROGRESS_TOPIC].sure
        if not transaction.offset_answered and (fact is None or fact.id != transaction.offset_in):
            # The topic is another one now, and the client's request to the old one was never answered.
            self._hurt = True
        if fact is None or self._hurt or (transaction.offset_answered and self._rng.random() < 0.5):
            return
        transaction.offset_in, transaction.offset_answered = fact.id, False
        error = await door.commit_in(self.name, producer, self.place, transaction.number)
        transaction.offset_answered = not error
        if error:
            self._hurt = True
            if error != _UNKNOWN_TOPIC:
                self._book.hear(self, "TxnOffsetCommit", error)

    def _add(self, transaction: Transaction, target: Target) -> None:
        assert self._producer is not None
        values = some_values(self._rng, target.book)
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
        part = Part(target, batch, target.book.send(batch, len(values)))
        transaction.parts.append(part)
        self._book.by_body[part.sent.body] = transaction

    async def _end(self, door: Door) -> None:
        transaction = self._current
        assert self._producer is not None
        if transaction is None or not (transaction.parts or transaction.offset_in):
            return
        if self._asked is None:
            self._asked = not self._hurt and self._rng.random() < 0.7
            transaction.fate = "asked" if self._asked else "aborted"
        for _ in range(_TRIES):
            error, *producer = await door.end_transaction(self.name, self._producer, commit=self._asked)
            if error != _CONCURRENT:
                break
            await asyncio.sleep(_TRY_AGAIN_S)
        if error:
            self._book.hear(self, "EndTxn", error)
            self.forget()
            return
        if self._asked:
            self._book.see(transaction, committed=True)
        self._producer = (producer[0], producer[1])
        self._current = self._asked = None
        self._sequences.clear()


class Transactions:
    """All transactions of a scene, and what was seen of them."""

    def __init__(self, scene: Scene, objections: Objections, writers: int = 2) -> None:
        self.all: list[Transaction] = []
        self.by_body: dict[bytes, Transaction] = {}
        self.writers = [TransactionalWriter(f"tx-{number}", scene, self) for number in range(writers)]
        self._scene = scene
        self._objections = objections
        self._taken: dict[str, tuple[int, int]] = {}
        # No number is used twice, whatever is forgotten: offsets that were committed before may still be there.
        self._numbers = itertools.count()

    def begin(self, writer: str) -> Transaction:
        transaction = Transaction(writer, next(self._numbers))
        self.all.append(transaction)
        return transaction

    def ended(self, fate: Fate) -> int:
        return sum(transaction.fate == fate for transaction in self.all)

    def void(self) -> None:
        """The broker was allowed to lose what it acknowledged: nothing can be held against it any more."""
        for writer in self.writers:
            writer.forget()
        self.all.clear()
        self.by_body.clear()
        self._taken.clear()

    # What clients hear and see

    def hear(self, writer: TransactionalWriter, what: str, error: int, target: Target | None = None) -> None:
        if target is not None and error in (_UNKNOWN_TOPIC, _STORAGE) and not self.is_there(target):
            return
        self._object(f"{what} of {writer.name} was answered with error {error}")

    def check_taken(self, name: str, producer_id: int, epoch: int) -> None:
        """Nobody is given an id and epoch that somebody had before."""
        last = self._taken.get(name)
        others = {taken[0] for other, taken in self._taken.items() if other != name}
        if producer_id in others or (last is not None and last[0] == producer_id and last[1] >= epoch):
            self._object(f"{name} was given {producer_id}, {epoch} after {last}")
        self._taken[name] = (producer_id, epoch)

    def give(self, batches: list[Stored]) -> None:
        """A reader of committed records was given these."""
        for one in batches:
            transaction = self.by_body.get(one.body)
            if transaction is not None:
                self.see(transaction, committed=True)

    def see(self, transaction: Transaction, *, committed: bool) -> None:
        shown: Fate = "committed" if committed else "aborted"
        if transaction.fate == "asked":
            transaction.fate = shown
        elif committed and transaction.fate != "committed":
            self._object(f"{transaction} is {transaction.fate}, and is shown to readers")
        elif not committed and transaction.fate == "committed":
            self._objections.lost += 1
            self._object(f"{transaction} was committed, and is not shown to readers")

    # What is held against it

    async def judge(self, door: Door, *, all_settled: bool = False) -> None:
        """Read every partition as a reader of committed records does. ``all_settled``: no transaction is open."""
        if not self.writers:
            return
        shown: dict[Transaction, set[bool]] = {}
        for target in self._scene.all_targets():
            if all_settled:
                await self._wait_until_stable(door, target)
            view = await committed_view(door, target, self._rng_bytes())
            if view is None:
                self._object(f"committed records of {target.topic}-{target.partition} cannot be read")
                continue
            seen = {one.body for one in view.batches}
            every = await door.read_all(target.topic, target.partition)
            for one in every.batches:
                transaction = self.by_body.get(one.body)
                if transaction is not None and view.start <= one.base < view.end:
                    shown.setdefault(transaction, set()).add(one.body in seen)
        await self._judge_offsets(door, shown)
        for transaction, ways in shown.items():
            if len(ways) > 1:
                self._object(f"{transaction} is shown to readers in part")
            for committed in ways:
                self.see(transaction, committed=committed)

    async def _wait_until_stable(self, door: Door, target: Target) -> None:
        """Markers are synced a moment after the end of their transaction was answered."""
        for _ in range(_TRIES):
            stable = (await door.fetch(target.topic, target.partition, 0, 0, committed=True)).end
            _, end = await door.range(target.topic, target.partition)
            if stable in (-1, end):
                return
            await asyncio.sleep(_TRY_AGAIN_S)
        self._object(f"{target.topic}-{target.partition} is stable to {stable} of {end}, and nothing is open")

    async def _judge_offsets(self, door: Door, shown: dict[Transaction, set[bool]]) -> None:
        fact = self._scene.topics[_PROGRESS_TOPIC].sure
        if fact is None:
            return
        for writer in self.writers:
            found = await door.committed(*writer.place)
            mine = [t for t in self.all if t.writer == writer.name and t.offset_in == fact.id]
            for transaction in reversed(mine):
                if transaction.number == found:
                    shown.setdefault(transaction, set()).add(True)
                    break
                # An offset that is not there may still come, unless the records say that all is settled.
                if transaction in shown or transaction.fate == "committed":
                    shown.setdefault(transaction, set()).add(False)

    def _rng_bytes(self) -> int:
        return self._scene.rng.choice((0, 500, 1 << 20))

    def is_there(self, target: Target) -> bool:
        fact = self._scene.topics[target.topic].sure
        return fact is not None and fact.id == target.key[0]

    def _object(self, problem: str) -> None:
        self._objections.object(problem)


async def committed_view(door: Door, target: Target, max_bytes: int) -> Fetched | None:
    """All that a reader of committed records is shown of a partition, and the range in which it looked."""
    offset, _ = await door.range(target.topic, target.partition)
    start, end = offset, offset
    shown: list[Stored] = []
    while True:
        piece = await door.fetch(target.topic, target.partition, offset, max_bytes, committed=True)
        if piece.error:
            return None
        end = piece.end
        if not piece.batches:
            return Fetched(0, shown, start, end)
        shown += committed_batches(piece)
        offset = piece.batches[-1].next


def committed_batches(piece: Fetched) -> list[Stored]:
    """What a client hands to its user: not the markers, and not what lies between the first offset and the marker of
    an aborted transaction.
    """
    shown = []
    waiting = list(piece.aborted)
    aborted: set[int] = set()
    for one in piece.batches:
        while waiting and waiting[0][0] < one.next:
            aborted.add(waiting.pop(0)[1])
        if one.is_marker:
            if one.is_abort:
                aborted.discard(one.producer)
        elif not (one.is_transactional and one.producer in aborted):
            shown.append(one)
    return shown
