"""Every part of the benchmark runs with small numbers, on the embedded broker and on Apache Kafka."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PARTS = (
    "start-up to the first answer",
    "resident memory at rest",
    "produce, 1,000 B, 8 partitions, lz4",
    "consume, 1,000 B, 8 partitions, lz4",
    "server's CPU per million produced, 1,000 B, 8 partitions, lz4",
    "produce, 100 B, 1 partition, none, Java client",
    "end to end at 1,000/s, p99.9",
    "small requests, pipelined",
    "small requests, one by one",
    "transactions of 10 messages",
    "produce, 100 B, 20 partitions, none",
    "resident memory after load",
    "start-up to the first answer, 0.00391 GB of log",
)


@pytest.mark.soak
def test_every_part_of_the_benchmark_gives_a_row(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench.log", "--quick", "--results", tmp_path]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=800)
    assert run.returncode == 0, run.stdout + run.stderr
    rows = {row["name"]: row for row in json.loads((tmp_path / "log.json").read_text())}
    assert not {f"{part} (page cache)" for part in PARTS} - rows.keys()
    assert all(row["us"] > 0 and row["them"] > 0 for row in rows.values())
    assert json.loads((tmp_path / "machine.json").read_text())["cores"] >= 1
