"""The list of restores of a data directory, with the end offset of each partition.

    DATA/restored.json    a JSON array with one object per restore, oldest first; later backups and restores copy it

A reader that was beyond such an end offset before the restore has read records that the restored log does not have. The
log assigns their offsets to other records. Readers can detect this with the topic's configuration
``headrace.restored``. The configuration has an item ``<ms>:<partition>:<offset>`` for each restore and partition: the
time in milliseconds, the partition and its end offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from headrace.broker.backup.manifest import PastRestore
from headrace.errors import DamagedState

__all__ = ["HISTORY_NAME", "dump_history", "load_history", "restores_of"]

HISTORY_NAME = "restored.json"


def load_history(directory: Path) -> tuple[PastRestore, ...]:
    path = directory / HISTORY_NAME
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return ()
    try:
        return msgspec.json.decode(raw, type=tuple[PastRestore, ...])
    except msgspec.MsgspecError as error:
        raise DamagedState(
            f"{path} is damaged",
            detail=f"{error}; readers need this list to detect records that a restore removed",
            hint="restore the data directory from the backup again",
        ) from error


def dump_history(history: Sequence[PastRestore]) -> bytes:
    return msgspec.json.encode(history) + b"\n"


def restores_of(history: Sequence[PastRestore], topic_id: bytes) -> str:
    """Return the value of ``headrace.restored``, which is empty if the topic was never restored."""
    prefix = f"{topic_id.hex()}/"
    return ",".join(
        f"{restored.at_ms}:{log_id.removeprefix(prefix)}:{end}"
        for restored in history
        for log_id, end in sorted(restored.ends.items())
        if log_id.startswith(prefix)
    )
