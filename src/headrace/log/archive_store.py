"""The interface of an archive store: write a file, read ranges of a file, list names, delete.

``archive_folder`` and ``archive_bucket`` implement it. ``tests/contract/test_archive_stores.py`` tests both. Names are
relative: ``TOPIC/PARTITION/FILE``. Every call may wait for a disk or a network, so it runs in a thread. A failure is an
``OSError`` with the reason. A ``FileNotFoundError`` means that the store responded and that the file does not exist.

``BucketAddress`` is the address of a bucket. It does not contain credentials: they come from the environment or from
``~/.aws``.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Generic, NamedTuple, NoReturn, Protocol, TypeVar
from urllib.parse import urlsplit

from headrace.errors import ConfigError
from headrace.log.index import SparseIndex
from headrace.log.scan import ReadableFile

__all__ = [
    "ArchiveLocation",
    "ArchiveStore",
    "BucketAddress",
    "ByteCache",
    "MissingStore",
    "parse_bucket",
    "with_first_read",
]

INDEX_BYTES_MAX = 16 << 20


class ArchiveStore(Protocol):
    @property
    def advice(self) -> str:
        """The hint for errors while the store is unavailable."""

    def location(self, name: str) -> str:
        """Return the address of a file, for messages."""

    def put(self, name: str, chunks: Iterable[bytes], size: int) -> None:
        """Store a file of ``size`` bytes; replaces an existing file. On return the file is complete and durable.

        If reading the first chunk fails, an existing file with this name remains unchanged.
        """

    def open(self, name: str) -> ReadableFile:
        """Open a file for range reads in any thread."""

    def list(self, name: str) -> list[str]:
        """Return the sorted names directly below ``name``; empty if ``name`` does not exist."""

    def delete(self, name: str) -> None:
        """Remove a file, or everything below ``name``. A missing name is not an error."""


def with_first_read(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Read the first chunk now, so that a read error is raised before anything is deleted; returns all chunks."""
    rest = iter(chunks)
    return chain(list(islice(rest, 1)), rest)


class ArchiveLocation(NamedTuple):
    """The store and the directory of one partition's files in the archive."""

    store: ArchiveStore
    name: str
    indexes: ByteCache[SparseIndex]
    """A cache of segment indexes, shared by all partitions."""

    def file_name(self, file: str) -> str:
        return f"{self.name}/{file}"


class MissingStore:
    """The store of a broker that was started without an archive. Every operation fails."""

    advice = "start the broker with its archive: --set headrace.archive.dir=FOLDER or s3://BUCKET/PREFIX"

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


V = TypeVar("V")


class ByteCache(Generic[V]):
    """A thread-safe cache with a limit in bytes. It evicts the least recently used entries, and does not store a value
    that is larger than the limit.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self._values: OrderedDict[Hashable, tuple[V, int]] = OrderedDict()
        self._mutex = threading.Lock()

    def get(self, key: Hashable) -> V | None:
        with self._mutex:
            entry = self._values.get(key)
            if entry is None:
                return None
            self._values.move_to_end(key)
            return entry[0]

    def put(self, key: Hashable, value: V, size: int) -> None:
        with self._mutex:
            self._remove(key)
            if size > self.bytes_max:
                return
            while self.bytes + size > self.bytes_max:
                self._remove(next(iter(self._values)))
            self._values[key] = value, size
            self.bytes += size

    def remove(self, key: Hashable) -> None:
        with self._mutex:
            self._remove(key)

    def clear(self) -> None:
        with self._mutex:
            self._values.clear()
            self.bytes = 0

    def _remove(self, key: Hashable) -> None:
        entry = self._values.pop(key, None)
        if entry is not None:
            self.bytes -= entry[1]


_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]")
_PREFIX = re.compile(r"[A-Za-z0-9!_.*'()=-]+(/[A-Za-z0-9!_.*'()=-]+)*")
_PREFIX_CHARS_MAX = 512
_REGION = re.compile(r"[a-z0-9-]{1,64}")


@dataclass(frozen=True, slots=True)
class BucketAddress:
    bucket: str
    prefix: str = ""
    scheme: str = "https"
    endpoint: str = ""
    """Host and port of an S3-compatible server; empty for Amazon S3."""
    region: str = ""

    @property
    def root(self) -> str:
        return f"{self.bucket}/{self.prefix}" if self.prefix else self.bucket


def parse_bucket(address: str, endpoint: str, region: str) -> BucketAddress:
    """Parse ``s3://BUCKET/PREFIX``, an endpoint (``http://HOST:PORT`` or ``https://HOST:PORT``) and a region. The
    endpoint and the region may be empty.

    Error messages never contain the values, because a value may include a password.
    """
    bucket, _, prefix = address.removeprefix("s3://").partition("/")
    prefix = prefix.strip("/")
    if not _BUCKET.fullmatch(bucket):
        raise ConfigError(
            "invalid bucket in headrace.archive.dir: a bucket name has 3 to 63 letters, digits, dots, dashes and"
            " underscores",
            hint="write s3://BUCKET or s3://BUCKET/PREFIX; credentials come from the environment"
            " (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) or from ~/.aws",
        )
    if prefix and (
        len(prefix) > _PREFIX_CHARS_MAX
        or not _PREFIX.fullmatch(prefix)
        or any(part in (".", "..") for part in prefix.split("/"))
    ):
        raise ConfigError(
            f"invalid prefix in headrace.archive.dir: a prefix has names separated by slashes, and at most"
            f" {_PREFIX_CHARS_MAX} characters",
            hint="use letters, digits and - _ . ! * ' ( ) = only; set an endpoint with headrace.archive.s3.endpoint",
        )
    if region and not _REGION.fullmatch(region):
        raise ConfigError(
            "headrace.archive.s3.region is not a region name", hint="write it like eu-central-1"
        )
    scheme, host = _parse_endpoint(endpoint) if endpoint else ("https", "")
    return BucketAddress(bucket, prefix, scheme, host, region)


def _parse_endpoint(endpoint: str) -> tuple[str, str]:
    error = ConfigError(
        "headrace.archive.s3.endpoint is not a server address",
        hint="write http://HOST:PORT or https://HOST:PORT, without a path, a user or a password",
    )
    try:
        parts = urlsplit(endpoint)
        port = parts.port
    except ValueError:
        raise error from None
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or parts.path not in ("", "/")
        or parts.query
        or parts.fragment
        or "@" in parts.netloc
    ):
        raise error
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return parts.scheme, host if port is None else f"{host}:{port}"
