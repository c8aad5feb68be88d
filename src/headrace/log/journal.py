"""A journal: a durable list of small entries (topics, settings, groups, committed offsets).

Entries are the values of records in an ordinary partition log, so they share its durability, its recovery and its
tests. The key of a record is its kind: ``e`` for an entry, ``b`` for the beginning of a snapshot, ``s`` for an entry of
the snapshot, ``c`` for its completion. When the journal has grown enough, it writes the whole state as a snapshot and
deletes everything before it. A crash during a snapshot leaves a snapshot without ``c``, which a start ignores. The
entries before it still exist, because they are deleted only after the complete snapshot is synced.

If any part of a journal is damaged, the broker refuses to start. Otherwise it would lose the damaged part of the state.
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
_CHUNK_ENTRIES = 500
_CHUNK_BYTES = 1 << 20
_CONFIG = LogConfig(segment_bytes=64 << 20, segment_ms=2**62, retention_ms=-1, max_message_bytes=64 << 20)


def check_journal(files: Files, directory: Path, *, is_new: bool) -> None:
    """Raise ``DamagedState`` unless the journal is complete and intact; changes nothing.

    A journal that is not new must exist. If its files are lost, an empty journal would silently lose the state.
    """
    try:
        exists = check_synced(files, directory)
    except DamagedState as error:
        raise _damaged(directory, error.message) from error
    if not exists and not is_new:
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
        self._writes_in_progress = 0
        self._writes_done = asyncio.Event()
        self._snapshot_in_progress: asyncio.Future[None] | None = None
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
                read_slice = reader.read(offset, _READ_BYTES)
                for position, header in iter_headers(read_slice.data):
                    for record in read_records(
                        read_slice.data[position : position + header.size], RecordLimits()
                    ):
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
                                directory,
                                f"the record at offset {record.offset} has unexpected kind {record.key!r}",
                            )
                offset = read_slice.next_offset
        except (CorruptBatch, RecordError) as error:
            raise _damaged(directory, error.message) from error
        return entries

    def on_snapshot(self, source: Callable[[], Iterable[bytes]]) -> None:
        """Set the function that returns the whole state as entries, for a snapshot. It may be a generator: all writes
        wait until the last entry is read, so the state does not change meanwhile.
        """
        self._source = source

    def forget_entries(self) -> None:
        """Free the memory of the entries, once the owner has applied them to its state."""
        self.entries = []

    async def write(self, entries: Sequence[bytes]) -> None:
        """Write the entries and wait until they are durable; raises ``PartitionFenced`` if they may not be durable.

        The entries of one call are one batch, so after a crash either all or none of them exist. The caller must apply
        them to its state as soon as this returns, before it awaits anything else. A snapshot is written when no write
        is in progress, and must contain the state of all completed writes.
        """
        while self._snapshot_in_progress is not None:
            await asyncio.shield(self._snapshot_in_progress)
        if (
            self._source is not None
            and self._log.size_bytes > self._snapshot_after_bytes + 2 * self._snapshot_bytes
        ):
            await self._write_snapshot(self._source)
        self._writes_in_progress += 1
        try:
            self._append([(_ENTRY, entry) for entry in entries])
            await self._committer.wait(self._log, self._log.end_offset)
        finally:
            self._writes_in_progress -= 1
            if not self._writes_in_progress:
                self._writes_done.set()

    def _append(self, records: Sequence[tuple[bytes, bytes]]) -> None:
        now_ms = self._clock.now_ms()
        batch = build_batch([(key, value, ()) for key, value in records], timestamp_ms=now_ms)
        self._log.append(batch, read_header(batch), now_ms, now_ms)

    async def _write_snapshot(self, source: Callable[[], Iterable[bytes]]) -> None:
        self._snapshot_in_progress = asyncio.get_running_loop().create_future()
        try:
            while self._writes_in_progress:
                self._writes_done.clear()
                await self._writes_done.wait()
            begin = self._log.end_offset
            before = self._log.size_bytes
            self._log.roll(self._clock.now_ms())
            records = chain([(_BEGIN, b"")], ((_SNAPSHOT, entry) for entry in source()), [(_COMPLETE, b"")])
            for chunk in _chunks(records):
                self._append(chunk)
                # Let other tasks run. The state does not change meanwhile, because every write waits.
                await asyncio.sleep(0)
            self._snapshot_bytes = self._log.size_bytes - before
            await self._committer.wait(self._log, self._log.end_offset)
            await self._delete_before(begin)
        finally:
            self._snapshot_in_progress.set_result(None)
            self._snapshot_in_progress = None

    async def _delete_before(self, offset: int) -> None:
        """Delete the entries that a snapshot has replaced. A failure loses nothing: a start ignores these entries, and
        the next snapshot retries the deletion.
        """
        try:
            await self._committer.delete_before(self._log, offset)
        except OSError as error:
            _log.error(
                "cannot delete old entries of the journal in %s after a snapshot: %s",
                self._log.directory,
                error,
            )

    async def close(self) -> None:
        await self._committer.settle(self._log)
        self._log.close()


def _chunks(records: Iterable[tuple[bytes, bytes]]) -> Iterator[list[tuple[bytes, bytes]]]:
    """Split the records into chunks, one for each batch."""
    chunk: list[tuple[bytes, bytes]] = []
    size = 0
    for record in records:
        chunk.append(record)
        size += len(record[1])
        if len(chunk) >= _CHUNK_ENTRIES or size >= _CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _damaged(directory: Path, detail: str) -> DamagedState:
    return DamagedState(
        f"the journal in {directory} is damaged",
        detail=detail,
        hint="restore the data directory from a backup; nothing was changed",
    )
