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
def test_a_decompression_bomb_uses_little_more_memory_than_the_limit(kind, ends, limit_mib):
    ended, size, growth_mib = explode(kind, limit_mib)
    assert ended == ends
    assert size < 16 * 1024 * 1024
    assert growth_mib < limit_mib + 64


@pytest.mark.parametrize(("kind", "ends"), [("headers", "InvalidRecords"), ("tiny", "BatchSummary")])
def test_many_small_headers_or_records_use_little_memory(kind, ends):
    ended, _, growth_mib = explode(kind, 64)
    assert ended == ends
    assert growth_mib < 64 + 64


@pytest.mark.parametrize("by", ["C", "plain"])
@pytest.mark.parametrize("kind", ["headers-in-many", "tiny"])
def test_reading_decodes_only_one_window_of_records_at_a_time(kind, by):
    ended, _, growth_mib = explode(kind, 64, "stored", by)
    assert ended == "int"
    assert growth_mib < 64 + 64


def test_the_measurement_detects_a_whole_batch_in_memory():
    """With a limit that allows the whole batch, the measurement shows its memory."""
    _, _, growth_mib = explode("gzip", 400)
    assert growth_mib > 300


def explode(kind, limit_mib, *arguments):
    command = [sys.executable, BOMB, kind, str(limit_mib), *arguments]
    run = subprocess.run(command, capture_output=True, text=True, timeout=800, check=True)
    ended, size, growth_mib = run.stdout.split()
    return ended, int(size), float(growth_mib)
