from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BOMB = Path(__file__).with_name("bomb.py")


@pytest.mark.parametrize("limit_mib", [8, 96])
@pytest.mark.parametrize(
    ("kind", "ends"),
    [
        ("zstd", "RecordsTooLarge"),
        ("zstd-window", "RecordsTooLarge"),
        ("zstd-second-window", "RecordsTooLarge"),
        ("gzip", "RecordsTooLarge"),
        ("lz4", "RecordsTooLarge"),
        ("snappy", "RecordsTooLarge"),
        ("snappy-stated", "InvalidRecords"),
        ("headers-in-a-window", "InvalidRecords"),
        ("count", "RecordsTooLarge"),
    ],
)
def test_a_bomb_costs_the_limit_and_little_more(kind, ends, limit_mib):
    ended, size, grown = explode(kind, limit_mib)
    assert ended == ends
    assert size < 16 * 1024 * 1024
    assert grown < limit_mib + 64


@pytest.mark.parametrize(("kind", "ends"), [("headers", "InvalidRecords"), ("tiny", "Checked")])
def test_small_bytes_that_would_become_large_objects_do_not(kind, ends):
    ended, _, grown = explode(kind, 64)
    assert ended == ends
    assert grown < 64 + 64


@pytest.mark.parametrize("by", ["C", "plain"])
@pytest.mark.parametrize("kind", ["headers-in-many", "tiny"])
def test_reading_holds_a_window_at_a_time(kind, by):
    ended, _, grown = explode(kind, 64, "stored", by)
    assert ended == "int"
    assert grown < 64 + 64


def test_the_measure_can_tell():
    """The same bomb under a limit that lets it pass is seen to take what it takes."""
    _, _, grown = explode("gzip", 400)
    assert grown > 300


def explode(kind, limit_mib, *how):
    command = [sys.executable, BOMB, kind, str(limit_mib), *how]
    run = subprocess.run(command, capture_output=True, text=True, timeout=800, check=True)
    ended, size, grown = run.stdout.split()
    return ended, int(size), float(grown)
