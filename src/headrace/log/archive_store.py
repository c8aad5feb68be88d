"""The port between a partition's log and its archive: put a file, read ranges of it, list, delete.

A folder (``archive_folder``) and a bucket (``archive_bucket``) are behind it; ``tests/contract/test_archive_stores.py``
says what both do. Names are relative, ``TOPIC/PARTITION/FILE``. Every call may wait for a disk or a network, so it is
made in a thread. What fails is an ``OSError`` with the reason: ``FileNotFoundError`` only where the store has answered
that the file is not there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import NamedTuple, NoReturn, Protocol

from headrace.log.byte_cache import ByteCache
from headrace.log.index import SparseIndex
from headrace.log.scan import ReadableFile

__all__ = ["ArchivePlace", "ArchiveStore", "MissingStore", "with_first_read"]

INDEX_BYTES_MAX = 16 << 20


class ArchiveStore(Protocol):
    @property
    def advice(self) -> str:
        """What to do when it cannot be used."""

    def location(self, name: str) -> str:
        """Where a file is, for people to find it."""

    def put(self, name: str, chunks: Iterable[bytes], size: int) -> None:
        """Store a file of ``size`` bytes, in place of any that has the name. On return it is whole and durable.

        Where the first chunk raises, a file that has the name stays as it is.
        """

    def open(self, name: str) -> ReadableFile:
        """For reading by ranges, by any thread."""

    def list(self, name: str) -> list[str]:
        """The names directly below a name, sorted; none where there is nothing."""

    def delete(self, name: str) -> None:
        """Remove a file, or everything below a name; what is not there is no error."""


def with_first_read(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The same chunks, the first of them read at once, so that its error comes before anything is deleted."""
    rest = iter(chunks)
    return chain(list(islice(rest, 1)), rest)


class ArchivePlace(NamedTuple):
    """Where in the archive one partition has its files."""

    store: ArchiveStore
    name: str
    indexes: ByteCache[SparseIndex]
    """Loaded indexes of all partitions together."""

    def file_name(self, file: str) -> str:
        return f"{self.name}/{file}"


class MissingStore:
    """Stands where a broker was started without an archive, and old segments are in one."""

    advice = (
        "start the broker with the archive it had: --set headrace.archive.dir=FOLDER or s3://BUCKET/PREFIX"
    )

    def location(self, name: str) -> str:
        return name

    def put(self, name: str, chunks: Iterable[bytes], size: int) -> None:
        self._refuse()

    def open(self, name: str) -> ReadableFile:
        self._refuse()

    def list(self, name: str) -> list[str]:
        self._refuse()

    def delete(self, name: str) -> None:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise OSError("the broker was started without an archive")
