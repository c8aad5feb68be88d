"""The contract of archive stores: folder and bucket pass the same tests."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.files import SystemFiles
from headrace.log import archive_bucket
from headrace.log.archive_bucket import BucketStore
from headrace.log.archive_folder import FolderStore
from headrace.log.archive_store import ArchiveStore, BucketAddress
from tests.support.s3 import S3Server, join_archive_threads

OpenStore = Callable[[str], ArchiveStore]

_PART, _BLOCK = 4096, 512


@pytest.fixture(params=["folder", "bucket"])
def open_writer(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpenStore:
    """Return a function that opens the archive of a cluster."""
    if request.param == "folder":
        return lambda cluster: FolderStore(SystemFiles(), tmp_path, cluster)
    # With these sizes, files of a few kilobytes have many parts.
    monkeypatch.setattr(archive_bucket, "PART_BYTES", _PART)
    monkeypatch.setattr(archive_bucket, "BLOCK_BYTES", _BLOCK)
    s3: S3Server = request.getfixturevalue("s3")
    address = s3.address(s3.fresh_bucket(), "archives/of-tests")
    return lambda cluster: BucketStore(address, cluster)


@pytest.fixture
def store(open_writer: OpenStore) -> ArchiveStore:
    return open_writer("cluster")


def chunks(data: bytes, size: int = 1000) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


def put(store: ArchiveStore, name: str, data: bytes) -> None:
    store.put(name, chunks(data), len(data))


def content(store: ArchiveStore, name: str) -> bytes:
    file = store.open(name)
    try:
        return file.pread(1 << 20, 0)
    finally:
        file.close()


@pytest.mark.parametrize("size", [0, 1, _BLOCK, _PART - 1, _PART, _PART + 1, 3 * _PART, 3 * _PART + 700])
def test_any_range_of_a_file_reads_back(store: ArchiveStore, size: int) -> None:
    chance = random.Random(size)
    data = chance.randbytes(size)
    put(store, "topic/0/one.log", data)
    file = store.open("topic/0/one.log")
    ranges = [(chance.randrange(size + 2), chance.randrange(size + 2)) for _ in range(20)]
    for position, length in [(0, size), (0, size + 100), (size, 10), (size + 5 * _PART, 10), *ranges]:
        assert file.pread(length, position) == data[position : position + length]
    file.close()


def test_a_file_replaces_a_longer_one(store: ArchiveStore) -> None:
    put(store, "topic/0/one.log", b"a" * 3 * _PART)
    assert content(store, "topic/0/one.log") == b"a" * 3 * _PART
    put(store, "topic/0/one.log", b"b" * 10)
    assert content(store, "topic/0/one.log") == b"b" * 10
    assert store.list("topic/0") == ["one.log"]


def test_names_are_listed_level_by_level_and_clusters_are_separate(
    store: ArchiveStore, open_writer: OpenStore
) -> None:
    assert store.list("") == store.list("topic") == []
    for name in ("topic/0/b.log", "topic/0/a.log", "topic/1/c.log", "other/0/d.log"):
        put(store, name, b"data")
    assert store.list("") == ["other", "topic"]
    assert store.list("topic") == ["0", "1"]
    assert store.list("topic/0") == ["a.log", "b.log"]
    assert open_writer("clusters").list("") == []


def test_deleting_a_file_a_partition_or_a_topic_works_even_if_it_does_not_exist(store: ArchiveStore) -> None:
    for name in ("topic/0/a.log", "topic/0/b.log", "topic/1/c.log", "topics/0/d.log"):
        put(store, name, b"data" * _PART)
    store.delete("topic/0/a.log")
    assert store.list("topic/0") == ["b.log"]
    store.delete("topic/0")
    assert store.list("topic/0") == []
    assert store.list("topic/1") == ["c.log"]
    store.delete("topic")
    assert store.list("topic") == []
    assert content(store, "topics/0/d.log") == b"data" * _PART
    for name in ("topic", "topic/0/a.log", "never/0/e.log"):
        store.delete(name)


def test_a_missing_file_is_distinguished_from_an_unreadable_one(store: ArchiveStore) -> None:
    with pytest.raises(FileNotFoundError):
        content(store, "topic/0/none.log")
    put(store, "topic/0/one.log", b"data")
    with pytest.raises(FileNotFoundError):
        content(store, "topic/0/none.log")


def test_a_put_that_ends_early_raises_and_its_partial_file_can_be_deleted(store: ArchiveStore) -> None:
    with pytest.raises(OSError, match="short copy"):
        store.put("topic/0/one.log", chunks(b"data" * _PART), 5 * _PART)

    def broken() -> Iterator[bytes]:
        yield b"data" * _PART
        raise KeyError("the source broke off")

    with pytest.raises(KeyError):
        store.put("topic/0/two.log", broken(), 5 * _PART)
    for name in ("one.log", "two.log"):
        store.delete(f"topic/0/{name}")
    assert store.list("topic/0") == []
    put(store, "topic/0/two.log", b"whole")
    assert content(store, "topic/0/two.log") == b"whole"


def test_a_put_whose_first_chunk_fails_does_not_change_the_file(store: ArchiveStore) -> None:
    put(store, "topic/0/one.log", b"whole")

    def broken() -> Iterator[bytes]:
        raise KeyError("the source gives nothing")
        yield b""

    with pytest.raises(KeyError):
        store.put("topic/0/one.log", broken(), 5)
    assert content(store, "topic/0/one.log") == b"whole"


def test_a_store_describes_the_location_of_a_file(store: ArchiveStore) -> None:
    assert store.location("topic/0/a.log").endswith("/cluster/topic/0/a.log")
    assert store.advice


@pytest.fixture(params=["folder", "no bucket", "no server"])
def unreachable_store(request: pytest.FixtureRequest, tmp_path: Path) -> ArchiveStore:
    if request.param == "folder":
        return FolderStore(SystemFiles(), tmp_path / "away", "cluster")
    s3: S3Server = request.getfixturevalue("s3")
    if request.param == "no bucket":
        return BucketStore(s3.address("no-such-bucket"), "cluster")
    # No server listens on port 1.
    return BucketStore(BucketAddress("bucket", "", "http", "127.0.0.1:1"), "cluster")


def test_an_unreachable_store_is_not_mistaken_for_an_empty_one(unreachable_store: ArchiveStore) -> None:
    with pytest.raises(OSError, match=r".") as listed:
        unreachable_store.list("")
    assert not isinstance(listed.value, FileNotFoundError) or "folder does not exist" in str(listed.value)
    with pytest.raises(OSError, match=r"."):
        put(unreachable_store, "topic/0/a.log", b"data")
    with pytest.raises(OSError, match=r"."):
        content(unreachable_store, "topic/0/a.log")
    with pytest.raises(OSError, match=r"."):
        unreachable_store.delete("topic/0/a.log")


def test_a_test_with_a_bucket_ends_after_the_archive_threads_that_it_left_behind() -> None:
    thread = threading.Thread(target=time.sleep, args=(0.05,), name="headrace-archive-read", daemon=True)
    thread.start()
    join_archive_threads()
    assert not thread.is_alive()
