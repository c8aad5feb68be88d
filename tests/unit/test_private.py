"""Files and directories that only their owner may read, whatever the umask allows."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.broker.broker import Broker
from headrace.broker.settings import BrokerSettings
from headrace.files import create_private, make_private_dir, private
from headrace.serve.http.request_log import LogFile


@pytest.fixture(autouse=True)
def _open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_created_directories_are_private_and_existing_ones_keep_their_mode(
    tmp_path: Path,
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir(0o755)
    for _ in range(2):
        make_private_dir(shared / "a" / "b")
    make_private_dir(shared)
    assert [_mode(path) for path in (shared, shared / "a", shared / "a" / "b")] == [0o755, 0o700, 0o700]
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError):
        make_private_dir(tmp_path / "file")


def test_a_created_file_is_private_and_an_existing_one_is_unchanged(tmp_path: Path) -> None:
    create_private(tmp_path / "new")
    with open(tmp_path / "opened", "wb", opener=private):
        pass
    assert (_mode(tmp_path / "new"), _mode(tmp_path / "opened")) == (0o600, 0o600)
    (tmp_path / "old").write_text("content")
    (tmp_path / "old").chmod(0o644)
    create_private(tmp_path / "old")
    assert (_mode(tmp_path / "old"), (tmp_path / "old").read_text()) == (0o644, "content")
    # The next open reports the problem.
    create_private(tmp_path / "absent" / "new")


async def test_the_data_directory_of_a_broker_and_its_contents_are_private(tmp_path: Path) -> None:
    broker = Broker(BrokerSettings(data_dir=tmp_path / "data", listen_port=0))
    await broker.start()
    await broker.stop()
    paths = [tmp_path / "data", *(tmp_path / "data").rglob("*")]
    assert {_mode(path) for path in paths if path.is_dir()} == {0o700}
    assert {_mode(path) for path in paths if path.is_file()} == {0o600}


def test_an_access_log_is_private_and_has_a_maximum_size(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "access.log"
    log = LogFile(path, 25)
    for number in range(7):
        log.write(f"line {number} ü")
    log.close()
    log.write("line 7")
    log.close()
    before = path.with_name("access.log.1")
    assert before.read_text().splitlines() == ["line 4 ü", "line 5 ü"]
    assert path.read_text().splitlines() == ["line 6 ü", "line 7"]
    assert (_mode(path), _mode(before), _mode(path.parent)) == (0o600, 0o600, 0o700)
