"""A folder as the archive that hangs or fails: what the archiver still does, and how it stops."""

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
from headrace.testing.faulty_clock import DrivenClock
from headrace.wire import Api
from headrace.wire import messages as m

from .desk import Asking
from .test_archiver import archived

Starting = Callable[..., Awaitable[Asking]]
DELETED = "0" * 32


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "archive"
    folder.mkdir()
    return folder


class Hang:
    """A call of the store that does not return until the test ends."""

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


async def test_a_stop_does_not_wait_for_an_archive_that_hangs_while_a_deleted_topic_is_removed(
    start: Starting, folder: Path, hang: Hang, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FolderStore, "delete", hang)
    ask = await start(archive_dir=folder, retention_check_s=0.01)
    ask.broker.partitions.deleted.archived.add(DELETED)
    assert await asyncio.to_thread(hang.entered.wait, 240)
    async with asyncio.timeout(20):
        await ask.broker.archiver.stop()
    assert ask.broker.partitions.deleted.archived == {DELETED}


def traces(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Messages of the errors that have a traceback."""
    return [record.getMessage() for record in caplog.records if record.exc_info]


async def test_a_round_that_fails_unforeseen_is_logged_and_the_next_one_follows(
    start: Starting, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ask = await start(archive_dir=folder, retention_check_s=0.01)
    archiver = ask.broker.archiver
    rounds, has_followed = 0, asyncio.Event()

    async def broken() -> None:
        nonlocal rounds
        rounds += 1
        if rounds == 2:
            has_followed.set()
        raise ValueError("unforeseen")

    monkeypatch.setattr(archiver, "run", broken)
    async with asyncio.timeout(20):
        await has_followed.wait()
    assert "a round of the archiver failed; the next one follows" in traces(caplog)
    await archiver.stop()


async def test_a_partition_that_fails_unforeseen_is_logged_and_the_others_are_archived(
    start: Starting, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ask = await start(archive_dir=folder)
    broken, whole = await archived(ask, 20), await archived(ask, 20, "others")

    def fails(*arguments: object) -> None:
        raise ValueError("unforeseen")

    monkeypatch.setattr(broken.log.archive, "copy", fails)
    await ask.broker.archiver.run()
    assert broken.local_start_offset == 0
    assert whole.local_start_offset > 0
    assert traces(caplog) == ["orders-0 could not be archived: unforeseen; nothing is deleted, trying again"]


async def test_a_stop_closes_the_data_directory_though_the_archiver_has_died(
    start: Starting, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = await start(archive_dir=folder)

    async def died() -> None:
        raise ValueError("unforeseen")

    await ask.broker.archiver.stop()
    monkeypatch.setattr(ask.broker.archiver, "_task", asyncio.create_task(died()))
    # Stops the other one first, and needs its lock.
    await start(archive_dir=folder)


async def deleted(ask: Asking, *names: str) -> None:
    """Create topics, archive them, and delete them."""
    for name in names:
        await archived(ask, 20, name)
    await ask.broker.archiver.run()
    states = [m.DeleteTopicsRequest.DeleteTopicState(name=name, topic_id=bytes(16)) for name in sorted(names)]
    response = await ask(Api.DELETE_TOPICS, topics=states)
    assert [topic.error_code for topic in response.responses] == [0] * len(names)


async def test_a_deleted_topic_that_cannot_be_removed_does_not_keep_the_others(
    start: Starting, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = await start(archive_dir=folder)
    refused: set[str] = set()
    delete = FolderStore.delete

    def refuses_first(self: FolderStore, name: str) -> None:
        refused.add(min(ask.broker.partitions.deleted.archived))
        if name in refused:
            raise PermissionError(f"{name} belongs to another user")
        delete(self, name)

    with monkeypatch.context() as patch:
        patch.setattr(FolderStore, "delete", refuses_first)
        await deleted(ask, "orders", "payments", "returns")
        await ask.broker.archiver.remove_deleted()
        (first,) = refused
        assert ask.broker.partitions.deleted.archived == {first}
        assert {path.name for path in folder.glob("*/*")} == {first}
    await ask.broker.archiver.remove_deleted()
    assert list(folder.rglob("*.log")) == []


async def test_an_archive_that_is_away_is_tried_once_for_all_deleted_topics(
    start: Starting, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ask = await start(archive_dir=folder)
    tried: list[str] = []

    def refuse(self: FolderStore, name: str) -> None:
        if name:
            tried.append(name)
        raise OSError("the mount is away")

    monkeypatch.setattr(FolderStore, "delete", refuse)
    monkeypatch.setattr(FolderStore, "list", refuse)
    ask.broker.partitions.deleted.archived |= {DELETED, DELETED.replace("0", "1")}
    await ask.broker.archiver.remove_deleted()
    assert tried == [DELETED]
    assert "2 deleted topics are still in the archive" in caplog.text


async def test_the_directory_of_a_deleted_topic_is_removed_after_its_removal_failed_once(
    start: Starting, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = await start(archive_dir=folder)
    topics = tmp_path / "data" / "topics"
    remove_dir = SystemFiles.remove_dir

    def fails(self: SystemFiles, path: Path) -> None:
        if path.parent == topics:
            raise OSError("input/output error")
        remove_dir(self, path)

    with monkeypatch.context() as patch:
        patch.setattr(SystemFiles, "remove_dir", fails)
        await deleted(ask, "orders")
        await ask.broker.archiver.remove_deleted()
        assert len(list(topics.iterdir())) == 1
    await ask.broker.archiver.remove_deleted()
    assert list(topics.iterdir()) == []
    assert ask.broker.partitions.deleted.archived == set()


async def test_the_directory_of_a_deleted_topic_is_removed_off_the_event_loop(
    start: Starting, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = await start(archive_dir=folder)
    topics = tmp_path / "data" / "topics"
    threads: list[threading.Thread] = []
    remove = SystemFiles.remove

    def noted(self: SystemFiles, path: Path) -> None:
        if path.parent.parent == topics:
            threads.append(threading.current_thread())
        remove(self, path)

    monkeypatch.setattr(SystemFiles, "remove", noted)
    await deleted(ask, "orders")
    await ask.broker.archiver.remove_deleted()
    assert list(topics.iterdir()) == []
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()


class OpenFiles:
    """Files of the archive that are open, and the threads that closed the others."""

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
    start: Starting, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = await start(archive_dir=folder)
    partition = await archived(ask, 30)
    await ask.broker.archiver.run()
    files = OpenFiles(monkeypatch)
    assert len(partition.log.archive.entries) > 2
    for entry in partition.log.archive.entries:
        plan = partition.reader.plan(entry.base_offset, 300)
        assert plan is not None
        _, data = await ask.broker.partitions.archive_reads.fetch(plan, 240)
        assert data
    assert files.count == 0
    assert files.closed_by == {"headrace-archive-read"}


class Uploads:
    """Counts what is put to the archive; while ``fails`` is set, a put fails behind its last byte."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.logs = 0
        self.fails = True
        put = FolderStore.put

        def counted(store: FolderStore, name: str, chunks: Iterable[bytes], size: int) -> None:
            self.logs += name.endswith(".log")
            if self.fails:
                assert sum(map(len, chunks)) == size
                raise OSError("reads back otherwise")
            put(store, name, chunks, size)

        monkeypatch.setattr(FolderStore, "put", counted)


@pytest.fixture
async def driven(tmp_path: Path, folder: Path) -> AsyncIterator[tuple[Asking, DrivenClock]]:
    """A broker whose clock stands; it looks for something to archive only when it is called."""
    clock = DrivenClock()
    settings = BrokerSettings(data_dir=tmp_path / "data", archive_dir=folder, retention_check_s=100.0)
    broker = Broker(settings, clock=clock)
    await broker.start()
    yield Asking(broker), clock
    await broker.stop()


async def test_a_segment_whose_copy_fails_late_is_sent_again_after_pauses_that_double(
    driven: tuple[Asking, DrivenClock], monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, clock = driven
    partition = await archived(ask, 20)
    uploads = Uploads(monkeypatch)
    sent = []
    for _ in range(20):
        await ask.broker.archiver.run()
        sent.append(uploads.logs)
        clock.advance(100)
    tries = [round_ for round_, count in enumerate(sent) if count > (sent[round_ - 1] if round_ else 0)]
    assert tries == [0, 1, 3, 7, 13, 19]
    uploads.fails = False
    clock.advance(600)
    await ask.broker.archiver.run()
    assert partition.local_start_offset > 0


async def test_a_partition_whose_copy_fails_keeps_no_other_one_waiting(
    driven: tuple[Asking, DrivenClock], monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, _ = driven
    failing = await archived(ask, 20)
    uploads = Uploads(monkeypatch)
    await ask.broker.archiver.run()
    uploads.fails = False
    other = await archived(ask, 20, "others")
    await ask.broker.archiver.run()
    assert failing.local_start_offset == 0
    assert other.local_start_offset > 0


async def test_an_archive_that_was_away_is_used_as_soon_as_it_is_back(
    driven: tuple[Asking, DrivenClock], folder: Path, tmp_path: Path
) -> None:
    ask, _ = driven
    partition = await archived(ask, 20)
    folder.rename(tmp_path / "away")
    await ask.broker.archiver.run()
    assert partition.local_start_offset == 0
    (tmp_path / "away").rename(folder)
    await ask.broker.archiver.run()
    assert partition.local_start_offset > 0
