"""An archive in a bucket of Amazon S3 or of an S3-compatible server. It uses pyarrow's file systems.

    PREFIX/CLUSTER/TOPIC/PARTITION/<offset>.log/00000, 00001, …     a file, in parts of 8 MiB; the last may be shorter

A part is one object, written with one PUT request. So a part either exists completely or does not exist, and at most
one part is in memory. If the process is killed, it leaves only objects that a listing shows, unlike during a multipart
upload. After the upload, every part is read back to verify its size and CRC-32C.

A read fetches blocks of one mebibyte. All readers share a cache of 32 blocks. The pyarrow file system is created by the
first thread that needs it, because the lookup of credentials and region may use the network.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow
from pyarrow import fs

from headrace.checksum import crc32c
from headrace.log.archive_store import BucketAddress, ByteCache, with_first_read

__all__ = ["BucketStore"]

PART_BYTES = 8 << 20
BLOCK_BYTES = 1 << 20
CACHE_BYTES_MAX = 32 << 20
_CONNECT_S = 2.0
_STALL_TIMEOUT_S = 3.0
"""A request fails if it transfers no bytes for this long."""
_ATTEMPTS = 2
_ANY_REGION = "us-east-1"
"""The default region for S3-compatible servers other than Amazon's. Most of them ignore it."""


