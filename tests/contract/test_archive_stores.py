"""What every archive store does: the folder and the bucket, by the same tests."""

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
from headrace.log.archive_store import ArchiveStore
from headrace.log.bucket_address import BucketAddress
from tests.support.s3 import S3Server, join_archive_threads

Opening = Callable[[str], ArchiveStore]

_PART, _BLOCK = 4096, 512


@pytest.fixture(params=["folder", "bucket"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Opening:
    """Opens a cluster's part of one archive."""
    if request.param == "folder":
        return lambda cluster: FolderStore(SystemFiles(), tmp_path, cluster)
    # Small, so that files of some kilobytes have many of them.
    monkeypatch.setattr(archive_bucket, "PART_BYTES", _PART)
    monkeypatch.setattr(archive_bucket, "BLOCK_BYTES", _BLOCK)
    s3: S3Server = request.getfixturevalue("s3")
    address = s3.address(s3.fresh_bucket(), "archives/of-tests")
    return lambda cluster: BucketStore(address, cluster)


@pytest.fixture
def store(open_store: Opening) -> ArchiveStore:
    return open_store("cluster")


def pieces(data: bytes, size: int = 1000) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


def put(store: ArchiveStore, name: str, data: bytes) -> None:
    store.put(name, pieces(data), len(data))


def content(store: ArchiveStore, name: str) -> bytes:
    file = store.open(name)
    try:
        return file.pread(1 << 20, 0)
    finally:
        file.close()


@pytest.mark.parametrize("size", [0, 1, _BLOCK, _PART - 1, _PART, _PART + 1, 3 * _PART, 3 * _PART + 700])
def test_any_range_of_what_was_put_reads_back(store: ArchiveStore, size: int) -> None:
    chance = random.Random(size)
    data = chance.randbytes(size)
    put(store, "topic/0/one.log", data)
    file = store.open("topic/0/one.log")
    ranges = [(chance.randrange(size + 2), chance.randrange(size + 2)) for _ in range(20)]
    for position, length in [(0, size), (0, size + 100), (size, 10), (size + 5 * _PART, 10), *ranges]:
        assert file.pread(length, position) == data[position : position + length]
    file.close()


def test_a_file_takes_the_place_of_a_longer_one(store: ArchiveStore) -> None:
    put(store, "topic/0/one.log", b"a" * 3 * _PART)
    assert content(store, "topic/0/one.log") == b"a" * 3 * _PART
    put(store, "topic/0/one.log", b"b" * 10)
    assert content(store, "topic/0/one.log") == b"b" * 10
    assert store.list("topic/0") == ["one.log"]


def test_names_are_listed_level_by_level_and_clusters_are_apart(
    store: ArchiveStore, open_store: Opening
) -> None:
    assert store.list("") == store.list("topic") == []
    for name in ("topic/0/b.log", "topic/0/a.log", "topic/1/c.log", "other/0/d.log"):
        put(store, name, b"data")
    assert store.list("") == ["other", "topic"]
    assert store.list("topic") == ["0", "1"]
    assert store.list("topic/0") == ["a.log", "b.log"]
    assert open_store("clusters").list("") == []


def test_a_file_a_partition_and_a_topic_can_be_deleted_and_what_is_not_there_too(store: ArchiveStore) -> None:
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


def test_a_file_that_is_not_there_is_told_from_one_that_cannot_be_read(store: ArchiveStore) -> None:
    with pytest.raises(FileNotFoundError):
        content(store, "topic/0/none.log")
    put(store, "topic/0/one.log", b"data")
    with pytest.raises(FileNotFoundError):
        content(store, "topic/0/none.log")


def test_a_put_that_ends_early_raises_and_all_it_left_can_be_deleted(store: ArchiveStore) -> None:
    with pytest.raises(OSError, match="short copy"):
        store.put("topic/0/one.log", pieces(b"data" * _PART), 5 * _PART)

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


def test_a_put_whose_first_chunk_fails_leaves_the_file_as_it_is(store: ArchiveStore) -> None:
    put(store, "topic/0/one.log", b"whole")

    def broken() -> Iterator[bytes]:
        raise KeyError("the source gives nothing")
        yield b""

    with pytest.raises(KeyError):
        store.put("topic/0/one.log", broken(), 5)
    assert content(store, "topic/0/one.log") == b"whole"


def test_where_a_file_is_can_be_told_to_people(store: ArchiveStore) -> None:
    assert store.location("topic/0/a.log").endswith("/cluster/topic/0/a.log")
    assert store.advice


@pytest.fixture(params=["folder", "no bucket", "no server"])
def away(request: pytest.FixtureRequest, tmp_path: Path) -> ArchiveStore:
    if request.param == "folder":
        return FolderStore(SystemFiles(), tmp_path / "away", "cluster")
    s3: S3Server = request.getfixturevalue("s3")
    if request.param == "no bucket":
        return BucketStore(s3.address("no-such-bucket"), "cluster")
    # Nobody listens on the lowest port.
    return BucketStore(BucketAddress("bucket", "", "http", "127.0.0.1:1"), "cluster")


def test_a_store_that_is_away_says_so_and_is_never_taken_for_an_empty_one(away: ArchiveStore) -> None:
    with pytest.raises(OSError, match=r".") as listed:
        away.list("")
    assert not isinstance(listed.value, FileNotFoundError) or "folder is missing" in str(listed.value)
    with pytest.raises(OSError, match=r"."):
        put(away, "topic/0/a.log", b"data")
    with pytest.raises(OSError, match=r"."):
        content(away, "topic/0/a.log")
    with pytest.raises(OSError, match=r"."):
        away.delete("topic/0/a.log")


def test_a_test_with_a_bucket_ends_after_the_archive_threads_that_it_left_behind() -> None:
    thread = threading.Thread(target=time.sleep, args=(0.05,), name="headrace-archive-read", daemon=True)
    thread.start()
    join_archive_threads()
    assert not thread.is_alive()
