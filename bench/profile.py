"""What Spark itself says of its triggers: how long each part of one took, and what its state cost.

The driver under measurement leaves it as a file when it is told to stop.
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

__all__ = ["KEEP_ALL", "TOTAL", "Trigger", "left_behind", "means", "read_triggers"]

KEEP_ALL = {"spark.sql.streaming.numRecentProgressUpdates": "100000"}
"""Spark's configuration: of how many triggers it still tells, by default a hundred."""
TOTAL = "triggerExecution"
_FILES = ("walCommit", "commitOffsets", "commitBatch")
_HELD_S = 60.0


@dataclass(frozen=True, slots=True)
class Trigger:
    batch: int
    rows: int
    parts_ms: dict[str, float]
    """By Spark's names, and two of ours: ``checkpoint files`` and ``state commit``, which is a part of addBatch and
    the sum over tasks.
    """
    state_rows: int
    state_bytes: int


@contextlib.contextmanager
def left_behind(spark: SparkSession, file: Path, stopping: threading.Event) -> Iterator[threading.Event]:
    """An event for whoever runs the queries to stop at: it comes after ``stopping``, when the file is written."""
    stop_now = threading.Event()

    def write() -> None:
        stopping.wait()
        try:
            told = [one.json for query in spark.streams.active for one in query.recentProgress]
            file.write_text("\n".join(line.replace("\n", " ") for line in told), encoding="utf-8")
        finally:
            stop_now.set()

    writing = threading.Thread(target=write, daemon=True)
    writing.start()
    try:
        yield stop_now
    finally:
        stopping.set()
        writing.join(_HELD_S)


def read_triggers(file: Path) -> list[Trigger]:
    """Those that had something to do, in their order."""
    told = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line]
    return [_trigger(one) for one in told if one["numInputRows"]]


def _trigger(told: dict[str, Any]) -> Trigger:
    parts: dict[str, float] = dict(told["durationMs"])
    parts["checkpoint files"] = sum(parts.get(name, 0) for name in _FILES)
    operators = told["stateOperators"]
    if operators:
        parts["state commit"] = sum(one["commitTimeMs"] for one in operators)
    return Trigger(
        told["batchId"],
        told["numInputRows"],
        parts,
        sum(one["numRowsTotal"] for one in operators),
        sum(one["memoryUsedBytes"] for one in operators),
    )


def means(triggers: Sequence[Trigger]) -> dict[str, float]:
    """Of each part, in milliseconds; Spark counts in whole ones, so a median would say less."""
    if not triggers:
        raise SystemExit("Spark told of no trigger that had anything to do")
    names = dict.fromkeys(name for one in triggers for name in one.parts_ms)
    return {name: statistics.fmean(one.parts_ms.get(name, 0) for one in triggers) for name in names}
