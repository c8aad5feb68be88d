"""Writes the backup of a running broker in rounds. The copying runs in threads, so it does not delay requests.

    open      thread        check that the folder exists, belongs to this broker, and has no other writer
    catch up  both          copy large differences first, one partition at a time; this is not a restore point yet
    plan      event loop    plan a restore point of all logs, without yielding (``plan``)
    ship      thread        copy the new bytes, then write the manifest, which completes the restore point
    prune     thread        remove old restore points, and pieces that no restore point needs

A failed round leaves the folder intact. The last manifest remains valid, and the next round does not repeat the copies
that succeeded. The broker logs the failure once, continues, and retries. It never waits for the folder. If the broker
is killed, the folder can have files that no manifest lists, and the next start removes them.

Two brokers cannot share a folder. ``backup.json`` identifies the data directory, and each manifest identifies the run
(one start of a broker) that wrote it. A broker refuses to start with the folder of another broker. If it finds a
manifest of another broker at run time, it logs an error and stops the backup.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from headrace.broker.backup.errors import BackupError, BackupOwnedByOther, BackupUnavailable
from headrace.broker.backup.folder import BackupFolder
from headrace.broker.backup.index import BackupIndex
from headrace.broker.backup.manifest import GROUPS, METADATA, Manifest, Part, log_id_of
from headrace.broker.backup.plan import LogCopy, Plan, Source, missing_bytes, plan_copy
from headrace.broker.backup.shipment import Shipment, SourceUnreadable, Stopped
from headrace.broker.event_loop import in_daemon_thread
from headrace.broker.storage.data_dir import DataDir
from headrace.broker.storage.offline_partition import OfflinePartition
from headrace.errors import ConfigError
from headrace.files import Files
from headrace.log.pace import Pace

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

__all__ = ["BackupStatus", "BackupWriter", "open_backup"]

_log = logging.getLogger("headrace.broker")

_THREAD = "headrace-backup"
_CATCH_UP_BYTES_MIN = 16 << 20
"""Larger differences are copied before the restore point is planned, so that the plan pins few files."""
_PROGRESS_BYTES = 1 << 30
"""During the first copy, the writer writes an incomplete manifest after this many bytes, to record the progress."""
_UNCHANGED_S = 60.0
"""Seconds between restore points while no log changes. These restore points show that the broker is running."""
_LAST_ROUND_S = 8.0
_SLOW_S = 60.0
_PARTITIONS_PER_YIELD = 100
"""While it catches up, the writer lets the event loop run other tasks after this many partitions."""


@dataclass(slots=True)
class BackupStatus:
    """The state of the backup, for metrics."""

    restore_points: int = 0
    written_bytes: int = 0
    failures: int = 0
    last_restore_point_ms: int = 0
    last_taken_s: float = 0.0
    last_round_took_s: float = 0.0
    round_began_s: float | None = None
    """The steady-clock time at which the current round began."""
    unreadable: int = 0
    """The number of partitions whose copies are older than the newest restore point, because they cannot be read."""
    error: str | None = None
    """Why the last round failed."""
    refused: str | None = None
    """Why the backup has stopped: another broker owns the folder or writes to it."""


class BackupWriter:
    def __init__(self, broker: Broker, folder: BackupFolder, index: BackupIndex) -> None:
        self._broker = broker
        self._folder = folder
        self._index = index
        self._copies: dict[str, LogCopy] = {}
        self._stopping = asyncio.Event()
        self._stop_event = threading.Event()
        self._task: asyncio.Task[None] | None = None
        self._unreadable: set[str] = set()
        self._archive_failures: set[str] = set()
        self.run = secrets.token_hex(4)
        self.status = BackupStatus(last_taken_s=broker.clock.steady())

    # Start and stop

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run_rounds())

    async def stop(self) -> None:
        """Write a last restore point. If that takes too long, the next start writes it."""
        self._stopping.set()
        if self._task is None:
            return
        done, _ = await asyncio.wait([self._task], timeout=_LAST_ROUND_S)
        if not done:
            # A hanging mount blocks the backup thread. It must not block the broker.
            self._stop_event.set()
            self._task.cancel()
            await asyncio.wait([self._task])
        self._task = None

    async def _run_rounds(self) -> None:
        every_s = self._broker.settings.backup_every_s
        while not self._stopping.is_set() and self.status.refused is None:
            await self.round()
            try:
                async with asyncio.timeout(every_s):
                    await self._stopping.wait()
            except TimeoutError:
                continue
        if self.status.refused is None and self.status.error is None:
            await self.round()

    # Lag

    def behind_records(self) -> int:
        """Return the number of records that are not in the last restore point."""
        behind = 0
        for log_id, log in self._sources():
            copy = self._copies.get(log_id)
            ends_at = log.start_offset if copy is None else copy.part.end
            behind += max(0, log.high_watermark - ends_at)
        return behind

    def behind_s(self) -> float:
        """Return the age of the last restore point in seconds, or 0 if it contains all records."""
        return self._broker.clock.steady() - self.status.last_taken_s if self.behind_records() else 0.0

    # One round

    async def round(self) -> bool:
        """Run one backup round. Returns whether the folder now has all records that were written before the round."""
        status, began_s = self.status, self._broker.clock.steady()
        status.round_began_s = began_s
        slow = asyncio.get_running_loop().call_later(_SLOW_S, self._log_slow_round)
        try:
            return await self._round(began_s)
        finally:
            slow.cancel()
            status.round_began_s = None

    def _log_slow_round(self) -> None:
        _log.warning(
            "the current round of the backup in %s has taken more than %g s, and %d records are not in the backup yet;"
            " this is normal for the first copy; otherwise check that the folder responds",
            self._folder.path,
            _SLOW_S,
            self.behind_records(),
        )

    def round_age_s(self) -> float:
        """Return the duration of the current round in seconds."""
        began_s = self.status.round_began_s
        return 0.0 if began_s is None else self._broker.clock.steady() - began_s

    async def _round(self, began_s: float) -> bool:
        status = self.status
        try:
            await in_daemon_thread(_THREAD, self._open_round)
            # The folder belongs to this broker. Only the event loop writes to the data directory, so this
            # does not run in the backup thread.
            self._broker.record_backup(self._folder.path.absolute())
            await self._catch_up()
            await self._ship_restore_point()
        except Stopped:
            return False
        except BackupOwnedByOther as error:
            status.refused = error.message
            status.failures += 1
            _log.error("%s; the backup is stopped until the next start", error)
            return False
        except (OSError, BackupError) as error:
            status.failures += 1
            if status.error is None:
                _log.error(
                    "cannot write the backup in %s: %s; the broker continues, and retries every %g s",
                    self._folder.path,
                    error,
                    self._broker.settings.backup_every_s,
                )
            status.error = str(error)
            self._folder.forget_directories()
            return False
        status.last_round_took_s = self._broker.clock.steady() - began_s
        if status.error is not None:
            status.error = None
            _log.info("the backup in %s works again and is up to date", self._folder.path)
        return True

    def _open_round(self) -> None:
        parts = self._index.open_round(self.run)
        for log_id, part in parts.items():
            self._copies.setdefault(log_id, LogCopy(part))
        if not parts and self.status.error is None:
            return
        missing = self._index.missing_files(self._parts())
        for log_id, files in missing.items():
            self._copies[log_id] = replace(
                self._copies[log_id], signature=None, state_version=None, missing_files=files
            )
        if missing:
            _log.warning(
                "%d files of the newest restore point are missing or truncated in %s: copying them again; use headrace"
                " backup check to find older restore points that are incomplete",
                sum(map(len, missing.values())),
                self._folder.path,
            )

    async def _catch_up(self) -> None:
        copied_bytes = 0
        for number, source in enumerate(self._sources()):
            if number % _PARTITIONS_PER_YIELD == 0:
                await asyncio.sleep(0)
            if missing_bytes(source, self._copies.get(source.log_id)) <= _CATCH_UP_BYTES_MIN:
                continue
            plan = self._take(source)
            if plan is None:
                continue
            try:
                copied_bytes += plan.missing_bytes
                await in_daemon_thread(_THREAD, partial(self._ship, [plan]))
            finally:
                plan.release()
            if copied_bytes > _PROGRESS_BYTES and not self._index.has_restore_point:
                copied_bytes = 0
                await in_daemon_thread(_THREAD, partial(self._index.add, self._manifest(complete=False)))

    async def _ship_restore_point(self) -> None:
        # No await until all plans exist, so that they describe the same moment: the restore point.
        sources = self._sources()
        plans: list[Plan] = []
        try:
            plans += [plan for plan in map(self._take, sources) if plan is not None]
            offline = self._offline()
            taken_s = self._broker.clock.steady()
            log_ids = {source.log_id for source in sources} | offline
            self._unreadable &= log_ids
            deleted = [log_id for log_id in self._copies if log_id not in log_ids]
            restore_point = self._manifest(complete=True)
            is_unchanged = not plans and not deleted and restore_point.topics == self._index.topics
            if (
                is_unchanged
                and taken_s - self.status.last_taken_s < _UNCHANGED_S
                and self._index.has_restore_point
            ):
                return
            manifest = await in_daemon_thread(
                _THREAD, partial(self._write_restore_point, plans, deleted, restore_point, offline)
            )
        finally:
            for plan in plans:
                plan.release()
        status = self.status
        status.restore_points += 1
        status.unreadable = len(manifest.stale)
        status.last_restore_point_ms, status.last_taken_s = manifest.taken_ms, taken_s

    def _write_restore_point(
        self, plans: list[Plan], deleted: list[str], restore_point: Manifest, offline: set[str]
    ) -> Manifest:
        self._ship(plans)
        for log_id in deleted:
            self._index.drop(log_id, self._copies.pop(log_id).part, None)
        stale = tuple(sorted(offline | self._unreadable))
        manifest = msgspec.structs.replace(restore_point, parts=self._parts(), stale=stale)
        self._index.add(manifest)
        self._index.prune(restore_point.last_trusted_ms, self._broker.settings.backup_keep_ms)
        return manifest

    def _ship(self, plans: list[Plan]) -> None:
        """Copy the logs. Runs in a thread. If a copy fails, the copies that succeeded are not repeated."""
        settings = self._broker.settings
        pace = Pace(self._broker.clock, self._stop_event, settings.backup_bytes_per_s)
        shipment = Shipment(self._folder, self._index.next_sequence, self.run, pace, self._stop_event)
        for plan in plans:
            before = self._copies.get(plan.log_id)
            try:
                part = shipment.ship(plan)
            except SourceUnreadable as error:
                if plan.log_id in (METADATA, GROUPS):
                    # Every restore point needs the current journals, because partitions do not match older journals.
                    raise BackupError(error.message, hint=error.hint) from error
                # Continue with the other logs. The folder retains its older copy of this log.
                if plan.log_id not in self._unreadable:
                    self._unreadable.add(plan.log_id)
                    _log.error("%s", error)
                continue
            finally:
                self.status.written_bytes += shipment.written_bytes
                shipment.written_bytes = 0
            self._unreadable.discard(plan.log_id)
            self._index.drop(plan.log_id, None if before is None else before.part, part)
            self._copies[plan.log_id] = plan.resulting_copy(part)
            if shipment.archive_failure is None:
                self._archive_failures.discard(plan.log_id)
            elif plan.log_id not in self._archive_failures:
                self._archive_failures.add(plan.log_id)
                _log.error("%s; the backup is incomplete without the archive", shipment.archive_failure)
            shipment.archive_failure = None
        for path in shipment.differing:
            _log.warning("%s differs from its copy in the backup: copying it again", path)

    # Logs

    def _take(self, source: Source) -> Plan | None:
        try:
            return plan_copy(source, self._copies.get(source.log_id))
        except OSError as error:
            if source.log_id in (METADATA, GROUPS):
                raise
            if source.log_id not in self._unreadable:
                self._unreadable.add(source.log_id)
                _log.error("cannot back up %s: %s", source.log.directory, error)
            return None

    def _sources(self) -> list[Source]:
        broker = self._broker
        metadata, groups = broker.journals
        sources = [Source(METADATA, metadata.log), Source(GROUPS, groups.log)]
        for topic in broker.catalog.topics():
            if not topic.is_volatile:
                sources += [
                    Source(log_id_of(topic.id, index), partition.log)
                    for index, partition in enumerate(broker.partitions.of_topic(topic.name))
                    if not isinstance(partition, OfflinePartition)
                ]
        return sources

    def _offline(self) -> set[str]:
        """Return the log ids of offline partitions. The folder retains their older copies."""
        catalog = self._broker.catalog
        log_ids = set()
        for name, index in self._broker.partitions.offline:
            topic = catalog.topic(name)
            if topic is not None:
                log_ids.add(log_id_of(topic.id, index))
        return log_ids

    def _parts(self) -> dict[str, Part]:
        return {log_id: copy.part for log_id, copy in self._copies.items()}

    def _manifest(self, *, complete: bool) -> Manifest:
        """Return a manifest. If ``complete`` is true, it has no parts yet, and the caller must add them."""
        broker = self._broker
        identity = broker.identity
        return Manifest(
            sequence=self._index.next_sequence,
            run=self.run,
            cluster_id=identity.cluster_id,
            line=identity.line,
            restore_point_ms=max(broker.trusted_time.now_ms(), self._index.last_restore_point_ms),
            wall_ms=broker.clock.now_ms(),
            starts=identity.starts,
            next_producer_id=identity.next_producer_id,
            last_trusted_ms=broker.trusted_time.now_ms(),
            complete=complete,
            topics={topic.id.hex(): topic.name for topic in broker.catalog.topics() if not topic.is_volatile},
            parts={} if complete else self._parts(),
            restored=broker.restored,
        )


def open_backup(broker: Broker, data_dir: DataDir, path: Path | None, files: Files) -> BackupWriter | None:
    """Return the backup writer, or ``None`` without a backup folder. Raises if another broker owns the folder.

    If the folder is unavailable and the broker has used it before, the broker starts and retries.
    """
    if path is None:
        return None
    path = path.absolute()
    if path == data_dir.path.absolute() or data_dir.path.absolute() in path.parents:
        raise ConfigError(
            f"the backup folder {path} is inside the data directory {data_dir.path}, so both would be lost together",
            hint="choose a folder on another disk, or a mounted object store, with --backup",
        )
    folder = BackupFolder(path, files, key=broker.settings.backup_key)
    index = BackupIndex(folder, data_dir)
    try:
        index.check_starts(index.check_owner())
    except (BackupUnavailable, OSError) as error:
        if data_dir.identity.backup != str(path):
            raise ConfigError(
                f"cannot use the backup folder {path}: {error}",
                hint="create or mount the folder, and start the broker again",
            ) from error
        _log.warning("%s; the broker starts without its backup, and retries", error)
    return BackupWriter(broker, folder, index)
