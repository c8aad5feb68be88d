"""All partitions of a broker. Opens partitions, finds them by topic and index, and removes them with their topic.

If the files of a partition cannot be opened, the partition is offline: every call raises the reason. The other
partitions are not affected.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

from headrace.broker.limits import BrokerLimits
from headrace.broker.storage.archive_access import ArchiveReads
from headrace.broker.storage.offline_partition import OfflinePartition
from headrace.broker.storage.partition import Accepted, Partition, ProduceRefused
from headrace.broker.topics.topic import Topic
from headrace.errors import DataDirError, HeadraceError, StorageError
from headrace.files import Files
from headrace.log.archive import ARCHIVED_NAME, ARCHIVING_NAME
from headrace.log.archive_store import INDEX_BYTES_MAX, ArchiveLocation, ArchiveStore, ByteCache
from headrace.log.committer import Committer
from headrace.log.config import LogConfig
from headrace.log.index import SparseIndex
from headrace.log.partition import PartitionLog
from headrace.log.producers import ProducerQuota
from headrace.log.retention import trim
from headrace.log.segment import log_name
from headrace.memory_files import MemoryFiles
from headrace.wire.codes import ErrorCode

__all__ = ["OFFSETS_PER_START", "DeletedTopics", "Partitions", "VolatilePartition", "create_at_new_offset"]

OFFSETS_PER_START = 1 << 40
_log = logging.getLogger("headrace.broker")


def create_at_new_offset(files: MemoryFiles, directory: Path, start_number: int) -> None:
    """Create a partition of an existing volatile topic. Its first offset is above all offsets of earlier starts."""
    files.open(directory / log_name(start_number * OFFSETS_PER_START), create=True).close()


class VolatilePartition(Partition):
    """A partition of a volatile topic. It is in memory only, is empty after a restart, and never reuses an offset.

    A topic is volatile if it was created with ``headrace.volatile``. Its partitions have the same log as others, but
    with files in memory, and every append enforces ``retention.bytes``. After a restart the topic still exists with its
    configuration, but is empty. Each start of the broker uses a new range of 2**40 offsets, so an offset never
    identifies two records. A reader at a deleted offset gets OFFSET_OUT_OF_RANGE, as after any deletion.
    """

    def append(self, *arguments: Any, **keywords: Any) -> Accepted:
        log = self.log
        if log.end_offset % OFFSETS_PER_START > OFFSETS_PER_START - (1 << 31):
            raise ProduceRefused(
                ErrorCode.KAFKA_STORAGE_ERROR,
                "the volatile partition has used all offsets of this start: restart the broker",
            )
        accepted = super().append(*arguments, **keywords)
        if log.size_bytes > log.config.retention_bytes:
            # Trim by size only. The regular retention check removes old records by time.
            trim(log, 0)
        return accepted


class Partitions:
    """Implements the catalog's ``PartitionHooks``."""

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
        return [
            (name, index, p)
            for name, partitions in self._by_topic.items()
            for index, p in enumerate(partitions)
        ]

    async def open_partitions(self, topic: Topic, config: LogConfig) -> None:
        # In a thread, because syncing the files of up to a thousand new partitions takes long.
        first = len(self._by_topic.get(topic.name, ()))
        opened = await asyncio.to_thread(self._open_from, first, topic, config, self._files_of(topic))
        self._add(topic, opened)
        reasons = [partition.fenced for partition in opened if isinstance(partition, OfflinePartition)]
        if reasons:
            raise StorageError(
                f"{len(reasons)} of {len(opened)} new partitions of {topic.name} are offline: {reasons[0]}",
                hint="the topic was created; the next start of the broker creates the missing files",
            )

    def open_now(self, topic: Topic, config: LogConfig) -> None:
        """Open the partitions of a topic that existed before this start."""
        if topic.is_volatile:
            topic_directory = self._directory / topic.id.hex()
            self._memory.make_dir(topic_directory)
            for index in range(topic.partitions):
                self._memory.make_dir(topic_directory / str(index))
                create_at_new_offset(self._memory, topic_directory / str(index), self._leader_epoch)
            _log.info("topic %s is volatile: it is empty and continues at a new offset", topic.name)
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
        topic_directory = self._directory / topic.id.hex()
        files.make_dir(topic_directory)
        opened = [
            self._open(topic, topic_directory / str(index), index, config, files)
            for index in range(first, topic.partitions)
        ]
        # The directories of a partition with records are on disk. Those of an empty partition may be only in
        # the page cache (they are new, or the last process was killed), so sync them.
        if any(partition.size_bytes == 0 for partition in opened):
            files.sync_dir(topic_directory)
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
                archive_location=self._archive_location(topic, index),
            )
        except (HeadraceError, OSError) as error:
            self.offline[topic.name, index] = str(error)
            _log.error("partition %s-%d is offline: %s", topic.name, index, error)
            return OfflinePartition(str(error), self._leader_epoch)
        report = log.report
        if report.truncated_bytes or report.retained_tail_bytes:
            _log.info(
                "recovered %s-%d: retained %d valid bytes beyond the last sync, truncated %d incomplete bytes",
                topic.name,
                index,
                report.retained_tail_bytes,
                report.truncated_bytes,
            )
        if report.indexes_rebuilt:
            _log.info("recovered %s-%d: rebuilt %d indexes", topic.name, index, report.indexes_rebuilt)
        for damage in report.damage:
            _log.error(
                "%s-%d has a damaged batch: %s; its other batches are readable", topic.name, index, damage
            )
        if log.unfinished_swap is not None:
            _log.error(
                "cannot complete a compaction of %s-%d: %s; all records are readable, and the next start retries",
                topic.name,
                index,
                log.unfinished_swap,
            )
        partition_class = VolatilePartition if topic.is_volatile else Partition
        return partition_class(log, self._committer, self._limits.records, self.archive_reads)

    def _archive_location(self, topic: Topic, index: int) -> ArchiveLocation | None:
        if self._archive is None or topic.is_volatile:
            return None
        return ArchiveLocation(self._archive, f"{topic.id.hex()}/{index}", self._archived_indexes)

    def reconfigure(self, topic: Topic, config: LogConfig) -> None:
        for partition in self._by_topic.get(topic.name, ()):
            partition.set_config(config)

    async def close_and_remove(self, topic: Topic) -> None:
        """Close the topic's partitions and remove their files.

        If that fails, the next start removes the files. The archiver removes the topic's files from the archive.
        """
        for index, partition in enumerate(self._by_topic.pop(topic.name, [])):
            self.offline.pop((topic.name, index), None)
            await partition.abandon()
        try:
            # In a thread, because a topic can have thousands of files.
            is_archived = await asyncio.to_thread(self.deleted.remove, topic.id.hex(), self._files_of(topic))
        except OSError as error:
            _log.warning(
                "cannot remove files of the deleted topic %s: %s; the next start removes them",
                topic.name,
                error,
            )
            return
        if is_archived:
            self.deleted.archived.add(topic.id.hex())

    async def close(self) -> None:
        for name, index, partition in self.all():
            try:
                await partition.close()
            except OSError as error:
                _log.error("cannot close partition %s-%d cleanly: %s", name, index, error)
        await self.archive_reads.close()


