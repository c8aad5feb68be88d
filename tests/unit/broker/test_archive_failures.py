"""A folder as the archive that hangs or fails: what the archiver still does, and how it stops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from headrace.log.archive_folder import FolderStore

from .desk import Asking

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
