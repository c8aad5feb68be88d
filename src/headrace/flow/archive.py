"""Spark's classes, read in advance: an archive that the JVM maps instead of loading and checking 20,000 classes anew.

It halves what a start costs (docs/decisions/0006-spark.md). The JVM makes it when a process ends that ran with
``-XX:ArchiveClassesAtExit``; ``headrace.flow.training`` is such a process. It is good for one Java and one list of jars
in one order; the JVM checks that by itself and goes without when something differs. So a missing archive, or one that
does not fit, costs time and nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

from headrace.flow.cache import cache_dir
from headrace.flow.jvm import Launch

__all__ = ["archive_of", "archives_dir", "can_archive", "prune", "use_option"]

_KEPT = 3
"""Archives in the cache: each has 150 MB, and belongs to one installation of PySpark."""


def archives_dir() -> Path:
    return cache_dir() / "spark"


def archive_of(launch: Launch) -> Path:
    """Where the archive for this command line is, or belongs."""
    # What the JVM compares: its own build, and name, size and time of every jar.
    digest = hashlib.sha256()
    for path in (launch.java.resolve(), *launch.classpath()):
        with contextlib.suppress(OSError):
            stat = path.stat()
            digest.update(f"{path} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return archives_dir() / f"{digest.hexdigest()[:20]}.jsa"


def can_archive(launch: Launch) -> bool:
    """Whether this Java can: an archive builds upon that of Java's own classes, which a small runtime may lack."""
    return (launch.java.resolve().parent.parent / "lib" / "server" / "classes.jsa").is_file()


def use_option(launch: Launch) -> list[str]:
    """The option that makes the JVM use the archive, if there is one."""
    path = archive_of(launch)
    if not path.is_file():
        return []
    with contextlib.suppress(OSError):
        os.utime(path)
    return [f"-XX:SharedArchiveFile={path}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]


def prune() -> None:
    """Drop the archives that were not used for longest."""

    def used(path: Path) -> float:
        try:
            return path.stat().st_mtime
        except OSError:
            return 0.0

    for path in sorted(archives_dir().glob("*.jsa"), key=used, reverse=True)[_KEPT:]:
        path.unlink(missing_ok=True)
