"""Is everything there that flows run on: Python packages, Java, jars, a master that answers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from headrace.cli.doctor.finding import Finding, fine, missing, optional
from headrace.cli.reach import why_unreachable
from headrace.flow import java
from headrace.flow.archive import archive_of, can_archive
from headrace.flow.jars import jars_dir, pinned
from headrace.flow.session import launch_for
from headrace.flow.start_errors import JavaMissing
from headrace.settings import Settings

__all__ = ["look_at_spark"]

_EXTRA = 'pip install "headrace[spark]"'
_SPARK_PORT = 7077


def look_at_spark(settings: Settings) -> Iterator[Finding]:
    needed = [*_packages(), _java(), _jars(settings)]
    yield from needed
    if all(one.state == "ok" for one in needed):
        yield _archive(settings)
    if not settings.is_local:
        yield _master(settings.spark.master)


def _packages() -> Iterator[Finding]:
    """Versions are read from what pip has noted, so that nothing heavy is imported."""
    connector = next(one.revision for one in pinned() if one.name.startswith("spark-sql-kafka"))
    wanted = (
        ("pyspark", connector, None, f"exactly {connector}, for which the Kafka connector is pinned"),
        ("pyarrow", "18", None, "18 or newer"),
        ("pandas", "2.2", "3", "2.2 or newer, and below 3"),
    )
    for name, least, below, words in wanted:
        try:
            there = version(name)
        except PackageNotFoundError:
            yield missing(name, f"{name} is not installed; it must be {words}", _EXTRA)
            continue
        fits = there == least if name == "pyspark" else _numbers(there) >= _numbers(least)
        if fits and (below is None or _numbers(there) < _numbers(below)):
            yield fine(name, f"{name} {there}")
        else:
            yield missing(name, f"{name} {there} is installed; it must be {words}", _EXTRA)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text.partition("+")[0])[:3])


def _java() -> Finding:
    try:
        found = java.require()
    except JavaMissing as error:
        return missing("java", error.message + (f": {error.detail}" if error.detail else ""), error.hint)
    return fine("java", f"Java {found.version} at {found.path} (found by {found.origin})")


def _jars(settings: Settings) -> Finding:
    folder = settings.spark.jars or jars_dir()
    absent = [one.file_name for one in pinned() if not one.path_in(folder).is_file()]
    wrong = [one.file_name for one in pinned() if one.file_name not in absent and not one.is_in(folder)]
    if not absent and not wrong:
        return fine("jars", f"{len(pinned())} jars of Spark's Kafka connector in {folder}")
    faults = [f"{name} is missing" for name in absent] + [f"{name} is damaged" for name in wrong]
    return missing(
        "jars",
        f"in {folder}: {', '.join(faults)}",
        "headrace doctor --fix fetches them, as the first start of an app would; that needs a network once",
    )


def _archive(settings: Settings) -> Finding:
    launch = launch_for(settings, say=lambda _: None)
    path = archive_of(launch)
    if path.is_file():
        return fine("class-archive", f"Spark's classes are read in advance: {path}")
    if not can_archive(launch):
        return optional(
            "class-archive",
            "this Java cannot read Spark's classes in advance, so it takes about twice as long to start",
            f"a Java of the system can (Debian: apt-get install {java.JAVA_PACKAGES[0]})",
        )
    return optional(
        "class-archive",
        "Spark's classes are not read in advance, so it takes about twice as long to start",
        "headrace doctor --fix does that once; it takes some 20 seconds",
    )


def _master(master: str) -> Finding:
    found = re.fullmatch(r"spark://([^:/,]+)(?::(\d+))?(?:,.*)?", master)
    if found is None:
        return optional("master", f"whether {master} answers was not tried", "it shows when an app starts")
    host, port = found.group(1), int(found.group(2) or _SPARK_PORT)
    reason = why_unreachable(host, port)
    if reason is None:
        return fine("master", f"Spark's master answers at {host}:{port}")
    return missing(
        "master",
        f"Spark's master does not answer at {host}:{port}: {reason}",
        "start it, or correct spark.master",
    )
