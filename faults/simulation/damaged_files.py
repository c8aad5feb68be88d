"""Fault X5, damaged files: a bit flipped, a block zeroed, a file truncated or deleted, for every kind of file.

A run fills a simulated data directory and stops the broker cleanly, or kills it if the unsynced tail is to be damaged.
Then it damages one file and starts the broker again. The oracle compares the file before and after the damage, so it
knows which batches were damaged.

    log         synced data is never truncated: damaged batches get error 2, and the broker logs file and position; all
                    other batches are readable; appends continue after the last offset
        tail        unacknowledged data is truncated, or kept up to the first incomplete batch
        index       the broker rebuilds it
        state       the broker rebuilds it, and still recognises the producers
        mark        one valid slot is enough, also after a deletion; without a valid slot the partition is offline, and
                    others continue
        identity, topics, groups    the start is refused and changes nothing; the broker never starts empty
"""

from __future__ import annotations

import json
import random
from collections.abc import Collection
from pathlib import Path

import crc32c

from faults.outcome import Outcome
from faults.protocol.batches import build_batch
from faults.simulation.damage import DAMAGES, Damage, batches_in, changed_ranges, contents, has_slot
from faults.simulation.machine import Machine
from faults.simulation.partition_oracle import Findings, Stored
from faults.simulation.producers import Target
from faults.simulation.requests import DATA, SimulatedBroker
from faults.simulation.scene import Scene
from faults.simulation.start_oracle import judge
from faults.simulation.unprotected import without_protection
from headrace.errors import DataDirError

__all__ = ["CASES", "UNPROTECTED", "run"]

FAULT = "X5"
UNPROTECTED = {
    "check-on-read": r"is damaged, but was delivered to a reader",
    "both-slots": r"cannot be read, error 2|but \d+ was acknowledged",
}
KINDS = ("log", "tail", "index", "state", "mark", "identity", "topics", "groups")
CASES = [(kind, damage) for kind in KINDS for damage in DAMAGES]
# The cases that must report a problem without the protection.
_REVEALED_BY = {"check-on-read": ("log", "flip"), "both-slots": ("mark", "zero")}
_CORRUPT, _STORAGE = 2, 56


