"""Spark's Kafka connector: jars by pinned coordinates and SHA-256, fetched once, kept in a cache.

``jars.lock`` is a flat list on purpose: transitive resolution asks for jars that are not needed and that may not be
found. Each jar is fetched alone, by the Ivy that PySpark carries, so that neither Maven nor an address is needed; a
file enters the cache only after its hash was right, by a rename, so that a killed run or two at once leave no half jar.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from headrace.flow.cache import cache_dir
from headrace.flow.start_errors import ExtraMissing, JarDiffers, JarsMissing

__all__ = ["QUICK_START", "Jar", "fetch", "ivy", "jars_dir", "pinned", "provide", "pyspark_home", "read_lock"]

Say = Callable[[str], None]

# For programs that are done in a few seconds: no second compiler, no collector threads.
QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_LOCK = Path(__file__).with_name("jars.lock")
_AT_ONCE = 3
_FETCH_S_MAX = 300
_SAID_LINES_MAX = 15


@dataclass(frozen=True, slots=True)
class Jar:
    """One line of a lock file."""

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
    def file_name(self) -> str:
        return f"{self.name}-{self.revision}.jar"

    def path_in(self, folder: Path) -> Path:
        return folder / self.file_name

    def is_in(self, folder: Path) -> bool:
        path = self.path_in(folder)
        return path.is_file() and _sha256(path) == self.sha256


def read_lock(text: str, name: str = "jars.lock") -> tuple[Jar, ...]:
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
        organisation, artifact, revision, *more = [*coordinates.split(":"), "", ""]
        sha256, _, why = rest.strip().partition(" ")
        if not revision or any(more) or len(sha256) != 64 or not why or not group:
            raise JarsMissing(f"{name} line {number} is not 'organisation:name:revision sha256 why': {line}")
        jars.append(Jar(group, organisation, artifact, revision, sha256, why.strip()))
    return tuple(jars)


@cache
def pinned() -> tuple[Jar, ...]:
    """What Spark needs beside PySpark to read and write topics."""
    return read_lock(_LOCK.read_text(encoding="utf-8"))


def jars_dir() -> Path:
    return cache_dir() / "jars"


def provide(java: Path, *, folder: Path | None = None, say: Say) -> list[Path]:
    """The connector's jars, fetched if they are not there."""
    folder = folder or jars_dir()
    fetch(pinned(), folder, java=java, ivy=ivy(), say=say)
    return [one.path_in(folder) for one in pinned()]


def fetch(jars: Iterable[Jar], folder: Path, *, java: Path, ivy: Path, say: Say) -> None:
    """Bring every jar into the folder; those that are there and right are left alone."""
    missing = [one for one in jars if not one.is_in(folder)]
    if not missing:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise JarsMissing(
            f"jars cannot be kept in {folder}: {error.strerror or error}",
            hint="set HEADRACE_CACHE to a folder that can be written",
        ) from error
    say(f"fetching {len(missing)} jar{'s' * (len(missing) != 1)}, once, into {folder}")
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        running = {pool.submit(_fetch_one, one, folder, java, ivy): one for one in missing}
        try:
            for count, done in enumerate(as_completed(running), start=1):
                done.result()
                one = running[done]
                say(f"jar {count}/{len(missing)}: {one.name} {one.revision}: {one.why}")
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _fetch_one(one: Jar, folder: Path, java: Path, ivy: Path) -> None:
    settings = os.environ.get("HEADRACE_IVY_SETTINGS")
    path = one.path_in(folder)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as work:
        command = [
            *(java, *QUICK_START, "-cp", ivy, "org.apache.ivy.Main"),
            *(("-settings", settings) if settings else ()),
            *("-cache", f"{work}/cache", "-error", "-notransitive"),
            *("-dependency", one.organisation, one.name, one.revision),
            *("-types", "jar", "bundle", "-retrieve", f"{work}/[artifact]-[revision].[ext]"),
        ]
        hint = (
            "check the network and run the command again; behind a mirror, set HEADRACE_IVY_SETTINGS to an Ivy "
            f"settings file; or bring the file from a machine that has it: {path}"
        )
        code, said = _run(command)
        got = Path(work) / one.file_name
        if code is None:
            raise JarsMissing(f"{one.coordinates} did not arrive within {_FETCH_S_MAX} s", hint=hint)
        if code != 0 or not got.is_file():
            raise JarsMissing(f"{one.coordinates} could not be fetched", detail=said, hint=hint)
        found = _sha256(got)
        if found != one.sha256:
            raise JarDiffers(
                f"{one.coordinates} is not the file that was pinned",
                detail=f"SHA-256 found {found}, expected {one.sha256}",
                hint="do not use it: find out who changed it, the sender or the lock file",
            )
        got.replace(path)


def _run(command: Sequence[str | Path]) -> tuple[int | None, str]:
    """Its exit code, none when it took too long, and the end of what it said."""
    try:
        done = subprocess.run(  # noqa: S603  the Java that was found, and PySpark's own Ivy
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_FETCH_S_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, ""
    return done.returncode, "\n".join((done.stdout + done.stderr).splitlines()[-_SAID_LINES_MAX:])


def pyspark_home() -> Path:
    """PySpark's folder, found without importing it."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise ExtraMissing("pyspark")
    return Path(found.origin).parent


def ivy() -> Path:
    found = sorted((pyspark_home() / "jars").glob("ivy-*.jar"))
    if not found:
        raise ExtraMissing("pyspark with its jars (not pyspark-client)")
    return found[-1]


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
