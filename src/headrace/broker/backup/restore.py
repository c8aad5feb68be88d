"""Creates a data directory from a restore point.

    DATA/restore.json       the restore in progress; removed when the restore is complete
    DATA/…                  partitions and journals; each is complete when it has its mark file
    …/<base>.log.restoring  a segment in progress; renamed when it is complete and synced
    DATA/restored.json      the list of restores of this directory (``restore_history``)
    DATA/headrace.json      written last, because a broker refuses a directory without it

If a restore is killed, the same command continues it. Otherwise the directory must be empty.

The restored directory has the topics with their ids, the records at their offsets, the groups, the transactions and the
producers of the restore point. It is in the state that a crash at that time would have left, and the next start
recovers it as after a crash. Three things differ, because the lost broker may have continued after the restore point:

- Producer ids continue far above those of the restore point, so that no id is assigned twice.
- Leader epochs continue far above those of the restore point, so that a client that has read beyond it detects the
  restore and learns its new position.
- The data directory has a new *line* (the id of its history), so it cannot write to the same backup folder.

If the user chooses the end offset of a partition, a group may have committed an offset beyond this end. The restore
sets such an offset to the end of the partition.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from headrace.broker.backup.errors import BackupError
from headrace.broker.backup.folder import BackupFolder
from headrace.broker.backup.manifest import GROUPS, METADATA, Manifest, Part, PastRestore, SegmentCopy
from headrace.broker.backup.pieces import BatchScanner, PieceReader
from headrace.broker.backup.restore_history import HISTORY_NAME, dump_history
from headrace.broker.groups.entries import OffsetsEntry
from headrace.broker.groups.ledger import Ledger
from headrace.broker.storage.data_dir import FORMAT, Identity, new_line, write_identity
from headrace.clock import Clock
from headrace.errors import DataDirError, DataDirInUse
from headrace.files import File, Files, LockHeld, SystemFiles, make_private_dir
from headrace.log.archive import write_archived
from headrace.log.archived_segment import Entry
from headrace.log.committer import Committer
from headrace.log.compacted import Compacted
from headrace.log.journal import Journal, check_journal
from headrace.log.mark import MARK_NAME, Mark, MarkFile
from headrace.log.partition import PartitionLog
from headrace.log.segment import log_name, write_whole
from headrace.log.state import state_name

__all__ = ["Assembler", "Restore", "RestoreReport"]

_IN_PROGRESS, _IDENTITY, _LOCK = "restore.json", "headrace.json", "lock"
_LEADER_EPOCHS_AHEAD = 1_000_000
_PRODUCERS_AHEAD = 1_000_000_000


class _InProgress(msgspec.Struct, frozen=True):
    line: str
    manifest: str
    chosen_ends: dict[str, int] = msgspec.field(name="cuts")


@dataclass(slots=True)
class RestoreReport:
    manifest: Manifest
    ends: dict[str, int] = field(default_factory=dict)
    """The end offset of each partition, by log id."""
    reduced_offsets: list[tuple[str, str, int, int, int]] = field(default_factory=list)
    """Committed offsets that the restore reduced: group, topic, partition, old offset, new offset."""
    damage: list[str] = field(default_factory=list)
    """Damage that a log already had when the backup copied it."""
    stale: list[str] = field(default_factory=list)
    """Partitions that are older than the restore point, or empty, because the broker could not read their files."""
    archived: list[str] = field(default_factory=list)
    """Records that are only in the archive, not in the backup."""


class Restore:
    def __init__(
        self,
        folder: BackupFolder,
        data: Path,
        manifest: Manifest,
        chosen_ends: Mapping[str, int],
        *,
        clock: Clock,
        on_read: Callable[[int], None] = lambda count: None,
        files: Files | None = None,
    ) -> None:
        """Prepare a restore. ``on_read`` is called with the number of bytes of each read."""
        self._data = data
        self._manifest = manifest
        self._chosen_ends = dict(chosen_ends)
        self._clock = clock
        self._files = files or SystemFiles()
        self._assembler = Assembler(self._files, PieceReader(folder, manifest, on_read))

    def run(self) -> RestoreReport:
        files, data = self._files, self._data
        try:
            make_private_dir(data)
            lock = files.lock(data / _LOCK)
        except LockHeld:
            raise DataDirInUse(
                f"{data} is in use by a broker or by another restore",
                hint="choose a new directory with --data",
            ) from None
        except OSError as error:
            raise DataDirError(
                f"cannot create or use the directory {data}: {error.strerror or error}",
                hint="choose a writable directory with --data",
            ) from error
        try:
            self._begin()
            return self._restore()
        finally:
            lock.release()

    def _begin(self) -> None:
        files, data = self._files, self._data
        requested = _InProgress(self._manifest.line, self._manifest.name.file, self._chosen_ends)
        path = data / _IN_PROGRESS
        if files.exists(path):
            begun = msgspec.json.decode(path.read_bytes(), type=_InProgress)
            if begun != requested:
                ends_text = "".join(
                    f" with {log_id} up to {offset}" for log_id, offset in begun.chosen_ends.items()
                )
                raise BackupError(
                    f"{data} has an incomplete restore of another restore point, {begun.manifest}{ends_text}",
                    hint="complete that restore with the same --to, or choose an empty directory with --data",
                )
            if files.exists(data / _IDENTITY):
                # The restore was killed after its last step. A broker may have written to the directory since then.
                files.remove(path)
                files.sync_dir(data)
                raise DataDirError(
                    f"the restore of {begun.manifest} to {data} is already complete",
                    hint="start a broker with this directory, or choose another directory with --data",
                )
            return
        others = sorted(set(files.list(data)) - {_LOCK, "lost+found"})
        if others:
            raise DataDirError(
                f"{data} is not empty: it has {', '.join(others[:5])}",
                hint="choose a new or empty directory with --data",
            )
        write_whole(files, path, msgspec.json.encode(requested))
        files.sync_dir(data)
        files.sync_dir(data.absolute().parent)

    def _restore(self) -> RestoreReport:
        files, data, manifest = self._files, self._data, self._manifest
        report = RestoreReport(manifest)
        files.make_dir(data / "topics")
        for log_id, part in manifest.parts.items():
            directory = self._directory(log_id)
            mark = self._assembler.assemble(log_id, part, directory, self._chosen_ends.get(log_id))
            if "/" in log_id:
                # The files of a log end at a batch boundary. If the start offset is inside the batch that was
                # cut off, it is above this boundary, and the log ends at the start offset.
                report.ends[log_id] = max(mark.start_offset, mark.synced_offset)
                self._build_indexes(log_id, directory, report)
        for name in (METADATA, GROUPS):
            files.make_dir(data / name)
            check_journal(files, data / name, is_new=name not in manifest.parts)
        files.sync_dir(data / "topics")
        self._report_gaps(report)
        if GROUPS in manifest.parts:
            asyncio.run(self._reduce_offsets(report))
        self._finish(report)
        return report

    def _report_gaps(self, report: RestoreReport) -> None:
        manifest = self._manifest
        for log_id in manifest.stale:
            if log_id in manifest.parts:
                report.stale.append(
                    f"{manifest.label(log_id)} ends at offset {report.ends[log_id]}, before the restore point: records"
                    " after this offset are missing, including records of transactions"
                )
            else:
                # The next start creates the partition at offset 0.
                report.ends[log_id] = 0
                report.stale.append(f"{manifest.label(log_id)} is not in the backup and will be empty")
        for log_id, size in manifest.archived().items():
            first = manifest.parts[log_id].segments[0].base_offset
            report.archived.append(f"{size} bytes of {manifest.label(log_id)}, below offset {first}")

    def _directory(self, log_id: str) -> Path:
        topic, _, partition = log_id.partition("/")
        directory = self._data / topic if not partition else self._data / "topics" / topic
        self._files.make_dir(directory)
        self._files.sync_dir(directory.parent)
        if partition:
            directory = directory / partition
            self._files.make_dir(directory)
            self._files.sync_dir(directory.parent)
        return directory

    def _build_indexes(self, log_id: str, directory: Path, report: RestoreReport) -> None:
        """Open the log, which recovers it and builds its indexes."""
        log = PartitionLog(self._files, directory, now_ms=self._clock.now_ms())
        try:
            report.damage += [f"{self._manifest.label(log_id)}: {damage}" for damage in log.report.damage]
        finally:
            log.close()

    async def _reduce_offsets(self, report: RestoreReport) -> None:
        committer = Committer()
        journal = Journal(self._files, self._data / GROUPS, self._clock, committer)
        try:
            ledger = Ledger(journal, lambda entry: None)
            ends = {
                (self._manifest.topics[log_id.partition("/")[0]], int(log_id.partition("/")[2])): end
                for log_id, end in report.ends.items()
                if log_id.partition("/")[0] in self._manifest.topics
            }
            for group in list(ledger.state.offsets.groups()):
                rows = [
                    (row, ends[row.topic, row.partition])
                    for row in ledger.state.offsets.rows(group)
                    if row.offset > ends.get((row.topic, row.partition), row.offset)
                ]
                if not rows:
                    continue
                entry = OffsetsEntry(group, [msgspec.structs.replace(row, offset=end) for row, end in rows])
                failure = await ledger.put(entry)
                if failure is not None:
                    raise failure
                report.reduced_offsets += [
                    (group, row.topic, row.partition, row.offset, end) for row, end in rows
                ]
            await ledger.drain()
        finally:
            await journal.close()
            await committer.close()

    def _finish(self, report: RestoreReport) -> None:
        files, data, manifest = self._files, self._data, self._manifest
        now_ms = self._clock.now_ms()
        history = (*manifest.restored, PastRestore(now_ms, manifest.name.file, report.ends))
        write_whole(files, data / HISTORY_NAME, dump_history(history))
        identity = Identity(
            FORMAT,
            manifest.cluster_id,
            starts=manifest.starts + _LEADER_EPOCHS_AHEAD,
            next_producer_id=manifest.next_producer_id + _PRODUCERS_AHEAD,
            last_trusted_ms=manifest.last_trusted_ms,
            line=new_line(),
        )
        # All other files are durable now. This file turns the directory into a data directory.
        write_identity(files, data, identity)
        files.remove(data / _IN_PROGRESS)
        files.sync_dir(data)


_RESTORING = ".restoring"


class Assembler:
    def __init__(self, files: Files, reader: PieceReader) -> None:
        self._files = files
        self._reader = reader

    def assemble(self, log_id: str, part: Part, directory: Path, cut: int | None) -> Mark:
        """Create the partition's files, unless its mark file exists. Returns the mark, which has the end offset."""
        if self._files.exists(directory / MARK_NAME):
            complete = MarkFile(self._files, directory).load()
            assert complete is not None
            return complete
        mark = part.mark
        for segment in part.segments:
            if cut is not None and segment.base_offset > cut:
                break
            path = directory / log_name(segment.base_offset)
            if cut is None:
                if not self._has_size(path, segment.size):
                    self._write_segment(log_id, segment, path, None)
                continue
            scanner = BatchScanner(segment.base_offset, cut)
            self._write_segment(log_id, segment, path, scanner)
            mark = Mark(part.start, scanner.end_offset, segment.base_offset, scanner.position)
        if part.state is not None and part.state.offset <= mark.synced_offset:
            raw = self._reader.state(log_id, part.state)
            write_whole(self._files, directory / state_name(part.state.offset), raw)
        if part.compacted is not None and part.compacted != (0, 0, -1):
            clean, removed, horizon = part.compacted
            Compacted(min(clean, mark.synced_offset), removed, horizon).write(self._files, directory)
        if part.archived:
            # These segments are only in the archive. The archived segments that the backup copied are now local files.
            write_archived(self._files, directory, [Entry(*entry) for entry in part.archived])
        self._files.sync_dir(directory)
        MarkFile.create(self._files, directory, mark).close()
        self._files.sync_dir(directory)
        return mark

    def _has_size(self, path: Path, size: int) -> bool:
        if not self._files.exists(path):
            return False
        file = self._files.open(path)
        try:
            return file.size() == size
        finally:
            file.close()

    def _write_segment(
        self, log_id: str, segment: SegmentCopy, path: Path, scanner: BatchScanner | None
    ) -> None:
        new_path = path.with_name(path.name + _RESTORING)
        for leftover in (new_path, path):
            if self._files.exists(leftover):
                self._files.remove(leftover)
        file = self._files.open(new_path, create=True)
        try:
            position = 0
            for chunk in self._reader.segment(log_id, segment):
                _put(file, chunk, position)
                position += len(chunk)
                if scanner is not None:
                    scanner.feed(chunk)
                    if scanner.is_over:
                        break
            if scanner is not None:
                file.truncate(scanner.position)
            file.sync()
        finally:
            file.close()
        self._files.rename(new_path, path)


def _put(file: File, chunk: bytes, position: int) -> None:
    written = file.pwrite([chunk], position)
    if written != len(chunk):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file.path))
