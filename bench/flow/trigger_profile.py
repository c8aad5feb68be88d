"""Spark's metrics of its triggers: the duration of each phase, and the cost of the state.

The measured driver writes the metrics to a file when it stops.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["KEEP_ALL", "TOTAL", "Trigger", "means", "read_triggers", "save_triggers"]

KEEP_ALL = {"spark.sql.streaming.numRecentProgressUpdates": "100000"}
"""The Spark setting for the number of triggers whose metrics Spark keeps; its default is 100."""
TOTAL = "triggerExecution"
_FILE_PHASES = ("walCommit", "commitOffsets", "commitBatch")
_WRITE_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Trigger:
    batch: int
    rows: int
    parts_ms: dict[str, float]
    """Milliseconds by Spark's phase names, and by two of ours: ``checkpoint files``, and ``state commit``, which is a
    part of addBatch, summed over all tasks.
    """
    state_rows: int
    state_bytes: int


@contextlib.contextmanager
def save_triggers(spark: SparkSession, file: Path, stopping: threading.Event) -> Iterator[threading.Event]:
    """When ``stopping`` is set, write the metrics to the file. Then set the yielded event, which ends the queries."""
    stop_now = threading.Event()

    def write() -> None:
        stopping.wait()
        try:
            lines = [progress.json for query in spark.streams.active for progress in query.recentProgress]
            file.write_text("\n".join(line.replace("\n", " ") for line in lines), encoding="utf-8")
        finally:
            stop_now.set()

    writing = threading.Thread(target=write, daemon=True)
    writing.start()
    try:
        yield stop_now
    finally:
        stopping.set()
        writing.join(_WRITE_TIMEOUT_S)


def read_triggers(file: Path) -> list[Trigger]:
    """Return the triggers with input, in order."""
    all_progress = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line]
    return [_trigger(progress) for progress in all_progress if progress["numInputRows"]]


def _trigger(progress: dict[str, Any]) -> Trigger:
    parts: dict[str, float] = dict(progress["durationMs"])
    parts["checkpoint files"] = sum(parts.get(name, 0) for name in _FILE_PHASES)
    operators = progress["stateOperators"]
    if operators:
        parts["state commit"] = sum(operator["commitTimeMs"] for operator in operators)
    return Trigger(
        progress["batchId"],
        progress["numInputRows"],
        parts,
        sum(operator["numRowsTotal"] for operator in operators),
        sum(operator["memoryUsedBytes"] for operator in operators),
    )


def means(triggers: Sequence[Trigger]) -> dict[str, float]:
    """Return the mean of each phase in milliseconds. Spark counts whole milliseconds: a median would be too coarse."""
    if not triggers:
        raise SystemExit("Spark reported no trigger with input rows")
    names = dict.fromkeys(name for trigger in triggers for name in trigger.parts_ms)
    return {name: statistics.fmean(trigger.parts_ms.get(name, 0) for trigger in triggers) for name in names}