class DeletedTopics:
    """Removes the files of deleted topics: from the data directory at once, from the archive when it is available.

        TOPIC/archived        an empty file. If a deleted topic's directory has only this file, the archive still has
                              files of the topic.

    A topic's directory belongs to a deleted topic if the journal of topics has no entry for it. At start, the broker
    removes the remaining files of such topics. If ``archived`` exists, it removes their archived files too.
    """

    def __init__(self, files: Files, directory: Path) -> None:
        self._files = files
        self._directory = directory
        self.archived: set[str] = set()
        """Ids of deleted topics whose files are still in the archive."""

    def remove(self, topic: str, files: Files) -> bool:
        """Remove the topic's files from the data directory. Can run in any thread.

        Returns whether the archive has files of the topic. If so, the caller must add the topic to ``archived`` on the
        event loop, but only after this returns, because ``remove_directory`` expects an empty directory. Raises
        ``OSError`` if some files remain for the next start.
        """
        topic_directory = self._directory / topic
        if not files.exists(topic_directory):
            return False
        partitions = [name for name in files.list(topic_directory) if name != ARCHIVED_NAME]
        is_archived = files.exists(topic_directory / ARCHIVED_NAME)
        if not is_archived and any(
            files.exists(topic_directory / partition / name)
            for partition in partitions
            for name in (ARCHIVED_NAME, ARCHIVING_NAME)
        ):
            # Create this file before the partitions' lists of archived segments are removed.
            files.open(topic_directory / ARCHIVED_NAME, create=True).close()
            files.sync_dir(topic_directory)
            is_archived = True
        for partition in partitions:
            for name in files.list(topic_directory / partition):
                files.remove(topic_directory / partition / name)
            files.remove_dir(topic_directory / partition)
        if not is_archived:
            files.remove_dir(topic_directory)
        files.sync_dir(self._directory)
        return is_archived

    def sweep(self, existing_ids: set[bytes]) -> None:
        """Remove directories of topics whose deletion a crash interrupted."""
        for name in self._files.list(self._directory):
            try:
                topic_id = bytes.fromhex(name)
            except ValueError:
                topic_id = b""
            if len(topic_id) != 16:
                raise DataDirError(
                    f"{self._directory / name} is not a topic's directory",
                    hint="move it out of the data directory, and start the broker again",
                )
            if topic_id not in existing_ids:
                _log.info("removing the files of a deleted topic: %s", name)
                if self.remove(name, self._files):
                    self.archived.add(name)

    def remove_directory(self, topic: str) -> None:
        """Remove the topic's directory when the archive has no more files of the topic.

        Can run in any thread, and can be repeated after a failure. The caller then removes the topic from ``archived``
        on the event loop.
        """
        topic_directory = self._directory / topic
        if not self._files.exists(topic_directory):
            return
        if self._files.exists(topic_directory / ARCHIVED_NAME):
            self._files.remove(topic_directory / ARCHIVED_NAME)
        self._files.remove_dir(topic_directory)
        self._files.sync_dir(self._directory)
