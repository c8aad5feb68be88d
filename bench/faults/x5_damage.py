"""X5, damaged files: a bit flipped, a block zeroed, a file cut short or gone, for every kind of file that there is.

A run fills a simulated data directory, stops cleanly (or, for the unsynced tail, is killed), damages one file, and
starts again. The oracle reads the file with its own eyes first, so it knows which batches were hit.

    log         synced data is never cut: error 2 for the batches that were hit, with file and position in what the
                broker logs; all others are readable, before and behind; appends go on behind the last offset
    tail        what nobody was told of is cut, or kept as far as it is whole
    index       made again            state      made again, and producers are known as before
    mark        one slot is enough, also behind a deletion; with none the partition is offline, and the others go on
    identity, topics, groups          the start is refused, never begun empty; nothing is changed by it
"""

from __future__ import annotations

import json
import random
from collections.abc import Collection
from pathlib import Path

import crc32c

from bench.faults.batches import build_batch
from bench.faults.outcome import Outcome
from bench.faults.sim_book import Objections, Stored
from bench.faults.sim_damage import HARMS, Harm, batches_in, changed_ranges, contents, has_slot
from bench.faults.sim_door import DATA, Door
from bench.faults.sim_judge import judge
from bench.faults.sim_machine import Machine
from bench.faults.sim_scene import Scene
from bench.faults.sim_unprotected import without_protection
from bench.faults.sim_writers import Target
from headrace.errors import DataDirError

__all__ = ["CASES", "UNPROTECTED", "run"]

FAULT = "X5"
UNPROTECTED = {
    "check-on-read": r"is damaged, and was given to a reader",
    "both-slots": r"cannot be read, error 2|and \d+ was promised",
}
KINDS = ("log", "tail", "index", "state", "mark", "identity", "topics", "groups")
CASES = [(kind, harm) for kind in KINDS for harm in HARMS]
# What shows that a protection is missing.
_SHOWN_BY = {"check-on-read": ("log", "flip"), "both-slots": ("mark", "zero")}
_CORRUPT, _STORAGE = 2, 56


