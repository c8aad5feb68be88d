"""Jars for the tests beside those that the product needs itself; fetched as ``headrace.flow.jars`` does it.

python -m tools.jars fetch      get what is missing
python -m tools.jars list       say what there is, and what for
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from headrace.errors import HeadraceError
from headrace.flow import jars
from headrace.flow.jars import Jar
from tools.console import SetupError, finish, say, still_at_it
from tools.java import java
from tools.places import ROOT, VENV, cache_dir

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
    """Those that the product itself needs."""
    return jars.pinned()


def path_of(one: Jar) -> Path:
    return one.path_in(cache_dir() / "jars")


def jar(name: str) -> Path:
    """The path of one jar, by its name or, where several revisions are pinned, by ``name:revision``."""
    wanted, _, revision = name.partition(":")
    found = [one for one in pinned() if one.name == wanted and revision in ("", one.revision)]
    if len(found) != 1:
        choices = ", ".join(one.coordinates for one in found) or "none"
        raise SetupError(f"{name} names {len(found)} of the pinned jars, not one", detail=choices)
    return _there(found)[0]


def java_client_classpath() -> list[Path]:
    """Apache Kafka's Java client with its codecs, and a logger that writes to standard error."""
    return _there(one for one in pinned() if one.group == "java-client")


def kafka_server_classpath() -> list[Path]:
    """Apache Kafka's server and command-line tools."""
    return _there(one for one in pinned() if one.group in ("java-client", "kafka-server"))


def spark_jars() -> list[Path]:
    """What Spark needs beside PySpark to read and write topics; for ``spark.jars``."""
    return _there(jars.pinned())


def fetch(wanted: Sequence[Jar]) -> None:
    """Bring every jar into the cache; those that are there and right are left alone."""
    ivy = sorted(VENV.glob("lib/python3*/site-packages/pyspark/jars/ivy-*.jar"))
    if not ivy:
        raise SetupError("PySpark, whose Ivy fetches the jars, is not installed", hint="make setup")
    try:
        with still_at_it("fetching jars"):
            jars.fetch(wanted, cache_dir() / "jars", java=java(), ivy=ivy[-1], say=say)
    except HeadraceError as error:
        raise SetupError(error.message, detail=error.detail, hint=error.hint) from error


def _there(wanted: Iterable[Jar]) -> list[Path]:
    paths = [path_of(one) for one in wanted]
    absent = [path.name for path in paths if not path.is_file()]
    if absent:
        raise SetupError(f"not in the cache: {', '.join(absent)}", hint="make setup-test")
    return paths


def main(arguments: Sequence[str]) -> int:
    try:
        match arguments:
            case ["fetch"]:
                fetch(pinned())
            case ["list"]:
                for one in pinned():
                    state = "cached " if one.is_in(cache_dir() / "jars") else "missing"
                    print(f"{state} {one.coordinates}: {one.why}")
            case _:
                print("usage: python -m tools.jars fetch|list", file=sys.stderr)
                return 2
    except SetupError as error:
        return finish(error)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
