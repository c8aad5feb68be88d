"""Checks of Spark: Python packages, Java, jars, the class archive and the master."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from headrace.cli.doctor.finding import Finding, fine, missing, optional
from headrace.cli.reach import why_unreachable
from headrace.flow.spark import java
from headrace.flow.spark.class_archive import archive_of, can_archive
from headrace.flow.spark.errors import MissingJava
from headrace.flow.spark.jars import jars_dir, pinned
from headrace.flow.spark.session import launch_for
from headrace.settings import Settings

__all__ = ["check_spark"]

_EXTRA = 'pip install "headrace[spark]"'
_SPARK_PORT = 7077


def check_spark(settings: Settings) -> Iterator[Finding]:
    needed = [*_packages(), _java(), _jars(settings)]
    yield from needed
    if all(finding.state == "ok" for finding in needed):
        yield _archive(settings)
    if not settings.is_local:
        yield _master(settings.spark.master)


def _packages() -> Iterator[Finding]:
    """Read the versions from package metadata, because importing these packages is slow."""
    connector = next(jar.revision for jar in pinned() if jar.name.startswith("spark-sql-kafka"))
    wanted = (
        ("pyspark", connector, None, f"exactly {connector}, the version of the pinned Kafka connector"),
        ("pyarrow", "18", None, "18 or newer"),
        ("pandas", "2.2", "3", "2.2 or newer, and below 3"),
    )
    for name, minimum, limit, requirement in wanted:
        try:
            installed = version(name)
        except PackageNotFoundError:
            yield missing(name, f"{name} is not installed; it must be {requirement}", _EXTRA)
            continue
        fits = installed == minimum if name == "pyspark" else _numbers(installed) >= _numbers(minimum)
        if fits and (limit is None or _numbers(installed) < _numbers(limit)):
            yield fine(name, f"{name} {installed}")
        else:
            yield missing(name, f"{name} {installed} is installed; it must be {requirement}", _EXTRA)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text.partition("+")[0])[:3])


def _java() -> Finding:
    try:
        installed = java.require()
    except MissingJava as error:
        return missing("java", error.message + (f": {error.detail}" if error.detail else ""), error.hint)
    return fine("java", f"Java {installed.version} at {installed.path} (found by {installed.origin})")


def _jars(settings: Settings) -> Finding:
    folder = settings.spark.jars or jars_dir()
    absent = [jar.file_name for jar in pinned() if not jar.path_in(folder).is_file()]
    damaged = [jar.file_name for jar in pinned() if jar.file_name not in absent and not jar.is_in(folder)]
    if not absent and not damaged:
        return fine("jars", f"{len(pinned())} jars of Spark's Kafka connector in {folder}")
    problems = [f"{name} is missing" for name in absent] + [f"{name} is damaged" for name in damaged]
    return missing(
        "jars",
        f"in {folder}: {', '.join(problems)}",
        "download them with: headrace doctor --fix; the first start of an app downloads them too",
    )


def _archive(settings: Settings) -> Finding:
    launch = launch_for(settings, say=lambda _: None)
    path = archive_of(launch)
    if path.is_file():
        return fine("class-archive", f"Spark starts from a class archive: {path}")
    if not can_archive(launch):
        return optional(
            "class-archive",
            "this Java cannot use a class archive, so Spark takes about twice as long to start",
            f"use the system's Java (Debian: apt-get install {java.JAVA_PACKAGES[0]})",
        )
    return optional(
        "class-archive",
        "no class archive exists, so Spark takes about twice as long to start",
        "create it with: headrace doctor --fix; this takes about 20 seconds",
    )


def _master(master: str) -> Finding:
    match = re.fullmatch(r"spark://([^:/,]+)(?::(\d+))?(?:,.*)?", master)
    if match is None:
        return optional(
            "master", f"{master} was not checked", "headrace run connects to the master when it starts"
        )
    host, port = match.group(1), int(match.group(2) or _SPARK_PORT)
    reason = why_unreachable(host, port)
    if reason is None:
        return fine("master", f"Spark's master responds at {host}:{port}")
    return missing(
        "master",
        f"Spark's master does not respond at {host}:{port}: {reason}",
        "start it, or correct spark.master",
    )
