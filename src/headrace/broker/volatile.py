"""Volatile topics: partitions in memory, whose records a restart takes and whose offsets it does not give out again.

A topic is volatile from its creation on (``headrace.volatile``). Its partitions are logs like any other, over files in
memory, bounded by ``retention.bytes`` at every append rather than now and then. After a restart the topic is there,
with its configs, and empty. Its offsets then go on in a range of their own: each start of the broker has 2**40 of them,
so no offset ever stands for two records, and a reader whose place is gone is told so (error 1), as after any deletion.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.broker.partition import Accepted, Partition, ProduceRefused
from headrace.log.config import LogConfig
from headrace.log.retention import trim
from headrace.log.segment import log_name
from headrace.memory_files import MemoryFiles
from headrace.wire.codes import ErrorCode

__all__ = ["OFFSETS_PER_START", "VolatilePartition", "place_start", "volatile_log_config"]

OFFSETS_PER_START = 1 << 40
_PARTS = 8
_SEGMENT_BYTES_MIN = 64 * 1024


def volatile_log_config(config: LogConfig) -> LogConfig:
    """What is in force for a volatile partition: segments small enough to keep to its bound."""
    segment = min(config.segment_bytes, max(config.retention_bytes // _PARTS, _SEGMENT_BYTES_MIN))
    return replace(config, segment_bytes=segment)


def place_start(files: MemoryFiles, directory: Path, start_number: int) -> None:
    """Let the partition of a topic that has been here before begin behind all offsets of earlier starts."""
    files.open(directory / log_name(start_number * OFFSETS_PER_START), create=True).close()


class VolatilePartition(Partition):
    def append(self, *arguments: Any, **keywords: Any) -> Accepted:
        log = self.log
        if log.end_offset % OFFSETS_PER_START > OFFSETS_PER_START - (1 << 31):
            raise ProduceRefused(
                ErrorCode.KAFKA_STORAGE_ERROR, "all offsets of this start are given out: restart the broker"
            )
        accepted = super().append(*arguments, **keywords)
        if log.size_bytes > log.config.retention_bytes:
            # Only by size: what is too old goes with everybody else's.
            trim(log, 0)
        return accepted
