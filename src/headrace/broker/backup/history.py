"""That a log was restored from a backup, and where its partitions ended then.

    DATA/restored.json    one JSON object per restore, oldest first; carried over by backups of what was restored

Whoever had read on behind such an end before the restore has read what this log never had, and the offsets are used
again for something else. Followers are told by the configuration ``headrace.restored`` of a topic: for each restore and
partition, the time in ms, the partition and the offset, as ``<ms>:<partition>:<offset>``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from headrace.broker.backup.manifest import Restored
from headrace.errors import DamagedState

__all__ = ["HISTORY_NAME", "dump_history", "load_history", "told_of"]

HISTORY_NAME = "restored.json"


def load_history(directory: Path) -> tuple[Restored, ...]:
    path = directory / HISTORY_NAME
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return ()
    try:
        return msgspec.json.decode(raw, type=tuple[Restored, ...])
    except msgspec.MsgspecError as error:
        raise DamagedState(
            f"{path} does not read back",
            detail=f"{error}; it says what this log lacks that its readers may have",
            hint="restore the data directory once more",
        ) from error


def dump_history(history: Sequence[Restored]) -> bytes:
    return msgspec.json.encode(history) + b"\n"


def told_of(history: Sequence[Restored], topic_id: bytes) -> str:
    """As followers read it; empty where nothing was restored."""
    prefix = f"{topic_id.hex()}/"
    return ",".join(
        f"{one.at_ms}:{place.removeprefix(prefix)}:{end}"
        for one in history
        for place, end in sorted(one.ends.items())
        if place.startswith(prefix)
    )
