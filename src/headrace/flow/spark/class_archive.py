"""An archive of Spark's classes. The JVM maps it instead of loading and verifying 20,000 classes at each start.

The archive halves the start time (docs/decisions/0006-spark.md). ``training_run`` starts a JVM with
``-XX:ArchiveClassesAtExit``, which writes the archive when it exits. The archive is valid for one Java version and one
ordered list of jars. The JVM checks this and ignores an archive that does not match. So without a valid archive, Spark
works but starts more slowly.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

from headrace.flow.spark.jars import cache_dir
from headrace.flow.spark.jvm import Launch

__all__ = ["archive_of", "archive_options", "archives_dir", "can_archive", "prune"]

_ARCHIVES_MAX = 3
"""The number of archives that the cache retains. Each has about 150 MB and belongs to one installation of PySpark."""


def archives_dir() -> Path:
    return cache_dir() / "spark"


def archive_of(launch: Launch) -> Path:
    """Return the path of the archive for this command line."""
    # The JVM compares its own build, and the name, size and time of every jar.
    digest = hashlib.sha256()
    for path in (launch.java.resolve(), *launch.classpath()):
        with contextlib.suppress(OSError):
            stat = path.stat()
            digest.update(f"{path} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return archives_dir() / f"{digest.hexdigest()[:20]}.jsa"


def can_archive(launch: Launch) -> bool:
    """Whether this Java supports archives. Our archive extends the archive of Java's own classes, which a small runtime
    might not have.
    """
    return (launch.java.resolve().parent.parent / "lib" / "server" / "classes.jsa").is_file()


def archive_options(launch: Launch) -> list[str]:
    """Return the JVM options that select the archive; empty if it does not exist."""
    path = archive_of(launch)
    if not path.is_file():
        return []
    with contextlib.suppress(OSError):
        os.utime(path)
    return [f"-XX:SharedArchiveFile={path}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]


def prune() -> None:
    """Delete the least recently used archives."""

    def last_used_s(path: Path) -> float:
        try:
            return path.stat().st_mtime
        except OSError:
            return 0.0

    for path in sorted(archives_dir().glob("*.jsa"), key=last_used_s, reverse=True)[_ARCHIVES_MAX:]:
        path.unlink(missing_ok=True)
