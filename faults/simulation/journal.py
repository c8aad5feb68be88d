"""A simulated journal with several writers, through many starts. An oracle checks it at every start.

Every call writes a numbered entry for each of a few keys. The state is the last number of each key. If a call returned,
all its entries must exist. For any other call, either all its entries or none must exist. A key's numbers must be in
the order of writing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from faults.simulation.machine import Machine
from faults.simulation.partition_oracle import Findings
from headrace.errors import StorageError
from headrace.log.committer import Committer
from headrace.log.journal import Journal

__all__ = ["JournalScene"]

_DIRECTORY = Path("/disk/journal")
_KEYS = 6
_WRITERS = 3


class _Call(Sequence[bytes]):
    """The entries of one call. The journal determines their order, and so their numbers."""

    def __init__(self, keys: list[int], next_number: Callable[[list[int]], int]) -> None:
        self.keys = keys
        self.number = 0
        self._next_number = next_number

    def __iter__(self) -> Iterator[bytes]:
        self.number = self._next_number(self.keys)
        return iter([_entry(key, self.number) for key in self.keys])

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]


class JournalScene:
    def __init__(self, seed: int, machine: Machine, findings: Findings) -> None:
        self.rng = random.Random(f"journal {seed}")
        self.machine = machine
        self.findings = findings
        self.in_flight = 0
        self.calls = 0
        self._keys_of: dict[int, list[int]] = {}
        self._acknowledged: set[int] = set()
        self._state: dict[int, int] = {}
        self._snapshot_after_bytes = self.rng.choice((300, 1000, 4000))

    async def run_until_stop_or_crash(self, steps: int, *, stop: bool) -> None:
        self.in_flight = 0
        files = self.machine.files
        if not files.exists(_DIRECTORY):
            files.make_dir(_DIRECTORY)
        files.sync_dir(_DIRECTORY.parent)
        committer = Committer()
        journal = Journal(
            files,
            _DIRECTORY,
            self.machine.clock,
            committer,
            snapshot_after_bytes=self._snapshot_after_bytes,
        )
        self._judge(journal.entries)
        journal.forget_entries()
        journal.on_snapshot(self._snapshot)
        await asyncio.gather(*(self._write(journal, steps) for _ in range(_WRITERS)))
        if stop:
            await journal.close()
            await committer.close()

    def _snapshot(self) -> Iterator[bytes]:
        for key, number in self._state.items():
            yield _entry(key, number)

    async def _write(self, journal: Journal, steps: int) -> None:
        for _ in range(steps):
            await asyncio.sleep(self.rng.choice((0.0, 0.0, 0.001, 1.1)))
            call = _Call(self.rng.sample(range(_KEYS), self.rng.randint(1, 3)), self._next_number)
            self.in_flight += 1
            try:
                await journal.write(call)
            except StorageError as error:
                self.findings.report_problem(f"the journal refused a write: {error}")
                return
            self.in_flight -= 1
            self._acknowledged.add(call.number)
            for key in call.keys:
                self._state[key] = max(call.number, self._state.get(key, 0))

    def _next_number(self, keys: list[int]) -> int:
        self.calls += 1
        self._keys_of[self.calls] = keys
        return self.calls

    def _judge(self, entries: list[bytes]) -> None:
        newest: dict[int, int] = {}
        for raw in entries:
            key, number_read = map(int, raw.split(b"="))
            if number_read < newest.get(key, 0):
                self.findings.report_problem(f"entry {raw!r} comes after {newest[key]} of the same key")
            newest[key] = number_read
        for number, keys in list(self._keys_of.items()):
            applied = [newest.get(key, 0) >= number for key in keys]
            if number in self._acknowledged and not all(applied):
                self.findings.lost += 1
                self.findings.report_problem(
                    f"call {number} was acknowledged, but not all of its keys {keys} exist: {applied}"
                )
            elif any(applied) != all(applied):
                self.findings.report_problem(f"call {number} is partial: {keys}, {applied}")
            # From now on, if this start found the entries of a call, they must stay; otherwise, they must not
            # appear later.
            if all(applied):
                self._acknowledged.add(number)
            else:
                del self._keys_of[number]
        self._state = newest


def _entry(key: int, number: int) -> bytes:
    return b"%d=%d" % (key, number)
