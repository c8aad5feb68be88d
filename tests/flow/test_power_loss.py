"""A short run of the fault ``power_loss``, and tests of when the files of a checkpoint are synced."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from faults.flows import power_loss
from faults.flows.synced_files import SyncedFiles
from headrace.flow.spark.checkpoint import CheckpointSync, SyncFailed
from tests.crash.verdicts import expect_no_problems


@pytest.mark.usefixtures("fault_world")
def test_flows_resume_after_a_power_loss_with_every_row_once() -> None:
    expect_no_problems(power_loss.run(3, losses=1))


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


def test_a_sync_covers_new_and_changing_files_then_their_directories(tmp_path: Path) -> None:
    state = tmp_path / "state" / "0"
    state.mkdir(parents=True)
    (state / "1.delta").write_bytes(b"one")
    synced = Synced(tmp_path)
    sync = CheckpointSync(tmp_path.as_uri(), synced.fsync)
    sync.sync()
    first = synced.take()
    assert first[0] == "state/0/1.delta"
    assert set(first[1:]) == {".", "state", "state/0"}
    # A file that is copied to the checkpoint in pieces is synced several times while it grows.
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


def test_a_remote_checkpoint_is_not_synced() -> None:
    def fail(descriptor: int) -> None:
        raise AssertionError(os.readlink(f"/proc/self/fd/{descriptor}"))

    CheckpointSync("hdfs://names:8020/tmp", fail).sync()


def test_unsynced_files_are_lost_in_a_power_loss(tmp_path: Path) -> None:
    """Tests the oracle of these runs: a file survives if the file and its directory were synced."""
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
