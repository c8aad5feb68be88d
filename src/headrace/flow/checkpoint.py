"""Spark's own view of files: a checkpoint may be on this machine or anywhere that Spark can write to."""

from __future__ import annotations

import json
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

__all__ = ["Checkpoint"]


class Checkpoint:
    """What there is of a flow's checkpoint: batches that were planned (``offsets``) and that were done
    (``commits``)."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        self.location = location
        self._jvm: Any = spark._jvm
        self._conf = spark._jsparkSession.sessionState().newHadoopConf()

    def exists(self) -> bool:
        return self._has("metadata")

    def last_planned(self) -> int | None:
        return self._last("offsets")

    def last_done(self) -> int | None:
        return self._last("commits")

    def planned_offsets(self, batch: int) -> dict[str, dict[str, int]] | None:
        """Where the inputs of a batch end, per topic and partition, as Spark has written it down; None if it has not,
        or if that cannot be read.
        """
        path = self._path(f"offsets/{batch}")
        try:
            stream = self._fs(path).open(path)
            try:
                told: str = self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
            finally:
                stream.close()
            return parse_offsets(told)
        except (Py4JJavaError, ValueError):
            return None

    def _last(self, folder: str) -> int | None:
        path = self._path(folder)
        fs = self._fs(path)
        if not fs.exists(path):
            return None
        names = [status.getPath().getName() for status in fs.listStatus(path)]
        numbers = [int(name) for name in names if name.isdecimal()]
        return max(numbers, default=None)

    def _has(self, name: str) -> bool:
        path = self._path(name)
        return bool(self._fs(path).exists(path))

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.location}/{name}")

    def _fs(self, path: Any) -> Any:
        return path.getFileSystem(self._conf)


def parse_offsets(told: str) -> dict[str, dict[str, int]]:
    """A version, a line of metadata, and a line for each source: its offsets, or a dash where it has none."""
    found: dict[str, dict[str, int]] = {}
    for line in told.splitlines()[2:]:
        if line.startswith("{"):
            for topic, offsets in json.loads(line).items():
                found[topic] = {number: int(offset) for number, offset in offsets.items()}
    return found
