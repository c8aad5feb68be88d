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
        """Whether Spark would take it for a checkpoint: one whose id cannot be read is none."""
        try:
            return "id" in json.loads(self._read("metadata"))
        except (Py4JJavaError, ValueError):
            return False

    def last_planned(self) -> int | None:
        return self._last("offsets")

    def last_done(self) -> int | None:
        return self._last("commits")

    def unfinished(self) -> int | None:
        """The batch that is planned and not done."""
        planned, done = self.last_planned(), self.last_done()
        return planned if planned is not None and (done is None or planned > done) else None

    def plans(self) -> list[int]:
        return self._numbers("offsets")

    def is_done(self, batch: int) -> bool:
        """Whether what Spark wrote when the batch was done can be read; a power loss may leave it torn."""
        try:
            version, noted = self._read(f"commits/{batch}").split("\n", 1)
            return version.startswith("v") and isinstance(json.loads(noted), dict)
        except (Py4JJavaError, ValueError):
            return False

    def planned_offsets(self, batch: int) -> dict[str, dict[str, int]] | None:
        """Where the inputs of a batch end, per topic and partition, as Spark has written it down; None if it has not,
        or if that cannot be read.
        """
        try:
            return parse_offsets(self._read(f"offsets/{batch}"))
        except (Py4JJavaError, ValueError):
            return None

    def forget_plan(self, batch: int) -> None:
        """Let Spark plan the batch again."""
        self._remove(self._path(f"offsets/{batch}"))

    def forget_done(self, batch: int) -> None:
        """Let Spark run the batch again."""
        self._remove(self._path(f"commits/{batch}"))

    def forget_state(self, batch: int) -> None:
        """What an earlier attempt left of the state behind a batch. The next attempt writes its changes again, but a
        snapshot that was made of the earlier ones would stay, and be loaded instead.
        """
        version = batch + 1
        for depth in ("*/*", "*/*/*"):
            pattern = self._path(f"state/{depth}/{{{version}.*,{version}_*}}")
            for status in self._fs(pattern).globStatus(pattern) or ():
                self._remove(status.getPath())

    def remove(self) -> None:
        self._remove(self._jvm.org.apache.hadoop.fs.Path(self.location))

    def remove_siblings(self, prefix: str) -> None:
        """Folders beside this one whose names begin so."""
        pattern = self._jvm.org.apache.hadoop.fs.Path(f"{self.location.rpartition('/')[0]}/{prefix}*")
        for status in self._fs(pattern).globStatus(pattern) or ():
            self._remove(status.getPath())

    def _read(self, name: str) -> str:
        path = self._path(name)
        stream = self._fs(path).open(path)
        try:
            text: str = self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
        finally:
            stream.close()
        return text

    def _remove(self, path: Any) -> None:
        """With its checksum, where the file system keeps one beside it."""
        self._fs(path).delete(path, True)

    def _last(self, folder: str) -> int | None:
        return max(self._numbers(folder), default=None)

    def _numbers(self, folder: str) -> list[int]:
        path = self._path(folder)
        fs = self._fs(path)
        if not fs.exists(path):
            return []
        names = [status.getPath().getName() for status in fs.listStatus(path)]
        return [int(name) for name in names if name.isdecimal()]

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
