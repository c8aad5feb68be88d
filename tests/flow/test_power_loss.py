"""A quick share of ``power_loss_of_flows``, and what of a checkpoint is synced when."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from bench.faults import power_loss_of_flows
from bench.faults.synced_files import SyncedFiles
from headrace.flow.checkpoint_sync import CheckpointSync, SyncFailed
from tests.crash.verdicts import expect_held


def test_flows_go_on_after_a_power_loss_with_every_row_once() -> None:
    expect_held(power_loss_of_flows.run(3, losses=1))


class Synced:
    """Paths in the order in which they were synced."""

    def __init__(self, root: Path) -> None:
        self.paths: list[str] = []
        self._root = root
        self._lock = threading.Lock()

    def fsync(self, descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        with self._lock:
            if path.is_relative_to(self._root):
                self.paths.append(str(path.relative_to(self._root)))

    def take(self) -> list[str]:
        found, self.paths = self.paths, []
        return found


def test_a_sync_has_each_file_that_is_new_or_still_changes_and_then_its_folders(tmp_path: Path) -> None:
    state = tmp_path / "state" / "0"
    state.mkdir(parents=True)
    (state / "1.delta").write_bytes(b"one")
    synced = Synced(tmp_path)
    sync = CheckpointSync(tmp_path.as_uri(), synced.fsync)
    sync.sync()
    first = synced.take()
    assert first[0] == "state/0/1.delta"
    assert set(first[1:]) == {".", "state", "state/0"}
    # A file that is copied there in pieces is synced again while it grows.
    (state / "1.delta").write_bytes(b"one and more")
    sync.sync()
    assert synced.take() == ["state/0/1.delta"]
    sync.sync()
    assert synced.take() == []
    (state / ".2.tmp").write_bytes(b"two")
    (state / ".2.tmp").rename(state / "2.delta")
    (state / "1.delta").unlink()
    sync.sync()
    assert synced.take() == ["state/0/2.delta", "state/0"]
    sync.sync()
    (state / ".2.tmp").write_bytes(b"again")
    (state / ".2.tmp").rename(state / "2.delta")
    sync.sync()
    assert synced.take() == ["state/0/2.delta", "state/0"]


def test_a_sync_that_fails_stops_the_batch_and_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "offsets").write_bytes(b"0")

    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    with pytest.raises(SyncFailed, match=r"cannot sync .*offsets.*: Input/output error"):
        CheckpointSync(str(tmp_path), fail).sync()


def test_a_checkpoint_elsewhere_is_left_to_its_file_system() -> None:
    def fail(descriptor: int) -> None:
        raise AssertionError(os.readlink(f"/proc/self/fd/{descriptor}"))

    CheckpointSync("hdfs://names:8020/tmp", fail).sync()


def test_what_was_not_synced_is_lost_with_the_power(tmp_path: Path) -> None:
    """The oracle of these runs: a file counts once it was synced, and its folder with its name."""
    import random

    files = SyncedFiles()
    for name in ("kept", "nameless"):
        (tmp_path / name).write_bytes(name.encode())
        descriptor = os.open(tmp_path / name, os.O_RDONLY)
        files.fsync(descriptor)
        os.close(descriptor)
        if name == "kept":
            descriptor = os.open(tmp_path, os.O_RDONLY)
            files.fsync(descriptor)
            os.close(descriptor)
    harmed = 0
    for seed in range(20):
        (tmp_path / "nameless").write_bytes(b"nameless %d" % seed)
        harmed += files.lose_power(tmp_path, random.Random(seed))
        assert (tmp_path / "kept").read_bytes() == b"kept"
    assert 0 < harmed < 20
