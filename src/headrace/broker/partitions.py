"""All partitions of a broker: opened from their directories, found by topic and number, removed with their
topic.

A partition whose files cannot be opened or trusted stays in the list as an offline one: asking anything of it
raises the reason, and the others go on.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from headrace.broker.archive_reads import ArchiveReads
from headrace.broker.deleted_topics import DeletedTopics
from headrace.broker.limits import BrokerLimits
from headrace.broker.offline_partition import OfflinePartition
from headrace.broker.partition import Partition
from headrace.broker.topic import Topic
from headrace.broker.volatile import VolatilePartition, place_start
from headrace.errors import HeadraceError, StorageError
from headrace.files import Files
from headrace.log.archive_store import INDEX_BYTES_MAX, ArchivePlace, ArchiveStore
from headrace.log.byte_cache import ByteCache
from headrace.log.committer import Committer
from headrace.log.config import LogConfig
from headrace.log.index import SparseIndex
from headrace.log.partition import PartitionLog
from headrace.log.producers import ProducerQuota
from headrace.memory_files import MemoryFiles

__all__ = ["Partitions"]

_log = logging.getLogger("headrace.broker")


class Partitions:
    """Implements what the catalog asks of the one who holds the partitions."""

    def __init__(
        self,
        files: Files,
        directory: Path,
        committer: Committer,
        limits: BrokerLimits,
        *,
        waits_for_sync: bool,
        leader_epoch: int,
        now_ms: int,
        archive: ArchiveStore | None = None,
    ) -> None:
        self._files = files
        self._memory = MemoryFiles(directory)
        self._directory = directory
        self._committer = committer
        self._limits = limits
        self._waits_for_sync = waits_for_sync
        self._leader_epoch = leader_epoch
        self._now_ms = now_ms
        self._archive = archive
        self._archived_indexes: ByteCache[SparseIndex] = ByteCache(INDEX_BYTES_MAX)
        self.archive_reads = ArchiveReads()
        self.deleted = DeletedTopics(files, directory)
        self._producers = ProducerQuota()
        self._by_topic: dict[str, list[Partition]] = {}
        self.offline: dict[tuple[str, int], str] = {}

    def find(self, topic: str, index: int) -> Partition | None:
        partitions = self._by_topic.get(topic)
        return partitions[index] if partitions is not None and 0 <= index < len(partitions) else None

    def of_topic(self, topic: str) -> list[Partition]:
        return list(self._by_topic.get(topic, ()))

    def all(self) -> list[tuple[str, int, Partition]]:
        return [(name, index, p) for name, held in self._by_topic.items() for index, p in enumerate(held)]

    async def open_partitions(self, topic: Topic, config: LogConfig) -> None:
        # In a thread, because new files are synced, and a thousand of them take their time.
        first = len(self._by_topic.get(topic.name, ()))
        opened = await asyncio.to_thread(self._open_from, first, topic, config, self._files_of(topic))
        self._add(topic, opened)
        reasons = [partition.fenced for partition in opened if isinstance(partition, OfflinePartition)]
        if reasons:
            raise StorageError(
                f"{len(reasons)} of {len(opened)} new partitions of {topic.name} are offline: {reasons[0]}",
                hint="the topic is known; the next start of the broker tries again to make its files",
            )

    def open_now(self, topic: Topic, config: LogConfig) -> None:
        """Open a topic that was there before this start."""
        if topic.is_volatile:
            home = self._directory / topic.id.hex()
            self._memory.make_dir(home)
            for index in range(topic.partitions):
                self._memory.make_dir(home / str(index))
                place_start(self._memory, home / str(index), self._leader_epoch)
            _log.info("topic %s is volatile: it starts empty, at a new offset", topic.name)
        self._add(topic, self._open_from(0, topic, config, self._files_of(topic)))

    def _add(self, topic: Topic, opened: list[Partition]) -> None:
        self._by_topic.setdefault(topic.name, []).extend(opened)
        for partition in opened:
            partition.share_producers(self._producers)

    def _files_of(self, topic: Topic) -> Files:
        return self._memory if topic.is_volatile else self._files

    def _open_from(self, first: int, topic: Topic, config: LogConfig, files: Files) -> list[Partition]:
        if first >= topic.partitions:
            return []
        home = self._directory / topic.id.hex()
        files.make_dir(home)
        opened = [
            self._open(topic, home / str(index), index, config, files)
            for index in range(first, topic.partitions)
        ]
        # What was ever written to had durable directories before. Those of an empty partition are new, or a process
        # that was killed has left them to the page cache.
        if any(partition.size_bytes == 0 for partition in opened):
            files.sync_dir(home)
            files.sync_dir(self._directory)
        return opened

    def _open(self, topic: Topic, directory: Path, index: int, config: LogConfig, files: Files) -> Partition:
        files.make_dir(directory)
        try:
            log = PartitionLog(
                files,
                directory,
                config=config,
                waits_for_sync=self._waits_for_sync and not topic.is_volatile,
                leader_epoch=self._leader_epoch,
                now_ms=self._now_ms,
                archive_place=self._archive_place(topic, index),
            )
        except (HeadraceError, OSError) as error:
            self.offline[topic.name, index] = str(error)
            _log.error("partition %s-%d is offline: %s", topic.name, index, error)
            return OfflinePartition(str(error), self._leader_epoch)
        report = log.report
        if report.cut_bytes or report.kept_tail_bytes:
            _log.info(
                "recovered %s-%d: kept %d bytes behind the synced mark, cut %d torn ones",
                topic.name,
                index,
                report.kept_tail_bytes,
                report.cut_bytes,
            )
        if report.indexes_rebuilt:
            _log.info("recovered %s-%d: made %d indexes anew", topic.name, index, report.indexes_rebuilt)
        for damage in report.damage:
            _log.error("damage in %s-%d: %s; its other batches stay readable", topic.name, index, damage)
        if log.unsettled is not None:
            _log.error(
                "a compaction of %s-%d could not be finished: %s; all is served, and the next start tries again",
                topic.name,
                index,
                log.unsettled,
            )
        made = VolatilePartition if topic.is_volatile else Partition
        return made(log, self._committer, self._limits.records, self.archive_reads)

    def _archive_place(self, topic: Topic, index: int) -> ArchivePlace | None:
        if self._archive is None or topic.is_volatile:
            return None
        return ArchivePlace(self._archive, f"{topic.id.hex()}/{index}", self._archived_indexes)

    def reconfigure(self, topic: Topic, config: LogConfig) -> None:
        for partition in self._by_topic.get(topic.name, ()):
            partition.set_config(config)

    async def close_and_remove(self, topic: Topic) -> None:
        """Close the topic's partitions and remove their files; what cannot be removed is left to the next
        start, and what is in the archive to the archiver.
        """
        for index, partition in enumerate(self._by_topic.pop(topic.name, [])):
            self.offline.pop((topic.name, index), None)
            await partition.abandon()
        try:
            # In a thread, as they were made.
            is_archived = await asyncio.to_thread(self.deleted.remove, topic.id.hex(), self._files_of(topic))
        except OSError as error:
            _log.warning("files of the deleted topic %s are left for the next start: %s", topic.name, error)
            return
        if is_archived:
            self.deleted.archived.add(topic.id.hex())

    async def close(self) -> None:
        for name, index, partition in self.all():
            try:
                await partition.close()
            except OSError as error:
                _log.error("partition %s-%d was not closed cleanly: %s", name, index, error)
        await self.archive_reads.close()
