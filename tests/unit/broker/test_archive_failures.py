"""A folder as the archive that hangs or fails: what the archiver still does, and how it stops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from headrace.files import SystemFiles
from headrace.log.archive_folder import FolderStore
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
