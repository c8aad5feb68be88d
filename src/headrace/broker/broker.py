"""The broker without its sockets: everything that requests act on, from start to stop."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.broker.archive_address import open_archive
from headrace.broker.archiver import Archiver
from headrace.broker.backup.history import load_history
from headrace.broker.backup.keeper import BackupKeeper
from headrace.broker.backup.opening import open_backup
from headrace.broker.catalog import Catalog
from headrace.broker.compactor import Compactor
from headrace.broker.data_dir import DataDir, Identity
from headrace.broker.fetch_sessions import FetchSessions
from headrace.broker.groups import GroupCoordinator, GroupSettings
from headrace.broker.limits import BrokerLimits, limits_of
from headrace.broker.notices import Notices
from headrace.broker.partition import Partition
from headrace.broker.partitions import Partitions
from headrace.broker.pressure import Account
from headrace.broker.settings import BrokerSettings
from headrace.broker.stats import Stats
from headrace.broker.transactions import TransactionCoordinator, TransactionSettings
from headrace.broker.trusted_time import TrustedTime
from headrace.broker.waiting_fetches import WaitingFetches
from headrace.clock import Clock, SystemClock
from headrace.errors import CorruptBatch, DataDirError, StorageError
from headrace.files import Files, SystemFiles
from headrace.log.committer import Committer
from headrace.log.journal import Journal, check_journal
from headrace.log.retention import overdue

if TYPE_CHECKING:
    from headrace.broker.connection import Connection

__all__ = ["Broker", "ProducerIds"]

_log = logging.getLogger("headrace.broker")
_TIME_KEPT_S = 60.0
_PRODUCER_EXPIRY_MS = 24 * 3600 * 1000
_DAMAGE_SAID_MAX = 1000
_FETCH_BYTES_LEAST = 1 << 20


class ProducerIds:
    """Ids for idempotent producers, none of which is ever given out twice."""

    def __init__(self, data_dir: DataDir) -> None:
        self._data_dir = data_dir

    async def next(self) -> int:
        try:
            return self._data_dir.next_producer_id()
        except OSError as error:
            raise StorageError(f"no producer id could be reserved: {error}") from error


class _TopicNames:
    """What groups ask of the catalog."""

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
        """Open the data directory and recover everything in it. Must be called inside a running event loop."""
        self.settings = settings
        self.clock = clock or SystemClock()
        self.limits = limits or limits_of(settings.configs)
        self.notices = Notices(self.clock)
        self.stats = Stats()
        self.requests_held: Account[Connection] = Account("requests", self.limits.all_requests_bytes_max)
        self.answers_held: Account[Connection] = Account("answers", self.limits.all_answers_bytes_max)
        # One thread, so that all walks together need the memory of one.
        self.walker = ThreadPoolExecutor(1, thread_name_prefix="headrace-walk")
        # One thread, so that patterns of all clients together take one core at the most.
        self.matcher = ThreadPoolExecutor(1, thread_name_prefix="headrace-match")
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
                f"the data directory {settings.data_dir} failed during the start: {error}",
                hint="check the disk, then start the broker again; what was acknowledged is kept",
            ) from error
        self._tasks: list[asyncio.Task[None]] = []
        self._damage_said: set[tuple[str, int]] = set()

    def _open(self, files: Files, groups: GroupSettings, transactions: TransactionSettings) -> None:
        settings, data_dir = self.settings, self._data_dir
        self.cluster_id = data_dir.identity.cluster_id
        self.trusted_time = TrustedTime(self.clock, data_dir.identity.last_trusted_ms or None)
        self.restored = load_history(data_dir.path)
        for directory in (data_dir.metadata, data_dir.groups):
            # Before anything is changed, so that a start which is refused leaves all as it was.
            check_journal(files, directory, is_new=data_dir.identity.starts == 0)
        self.committer = Committer()
        self._metadata = Journal(files, data_dir.metadata, self.clock, self.committer)
        self._groups_journal = Journal(files, data_dir.groups, self.clock, self.committer)
        # Counted when both journals are there: from the second start on, they must be.
        leader_epoch = data_dir.note_start()
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
        self.backup: BackupKeeper | None = open_backup(self, data_dir, settings.backup_dir, files)
        self.transactions = TransactionCoordinator(
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

    # What the backup asks

    @property
    def identity(self) -> Identity:
        return self._data_dir.identity

    @property
    def journals(self) -> tuple[Journal, Journal]:
        """Of topics and settings, and of groups and transactions."""
        return self._metadata, self._groups_journal

    def note_backup(self, folder: Path) -> None:
        self._data_dir.note_backup(folder)

    # What handlers ask

    def partition(self, topic: str, index: int) -> Partition | None:
        return self.partitions.find(topic, index)

    def topic_name(self, topic_id: bytes) -> str | None:
        topic = self.catalog.topic_by_id(topic_id)
        return None if topic is None else topic.name

    def min_insync_replicas(self, name: str) -> int:
        topic = self.catalog.topic(name)
        return 1 if topic is None else self.catalog.min_insync_replicas(topic)

    @property
    def fetch_bytes_max(self) -> int:
        """How large an answer to a fetch may be now: less when many are not taken."""
        return min(self.limits.fetch_bytes_max, max(_FETCH_BYTES_LEAST, self.answers_held.share()))

    def say_damage(self, error: CorruptBatch) -> None:
        """Tell the operator of a damaged batch, once for each."""
        place = (str(error.path), error.position)
        if place not in self._damage_said and len(self._damage_said) < _DAMAGE_SAID_MAX:
            self._damage_said.add(place)
            self.stats.damaged += 1
            _log.error("%s", error)

    # Life

    def listens_on(self, port: int) -> None:
        """The port that was taken, where any free one was asked for."""
        if self.settings.listen_port == 0:
            self.settings = replace(self.settings, listen_port=port)

    async def start(self) -> None:
        await self.groups.start()
        await self.transactions.recovered()
        self._tasks = [
            self.loop.create_task(self._keep_time()),
            self.loop.create_task(self._keep_trimmed()),
        ]
        self.compactor.start()
        self.archiver.start()
        if self.backup is not None:
            self.backup.start()

    async def _keep_time(self) -> None:
        jumps = self.trusted_time.jumps
        while True:
            await asyncio.sleep(_TIME_KEPT_S)
            trusted_ms = self.trusted_time.now_ms()
            if self.trusted_time.jumps != jumps:
                jumps = self.trusted_time.jumps
                self._warn_of_jump()
            try:
                self._data_dir.note_time(trusted_ms)
            except OSError as error:
                _log.error("the time could not be noted in %s: %s; trying again", self._data_dir.path, error)

    def _warn_of_jump(self) -> None:
        jumped_s, doubted_s = self.trusted_time.jumped_ms / 1000, self.trusted_time.doubted_ms / 1000
        if doubted_s:
            _log.warning(
                "the wall clock stands %+.0f s from where it should be; nothing is deleted by it for an hour",
                doubted_s,
            )
        else:
            _log.warning(
                "the wall clock jumped by %+.0f s and was set right again; nothing was deleted by it",
                jumped_s,
            )

    async def _keep_trimmed(self) -> None:
        while True:
            await asyncio.sleep(self.settings.retention_check_s)
            await self.trim()

    async def trim(self) -> None:
        """Delete what retention no longer keeps, forget idle producers and expired offsets."""
        trusted_ms = self.trusted_time.now_ms()
        for name, index, partition in self.partitions.all():
            if partition.fenced is not None:
                continue
            try:
                found = overdue(partition.log, trusted_ms)
                if found is not None:
                    await self.committer.delete_before(partition.log, found.new_start)
            except (OSError, StorageError) as error:
                _log.error("retention of %s-%d failed: %s", name, index, error)
                continue
            if found is not None:
                trimmed = found.gone(partition.log)
                _log.info(
                    "deleted offsets %d to %d of %s-%d (%d bytes) by %s",
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
            _log.info("forgot the transactional id %r, which nobody has used for long", transactional_id)
        try:
            expired = await self.groups.expire(trusted_ms)
        except StorageError as error:
            _log.error("committed offsets past their retention are still there: %s", error)
            return
        for gone in expired:
            _log.info(
                "forgot the offset %d that group %s had committed for %s-%d",
                gone.offset,
                gone.group_id,
                gone.topic,
                gone.partition,
            )

    async def stop(self) -> None:
        """Leave everything durable, so that the next start has nothing to recover."""
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
        for executor in (self.walker, self.matcher):
            executor.shutdown(wait=False, cancel_futures=True)
        try:
            self._data_dir.note_time(self.trusted_time.now_ms())
        finally:
            self._data_dir.close()