class _Run:
    def __init__(self, seed: int, kind: str, damage: Damage) -> None:
        self.rng = random.Random(f"{FAULT} {seed}")
        self.seed = seed
        self.kind = kind
        self.damage = damage
        self.findings = Findings()
        self.machine = Machine(seed, self.findings.report_problem)
        self.scene = Scene(seed, self.machine, self.findings)
        self.target: Target | None = None
        self.path = DATA
        self.is_damaged = False
        self.before: dict[Path, bytes] = {}

    def run_all(self) -> None:
        machine, scene = self.machine, self.scene
        machine.run_process(lambda: scene.run_broker(steps=20))
        machine.end("kill")
        machine.run_process(self._prepare)
        machine.end("kill")
        if not self._choose_file() or self.findings.problems:
            return
        self._damage()
        machine.run_process(self._start_and_judge)
        if self.findings.problems or self.kind in ("identity", "topics", "groups"):
            return
        # The next start must find the same state, also after a power loss.
        machine.end("power loss")
        machine.run_process(self._start_and_judge)

    # Preparation

    async def _prepare(self) -> None:
        """Fill a topic for the damage, with several segments and several producers."""
        broker = self.scene.create_broker()
        await broker.start()
        await judge(self.scene, broker)
        name = "kept"
        if self.scene.topics[name].confirmed is None:
            await self.scene.create(broker, name)
        fact = self.scene.topics[name].confirmed
        assert fact is not None
        self.target = self.scene.target_of(name, fact, 0)
        for _ in range(self.rng.randint(6, 14)):
            await self.scene.idempotent[0].write(broker, self.target)
            await self.scene.plain.write(broker, self.target)
        if self.kind == "tail":
            # Sync the marks, then write batches that no sync covers when the process is killed.
            for partition in broker.inner.partitions.all():
                partition[2].log.sync_mark()
            for _ in range(self.rng.randint(1, 6)):
                self.scene.plain.write_now(broker, self.target)
        else:
            if self.kind == "mark":
                await self._delete_records(broker, self.target)
            await broker.stop()

    async def _delete_records(self, broker: SimulatedBroker, target: Target) -> None:
        """Delete records, so that files are deleted. Do not write after this: the next sync of the data would update
        the mark's other slot, too.
        """
        start, end = await broker.range(target.topic, target.partition)
        offset = self.rng.randint((start + end) // 2, end)
        target.oracle.allow_start(offset)
        error, start = await broker.delete_records(target.topic, target.partition, offset)
        if error:
            self.findings.report_problem(f"deleting the records below {offset} got error {error}")
        target.oracle.promise_start(start)

    def _choose_file(self) -> bool:
        """Choose the file to damage. Return False if no such file exists."""
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
        names = [name for name in files.list(home) if name.endswith(suffix) and files.content(home / name)]
        if not names:
            return False
        self.path = home / (names[-1] if self.kind == "tail" else self.rng.choice(names))
        return True

    def _damage(self) -> None:
        files = self.machine.files
        content = files.content(self.path)
        first = 0
        if self.kind == "tail":
            stored = [at for at, batch in batches_in(content) if self._is_acknowledged(batch)]
            first = max((at + batch.size for at, batch in batches_in(content) if at in stored), default=0)
        damaged_content = self.damage.apply(files, self.path, self.rng, first)
        self.is_damaged = damaged_content != content
        self.original, self.damaged_content = content, damaged_content
        self.before = contents(files, DATA)

    def _is_acknowledged(self, stored: Stored) -> bool:
        assert self.target is not None
        sent = self.target.oracle.sent.get(stored.body)
        return sent is not None and sent.offset is not None

    # After the damage

    async def _start_and_judge(self) -> None:
        may_refuse = self.kind in ("identity", "topics", "groups")
        try:
            broker = self.scene.create_broker()
            await broker.start()
        except DataDirError as refusal:
            self._judge_refusal(str(refusal), may_refuse=may_refuse)
            return
        if self.kind == "log":
            await self._judge_log(broker)
        elif self.kind == "mark" and not any(
            has_slot(self.damaged_content or b"", number) for number in (0, 1)
        ):
            await self._judge_offline(broker)
        else:
            if may_refuse and self._must_refuse():
                self.findings.report_problem(
                    f"{self.path} is damaged by {self.damage.name}, but the broker has started"
                )
            await judge(self.scene, broker)
            if self.kind != "tail":
                await self._judge_producers(broker)
            await self.scene.work(broker, 3)
        if self.kind not in ("log", "mark"):
            await broker.stop()

    def _must_refuse(self) -> bool:
        if self.path.name == "mark":
            return not any(has_slot(self.damaged_content or b"", number) for number in (0, 1))
        if self.path.suffix in (".index", ".state"):
            return False
        if self.kind == "identity":
            return _parse_json(self.damaged_content) != _parse_json(self.original)
        # In a journal, the leader epoch is the only part of a batch that is neither checked nor needed.
        return any(
            not set(range(*changed)) <= {at + index for index in range(12, 16)}
            for at, batch in batches_in(self.original)
            for changed in changed_ranges(self.original, self.damaged_content, at, at + batch.size)
        )

    def _judge_refusal(self, message: str, *, may_refuse: bool) -> None:
        if not may_refuse:
            self.findings.report_problem(
                f"the broker did not start because of the damage to {self.path}: {message}"
            )
            return
        if "hint" not in message:
            self.findings.report_problem(f"the error has no hint about what to do: {message}")
        after = contents(self.machine.files, DATA)
        for path in sorted(set(self.before) | set(after)):
            if self.before.get(path) != after.get(path) and path.name != "lock":
                self.findings.report_problem(f"the refused start has changed {path}")

    async def _judge_log(self, broker: SimulatedBroker) -> None:
        """Fetch each batch separately: a damaged batch must get an error, all others must exist."""
        assert self.target is not None
        target, oracle = self.target, self.target.oracle
        await judge(self.scene, broker, checked_elsewhere={target.key})
        damaged: dict[int, int] = {}
        epoch_only: dict[int, int] = {}
        for at, batch in batches_in(self.original):
            ranges = changed_ranges(self.original, self.damaged_content, at, at + batch.size)
            changed_bytes = {index for start, stop in ranges for index in range(start - at, stop - at)}
            if changed_bytes and changed_bytes <= set(range(12, 16)):
                epoch_only[batch.base] = at
            elif changed_bytes:
                damaged[batch.base] = at
        batches: list[Stored] = []
        start, end = await broker.range(target.topic, target.partition)
        for offset, count in oracle.ranges():
            if offset + count <= start:
                continue
            piece = await broker.fetch(target.topic, target.partition, max(offset, start), 0)
            if piece.error == _CORRUPT and (offset in damaged or offset in epoch_only):
                self._check_damage_was_logged(
                    [at for base, at in (damaged | epoch_only).items() if base <= offset]
                )
            elif piece.error or not piece.batches or piece.batches[0].base != offset:
                self.findings.report_problem(
                    f"offset {offset} got the response {piece}, damaged: {offset in damaged}"
                )
            elif offset in damaged:
                self.findings.report_problem(f"offset {offset} is damaged, but was delivered to a reader")
            else:
                batches += piece.batches[:1]
        oracle.check_gap(batches, start, set(damaged | epoch_only))
        await self._judge_append(broker, end)

    def _check_damage_was_logged(self, positions: Collection[int]) -> None:
        """Check that the broker's log names one of the positions. One line is enough for several positions in a row."""
        output = self.machine.log_lines
        if self.damaged_content is None and any(
            str(self.path.parent) in line and "is missing" in line for line in output
        ):
            return
        if not any(f"{self.path} at byte {position}:" in line for position in positions for line in output):
            self.findings.report_problem(
                f"the log does not name any of {positions} in {self.path} as damaged: {output}"
            )

    async def _judge_append(self, broker: SimulatedBroker, end: int) -> None:
        assert self.target is not None
        batch = build_batch(
            [b"after the damage %d" % len(self.target.oracle.sent)], self.machine.clock.now_ms()
        )
        sent = self.target.oracle.send(batch, 1)
        error, offset = await broker.produce(self.target.topic, self.target.partition, batch)
        if error or offset != end:
            self.findings.report_problem(
                f"an append after the damage got error {error} and offset {offset} instead of {end}"
            )
            return
        self.target.oracle.ack(sent, offset, self.machine.clock.steady())
        piece = await broker.fetch(self.target.topic, self.target.partition, offset, 0)
        if piece.error or piece.batches[0].body != sent.body:
            self.findings.report_problem(f"a record appended after the damage got the response {piece}")

    async def _judge_offline(self, broker: SimulatedBroker) -> None:
        assert self.target is not None
        target = self.target
        await judge(self.scene, broker, checked_elsewhere={target.key})
        error, _ = await broker.produce(target.topic, target.partition, build_batch([b"x"], 0))
        piece = await broker.fetch(target.topic, target.partition, 0)
        if error != _STORAGE or piece.error != _STORAGE:
            self.findings.report_problem(
                f"a partition without its mark responds with errors {error} and {piece.error}"
            )
        home = self.path.parent
        after = contents(self.machine.files, home)
        if after != {path: data for path, data in self.before.items() if path.parent == home}:
            self.findings.report_problem(
                f"the files in {home} were changed, although the partition is offline"
            )
        if not any(str(home) in line for line in self.machine.log_lines):
            self.findings.report_problem(f"the partition in {home} is offline, but no log line reports it")

    async def _judge_producers(self, broker: SimulatedBroker) -> None:
        """Check that the broker recognises a repeated last batch of an idempotent producer."""
        assert self.target is not None
        topic = self.scene.topics[self.target.topic].confirmed
        if topic is None or topic.id != self.target.key[0]:
            return  # The work after the first start has deleted the topic.
        last = [
            record
            for record in self.target.oracle.sent.values()
            if record.producer >= 0 and record.offset is not None
        ][-1:]
        start, _ = await broker.range(self.target.topic, self.target.partition)
        for record in last:
            assert record.offset is not None
            if record.offset < start:
                continue
            head = bytes(8) + (len(record.body) + 9).to_bytes(4, "big") + b"\xff\xff\xff\xff\x02"
            batch = head + _crc_of(record.body) + record.body
            error, offset = await broker.produce(self.target.topic, self.target.partition, batch)
            if (error, offset) != (0, record.offset):
                self.findings.report_problem(
                    f"batch {record.number} was sent again and got error {error}, offset {offset}"
                )


def _parse_json(identity: bytes | None) -> object:
    try:
        return json.loads(identity or b"")
    except ValueError:
        return None


def _crc_of(body: bytes) -> bytes:
    return int(crc32c.crc32c(body)).to_bytes(4, "big")


def run(
    seed: int,
    *,
    protected: bool = True,
    without: str = "check-on-read",
    case: tuple[str, Damage] | None = None,
) -> Outcome:
    outcome = Outcome(FAULT, seed)
    kind, damage = case or CASES[seed % len(CASES)]
    if not protected:
        kind, damage = next(case for case in CASES if (case[0], case[1].name) == _REVEALED_BY[without])
    run_of_case = _Run(seed, kind, damage)
    with without_protection(None if protected else without):
        run_of_case.run_all()
    run_of_case.findings.report_to(outcome)
    outcome.hits += run_of_case.is_damaged
    outcome.problems = [f"{kind}, {damage.name}: {problem}" for problem in outcome.problems]
    return outcome
