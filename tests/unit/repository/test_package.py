"""What is built for users holds everything that the code opens at run time."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from .tracked import ROOT, short, tracked_files


def test_the_wheel_holds_every_file_of_the_package(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for path in tracked_files():
        copy = source / short(path)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        tmp_path,
        source,
    ]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("headrace-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("headrace/")}
    expected = {
        path.relative_to(ROOT / "src").as_posix()
        for path in tracked_files()
        if path.is_relative_to(ROOT / "src")
    }
    assert packed == expected
    assert "headrace/py.typed" in packed
