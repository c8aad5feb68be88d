"""The broker without its sockets. It owns all state that requests use, from start to stop."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.broker.backup.restore_history import load_history
from headrace.broker.backup.writer import BackupWriter, open_backup
from headrace.broker.event_loop import Turns
from headrace.broker.groups import GroupCoordinator, GroupSettings
from headrace.broker.limits import BrokerLimits, limits_of
from headrace.broker.metrics.stats import Stats
from headrace.broker.net.client_limits import Account, Holder, Notices
from headrace.broker.net.fetch_sessions import FetchSessions
from headrace.broker.net.waiting_fetches import WaitingFetches
from headrace.broker.settings import BrokerSettings
from headrace.broker.storage.archive_access import open_archive
from headrace.broker.storage.archiver import Archiver
from headrace.broker.storage.compactor import Compactor
from headrace.broker.storage.data_dir import DataDir, Identity
from headrace.broker.storage.partition import Partition
from headrace.broker.storage.partitions import Partitions
from headrace.broker.topics.catalog import Catalog
from headrace.broker.transactions import TransactionContext, TransactionCoordinator, TransactionSettings
from headrace.clock import Clock, SystemClock, TrustedTime
from headrace.errors import CorruptBatch, DataDirError, StorageError
from headrace.files import Files, SystemFiles
from headrace.log.committer import Committer
from headrace.log.journal import Journal, check_journal
from headrace.log.retention import overdue

if TYPE_CHECKING:
    from headrace.broker.net.connection import Connection

__all__ = ["Broker", "ProducerIds"]

_log = logging.getLogger("headrace.broker")
_SAVE_TIME_S = 60.0
_PRODUCER_EXPIRY_MS = 24 * 3600 * 1000
_DAMAGE_REPORTS_MAX = 1000
_FETCH_BYTES_MIN = 1 << 20


class ProducerIds:
    """Assigns producer ids. It never assigns the same id twice."""

    def __init__(self, data_dir: DataDir) -> None:
        self._data_dir = data_dir

    async def next(self) -> int:
        try:
            return self._data_dir.next_producer_id()
        except OSError as error:
            raise StorageError(f"cannot reserve producer ids: {error}") from error


class _TopicNames:
    """The part of the catalog that the group and transaction coordinators use."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def has_partition(self, name: str, index: int) -> bool:
        topic = self._catalog.topic(name)
        return topic is not None and 0 <= index < topic.partitions

    def name_of(self, topic_id: bytes) -> str | None:
        topic = self._catalog.topic_by_id(topic_id)
        return None if topic is None else topic.name

    def id_of(self, name: str) -> bytes | None:
        topic = self._catalog.topic(name)
        return None if topic is None else topic.id


