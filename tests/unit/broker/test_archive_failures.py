"""An archive in a folder that hangs or fails: how the archiver continues, and how it stops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from pathlib import Path

import pytest

from headrace.broker.broker import Broker
from headrace.broker.settings import BrokerSettings
from headrace.files import File, SystemFile, SystemFiles
from headrace.log.archive_folder import FolderStore
from headrace.testing.clock import DrivenClock
from headrace.wire import Api
from headrace.wire import messages as m

from .broker_calls import BrokerCalls
from .test_archiver import create_archived_topic

StartBroker = Callable[..., Awaitable[BrokerCalls]]
DELETED = "0" * 32


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "archive"
    folder.mkdir()
    return folder


class Hang:
    """A call of the archive store that does not return until the test ends."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.released = threading.Event()

    def __call__(self, *arguments: object) -> None:
        self.entered.set()
        self.released.wait(240)


@pytest.fixture
def hang() -> Iterator[Hang]:
    hang = Hang()
    yield hang
    hang.released.set()


async def test_a_stop_does_not_wait_for_an_archive_that_hangs_during_a_removal(
    start: StartBroker, folder: Path, hang: Hang, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FolderStore, "delete", hang)
    call = await start(archive_dir=folder, retention_check_s=0.01)
    call.broker.partitions.deleted.archived.add(DELETED)
    assert await asyncio.to_thread(hang.entered.wait, 240)
    async with asyncio.timeout(20):
        await call.broker.archiver.stop()
    assert call.broker.partitions.deleted.archived == {DELETED}


