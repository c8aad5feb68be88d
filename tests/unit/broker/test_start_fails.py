"""A start on a failing disk reports the error in the user's terms."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from headrace.broker.broker import Broker
from headrace.broker.settings import BrokerSettings
from headrace.errors import DataDirError
from headrace.files import SystemFiles


class FailingFiles(SystemFiles):
    def __init__(self, syncs_before: int) -> None:
        self.syncs_left = syncs_before

    def sync_dir(self, directory: Path) -> None:
        self.syncs_left -= 1
        if self.syncs_left < 0:
            raise OSError(errno.EIO, "Input/output error")
        super().sync_dir(directory)


@pytest.mark.parametrize("syncs_before", [0, 1, 2, 3])
async def test_a_failed_sync_during_the_start_is_an_error_with_a_hint(
    tmp_path: Path, syncs_before: int
) -> None:
    settings = BrokerSettings(data_dir=tmp_path / "data", listen_port=0)
    with pytest.raises(DataDirError) as raised:
        Broker(settings, files=FailingFiles(syncs_before))
    assert str(tmp_path / "data") in raised.value.message
    assert "Input/output error" in raised.value.message
    assert raised.value.hint
    broker = Broker(settings)
    await broker.start()
    await broker.stop()