class Broker:
    def __init__(
        self,
        settings: BrokerSettings,
        *,
        files: Files | None = None,
        clock: Clock | None = None,
        limits: BrokerLimits | None = None,
        groups: GroupSettings | None = None,
        transactions: TransactionSettings | None = None,
    ) -> None:
        """Open the data directory and recover its content. Requires a running event loop."""
        self.settings = settings
        self.clock = clock or SystemClock()
        self.limits = limits or limits_of(settings.configs)
        self.notices = Notices(self.clock)
        self.stats = Stats()
        self.requests_held: Account[Connection] = Account("requests", self.limits.all_requests_bytes_max)
        self.responses_held: Account[Holder] = Account("responses", self.limits.all_responses_bytes_max)
        # One thread, so that only one batch at a time is decompressed in memory.
        self.batch_executor = ThreadPoolExecutor(1, thread_name_prefix="headrace-batch")
        # One thread, so that the patterns of all clients together use at most one core.
        self.pattern_executor = ThreadPoolExecutor(1, thread_name_prefix="headrace-pattern")
        # One thread, so that only one large request or response at a time takes time from the event loop.
        self.codec_executor = ThreadPoolExecutor(1, thread_name_prefix="headrace-codec")
        self.turns = Turns()
        self.loop = asyncio.get_running_loop()
        files = files or SystemFiles()
        try:
            self._data_dir = DataDir(files, settings.data_dir)
            try:
                self._open(files, groups or GroupSettings(), transactions or TransactionSettings())
            except BaseException:
                self._data_dir.close()
                raise
        except OSError as error:
            raise DataDirError(
                f"cannot open the data directory {settings.data_dir}: {error}",
                hint="check the disk, then start the broker again; acknowledged records are safe",
            ) from error
        self._tasks: list[asyncio.Task[None]] = []
        self._damage_reported: set[tuple[str, int]] = set()

    def _open(self, files: Files, groups: GroupSettings, transactions: TransactionSettings) -> None:
        settings, data_dir = self.settings, self._data_dir
        self.cluster_id = data_dir.identity.cluster_id
        self.trusted_time = TrustedTime(self.clock, data_dir.identity.last_trusted_ms or None)
        self.restored = load_history(data_dir.path)
        for directory in (data_dir.metadata, data_dir.groups):
            # Check both journals first, so that a start that fails here changes nothing.
            check_journal(files, directory, is_new=data_dir.identity.starts == 0)
        self.committer = Committer()
        self._metadata = Journal(files, data_dir.metadata, self.clock, self.committer)
        self._groups_journal = Journal(files, data_dir.groups, self.clock, self.committer)
        # Count the start only when both journals exist, because every later start requires them.
        leader_epoch = data_dir.record_start()
        archive = open_archive(settings, self.cluster_id, files)
        self.partitions = Partitions(
            files,
            data_dir.topics,
            self.committer,
            self.limits,
            waits_for_sync=settings.waits_for_sync,
            leader_epoch=leader_epoch,
            now_ms=self.trusted_time.now_ms(),
            archive=archive,
        )
        self.catalog = Catalog(self._metadata, self.partitions, settings, self.clock)
        self.partitions.deleted.sweep({topic.id for topic in self.catalog.topics()})
        for topic in self.catalog.topics():
            self.partitions.open_now(topic, self.catalog.log_config(topic))
        topics = _TopicNames(self.catalog)
        self.groups = GroupCoordinator(
            settings=groups,
            journal=self._groups_journal,
            topics=topics,
            clock=self.clock,
            trusted_ms=self.trusted_time.stamp_ms,
        )
        self.fetch_sessions = FetchSessions(self.clock, bytes_max=self.limits.fetch_sessions_bytes_max)
        self.waiting_fetches = WaitingFetches(self.limits.waiting_fetches_bytes_max)
        self.compactor = Compactor(self)
        self.archiver = Archiver(self, archive)
        self.producer_ids = ProducerIds(data_dir)
        self.backup: BackupWriter | None = open_backup(self, data_dir, settings.backup_dir, files)
        self.transactions = TransactionCoordinator(
            TransactionContext(
                settings=transactions,
                ledger=self.groups.ledger,
                partitions=self.partitions,
                topics=topics,
                producer_ids=self.producer_ids,
                clock=self.clock,
                stamp_ms=self.trusted_time.stamp_ms,
                trusted_ms=self.trusted_time.now_ms,
                coordinator_epoch=leader_epoch,
            )
        )

    # For the backup

    @property
    def identity(self) -> Identity:
        return self._data_dir.identity

    @property
    def journals(self) -> tuple[Journal, Journal]:
        """The journals of topics and settings, and of groups and transactions."""
        return self._metadata, self._groups_journal

    def record_backup(self, folder: Path) -> None:
        self._data_dir.record_backup(folder)

    # For the handlers

    def partition(self, topic: str, index: int) -> Partition | None:
        return self.partitions.find(topic, index)

    def topic_name(self, topic_id: bytes) -> str | None:
        topic = self.catalog.topic_by_id(topic_id)
        return None if topic is None else topic.name

    @property
    def fetch_bytes_max(self) -> int:
        """The current size limit of a Fetch response. It is lower while clients have many unread responses."""
        return min(self.limits.fetch_bytes_max, max(_FETCH_BYTES_MIN, self.responses_held.share()))

    def report_damage(self, error: CorruptBatch) -> None:
        """Log each damaged batch once."""
        batch = (str(error.path), error.position)
        if batch not in self._damage_reported and len(self._damage_reported) < _DAMAGE_REPORTS_MAX:
            self._damage_reported.add(batch)
            self.stats.damaged_batches += 1
            _log.error("%s", error)

    # Start and stop

    def set_port(self, port: int) -> None:
        """Replace port 0 in the settings by the port that the operating system chose."""
        if self.settings.listen_port == 0:
            self.settings = replace(self.settings, listen_port=port)

    async def start(self) -> None:
        await self.groups.start()
        await self.transactions.recover()
        self._tasks = [
            self.loop.create_task(self._save_trusted_time()),
            self.loop.create_task(self._apply_retention()),
        ]
        self.compactor.start()
        self.archiver.start()
        if self.backup is not None:
            self.backup.start()

    async def _save_trusted_time(self) -> None:
        jumps = self.trusted_time.jumps
        while True:
            await asyncio.sleep(_SAVE_TIME_S)
            trusted_ms = self.trusted_time.now_ms()
            if self.trusted_time.jumps != jumps:
                jumps = self.trusted_time.jumps
                self._warn_of_jump()
            try:
                self._data_dir.save_time(trusted_ms)
            except OSError as error:
                _log.error("cannot save the trusted time in %s: %s; retrying", self._data_dir.path, error)

    def _warn_of_jump(self) -> None:
        jumped_s, doubted_s = self.trusted_time.last_jump_ms / 1000, self.trusted_time.pending_jump_ms / 1000
        if doubted_s:
            _log.warning(
                "the wall clock differs from the trusted time by %+.0f s; retention ignores the wall clock for an hour",
                doubted_s,
            )
        else:
            _log.warning(
                "the wall clock jumped by %+.0f s and back; retention ignored the jump",
                jumped_s,
            )

    async def _apply_retention(self) -> None:
        while True:
            await asyncio.sleep(self.settings.retention_check_s)
            await self.trim()

    async def trim(self) -> None:
        """Delete expired records, producers, transactional ids and offsets."""
        trusted_ms = self.trusted_time.now_ms()
        for name, index, partition in self.partitions.all():
            if partition.fenced is not None:
                continue
            try:
                due = overdue(partition.log, trusted_ms)
                if due is not None:
                    await self.committer.delete_before(partition.log, due.new_start)
            except (OSError, StorageError) as error:
                _log.error("cannot delete expired records of %s-%d: %s; retrying", name, index, error)
                continue
            if due is not None:
                trimmed = due.removed(partition.log)
                _log.info(
                    "deleted offsets %d to %d of %s-%d (%d bytes) because of %s",
                    trimmed.first_offset,
                    trimmed.next_offset - 1,
                    name,
                    index,
                    trimmed.bytes,
                    trimmed.reason,
                )
            partition.log.producers.expire(trusted_ms - _PRODUCER_EXPIRY_MS)
            await asyncio.sleep(0)
        for transactional_id in await self.transactions.expire(trusted_ms):
            _log.info("removed the transactional id %r, which was unused for too long", transactional_id)
        try:
            expired = await self.groups.expire(trusted_ms)
        except StorageError as error:
            _log.error("cannot delete expired offsets: %s; retrying", error)
            return
        for offset in expired:
            _log.info(
                "deleted the expired offset %d of group %s for %s-%d",
                offset.offset,
                offset.group_id,
                offset.topic,
                offset.partition,
            )

    async def stop(self) -> None:
        """Stop all tasks. Sync and close all files, so that the next start does not have to recover them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.compactor.stop()
        await self.archiver.stop()
        await self.transactions.stop()
        await self.groups.stop()
        await self.catalog.settle()
        if self.backup is not None:
            await self.backup.stop()
        await self.partitions.close()
        await self._groups_journal.close()
        await self._metadata.close()
        await self.committer.close()
        for executor in (self.batch_executor, self.pattern_executor, self.codec_executor):
            executor.shutdown(wait=False, cancel_futures=True)
        try:
            self._data_dir.save_time(self.trusted_time.now_ms())
        finally:
            self._data_dir.close()
