"""What simulated power losses found, each as the shortest story that shows it."""

from __future__ import annotations

from pathlib import Path

from headrace.broker.data_dir import DataDir
from headrace.testing.faulty_files import FaultyFiles

DATA = Path("/disk/data")
OUTCOMES = 60


def test_the_data_directory_itself_outlasts_a_power_loss_after_the_first_start() -> None:
    files = FaultyFiles(seed=1)
    first = DataDir(files, DATA)
    for _ in range(OUTCOMES):
        survivor = files.crash()
        assert survivor.exists(DATA / "headrace.json")
        assert DataDir(survivor, DATA).identity.cluster_id == first.identity.cluster_id
