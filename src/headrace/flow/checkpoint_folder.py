"""The folder of a checkpoint with state: each run of a flow has one of its own.

A driver that was replaced may still write: its machine was paused, or tasks of a stopped query come to their end. The
log refuses its rows, and nothing refuses its files. So whoever has become the owner of a flow renames the folder before
it looks into it, and the next number goes into the name. Whatever a predecessor writes from then on fails, or lands in
a folder that nobody reads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from headrace.flow.errors import CheckpointLost

__all__ = ["first_folder", "newest_folder", "take_folder"]

_TRIES = 3
_RENAMED_BEFORE = ("FileNotFoundException", "FileAlreadyExistsException")


def first_folder(location: str) -> str:
    """Of a new generation whose checkpoint is at ``location``."""
    return f"{location}.1"


def newest_folder(spark: SparkSession, location: str) -> str | None:
    """The folder with the highest number, of the checkpoint at ``location``."""
    session: Any = spark._jsparkSession
    pattern = _path(spark, f"{location}.*")
    found = pattern.getFileSystem(session.sessionState().newHadoopConf()).globStatus(pattern) or ()
    names = (status.getPath().getName().rpartition(".")[2] for status in found)
    number = max((int(name) for name in names if name.isdecimal()), default=0)
    return f"{location}.{number}" if number else None


def take_folder(spark: SparkSession, folder: str, expect_ours: Callable[[], None]) -> str:
    """Rename what was the newest folder to the next number; returns that. ``expect_ours`` raises if another driver has
    become the owner, which may have renamed it before.
    """
    for _ in range(_TRIES):
        location, number = folder.rsplit(".", 1)
        renamed = f"{location}.{int(number) + 1}"
        try:
            _rename(spark, folder, renamed)
            return renamed
        except Py4JJavaError as error:
            if not error.java_exception.getClass().getName().endswith(_RENAMED_BEFORE):
                raise
        expect_ours()
        folder = newest_folder(spark, location) or folder
    raise CheckpointLost(
        f"the checkpoint at {folder} cannot be renamed",
        hint="another driver may be opening the flow; start it again",
    )


def _rename(spark: SparkSession, old: str, new: str) -> None:
    """As Spark renames files of a checkpoint: all or nothing, and never into a folder that is there."""
    gateway: Any = spark.sparkContext._gateway
    old_path, hadoop = _path(spark, old), gateway.jvm.org.apache.hadoop.fs
    session: Any = spark._jsparkSession
    files = hadoop.FileContext.getFileContext(old_path.toUri(), session.sessionState().newHadoopConf())
    files.rename(old_path, _path(spark, new), gateway.new_array(hadoop.Options.Rename, 0))


def _path(spark: SparkSession, location: str) -> Any:
    jvm: Any = spark._jvm
    return jvm.org.apache.hadoop.fs.Path(location)
