"""Every part of the server benchmark runs, with small numbers and without Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.serve.app import STORES

ROOT = Path(__file__).resolve().parents[2]

PARTS = (
    *(f"rows by key from {store}, 2 connections" for store in STORES),
    *(f"row by key from {store}, 1 connection, p99" for store in STORES),
    "fan-out of 50 changes/s to 8, delivery p99",
    "fan-out of 50 changes/s to 8, server's CPU per second",
    "server's CPU per second for each thousand subscribers, at 8",
    "server's memory for a further subscriber, from 4 to 8",
    "frames per subscriber, 8 subscribers",
    "read-your-writes wait of a view without a flow, p99",
)


@pytest.mark.soak
def test_every_part_of_the_benchmark_returns_a_row(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench.serve", "--quick", "--results", tmp_path]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=800)
    assert run.returncode == 0, run.stdout + run.stderr
    rows = json.loads((tmp_path / "serve.json").read_text())
    assert not set(PARTS) - {row["name"] for row in rows}
    assert all(row["us"] > 0 and row["them"] > 0 for row in rows)