class BucketStore:
    advice = (
        "check that the endpoint responds, that the bucket exists in its region, and that the credentials in the"
        " environment or in ~/.aws allow listing, reading, writing and deleting"
    )

    def __init__(self, address: BucketAddress, home: str) -> None:
        """``home`` is the cluster's directory below the prefix."""
        self._address = address
        self._root = f"{address.root}/{home}"
        self._connect_lock = threading.Lock()
        self._connection: Any = None
        self._blocks: ByteCache[bytes] = ByteCache(CACHE_BYTES_MAX)

    def location(self, name: str) -> str:
        return f"s3://{self._path(name)}"

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def put(self, name: str, chunks: Iterable[bytes], size: int) -> None:
        with self._filesystem() as files:
            has_parts = bool(files.get_file_info(fs.FileSelector(self._path(name), allow_not_found=True)))
        chunks = with_first_read(chunks)
        if has_parts:
            # An earlier upload may have left more parts than this one has.
            self.delete(name)
        total = sum(self._put_part(name, number, part) for number, part in enumerate(_parts(chunks)))
        if total != size:
            raise OSError(f"short copy to {self.location(name)}: {total} of {size} bytes")

    def _put_part(self, name: str, number: int, part: Sequence[memoryview]) -> int:
        """Upload a part and read it back; returns its size."""
        path = self._part(name, number)
        sent_size, sent_crc = 0, 0
        for piece in part:
            sent_size, sent_crc = sent_size + len(piece), crc32c(piece, sent_crc)
        with self._filesystem() as files:
            with files.open_output_stream(path) as stream:
                for piece in part:
                    stream.write(piece)
            with files.open_input_file(path) as stored:
                size, crc = stored.size(), 0
                for position in range(0, min(size, sent_size), BLOCK_BYTES):
                    crc = crc32c(stored.read_at(BLOCK_BYTES, position), crc)
        if (size, crc) != (sent_size, sent_crc):
            raise OSError(
                f"s3://{path} reads back as {size} bytes with CRC-32C {crc:08x},"
                f" but {sent_size} bytes with CRC-32C {sent_crc:08x} were sent"
            )
        return sent_size

    def open(self, name: str) -> _BucketFile:
        return _BucketFile(self, name)

    def read(self, name: str, size: int, position: int) -> bytes:
        """Read ``size`` bytes, or fewer at the end of the file."""
        pieces = []
        end = position + size
        while position < end:
            block = position // BLOCK_BYTES
            data = self._blocks.get((name, block)) or self._read_blocks(name, block, -(-end // BLOCK_BYTES))
            begin = position - block * BLOCK_BYTES
            piece = data[begin : begin + end - position]
            pieces.append(piece)
            position += len(piece)
            if len(data) % BLOCK_BYTES or not piece:
                break
        return b"".join(pieces)

    def _read_blocks(self, name: str, block: int, end: int) -> bytes:
        """Read this block and the uncached blocks after it, up to the block ``end`` or the end of the part."""
        blocks_per_part = PART_BYTES // BLOCK_BYTES
        last = block + 1
        while last < end and last % blocks_per_part and self._blocks.get((name, last)) is None:
            last += 1
        number, first = divmod(block, blocks_per_part)
        data = self._read_part(name, number, first * BLOCK_BYTES, (last - block) * BLOCK_BYTES)
        for at in range(0, len(data), BLOCK_BYTES):
            block_data = data[at : at + BLOCK_BYTES]
            self._blocks.put((name, block + at // BLOCK_BYTES), block_data, len(block_data))
        return data

    def _read_part(self, name: str, number: int, position: int, size: int) -> bytes:
        with self._filesystem() as files:
            try:
                with files.open_input_file(self._part(name, number)) as stored:
                    return bytes(stored.read_at(size, position)) if position < stored.size() else b""
            except FileNotFoundError:
                # If the first part exists, the file ends before this part. Otherwise the file does not exist.
                first = files.get_file_info(self._part(name, 0))
                if first.type == fs.FileType.NotFound:
                    raise
                return b""

    def list(self, name: str) -> list[str]:
        with self._filesystem() as files:
            infos = files.get_file_info(fs.FileSelector(self._path(name), allow_not_found=True))
            if not infos:
                self._expect_bucket(files)
        return sorted(info.base_name for info in infos)

    def delete(self, name: str) -> None:
        with self._filesystem() as files:
            try:
                files.delete_dir(self._path(name))
            except FileNotFoundError:
                self._expect_bucket(files)
            finally:
                self._blocks.clear()

    def _expect_bucket(self, files: Any) -> None:
        """Raise ``OSError`` if the bucket does not exist. A listing of a missing bucket is empty, without an error."""
        bucket = self._address.bucket
        if files.get_file_info(bucket).type == fs.FileType.NotFound:
            raise OSError(f"bucket {bucket} does not exist")

    def _part(self, name: str, number: int) -> str:
        return f"{self._path(name)}/{number:05d}"

    @contextmanager
    def _filesystem(self) -> Iterator[Any]:
        try:
            with self._connect_lock:
                if self._connection is None:
                    self._connection = _connect(self._address)
            yield self._connection
        except pyarrow.ArrowException as error:
            if isinstance(error, OSError):
                raise
            raise OSError(str(error)) from error


def _parts(chunks: Iterable[bytes]) -> Iterator[list[memoryview]]:
    """Group the chunks into parts. An empty file has one empty part."""
    part: list[memoryview] = []
    free_bytes = PART_BYTES
    is_first = True
    for chunk in chunks:
        rest = memoryview(chunk)
        while rest:
            part.append(rest[:free_bytes])
            rest = rest[free_bytes:]
            free_bytes -= len(part[-1])
            if not free_bytes:
                yield part
                part, free_bytes, is_first = [], PART_BYTES, False
    if part or is_first:
        yield part


def _connect(address: BucketAddress) -> Any:
    return fs.S3FileSystem(
        region=address.region or (_ANY_REGION if address.endpoint else None),
        scheme=address.scheme,
        endpoint_override=address.endpoint or None,
        connect_timeout=_CONNECT_S,
        request_timeout=_STALL_TIMEOUT_S,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
        # With these two options, closing the stream sends everything with one PUT request if it is below 10 MiB.
        allow_delayed_open=True,
        background_writes=False,
    )


class _BucketFile:
    def __init__(self, store: BucketStore, name: str) -> None:
        self._store = store
        self._name = name
        self.path = store.location(name)

    def pread(self, size: int, position: int) -> bytes:
        return self._store.read(self._name, size, position)

    def pread_nowait(self, size: int, position: int) -> bytes | bytearray | None:
        return None

    def close(self) -> None:
        """Do nothing: each read is a separate request."""
