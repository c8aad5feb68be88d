"""The ledger writes entries to the journal and applies them, when they are durable, in the order of submission.

Every change of the coordinators' durable state goes through the ledger. This guarantees three things:

- The state in memory is on disk.
- Entries are applied in the same order at run time as after a restart, so they have the same result.
- If a caller is cancelled because its connection closed, the entries that it submitted are still written and applied.

The ledger runs one write at a time. The next write contains all entries that were submitted meanwhile, so a slow disk
leads to larger writes, not to a longer queue.

The journal creates its snapshots between two writes. The ledger applies the entries of a write before any other task
runs. So a snapshot contains every entry that the journal has written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from headrace.broker.groups.coordinator_state import CoordinatorState
from headrace.broker.groups.entries import (
    Entry,
    TopicDeleted,
    TransactionalIdDeleted,
    TransactionEntry,
    decode_entry,
    encode_entry,
)

__all__ = ["Journal", "Ledger"]

#: The ledger adds no further entry to a write of this size.
_WRITE_BYTES_MAX = 4 << 20

Done = Callable[[Exception | None], None]


class Journal(Protocol):
    """The part of ``headrace.log.journal.Journal`` that the ledger uses."""

    entries: list[bytes]

    def forget_entries(self) -> None: ...
    async def write(self, entries: Sequence[bytes]) -> None: ...
    def on_snapshot(self, source: Callable[[], Iterable[bytes]]) -> None: ...


class Ledger:
    def __init__(self, journal: Journal, on_applied: Callable[[Entry], None]) -> None:
        """Load the journal. The ledger calls ``on_applied`` with each new entry after it has applied the entry."""
        self.state = CoordinatorState()
        for raw in journal.entries:
            self.state.apply(decode_entry(raw))
        journal.forget_entries()
        journal.on_snapshot(self._snapshot)
        self._journal = journal
        self._on_applied = on_applied
        self._waiting: list[tuple[Entry, bytes, Done]] = []
        #: The number of unwritten entries by group.
        self._unwritten: dict[str, int] = {}
        self._writer: asyncio.Task[None] | None = None

    def submit(self, entry: Entry, done: Done) -> None:
        """Write the entry. ``done`` receives ``None`` when the entry is applied, or the error if the write fails."""
        self._waiting.append((entry, encode_entry(entry), done))
        group = _group_of(entry)
        if group is not None:
            self._unwritten[group] = self._unwritten.get(group, 0) + 1
        if self._writer is None:
            self._writer = asyncio.get_running_loop().create_task(self._write_all())

    def put(self, entry: Entry) -> asyncio.Future[Exception | None]:
        """Like ``submit``, but return a future. Its result is the error or ``None``."""
        written: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

        def done(error: Exception | None) -> None:
            if not written.done():
                written.set_result(error)

        self.submit(entry, done)
        return written

    def is_settled(self, group: str) -> bool:
        """Return whether every submitted entry about the group is written."""
        return group not in self._unwritten

    async def drain(self) -> None:
        """Wait until all submitted entries are written."""
        while (writer := self._writer) is not None:
            await asyncio.wait([writer])

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                batch = self._next_batch()
                error: Exception | None = None
                try:
                    await self._journal.write([raw for _, raw, _ in batch])
                # Every caller waits for a result, so each receives the error and handles it.
                except Exception as failure:
                    error = failure
                for entry, _, done in batch:
                    self._count_written(entry)
                    try:
                        if error is None:
                            self.state.apply(entry)
                            self._on_applied(entry)
                        done(error)
                    # A failure in one caller must not stop the others. The event loop reports it.
                    except Exception as callback_error:
                        asyncio.get_running_loop().call_exception_handler(
                            {
                                "message": f"the coordinator may be out of date after {entry!r:.200}",
                                "exception": callback_error,
                            }
                        )
        finally:
            self._writer = None

    def _next_batch(self) -> list[tuple[Entry, bytes, Done]]:
        """Remove and return the waiting entries, up to the size limit. The journal writes them as one batch."""
        size = count = 0
        while count < len(self._waiting) and (not count or size < _WRITE_BYTES_MAX):
            size += len(self._waiting[count][1])
            count += 1
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        return batch

    def _count_written(self, entry: Entry) -> None:
        group = _group_of(entry)
        if group is not None:
            remaining = self._unwritten.pop(group) - 1
            if remaining:
                self._unwritten[group] = remaining

    def _snapshot(self) -> Iterator[bytes]:
        return map(encode_entry, self.state.snapshot())


def _group_of(entry: Entry) -> str | None:
    """Return the group of an entry, or ``None`` for entries that do not belong to one group."""
    return (
        None if isinstance(entry, TopicDeleted | TransactionEntry | TransactionalIdDeleted) else entry.group
    )
