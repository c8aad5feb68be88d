"""A journal: small entries that must not be lost (topics, settings, groups, committed offsets), kept as a
partition keeps its records.

Entries are the values of records in an ordinary partition log, so they share its promise, its recovery and
its tests. The key says what a record is: ``e`` an entry; ``b`` the beginning of a snapshot, ``s`` one of its
entries, ``c`` its completion. When the journal has grown enough it writes the whole state as a snapshot and
deletes what lies before. A crash in the middle of a snapshot leaves one without its ``c``, which is ignored;
everything before it is still there, because deletion comes after the sync.

Damage anywhere in a journal refuses the start: to begin with half of the truth would be to lose the other
half.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from headrace.clock import Clock
from headrace.errors import CorruptBatch, DamagedState
from headrace.files import Files
from headrace.log.committer import Committer
from headrace.log.config import LogConfig
from headrace.log.partition import PartitionLog
from headrace.log.reader import LogReader
from headrace.log.recovery import check_synced
from headrace.records import RecordError, RecordLimits, build_batch, iter_headers, read_header, read_records

__all__ = ["Journal", "check_journal"]

_log = logging.getLogger("headrace.log")
_ENTRY, _BEGIN, _SNAPSHOT, _COMPLETE = b"e", b"b", b"s", b"c"
_READ_BYTES = 1 << 20
_PART_ENTRIES = 500
_PART_BYTES = 1 << 20
_CONFIG = LogConfig(segment_bytes=64 << 20, segment_ms=2**62, retention_ms=-1, max_message_bytes=64 << 20)


def check_journal(files: Files, directory: Path, *, is_new: bool) -> None:
    """Raise ``DamagedState`` unless everything that the journal ever promised reads back; nothing is changed.

    One that is not new must be there: to begin an empty one over a lost one would be to forget in silence.
    """
    try:
        found = check_synced(files, directory)
    except DamagedState as error:
        raise _damaged(directory, error.message) from error
    if not found and not is_new:
        raise _damaged(directory, "its files are missing")


class Journal:
    def __init__(
        self,
        files: Files,
        directory: Path,
        clock: Clock,
        committer: Committer,
        *,
        snapshot_after_bytes: int = 4 << 20,
    ) -> None:
        self._log = PartitionLog(files, directory, config=_CONFIG, now_ms=clock.now_ms())
        if self._log.report.damage:
            raise _damaged(directory, "; ".join(self._log.report.damage))
        self._clock = clock
        self._committer = committer
        self._snapshot_after_bytes = snapshot_after_bytes
        self._snapshot_bytes = 0
        self._source: Callable[[], Iterable[bytes]] | None = None
        self._under_way = 0
        self._drained = asyncio.Event()
        self._replacing: asyncio.Future[None] | None = None
        self.entries = self._load(directory)

    @property
    def log(self) -> PartitionLog:
        return self._log

    def _load(self, directory: Path) -> list[bytes]:
        reader = LogReader(self._log)
        entries: list[bytes] = []
        snapshot: list[bytes] | None = None
        offset = self._log.start_offset
        try:
            while offset < self._log.end_offset:
                piece = reader.read(offset, _READ_BYTES)
                for position, header in iter_headers(piece.data):
                    for record in read_records(piece.data[position : position + header.size], RecordLimits()):
                        if record.offset < self._log.start_offset:
                            continue
                        if record.key == _BEGIN:
                            snapshot = []
                        elif record.key == _SNAPSHOT and snapshot is not None:
                            snapshot.append(record.value or b"")
                        elif record.key == _COMPLETE and snapshot is not None:
                            entries, snapshot = snapshot, None
                        elif record.key == _ENTRY:
                            snapshot = None
                            entries.append(record.value or b"")
                        else:
                            raise _damaged(
                                directory, f"the record at offset {record.offset} has the kind {record.key!r}"
                            )
                offset = piece.next_offset
        except (CorruptBatch, RecordError) as error:
            raise _damaged(directory, error.message) from error
        return entries

    def on_snapshot(self, source: Callable[[], Iterable[bytes]]) -> None:
        """``source`` gives the whole state as entries whenever the journal wants to replace its past by them. It may
        make them one after the other: until the last was taken, no write returns.
        """
        self._source = source

    def forget_entries(self) -> None:
        """The owner has folded them into its state; their memory can go."""
        self.entries = []

    async def write(self, entries: Sequence[bytes]) -> None:
        """Return once the entries are safe; raises ``PartitionFenced`` if they may not be.

        The entries of one call are one batch, so a crash keeps all of them or none. The caller must apply
        them to its state as soon as this returns, before it awaits anything else: a snapshot is taken only
        when no write is under way, and relies on that.
        """
        while self._replacing is not None:
            await asyncio.shield(self._replacing)
        if (
            self._source is not None
            and self._log.size_bytes > self._snapshot_after_bytes + 2 * self._snapshot_bytes
        ):
            await self._replace_past(self._source)
        self._under_way += 1
        try:
            self._append([(_ENTRY, entry) for entry in entries])
            await self._committer.wait(self._log, self._log.end_offset)
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._drained.set()

    def _append(self, records: Sequence[tuple[bytes, bytes]]) -> None:
        now_ms = self._clock.now_ms()
        batch = build_batch([(key, value, ()) for key, value in records], timestamp_ms=now_ms)
        self._log.append(batch, read_header(batch), now_ms, now_ms)

    async def _replace_past(self, source: Callable[[], Iterable[bytes]]) -> None:
        self._replacing = asyncio.get_running_loop().create_future()
        try:
            while self._under_way:
                self._drained.clear()
                await self._drained.wait()
            begin = self._log.end_offset
            before = self._log.size_bytes
            self._log.roll(self._clock.now_ms())
            records = chain([(_BEGIN, b"")], ((_SNAPSHOT, entry) for entry in source()), [(_COMPLETE, b"")])
            for part in _parts(records):
                self._append(part)
                # The state is the same throughout, because every write waits; others need not.
                await asyncio.sleep(0)
            self._snapshot_bytes = self._log.size_bytes - before
            await self._committer.wait(self._log, self._log.end_offset)
            await self._forget_before(begin)
        finally:
            self._replacing.set_result(None)
            self._replacing = None

    async def _forget_before(self, offset: int) -> None:
        """Delete what a snapshot has replaced. Where that fails nothing is lost: it is read past, and the next
        snapshot tries again.
        """
        try:
            await self._committer.delete_before(self._log, offset)
        except OSError as error:
            _log.error("the journal in %s keeps what a snapshot has replaced: %s", self._log.directory, error)

    async def close(self) -> None:
        await self._committer.settle(self._log)
        self._log.close()


def _parts(records: Iterable[tuple[bytes, bytes]]) -> Iterator[list[tuple[bytes, bytes]]]:
    """Records in portions that make reasonable batches."""
    part: list[tuple[bytes, bytes]] = []
    size = 0
    for record in records:
        part.append(record)
        size += len(record[1])
        if len(part) >= _PART_ENTRIES or size >= _PART_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def _damaged(directory: Path, detail: str) -> DamagedState:
    return DamagedState(
        f"the journal in {directory} does not read back",
        detail=detail,
        hint="restore the data directory from a backup; nothing was changed",
    )
