"""A folder as the archive that hangs or fails: what the archiver still does, and how it stops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from headrace.log.archive_folder import FolderStore

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
