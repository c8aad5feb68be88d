"""A data directory, out of a moment of a backup.

    DATA/restore.json    what is being restored; there until it is done
    DATA/…               partitions and journals, each whole when it has its mark
    DATA/restored.json   that it came from a backup (see ``history``)
    DATA/headrace.json   last: before it is there, no broker takes the directory for one

Killed anywhere, it goes on with the same command. The directory must be empty otherwise.

What is restored has the topics with their ids, the records at their offsets, the groups, the transactions and the
producers of that moment: all as a crash in that moment would have left it, and the next start does what it does after
one. Three things are other than they were, because the broker that was lost may have gone on after the moment, and its
clients still know what it told them then:

- Producer ids go on far above those that were given out, so none is given twice.
- Leader epochs go on far above, so that clients that have read on ask, and learn where to go back to.
- It is another *line*: the folder it came from does not take its backup.

A group that has committed more than its partition has is set back to the partition's end. That can be where partitions
were cut by hand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from headrace.broker.backup.assembling import Assembler
from headrace.broker.backup.errors import BackupError
from headrace.broker.backup.folder import BackupFolder
from headrace.broker.backup.history import HISTORY_NAME, dump_history
from headrace.broker.backup.manifest import GROUPS, METADATA, Manifest, Restored
from headrace.broker.backup.reading import PieceReader
from headrace.broker.data_dir import FORMAT, Identity, new_line, write_identity
from headrace.broker.groups.entries import OffsetsEntry
from headrace.broker.groups.ledger import Ledger
from headrace.clock import Clock
from headrace.errors import DataDirError, DataDirInUse
from headrace.files import Files, LockHeld, SystemFiles
from headrace.log.committer import Committer
from headrace.log.journal import Journal, check_journal
from headrace.log.partition import PartitionLog
from headrace.log.segment import write_whole
from headrace.private import make_private_dir

__all__ = ["Restoring", "RestoringReport"]

_UNDER_WAY, _IDENTITY, _LOCK = "restore.json", "headrace.json", "lock"
_STARTS_AHEAD = 1_000_000
_PRODUCERS_AHEAD = 1_000_000_000


class _UnderWay(msgspec.Struct, frozen=True):
    line: str
    manifest: str
    cuts: dict[str, int]


@dataclass(slots=True)
class RestoringReport:
    manifest: Manifest
    ends: dict[str, int] = field(default_factory=dict)
    """Where each partition ends now."""
    set_back: list[tuple[str, str, int, int, int]] = field(default_factory=list)
    """Group, topic, partition, and the offset before and after."""
    damage: list[str] = field(default_factory=list)
    """What was damaged already when it was backed up."""
    stale: list[str] = field(default_factory=list)
    """What could not be read when the moment was taken, and is older than the rest, or empty."""
    archived: list[str] = field(default_factory=list)
    """What lies in the archive and not here."""


class Restoring:
    def __init__(
        self,
        folder: BackupFolder,
        data: Path,
        manifest: Manifest,
        cuts: Mapping[str, int],
        *,
        clock: Clock,
        moved: Callable[[int], None] = lambda count: None,
        files: Files | None = None,
    ) -> None:
        """``moved`` is told of every so many bytes."""
        self._data = data
        self._manifest = manifest
        self._cuts = dict(cuts)
        self._clock = clock
        self._files = files or SystemFiles()
        self._assembler = Assembler(self._files, PieceReader(folder, manifest, moved))

    def run(self) -> RestoringReport:
        files, data = self._files, self._data
        try:
            make_private_dir(data)
            lock = files.lock(data / _LOCK)
        except LockHeld:
            raise DataDirInUse(
                f"{data} is in use by a broker, or by another restore",
                hint="give a new directory with --data",
            ) from None
        except OSError as error:
            raise DataDirError(
                f"the directory {data} cannot be made or used: {error.strerror or error}",
                hint="give a directory that can be created and written to with --data",
            ) from error
        try:
            self._begin()
            return self._restore()
        finally:
            lock.release()

    def _begin(self) -> None:
        files, data = self._files, self._data
        wanted = _UnderWay(self._manifest.line, self._manifest.name.file, self._cuts)
        path = data / _UNDER_WAY
        if files.exists(path):
            found = msgspec.json.decode(path.read_bytes(), type=_UnderWay)
            if found != wanted:
                cuts = "".join(f" with {place} cut at {offset}" for place, offset in found.cuts.items())
                raise BackupError(
                    f"{data} holds a restore of manifest {found.manifest}{cuts} that is not finished",
                    hint="finish that one with --to, or give an empty directory with --data",
                )
            if files.exists(data / _IDENTITY):
                # Killed behind the last step. A broker may have run on it since, and must not be set back.
                files.remove(path)
                files.sync_dir(data)
                raise DataDirError(
                    f"{data} holds all of manifest {found.manifest} already",
                    hint="start a broker with it, or give another directory with --data",
                )
            return
        strangers = sorted(set(files.list(data)) - {_LOCK, "lost+found"})
        if strangers:
            raise DataDirError(
                f"{data} is not empty: it holds {', '.join(strangers[:5])}",
                hint="a restore needs a new or empty directory: give one with --data",
            )
        write_whole(files, path, msgspec.json.encode(wanted))
        files.sync_dir(data)
        files.sync_dir(data.absolute().parent)

    def _restore(self) -> RestoringReport:
        files, data, manifest = self._files, self._data, self._manifest
        report = RestoringReport(manifest)
        files.make_dir(data / "topics")
        for place, part in manifest.parts.items():
            directory = self._directory(place)
            mark = self._assembler.assemble(place, part, directory, self._cuts.get(place))
            if "/" in place:
                # A start in the middle of a batch stays, where that batch is cut off.
                report.ends[place] = max(mark.start_offset, mark.synced_offset)
                self._settle(place, directory, report)
        for name in (METADATA, GROUPS):
            files.make_dir(data / name)
            check_journal(files, data / name, is_new=name not in manifest.parts)
        files.sync_dir(data / "topics")
        self._tell(report)
        if GROUPS in manifest.parts:
            asyncio.run(self._set_groups_back(report))
        self._finish(report)
        return report

    def _tell(self, report: RestoringReport) -> None:
        manifest = self._manifest
        for place in manifest.stale:
            if place in manifest.parts:
                report.stale.append(
                    f"{manifest.label(place)} ends at {report.ends[place]}, which is older than the moment:"
                    " transactions that lie across are cut in two"
                )
            else:
                # Made by the start, at offset 0.
                report.ends[place] = 0
                report.stale.append(f"{manifest.label(place)} is not in the backup, and begins empty")
        for place, size in manifest.archived().items():
            first = manifest.parts[place].segments[0].base_offset
            report.archived.append(f"{size} bytes of {manifest.label(place)}, below offset {first}")

    def _directory(self, place: str) -> Path:
        topic, _, partition = place.partition("/")
        directory = self._data / topic if not partition else self._data / "topics" / topic
        self._files.make_dir(directory)
        self._files.sync_dir(directory.parent)
        if partition:
            directory = directory / partition
            self._files.make_dir(directory)
            self._files.sync_dir(directory.parent)
        return directory

    def _settle(self, place: str, directory: Path, report: RestoringReport) -> None:
        """Have the log look at it, as a start does, and make its indexes."""
        log = PartitionLog(self._files, directory, now_ms=self._clock.now_ms())
        try:
            report.damage += [f"{self._manifest.label(place)}: {one}" for one in log.report.damage]
        finally:
            log.close()

    async def _set_groups_back(self, report: RestoringReport) -> None:
        committer = Committer()
        journal = Journal(self._files, self._data / GROUPS, self._clock, committer)
        try:
            ledger = Ledger(journal, lambda entry: None)
            ends = {
                (self._manifest.topics[place.partition("/")[0]], int(place.partition("/")[2])): end
                for place, end in report.ends.items()
                if place.partition("/")[0] in self._manifest.topics
            }
            for group in list(ledger.kept.offsets.groups()):
                rows = [
                    (row, ends[row.topic, row.partition])
                    for row in ledger.kept.offsets.rows(group)
                    if row.offset > ends.get((row.topic, row.partition), row.offset)
                ]
                if not rows:
                    continue
                entry = OffsetsEntry(group, [msgspec.structs.replace(row, offset=end) for row, end in rows])
                failure = await ledger.put(entry)
                if failure is not None:
                    raise failure
                report.set_back += [(group, row.topic, row.partition, row.offset, end) for row, end in rows]
            await ledger.drain()
        finally:
            await journal.close()
            await committer.close()

    def _finish(self, report: RestoringReport) -> None:
        files, data, manifest = self._files, self._data, self._manifest
        now_ms = self._clock.now_ms()
        history = (*manifest.restored, Restored(now_ms, manifest.name.file, report.ends))
        write_whole(files, data / HISTORY_NAME, dump_history(history))
        identity = Identity(
            FORMAT,
            manifest.cluster_id,
            starts=manifest.starts + _STARTS_AHEAD,
            next_producer_id=manifest.next_producer_id + _PRODUCERS_AHEAD,
            last_trusted_ms=manifest.last_trusted_ms,
            line=new_line(),
        )
        # All that was written before is durable with its name; from here on it is a data directory.
        write_identity(files, data, identity)
        files.remove(data / _UNDER_WAY)
        files.sync_dir(data)