class _Run:
    def __init__(self, seed: int, kind: str, harm: Harm) -> None:
        self.rng = random.Random(f"{FAULT} {seed}")
        self.seed = seed
        self.kind = kind
        self.harm = harm
        self.objections = Objections()
        self.machine = Machine(seed, self.objections.object)
        self.scene = Scene(seed, self.machine, self.objections)
        self.target: Target | None = None
        self.path = DATA
        self.hit = False
        self.before: dict[Path, bytes] = {}

    def whole(self) -> None:
        machine, scene = self.machine, self.scene
        machine.life(lambda: scene.live(steps=20))
        machine.end("kill")
        machine.life(self._prepare)
        machine.end("kill")
        if not self._choose() or self.objections.problems:
            return
        self._damage()
        machine.life(self._start_and_look)
        if self.objections.problems or self.kind in ("identity", "topics", "groups"):
            return
        # What was found must be the same after the next start, and the power may go as well.
        machine.end("power loss")
        machine.life(self._start_and_look)

    # Before

    async def _prepare(self) -> None:
        """A topic of its own for the damage: several segments, several producers, a little of everything."""
        door = self.scene.open_door()
        await door.start()
        await judge(self.scene, door)
        name = "kept"
        if self.scene.topics[name].sure is None:
            await self.scene.create(door, name)
        fact = self.scene.topics[name].sure
        assert fact is not None
        self.target = self.scene.target_of(name, fact, 0)
        for _ in range(self.rng.randint(6, 14)):
            await self.scene.idempotent[0].write(door, self.target)
            await self.scene.plain.write(door, self.target)
        if self.kind == "tail":
            # The marks are synced; then come batches that no sync has covered when the process is killed.
            for partition in door.broker.partitions.all():
                partition[2].log.sync_mark()
            for _ in range(self.rng.randint(1, 6)):
                self.scene.plain.write_now(door, self.target)
        else:
            if self.kind == "mark":
                await self._delete_some(door, self.target)
            await door.stop()

    async def _delete_some(self, door: Door, target: Target) -> None:
        """Files go, and no sync of the data follows that would bring the mark's other slot up to date."""
        start, end = await door.range(target.topic, target.partition)
        offset = self.rng.randint((start + end) // 2, end)
        target.book.allow_start(offset)
        error, start = await door.delete_records(target.topic, target.partition, offset)
        if error:
            self.objections.object(f"the deletion of what is below {offset} got error {error}")
        target.book.promise_start(start)

    def _choose(self) -> bool:
        """The file to damage."""
        assert self.target is not None
        files = self.machine.files
        home = DATA / "topics" / self.target.key[0].hex() / str(self.target.partition)
        if self.kind == "identity":
            self.path = DATA / "headrace.json"
            return True
        if self.kind in ("topics", "groups"):
            home = DATA / {"topics": "metadata", "groups": "groups"}[self.kind]
        suffix = {"index": ".index", "state": ".state", "mark": "mark"}.get(self.kind, ".log")
        if self.kind in ("topics", "groups"):
            suffix = self.rng.choice((".log", ".log", "mark", ".index", ".state"))
        found = [name for name in files.list(home) if name.endswith(suffix) and files.content(home / name)]
        if not found:
            return False
        self.path = home / (found[-1] if self.kind == "tail" else self.rng.choice(found))
        return True

    def _damage(self) -> None:
        files = self.machine.files
        content = files.content(self.path)
        first = 0
        if self.kind == "tail":
            stored = [at for at, one in batches_in(content) if self._is_known(one)]
            first = max((at + one.size for at, one in batches_in(content) if at in stored), default=0)
        harmed = self.harm.apply(files, self.path, self.rng, first)
        self.hit = harmed != content
        self.original, self.harmed = content, harmed
        self.before = contents(files, DATA)

    def _is_known(self, one: Stored) -> bool:
        assert self.target is not None
        sent = self.target.book.sent.get(one.body)
        return sent is not None and sent.offset is not None

    # Afterwards

    async def _start_and_look(self) -> None:
        refusable = self.kind in ("identity", "topics", "groups")
        try:
            door = self.scene.open_door()
            await door.start()
        except DataDirError as refusal:
            self._look_at_refusal(str(refusal), refusable=refusable)
            return
        if self.kind == "log":
            await self._look_at_log(door)
        elif self.kind == "mark" and not any(has_slot(self.harmed or b"", number) for number in (0, 1)):
            await self._look_at_offline(door)
        else:
            if refusable and self._must_refuse():
                self.objections.object(
                    f"{self.path} is damaged by {self.harm.name}, and the broker has started"
                )
            await judge(self.scene, door)
            if self.kind != "tail":
                await self._look_at_producers(door)
            await self.scene.work(door, 3)
        if self.kind not in ("log", "mark"):
            await door.stop()

    def _must_refuse(self) -> bool:
        if self.path.name == "mark":
            return not any(has_slot(self.harmed or b"", number) for number in (0, 1))
        if self.path.suffix in (".index", ".state"):
            return False
        if self.kind == "identity":
            return _parsed(self.harmed) != _parsed(self.original)
        # Of a batch's bytes only the leader epoch is neither checked nor needed in a journal.
        return any(
            not set(range(*changed)) <= {at + index for index in range(12, 16)}
            for at, one in batches_in(self.original)
            for changed in changed_ranges(self.original, self.harmed, at, at + one.size)
        )

    def _look_at_refusal(self, message: str, *, refusable: bool) -> None:
        if not refusable:
            self.objections.object(f"damage to {self.path} refused the whole start: {message}")
            return
        if "hint" not in message:
            self.objections.object(f"the refusal does not say what to do: {message}")
        after = contents(self.machine.files, DATA)
        for path in sorted(set(self.before) | set(after)):
            if self.before.get(path) != after.get(path) and path.name != "lock":
                self.objections.object(f"the refused start has changed {path}")

    async def _look_at_log(self, door: Door) -> None:
        """Each batch by itself: those that were hit are an error, all others are there."""
        assert self.target is not None
        target, book = self.target, self.target.book
        await judge(self.scene, door, but_not={target.key})
        damaged: dict[int, int] = {}
        spared: dict[int, int] = {}
        for at, one in batches_in(self.original):
            ranges = changed_ranges(self.original, self.harmed, at, at + one.size)
            touched = {index for start, stop in ranges for index in range(start - at, stop - at)}
            if touched and touched <= set(range(12, 16)):
                spared[one.base] = at
            elif touched:
                damaged[one.base] = at
        found: list[Stored] = []
        start, end = await door.range(target.topic, target.partition)
        for offset, count in book.places():
            if offset + count <= start:
                continue
            piece = await door.fetch(target.topic, target.partition, max(offset, start), 0)
            if piece.error == _CORRUPT and (offset in damaged or offset in spared):
                self._check_named([at for base, at in (damaged | spared).items() if base <= offset])
            elif piece.error or not piece.batches or piece.batches[0].base != offset:
                self.objections.object(
                    f"offset {offset} is answered with {piece}, damaged: {offset in damaged}"
                )
            elif offset in damaged:
                self.objections.object(f"offset {offset} is damaged, and was given to a reader")
            else:
                found += piece.batches[:1]
        book.check_gap(found, start, set(damaged | spared))
        await self._look_at_append(door, end)

    def _check_named(self, positions: Collection[int]) -> None:
        """One of the positions is named: where several batches in a row are hit, the first may stand for all."""
        said = self.machine.said
        if self.harmed is None and any(
            str(self.path.parent) in line and "is missing" in line for line in said
        ):
            return
        if not any(f"{self.path} at byte {position}:" in line for position in positions for line in said):
            self.objections.object(f"none of {positions} in {self.path} is named as damaged in {said}")

    async def _look_at_append(self, door: Door, end: int) -> None:
        assert self.target is not None
        batch = build_batch(
            [b"behind the damage %d" % len(self.target.book.sent)], self.machine.clock.now_ms()
        )
        sent = self.target.book.send(batch, 1)
        error, offset = await door.produce(self.target.topic, self.target.partition, batch)
        if error or offset != end:
            self.objections.object(
                f"an append behind damage got error {error} and offset {offset}, not {end}"
            )
            return
        self.target.book.ack(sent, offset, self.machine.clock.steady())
        piece = await door.fetch(self.target.topic, self.target.partition, offset, 0)
        if piece.error or piece.batches[0].body != sent.body:
            self.objections.object(f"what was appended behind the damage is answered with {piece}")

    async def _look_at_offline(self, door: Door) -> None:
        assert self.target is not None
        target = self.target
        await judge(self.scene, door, but_not={target.key})
        error, _ = await door.produce(target.topic, target.partition, build_batch([b"x"], 0))
        piece = await door.fetch(target.topic, target.partition, 0)
        if error != _STORAGE or piece.error != _STORAGE:
            self.objections.object(f"a partition without its mark answers {error} and {piece.error}")
        home = self.path.parent
        after = contents(self.machine.files, home)
        if after != {path: data for path, data in self.before.items() if path.parent == home}:
            self.objections.object(f"the files in {home} were changed, though the partition is offline")
        if not any(str(home) in line for line in self.machine.said):
            self.objections.object(f"the partition in {home} is offline, and nobody was told")

    async def _look_at_producers(self, door: Door) -> None:
        """The last batch of an idempotent producer is known again, wherever it was remembered."""
        assert self.target is not None
        last = [
            one for one in self.target.book.sent.values() if one.producer >= 0 and one.offset is not None
        ][-1:]
        start, _ = await door.range(self.target.topic, self.target.partition)
        for one in last:
            assert one.offset is not None
            if one.offset < start:
                continue
            head = bytes(8) + (len(one.body) + 9).to_bytes(4, "big") + b"\xff\xff\xff\xff\x02"
            batch = head + _crc_of(one.body) + one.body
            error, offset = await door.produce(self.target.topic, self.target.partition, batch)
            if (error, offset) != (0, one.offset):
                self.objections.object(f"batch {one.number} was sent again: error {error}, offset {offset}")


def _parsed(identity: bytes | None) -> object:
    try:
        return json.loads(identity or b"")
    except ValueError:
        return None


def _crc_of(body: bytes) -> bytes:
    return int(crc32c.crc32c(body)).to_bytes(4, "big")


def run(
    seed: int, *, protected: bool = True, without: str = "check-on-read", case: tuple[str, Harm] | None = None
) -> Outcome:
    outcome = Outcome(FAULT, seed)
    kind, harm = case or CASES[seed % len(CASES)]
    if not protected:
        kind, harm = next(case for case in CASES if (case[0], case[1].name) == _SHOWN_BY[without])
    one = _Run(seed, kind, harm)
    with without_protection(None if protected else without):
        one.whole()
    one.objections.tell(outcome)
    outcome.hits += one.hit
    outcome.problems = [f"{kind}, {harm.name}: {problem}" for problem in outcome.problems]
    return outcome
