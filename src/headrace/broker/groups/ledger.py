"""Writes entries to the journal and applies them once they are durable, in the order in which they were
submitted.

Everything that anybody may be told goes through here, so three promises are kept in one place. What is in the
kept state is on disk. Two entries about the same thing end up in memory as they would after a restart. And a
caller that goes away, because its connection closed, takes nothing with it: what was submitted is written and
applied all the same.

One write is under way at a time, and what is submitted meanwhile goes together in the next one: a slow disk
makes larger writes, not a longer queue of them.

The journal takes its snapshots between two writes, and what a write brought is applied before anything else runs:
so a snapshot never misses an entry that the journal has already counted as written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from headrace.broker.groups.entries import (
    Entry,
    TopicGone,
    TransactionEntry,
    TransactionGone,
    decode_entry,
    encode_entry,
)
from headrace.broker.groups.kept import Kept

__all__ = ["Journal", "Ledger"]

#: A write that has reached this takes no further entry.
_WRITE_BYTES_MAX = 4 << 20

Done = Callable[[Exception | None], None]


class Journal(Protocol):
    """What is asked of ``headrace.log.journal.Journal``."""

    entries: list[bytes]

    def forget_entries(self) -> None: ...
    async def write(self, entries: Sequence[bytes]) -> None: ...
    def on_snapshot(self, source: Callable[[], Iterable[bytes]]) -> None: ...


class Ledger:
    def __init__(self, journal: Journal, applied: Callable[[Entry], None]) -> None:
        """``applied`` is told of every entry that is written from now on, right after it was applied."""
        self.kept = Kept()
        for raw in journal.entries:
            self.kept.apply(decode_entry(raw))
        journal.forget_entries()
        journal.on_snapshot(self._snapshot)
        self._journal = journal
        self._applied = applied
        self._waiting: list[tuple[Entry, bytes, Done]] = []
        #: How many entries about a group are under way.
        self._unsettled: dict[str, int] = {}
        self._writer: asyncio.Task[None] | None = None

    def submit(self, entry: Entry, done: Done) -> None:
        """Write the entry. ``done`` is called with ``None`` once it is applied, or with what went wrong."""
        self._waiting.append((entry, encode_entry(entry), done))
        group = _group_of(entry)
        if group is not None:
            self._unsettled[group] = self._unsettled.get(group, 0) + 1
        if self._writer is None:
            self._writer = asyncio.get_running_loop().create_task(self._write_all())

    def put(self, entry: Entry) -> asyncio.Future[Exception | None]:
        """As ``submit``, for those who want to wait; the result is the error or ``None``."""
        written: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

        def done(error: Exception | None) -> None:
            if not written.done():
                written.set_result(error)

        self.submit(entry, done)
        return written

    def is_settled(self, group: str) -> bool:
        """True if nothing about the group is under way, so that what is kept is all there is."""
        return group not in self._unsettled

    async def drain(self) -> None:
        """Return when nothing is under way any more."""
        while (writer := self._writer) is not None:
            await asyncio.wait([writer])

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                batch = self._next_batch()
                error: Exception | None = None
                try:
                    await self._journal.write([raw for _, raw, _ in batch])
                # Whatever went wrong, those who wait must hear of it: they are given the error and decide.
                except Exception as failure:
                    error = failure
                for entry, _, done in batch:
                    self._settle(entry)
                    try:
                        if error is None:
                            self.kept.apply(entry)
                            self._applied(entry)
                        done(error)
                    # A fault in one caller must not keep the others from their answers. The loop reports it.
                    except Exception as fault:
                        asyncio.get_running_loop().call_exception_handler(
                            {"message": f"a group may be stale after {entry!r:.200}", "exception": fault}
                        )
        finally:
            self._writer = None

    def _next_batch(self) -> list[tuple[Entry, bytes, Done]]:
        """What waits, within bounds: it becomes one batch of the journal."""
        size = taken = 0
        while taken < len(self._waiting) and (not taken or size < _WRITE_BYTES_MAX):
            size += len(self._waiting[taken][1])
            taken += 1
        batch, self._waiting = self._waiting[:taken], self._waiting[taken:]
        return batch

    def _settle(self, entry: Entry) -> None:
        group = _group_of(entry)
        if group is not None:
            left = self._unsettled.pop(group) - 1
            if left:
                self._unsettled[group] = left

    def _snapshot(self) -> Iterator[bytes]:
        return map(encode_entry, self.kept.snapshot())


def _group_of(entry: Entry) -> str | None:
    """The group that an entry is about, if it is about one."""
    return None if isinstance(entry, TopicGone | TransactionEntry | TransactionGone) else entry.group
