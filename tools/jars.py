"""Fetches the pinned jars: those of headrace itself and additional ones for the tests. Uses
``headrace.flow.spark.jars``.

    python -m tools.jars fetch      download the missing jars
    python -m tools.jars list       print every pinned jar and its purpose
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from headrace.errors import HeadraceError
from headrace.flow.spark import jars
from headrace.flow.spark.jars import Jar
from tools.console import SetupError, finish, print_while_running, say
from tools.java import java
from tools.paths import ROOT, VENV, cache_dir

__all__ = [
    "fetch",
    "for_flows",
    "jar",
    "java_client_classpath",
    "kafka_server_classpath",
    "path_of",
    "pinned",
    "spark_jars",
]

_LOCK = ROOT / "tools" / "jars.lock"


@cache
def pinned() -> tuple[Jar, ...]:
    return (*jars.read_lock(_LOCK.read_text(encoding="utf-8"), "tools/jars.lock"), *jars.pinned())


def for_flows() -> tuple[Jar, ...]:
    """Return the jars that headrace itself needs."""
    return jars.pinned()


def path_of(jar: Jar) -> Path:
    return jar.path_in(cache_dir() / "jars")


def jar(name: str) -> Path:
    """Return the path of one jar. ``name`` is its name, or ``name:revision`` if several revisions are pinned."""
    wanted_name, _, revision = name.partition(":")
    matches = [jar for jar in pinned() if jar.name == wanted_name and revision in ("", jar.revision)]
    if len(matches) != 1:
        choices = ", ".join(jar.coordinates for jar in matches) or "none"
        raise SetupError(f"{name} matches {len(matches)} pinned jars, expected one", detail=choices)
    return _existing_files(matches)[0]


def java_client_classpath() -> list[Path]:
    """Return Apache Kafka's Java client with its codecs, and a logger that writes to standard error."""
    return _existing_files(jar for jar in pinned() if jar.group == "java-client")


def kafka_server_classpath() -> list[Path]:
    """Return Apache Kafka's server and command-line tools."""
    return _existing_files(jar for jar in pinned() if jar.group in ("java-client", "kafka-server"))


def spark_jars() -> list[Path]:
    """Return the jars for ``spark.jars``: Spark's Kafka connector, which PySpark does not include."""
    return _existing_files(jars.pinned())


def fetch(wanted: Sequence[Jar]) -> None:
    """Download every missing or damaged jar into the cache."""
    ivy = sorted(VENV.glob("lib/python3*/site-packages/pyspark/jars/ivy-*.jar"))
    if not ivy:
        raise SetupError(
            "PySpark is not installed; its Ivy jar is needed to download jars", hint="make setup"
        )
    try:
        with print_while_running("fetching jars"):
            jars.fetch(wanted, cache_dir() / "jars", java=java(), ivy=ivy[-1], say=say)
    except HeadraceError as error:
        raise SetupError(error.message, detail=error.detail, hint=error.hint) from error


def _existing_files(wanted: Iterable[Jar]) -> list[Path]:
    paths = [path_of(jar) for jar in wanted]
    absent = [path.name for path in paths if not path.is_file()]
    if absent:
        raise SetupError(f"jars are missing in the cache: {', '.join(absent)}", hint="make setup-test")
    return paths


def main(arguments: Sequence[str]) -> int:
    try:
        match arguments:
            case ["fetch"]:
                fetch(pinned())
            case ["list"]:
                for pinned_jar in pinned():
                    state = "cached " if pinned_jar.is_in(cache_dir() / "jars") else "missing"
                    print(f"{state} {pinned_jar.coordinates}: {pinned_jar.purpose}")
            case _:
                print("usage: python -m tools.jars fetch|list", file=sys.stderr)
                return 2
    except SetupError as error:
        return finish(error)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
