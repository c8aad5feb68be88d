"""Jars for the tests, by pinned coordinates and SHA-256, in a cache that clones share.

``jars.lock`` is a flat list on purpose: transitive resolution asks for jars that are not needed and that may not be
found. Each jar is fetched alone, by the Ivy that PySpark carries, so that neither Maven nor an address is needed; a
file enters the cache only after its hash was right, by a rename, so that a killed run or two at once leave no half jar.

    python -m tools.jars fetch      get what is missing
    python -m tools.jars list       say what there is, and what for
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tools.console import SetupError, finish, say, still_at_it
from tools.java import QUICK_START, java
from tools.places import ROOT, VENV, cache_dir

__all__ = [
    "Jar",
    "fetch",
    "jar",
    "java_client_classpath",
    "kafka_server_classpath",
    "pinned",
    "spark_jars",
]

_LOCK = ROOT / "tools" / "jars.lock"
_AT_ONCE = 3
_FETCH_S_MAX = 300


@dataclass(frozen=True)
class Jar:
    """One line of the lock file."""

    group: str
    organisation: str
    name: str
    revision: str
    sha256: str
    why: str

    @property
    def coordinates(self) -> str:
        return f"{self.organisation}:{self.name}:{self.revision}"

    @property
    def path(self) -> Path:
        return cache_dir() / "jars" / f"{self.name}-{self.revision}.jar"

    def is_cached(self) -> bool:
        return self.path.is_file() and _sha256(self.path) == self.sha256


def read_lock(text: str) -> tuple[Jar, ...]:
    """Lines ``organisation:name:revision sha256 why`` under ``[group]`` headings."""
    jars: list[Jar] = []
    group = ""
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if line.startswith("["):
            group = line.strip("[]")
            continue
        coordinates, _, rest = line.partition(" ")
        organisation, name, revision, *more = [*coordinates.split(":"), "", ""]
        sha256, _, why = rest.strip().partition(" ")
        if not revision or any(more) or len(sha256) != 64 or not why or not group:
            raise SetupError(
                f"jars.lock line {number} is not 'organisation:name:revision sha256 why': {line}"
            )
        jars.append(Jar(group, organisation, name, revision, sha256, why.strip()))
    return tuple(jars)


@cache
def pinned() -> tuple[Jar, ...]:
    return read_lock(_LOCK.read_text(encoding="utf-8"))


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
    return _there(one for one in pinned() if one.group == "spark")


def fetch(jars: Sequence[Jar]) -> None:
    """Bring every jar into the cache; those that are there and right are left alone."""
    missing = [one for one in jars if not one.is_cached()]
    if not missing:
        return
    folder = cache_dir() / "jars"
    folder.mkdir(parents=True, exist_ok=True)
    say(f"{len(missing)} of {len(jars)} jars are to be fetched into {folder}")
    with ThreadPoolExecutor(_AT_ONCE) as pool, still_at_it("fetching jars"):
        running = {pool.submit(_fetch_one, one, folder): one for one in missing}
        try:
            for count, done in enumerate(as_completed(running), start=1):
                done.result()
                one = running[done]
                say(f"jar {count}/{len(missing)}: {one.name} {one.revision}", one.why)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _fetch_one(one: Jar, folder: Path) -> None:
    settings = os.environ.get("HEADRACE_IVY_SETTINGS")
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as work:
        command = [
            *(java(), *QUICK_START, "-cp", _ivy(), "org.apache.ivy.Main"),
            *(("-settings", settings) if settings else ()),
            *("-cache", f"{work}/cache", "-error", "-notransitive"),
            *("-dependency", one.organisation, one.name, one.revision),
            *("-types", "jar", "bundle", "-retrieve", f"{work}/[artifact]-[revision].[ext]"),
        ]
        hint = (
            "check the network and run the command again; behind a mirror, set HEADRACE_IVY_SETTINGS "
            f"to an Ivy settings file; or put the file there yourself: {one.path}"
        )
        try:
            done = subprocess.run(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_FETCH_S_MAX,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise SetupError(
                f"{one.coordinates} did not arrive within {_FETCH_S_MAX} s", hint=hint
            ) from error
        got = Path(work) / one.path.name
        if done.returncode != 0 or not got.is_file():
            said = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
            raise SetupError(f"{one.coordinates} could not be fetched", detail=said, hint=hint)
        found = _sha256(got)
        if found != one.sha256:
            raise SetupError(
                f"{one.coordinates} is not the file that was pinned",
                detail=f"SHA-256 found    {found}\nSHA-256 expected {one.sha256}",
                hint="do not use it: find out who changed it, the sender or the lock file",
            )
        got.replace(one.path)


def _there(jars: Iterable[Jar]) -> list[Path]:
    paths = [one.path for one in jars]
    absent = [path.name for path in paths if not path.is_file()]
    if absent:
        raise SetupError(f"not in the cache: {', '.join(absent)}", hint="make setup-test")
    return paths


def _ivy() -> Path:
    found = sorted(VENV.glob("lib/python3*/site-packages/pyspark/jars/ivy-*.jar"))
    if not found:
        raise SetupError("PySpark, whose Ivy fetches the jars, is not installed", hint="make setup-test")
    return found[-1]


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main(arguments: Sequence[str]) -> int:
    try:
        match arguments:
            case ["fetch"]:
                fetch(pinned())
            case ["list"]:
                for one in pinned():
                    print(f"{'cached ' if one.is_cached() else 'missing'} {one.coordinates}: {one.why}")
            case _:
                print("usage: python -m tools.jars fetch|list", file=sys.stderr)
                return 2
    except SetupError as error:
        return finish(error)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
