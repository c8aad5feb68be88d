"""Group commit on a failing disk."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from headrace.errors import PartitionFenced
from headrace.files import SystemFile, SystemFiles
from headrace.log import committer as committing
from headrace.log.committer import Committer
from headrace.log.partition import PartitionLog
from tests.unit.log.conftest import NOW_MS, append


class FailingFile(SystemFile):
    """Syncs fail while the name is in ``failing``."""

    failing: set[str] = set()  # noqa: RUF012  shared by all on purpose
    syncs: list[str] = []  # noqa: RUF012

    def sync(self) -> None:
        self.syncs.append(self.path.name)
        if self.path.suffix in self.failing or self.path.name in self.failing:
            raise OSError(errno.EIO, "Input/output error")
        super().sync()


class FailingFiles(SystemFiles):
    def open(self, path: Path, *, create: bool = False) -> SystemFile:
        file = super().open(path, create=create)
        return FailingFile(file._fd, path)


@pytest.fixture
def failing() -> set[str]:
    FailingFile.failing = set()
    FailingFile.syncs = []
    return FailingFile.failing


def open_log(directory: Path) -> PartitionLog:
    directory.mkdir()
    return PartitionLog(FailingFiles(), directory, now_ms=NOW_MS)


async def test_a_failed_sync_is_logged_with_the_readable_offsets_and_a_hint(
    tmp_path: Path, failing: set[str], caplog: pytest.LogCaptureFixture
) -> None:
    log = open_log(tmp_path / "p")
    committer = Committer()
    try:
        append(log, b"safe")
        await committer.wait(log, log.end_offset)
        failing.add(".log")
        append(log, b"lost")
        with pytest.raises(PartitionFenced):
            await committer.wait(log, log.end_offset)
    finally:
        await committer.close()
        log.close()
    (message,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert str(tmp_path) in message
    assert "Input/output error" in message
    assert "offsets 0 to 1 remain readable" in message
    assert "check the disk" in message


async def test_a_mark_whose_sync_failed_is_synced_later(
    tmp_path: Path, failing: set[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(committing, "_MARK_INTERVAL_S", 0.005)
    log = open_log(tmp_path / "p")
    committer = Committer()
    try:
        failing.add("mark")
        FailingFile.syncs.clear()
        append(log, b"value")
        await committer.wait(log, log.end_offset)
        async with asyncio.timeout(120):
            while FailingFile.syncs.count("mark") < 3:
                await asyncio.sleep(0.001)
            failing.clear()
            while log._mark_file.unsynced:
                await asyncio.sleep(0.001)
    finally:
        await committer.close()
        log.close()
    messages = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(messages) == 1
    assert "Input/output error" in messages[0]