def messages_with_traceback(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Messages of the errors that have a traceback."""
    return [record.getMessage() for record in caplog.records if record.exc_info]


async def test_a_round_with_an_unexpected_error_is_logged_and_the_next_round_runs(
    start: StartBroker, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    call = await start(archive_dir=folder, retention_check_s=0.01)
    archiver = call.broker.archiver
    rounds, second_round_ran = 0, asyncio.Event()

    async def failing() -> None:
        nonlocal rounds
        rounds += 1
        if rounds == 2:
            second_round_ran.set()
        raise ValueError("unforeseen")

    monkeypatch.setattr(archiver, "run", failing)
    async with asyncio.timeout(20):
        await second_round_ran.wait()
    assert "the archiver failed unexpectedly; retrying in the next round" in messages_with_traceback(caplog)
    await archiver.stop()


async def test_an_unexpected_error_in_one_partition_is_logged_and_the_others_are_archived(
    start: StartBroker, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    call = await start(archive_dir=folder)
    failing, intact = await create_archived_topic(call, 20), await create_archived_topic(call, 20, "others")

    def fail(*arguments: object) -> None:
        raise ValueError("unforeseen")

    monkeypatch.setattr(failing.log.archive, "copy", fail)
    await call.broker.archiver.run()
    assert failing.local_start_offset == 0
    assert intact.local_start_offset > 0
    assert messages_with_traceback(caplog) == [
        "cannot archive orders-0: unforeseen; no records are deleted; retrying"
    ]


async def test_a_stop_closes_the_data_directory_even_if_the_archiver_has_failed(
    start: StartBroker, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = await start(archive_dir=folder)

    async def fail_at_once() -> None:
        raise ValueError("unforeseen")

    await call.broker.archiver.stop()
    monkeypatch.setattr(call.broker.archiver, "_task", asyncio.create_task(fail_at_once()))
    # ``start`` stops the first broker; the new one needs the lock of the data directory.
    await start(archive_dir=folder)


async def archive_and_delete(call: BrokerCalls, *names: str) -> None:
    """Create topics, archive them, and delete them."""
    for name in names:
        await create_archived_topic(call, 20, name)
    await call.broker.archiver.run()
    states = [m.DeleteTopicsRequest.DeleteTopicState(name=name, topic_id=bytes(16)) for name in sorted(names)]
    response = await call(Api.DELETE_TOPICS, topics=states)
    assert [topic.error_code for topic in response.responses] == [0] * len(names)


async def test_a_failed_removal_of_a_deleted_topic_does_not_block_the_others(
    start: StartBroker, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = await start(archive_dir=folder)
    failing_topics: set[str] = set()
    delete = FolderStore.delete

    def fail_for_first(self: FolderStore, name: str) -> None:
        failing_topics.add(min(call.broker.partitions.deleted.archived))
        if name in failing_topics:
            raise PermissionError(f"{name} belongs to another user")
        delete(self, name)

    with monkeypatch.context() as patch:
        patch.setattr(FolderStore, "delete", fail_for_first)
        await archive_and_delete(call, "orders", "payments", "returns")
        await call.broker.archiver.remove_deleted()
        (first,) = failing_topics
        assert call.broker.partitions.deleted.archived == {first}
        assert {path.name for path in folder.glob("*/*")} == {first}
    await call.broker.archiver.remove_deleted()
    assert list(folder.rglob("*.log")) == []


async def test_an_unavailable_archive_is_tried_once_for_all_deleted_topics(
    start: StartBroker, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    call = await start(archive_dir=folder)
    attempts: list[str] = []

    def refuse(self: FolderStore, name: str) -> None:
        if name:
            attempts.append(name)
        raise OSError("the mount is away")

    monkeypatch.setattr(FolderStore, "delete", refuse)
    monkeypatch.setattr(FolderStore, "list", refuse)
    call.broker.partitions.deleted.archived |= {DELETED, DELETED.replace("0", "1")}
    await call.broker.archiver.remove_deleted()
    assert attempts == [DELETED]
    assert "cannot remove 2 deleted topics from the archive" in caplog.text


async def test_the_directory_of_a_deleted_topic_is_removed_after_its_removal_failed_once(
    start: StartBroker, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = await start(archive_dir=folder)
    topics = tmp_path / "data" / "topics"
    remove_dir = SystemFiles.remove_dir

    def fail(self: SystemFiles, path: Path) -> None:
        if path.parent == topics:
            raise OSError("input/output error")
        remove_dir(self, path)

    with monkeypatch.context() as patch:
        patch.setattr(SystemFiles, "remove_dir", fail)
        await archive_and_delete(call, "orders")
        await call.broker.archiver.remove_deleted()
        assert len(list(topics.iterdir())) == 1
    await call.broker.archiver.remove_deleted()
    assert list(topics.iterdir()) == []
    assert call.broker.partitions.deleted.archived == set()


async def test_the_directory_of_a_deleted_topic_is_removed_off_the_event_loop(
    start: StartBroker, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = await start(archive_dir=folder)
    topics = tmp_path / "data" / "topics"
    threads: list[threading.Thread] = []
    remove = SystemFiles.remove

    def record_thread(self: SystemFiles, path: Path) -> None:
        if path.parent.parent == topics:
            threads.append(threading.current_thread())
        remove(self, path)

    monkeypatch.setattr(SystemFiles, "remove", record_thread)
    await archive_and_delete(call, "orders")
    await call.broker.archiver.remove_deleted()
    assert list(topics.iterdir()) == []
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()


class OpenFiles:
    """Counts the open files of the archive, and records the names of the threads that close them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.closed_by: set[str] = set()
        opened, closed = FolderStore.open, SystemFile.close
        paths: set[Path] = set()

        def counted_open(store: FolderStore, name: str) -> File:
            file = opened(store, name)
            paths.add(file.path)
            self.count += 1
            return file

        def counted_close(file: SystemFile) -> None:
            if file.path in paths:
                self.count -= 1
                self.closed_by.add(threading.current_thread().name)
            closed(file)

        monkeypatch.setattr(FolderStore, "open", counted_open)
        monkeypatch.setattr(SystemFile, "close", counted_close)


async def test_a_read_from_the_archive_leaves_no_file_open_and_closes_none_on_the_event_loop(
    start: StartBroker, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = await start(archive_dir=folder)
    partition = await create_archived_topic(call, 30)
    await call.broker.archiver.run()
    files = OpenFiles(monkeypatch)
    assert len(partition.log.archive.entries) > 2
    for entry in partition.log.archive.entries:
        plan = partition.reader.plan(entry.base_offset, 300)
        assert plan is not None
        _, data = await call.broker.partitions.archive_reads.fetch(plan, 240)
        assert data
    assert files.count == 0
    assert files.closed_by == {"headrace-archive-read"}


class Uploads:
    """Counts the segments put to the archive; while ``fails`` is set, a put fails after its last byte."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.logs = 0
        self.fails = True
        put = FolderStore.put

        def count_put(store: FolderStore, name: str, chunks: Iterable[bytes], size: int) -> None:
            self.logs += name.endswith(".log")
            if self.fails:
                assert sum(map(len, chunks)) == size
                raise OSError("reads back otherwise")
            put(store, name, chunks, size)

        monkeypatch.setattr(FolderStore, "put", count_put)


@pytest.fixture
async def broker_with_clock(tmp_path: Path, folder: Path) -> AsyncIterator[tuple[BrokerCalls, DrivenClock]]:
    """A broker with a stopped clock; it archives only when a test calls the archiver."""
    clock = DrivenClock()
    settings = BrokerSettings(data_dir=tmp_path / "data", archive_dir=folder, retention_check_s=100.0)
    broker = Broker(settings, clock=clock)
    await broker.start()
    yield BrokerCalls(broker), clock
    await broker.stop()


async def test_a_segment_whose_copy_fails_late_is_retried_after_doubling_pauses(
    broker_with_clock: tuple[BrokerCalls, DrivenClock], monkeypatch: pytest.MonkeyPatch
) -> None:
    call, clock = broker_with_clock
    partition = await create_archived_topic(call, 20)
    uploads = Uploads(monkeypatch)
    upload_counts = []
    for _ in range(20):
        await call.broker.archiver.run()
        upload_counts.append(uploads.logs)
        clock.advance(100)
    rounds_with_upload = [
        round_
        for round_, count in enumerate(upload_counts)
        if count > (upload_counts[round_ - 1] if round_ else 0)
    ]
    assert rounds_with_upload == [0, 1, 3, 7, 13, 19]
    uploads.fails = False
    clock.advance(600)
    await call.broker.archiver.run()
    assert partition.local_start_offset > 0


async def test_a_partition_whose_copy_fails_does_not_delay_others(
    broker_with_clock: tuple[BrokerCalls, DrivenClock], monkeypatch: pytest.MonkeyPatch
) -> None:
    call, _ = broker_with_clock
    failing = await create_archived_topic(call, 20)
    uploads = Uploads(monkeypatch)
    await call.broker.archiver.run()
    uploads.fails = False
    other = await create_archived_topic(call, 20, "others")
    await call.broker.archiver.run()
    assert failing.local_start_offset == 0
    assert other.local_start_offset > 0


async def test_the_archiver_continues_as_soon_as_the_archive_is_available_again(
    broker_with_clock: tuple[BrokerCalls, DrivenClock], folder: Path, tmp_path: Path
) -> None:
    call, _ = broker_with_clock
    partition = await create_archived_topic(call, 20)
    folder.rename(tmp_path / "away")
    await call.broker.archiver.run()
    assert partition.local_start_offset == 0
    (tmp_path / "away").rename(folder)
    await call.broker.archiver.run()
    assert partition.local_start_offset > 0
