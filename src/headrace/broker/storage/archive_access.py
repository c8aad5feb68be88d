"""Access to the archive: its configured address (a folder or a bucket), and reads in threads.

Each read runs in a daemon thread, and at most four run at a time. Syncs and reads of the broker's own disk use other
threads, so a hanging bucket or mount delays only readers of the archive. Concurrent requests for the same bytes
share one read. If a read takes too long, the requester gets ``ReadIsLate`` and retries. The read continues, and the
retry gets the bytes.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Hashable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.broker.event_loop import in_daemon_thread
from headrace.errors import ArchiveUnavailable, ConfigError
from headrace.log.archive_folder import FolderStore
from headrace.log.archive_store import ArchiveStore, BucketAddress, parse_bucket
from headrace.log.archived_segment import ArchivedSegment
from headrace.log.reader import ReadPlan
from headrace.model.errors import needing

if TYPE_CHECKING:
    from headrace.broker.settings import BrokerSettings
    from headrace.files import Files
    from headrace.log.archive_bucket import BucketStore

__all__ = ["ArchiveReads", "ReadIsLate", "open_archive", "parse_archive"]

_log = logging.getLogger("headrace.broker")
T = TypeVar("T")

READS_AT_ONCE = 4
READS_WAITING_MAX = 1_000


class ReadIsLate(Exception):
    """A read took longer than the requester waits. The read itself continues."""


class ArchiveReads:
    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(READS_AT_ONCE)
        self._running: dict[Hashable, asyncio.Task[Any]] = {}
        self._is_unavailable = False
        self.reads = 0
        self.failures = 0

    async def fetch(self, plan: ReadPlan, wait_s: float) -> tuple[ReadPlan, bytes | bytearray]:
        """Read the bytes of a plan for an archived segment. Returns the bytes, and the plan with their position."""

        def work() -> tuple[ReadPlan, bytes | bytearray]:
            data = plan.fetch(wait=True)
            assert data is not None
            return plan, data

        assert isinstance(plan.segment, ArchivedSegment)
        return await self.run(("fetch", plan.key), plan.segment, work, wait_s)

    async def run(self, key: Hashable, segment: ArchivedSegment, work: Callable[[], T], wait_s: float) -> T:
        """Run ``work`` on the segment in a thread. Raises ``ReadIsLate`` if it takes longer than ``wait_s``."""
        task = self._running.get(key)
        if task is None:
            if len(self._running) >= READS_WAITING_MAX:
                raise segment.unavailable(OSError(f"too many waiting reads (limit {READS_WAITING_MAX})"))
            task = asyncio.get_running_loop().create_task(self._work(work))
            self._running[key] = task
            task.add_done_callback(partial(self._done, key))
        done, _ = await asyncio.wait((task,), timeout=wait_s)
        if not done:
            raise ReadIsLate
        result: T = task.result()
        return result

    async def _work(self, work: Callable[[], T]) -> T:
        async with self._slots:
            try:
                result = await in_daemon_thread("headrace-archive-read", work)
            except Exception as error:
                self._count(error)
                raise
        self._count(None)
        return result

    def _count(self, error: Exception | None) -> None:
        """Count the read. Log once when the archive becomes unavailable, and once when it is available again."""
        self.reads += 1
        if isinstance(error, ArchiveUnavailable):
            self.failures += 1
            if not self._is_unavailable:
                _log.error("%s", error)
            self._is_unavailable = True
        elif self._is_unavailable:
            self._is_unavailable = False
            _log.info("the archive is available again")

    def _done(self, key: Hashable, task: asyncio.Task[Any]) -> None:
        del self._running[key]
        if not task.cancelled():
            # Marks the exception as retrieved, because no reader may be waiting.
            task.exception()

    async def close(self) -> None:
        """Cancel all reads, without waiting for their daemon threads."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


_ADDRESS = "headrace.archive.dir"
_ENDPOINT = "headrace.archive.s3.endpoint"
_REGION = "headrace.archive.s3.region"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def parse_archive(configs: dict[str, str]) -> Path | BucketAddress | None:
    """Remove the archive's keys from ``configs`` and return the archive's address, or ``None`` without an archive.

    The keys that remain are limits and topic defaults.
    """
    address, endpoint, region = (configs.pop(name, "") for name in (_ADDRESS, _ENDPOINT, _REGION))
    scheme = _SCHEME.match(address)
    if scheme is not None and scheme[1] == "s3":
        bucket = parse_bucket(address, endpoint, region)
        _bucket_store()
        return bucket
    if scheme is not None:
        raise ConfigError(
            f"unsupported scheme {scheme[1]} in {_ADDRESS}: an archive must be a folder or an S3 bucket",
            hint=f"use --set {_ADDRESS}=FOLDER, or --set {_ADDRESS}=s3://BUCKET/PREFIX",
        )
    for name, value in ((_ENDPOINT, endpoint), (_REGION, region)):
        if value:
            raise ConfigError(
                f"{name} is set, but the archive is not in a bucket",
                hint=f"use --set {_ADDRESS}=s3://BUCKET/PREFIX, or remove {name}",
            )
    return Path(address) if address else None


def _bucket_store() -> type[BucketStore]:
    with needing("s3", "pyarrow"):
        from headrace.log.archive_bucket import BucketStore
    return BucketStore


def open_archive(settings: BrokerSettings, cluster_id: str, files: Files) -> ArchiveStore | None:
    """Return the configured archive, or ``None``. Raises if the address is invalid.

    Does not contact the archive. While the archive is unavailable, the broker starts and serves its local records.
    """
    if settings.archive_bucket is not None:
        return _bucket_store()(settings.archive_bucket, cluster_id)
    if settings.archive_dir is not None:
        return FolderStore(files, settings.archive_dir.absolute(), cluster_id)
    return None
