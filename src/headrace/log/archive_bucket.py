"""An archive in a bucket of Amazon S3, or of a server that speaks its protocol, by pyarrow's file systems.

    PREFIX/CLUSTER/TOPIC/PARTITION/<offset>.log/00000, 00001, …     a file, in parts of 8 MiB; the last may be shorter

A part is one object, and an object comes by one PUT. So it is there whole or not at all, and no more than a part is in
memory. A process that is killed leaves nothing that a listing does not show, as an upload in several requests would.
What was put is read back, and counts when size and CRC-32C are right.

Reads are ranges of a mebibyte, whose last 32 are kept for all readers. A file system of pyarrow's is made by the first
thread that needs it, since looking for credentials and a region may take a network as well.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow
from pyarrow import fs

from headrace.checksum import crc32c
from headrace.log.archive_store import with_first_read
from headrace.log.bucket_address import BucketAddress
from headrace.log.byte_cache import ByteCache

__all__ = ["BucketStore"]

PART_BYTES = 8 << 20
BLOCK_BYTES = 1 << 20
CACHE_BYTES_MAX = 32 << 20
_CONNECT_S = 2.0
_SILENCE_S = 3.0
"""A request that has not moved a byte for so long has failed."""
_TRIES = 2
_ANY_REGION = "us-east-1"
"""What servers other than Amazon's expect, if anything."""


class BucketStore:
    advice = (
        "check that the endpoint answers, that the bucket exists in that region, and that the credentials in the"
        " environment or in ~/.aws may list, read, write and delete there"
    )

    def __init__(self, address: BucketAddress, home: str) -> None:
        """``home`` is the cluster's name below the prefix."""
        self._address = address
        self._root = f"{address.root}/{home}"
        self._opening = threading.Lock()
        self._opened: Any = None
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
            # There may be more of them than will be put.
            self.delete(name)
        total = sum(self._put_part(name, number, part) for number, part in enumerate(_parts(chunks)))
        if total != size:
            raise OSError(f"short copy to {self.location(name)}: {total} of {size} bytes")

    def _put_part(self, name: str, number: int, part: Sequence[memoryview]) -> int:
        """How many bytes it has."""
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
                f" and {sent_size} bytes with {sent_crc:08x} were sent"
            )
        return sent_size

    def open(self, name: str) -> _BucketFile:
        return _BucketFile(self, name)

    def read(self, name: str, size: int, position: int) -> bytes:
        """Up to ``size`` bytes; fewer only at the end of the file."""
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
        """This block and those behind it that are missing too, as far as the part and the block ``end`` go."""
        in_part = PART_BYTES // BLOCK_BYTES
        last = block + 1
        while last < end and last % in_part and self._blocks.get((name, last)) is None:
            last += 1
        number, first = divmod(block, in_part)
        data = self._read_part(name, number, first * BLOCK_BYTES, (last - block) * BLOCK_BYTES)
        for at in range(0, len(data), BLOCK_BYTES):
            kept = data[at : at + BLOCK_BYTES]
            self._blocks.put((name, block + at // BLOCK_BYTES), kept, len(kept))
        return data

    def _read_part(self, name: str, number: int, position: int, size: int) -> bytes:
        with self._filesystem() as files:
            try:
                with files.open_input_file(self._part(name, number)) as stored:
                    return bytes(stored.read_at(size, position)) if position < stored.size() else b""
            except FileNotFoundError:
                # The file may end where the part before does. It does not where there is no file.
                first = files.get_file_info(self._part(name, 0))
                if first.type == fs.FileType.NotFound:
                    raise
                return b""

    def list(self, name: str) -> list[str]:
        with self._filesystem() as files:
            found = files.get_file_info(fs.FileSelector(self._path(name), allow_not_found=True))
            if not found:
                self._expect_bucket(files)
        return sorted(info.base_name for info in found)

    def delete(self, name: str) -> None:
        with self._filesystem() as files:
            try:
                files.delete_dir(self._path(name))
            except FileNotFoundError:
                self._expect_bucket(files)
            finally:
                self._blocks.clear()

    def _expect_bucket(self, files: Any) -> None:
        """A bucket that is missing answers as an empty one does."""
        bucket = self._address.bucket
        if files.get_file_info(bucket).type == fs.FileType.NotFound:
            raise OSError(f"there is no bucket {bucket}")

    def _part(self, name: str, number: int) -> str:
        return f"{self._path(name)}/{number:05d}"

    @contextmanager
    def _filesystem(self) -> Iterator[Any]:
        try:
            with self._opening:
                if self._opened is None:
                    self._opened = _connect(self._address)
            yield self._opened
        except pyarrow.ArrowException as error:
            if isinstance(error, OSError):
                raise
            raise OSError(str(error)) from error


def _parts(chunks: Iterable[bytes]) -> Iterator[list[memoryview]]:
    """What makes up each part; at least one, also of nothing."""
    part: list[memoryview] = []
    room = PART_BYTES
    is_first = True
    for chunk in chunks:
        rest = memoryview(chunk)
        while rest:
            part.append(rest[:room])
            rest = rest[room:]
            room -= len(part[-1])
            if not room:
                yield part
                part, room, is_first = [], PART_BYTES, False
    if part or is_first:
        yield part


def _connect(address: BucketAddress) -> Any:
    return fs.S3FileSystem(
        region=address.region or (_ANY_REGION if address.endpoint else None),
        scheme=address.scheme,
        endpoint_override=address.endpoint or None,
        connect_timeout=_CONNECT_S,
        request_timeout=_SILENCE_S,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=_TRIES),
        # Together: what is written is sent when the stream is closed, by one PUT where it is less than 10 MiB.
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

    def pread_ready(self, size: int, position: int) -> bytes | bytearray | None:
        return None

    def close(self) -> None:
        """Nothing is held: each range is a request of its own."""
