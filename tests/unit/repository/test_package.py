"""The built package contains every file that the code opens at run time."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from .tracked import ROOT, short, tracked_files


def build_wheel(work: Path, environment: dict[str, str]) -> Path:
    source = work / "source"
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
        work,
        source,
    ]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, **environment})
    (wheel,) = work.glob("headrace-*.whl")
    return wheel


def test_the_wheel_contains_every_file_of_the_package(tmp_path: Path) -> None:
    with zipfile.ZipFile(build_wheel(tmp_path, {})) as archive:
        packed = {name for name in archive.namelist() if name.startswith("headrace/")}
    compiled = {name for name in packed if name.endswith(".so")}
    assert [name.partition(".")[0] for name in compiled] == ["headrace/records/_walk"]
    expected = {
        path.relative_to(ROOT / "src").as_posix()
        for path in tracked_files()
        if path.is_relative_to(ROOT / "src")
    }
    assert packed - compiled == expected
    assert "headrace/py.typed" in packed


def test_without_a_compiler_the_package_installs_and_checks_records(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path, {"CC": "no-such-compiler"})
    with zipfile.ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if name.endswith(".so")]
        archive.extractall(tmp_path / "installed")
    program = """
import sys
import headrace.broker.net.server
from headrace.records import VALIDATES_IN_C, RecordLimits, build_batch, check_batch, read_records
assert not VALIDATES_IN_C
# aiokafka's parser of records does not check lengths, so an invalid batch makes it read past the end of the data.
assert "aiokafka" not in sys.modules
batch = build_batch([(None, b"value", [])], timestamp_ms=7)
print(check_batch(batch, RecordLimits()), read_records(batch, RecordLimits())[0].value)
"""
    output = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path / "installed",
        env={**os.environ, "PYTHONPATH": str(tmp_path / "installed")},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert output == "BatchSummary(max_timestamp=7, min_timestamp=7, has_null_key=True) b'value'\n"
